"""Masks that begin alike share what a causal model makes of their beginning, and
nothing else changes.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from closeness import close_in_float32
from tiny_lenses import fresh
from tsfm_lens import explain
from tsfm_lens.models import Lens, Run

PARTS = 6
PATCHES = 12
DEPTH = 1000


@pytest.fixture(scope="module")
def lens() -> Lens:
    return fresh("timesfm-2.5")


def make_run(lens: Lens, horizon: int, steps: int = 96) -> Run:
    rng = np.random.default_rng(0)
    return lens.run(
        5 + np.sin(np.arange(steps) / 4) + 0.3 * rng.normal(size=steps), horizon
    )


def patches(layer: torch.nn.Module, masks: explain.Masks, keep: np.ndarray) -> int:
    """Rows times patches that a layer is shown while masks are forecast."""
    shapes = []
    handle = layer.register_forward_pre_hook(
        lambda _module, args: shapes.append(args[0].shape)
    )
    masks(keep)
    handle.remove()
    return sum(shape[0] * shape[1] for shape in shapes)


def unshared(masks: explain.Masks) -> explain.Masks:
    """The same, each mask by itself."""
    masks.__dict__["_shares"] = False
    return masks


@pytest.mark.parametrize(
    ("horizon", "reference", "steps"),
    [
        (8, "mean", 96),
        (40, "mean", 90),
        (8, "seasonal naive", 90),
        (40, "zero", 96),
        (8, "mean", 0),
    ],
)
def test_shared_forecasts_equal_those_alone(
    lens: Lens, horizon: int, reference: str, steps: int
) -> None:
    """Forecasts by shared computation are those of each mask."""
    run = make_run(lens, horizon, steps or 96)
    parts = explain.segments(run, parts=PARTS, season=1)
    if not steps:
        # segments that end within a patch
        edges = [-96, *range(-95, 1, 19)]
        parts = tuple(
            explain.Segment(f"from {a}", 0, a, b, "past") for a, b in pairwise(edges)
        )
        assert any(part.start % (96 // PATCHES) for part in parts)
    keep = explain.shapley.all_masks(len(parts))
    keep = keep[np.random.default_rng(1).permutation(len(keep))]
    shared = explain.Masks(run, parts, reference)(keep)
    alone = unshared(explain.Masks(run, parts, reference))(keep)
    close_in_float32(shared, alone, depth=DEPTH, magnitude=20.0)


def test_additive_parts_share_exact_forecasts(lens: Lens) -> None:
    """Shared forecasts of additive parts are those of each mask."""
    run = make_run(lens, 8)
    parts = explain.components(run, seasons=[24], events={"dip": (-30, -11)})
    keep = explain.shapley.all_masks(len(parts))
    alone = unshared(explain.Masks(run, parts, "mean"))(keep)
    close_in_float32(
        explain.Masks(run, parts, "mean")(keep), alone, depth=DEPTH, magnitude=20.0
    )


def test_only_differences_of_masks_are_computed(lens: Lens) -> None:
    """No more is computed than what the masks differ in."""
    run = make_run(lens, 8)
    parts = explain.segments(run, parts=PARTS, season=1)
    assert len(parts) == PARTS
    keep = explain.shapley.all_masks(PARTS)
    layer = lens.adapter.model.stacked_xf[0]
    shared = explain.Masks(run, parts, "mean")
    alone = unshared(explain.Masks(run, parts, "mean"))
    for masks in (shared, alone):
        _ = masks.stands, masks.run.spans
    assert patches(layer, alone, keep) == len(keep) * PATCHES
    assert patches(layer, shared, keep) == PATCHES // PARTS * sum(
        2**k for k in range(1, PARTS + 1)
    )


def test_nothing_is_shared_where_inexact(lens: Lens, bolt_run: Run) -> None:
    """Nothing is shared where that would not be exact."""
    run = make_run(lens, 8)
    parts = explain.segments(run, parts=2, season=1)
    assert explain.Masks(run, parts, "mean")._shares
    gap = np.array(run.batch.values[0])
    gap[3] = np.nan
    # gaps are filled from both sides
    for other, reference in ((run, "missing"), (lens.run(gap, 8), "mean")):
        assert not explain.Masks(other, parts, reference)._shares
    assert not explain.Masks(
        bolt_run, explain.segments(bolt_run, parts=2), "mean"
    )._shares
    with lens.ablate("0.mlp"):
        assert not explain.Masks(make_run(lens, 8), parts, "mean")._shares


def test_sharing_leaves_the_model_unchanged(lens: Lens) -> None:
    run = make_run(lens, 8)
    before = lens.forecast(run.batch, 8).quantiles
    masks = explain.Masks(run, explain.segments(run, parts=3, season=1), "mean")
    with pytest.raises(IndexError), lens.adapter.sharing(np.zeros((1, 12), int)):
        raise IndexError
    masks(explain.shapley.all_masks(len(masks.segments)))
    assert "forward" not in lens.adapter.model.__dict__
    assert_array_equal(lens.forecast(run.batch, 8).quantiles, before)
