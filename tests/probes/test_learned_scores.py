"""Learned scores: the mask and its gradient against their definitions, and planted
mechanisms and changes of weights that they find.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from closeness import close_in_float32
from refusals import expect_error
from tiny_lenses import archetypes, fresh, lens_of
from tsfm_lens.core.stats import auroc
from tsfm_lens.data import bundled
from tsfm_lens.hooks.interventions import Zero
from tsfm_lens.models import Lens
from tsfm_lens.probes import learned_scores, tuned_weights
from tsfm_lens.probes.learned_scores import (
    MaskLoss,
    _activation_loss,
    _list_places,
    soft_top_k,
)
from tsfm_lens.probes.sites import list_nodes
from tsfm_lens.probes.tuned_weights import _list_changes, _Mixed
from tsfm_lens.studies.method_scores.series import evaluation_case
from tsfm_lens.testing import assert_close, example_case
from tsfm_lens.viz.learned_scores import read_scores, read_weights
from tsfm_lens.zoo.planted import plant

MASKED = ["chronos", "chronos-bolt"]


def loss_of(run: Any, units: str, nodes: Any = None, how: str = "zero") -> MaskLoss:
    """The loss of masks over all units of a run."""
    places = _list_places(run, list_nodes(run.lens, nodes, "nodes"), units)
    return _activation_loss(run, None, how, places, range(len(run.batch)))


# the cube root of the precision balances rounding and curvature
STEP = float(torch.finfo(torch.float32).eps) ** (1 / 3)


def by_differences(function: Any, at: torch.Tensor) -> torch.Tensor:
    """The gradient of a function by central differences, which read single precision.

    Series are scaled in it even where the model runs in double precision.
    """
    moves = STEP * torch.eye(len(at), dtype=at.dtype)
    ahead = torch.stack([function(at + move) for move in moves])
    behind = torch.stack([function(at - move) for move in moves])
    return (ahead - behind) / (2 * STEP)


@pytest.mark.parametrize("budget", [1, 4, 7])
def test_masks_have_their_budget_and_its_gradient(budget: int) -> None:
    """The mask sums to the budget, keeps the order of the scores, and has the gradient
    of its definition, that of the threshold included.
    """
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(8, dtype=torch.float64, generator=generator)
    weights = torch.randn(8, dtype=torch.float64, generator=generator)
    mask = soft_top_k(scores, budget)
    assert_close(mask.sum(), float(budget), depth=100, magnitude=8.0)
    assert_array_equal(mask.argsort(), scores.argsort())
    leaf = scores.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(soft_top_k(leaf, budget) @ weights, [leaf])
    # the closed form: g <- m (1 - m) / T (g - sum g m (1 - m) / sum m (1 - m))
    slope = mask * (1 - mask)
    expected = slope / 0.5 * (weights - (weights @ slope) / slope.sum())
    assert_close(gradient, expected, depth=100, magnitude=4.0)
    numeric = by_differences(lambda at: soft_top_k(at, budget) @ weights, scores)
    assert float((gradient - numeric).abs().max()) < STEP


@pytest.mark.parametrize("units", ["components", "neurons"])
@pytest.mark.parametrize("name", archetypes(MASKED))
def test_ends_of_a_mask_are_the_model_and_nothing(name: str, units: str) -> None:
    """Ones give the forecast of the model to the last bit, zeros the ablated one."""
    lens = lens_of(name)
    run = lens.run(example_case(lens).batch, 2)
    loss = loss_of(run, units)
    assert_array_equal(loss.full, run.point.astype(np.float32))
    targets = [str(site.target) for site in list_nodes(lens, None, "nodes")]
    if units == "neurons":
        targets = [
            point
            for point in lens.registry.points
            if "decoder" in point and point.endswith("hook_post")
        ]
        edits = [Zero(point) for point in targets]
    else:
        edits = [Zero(target) for target in targets]
    with lens.edit(*edits):
        expected = run.read(lens.forward(run.encoded))
    close_in_float32(loss.nothing, expected.detach(), depth=300)


def test_half_a_mask_mixes_a_write_with_its_base() -> None:
    """At 0.5 a component writes half of what it writes, one half of it else."""
    lens = lens_of("chronos-bolt")
    run = lens.run(example_case(lens).batch, 2)
    loss = loss_of(run, "components", ["decoder.1.mlp"])
    point = "decoder_blocks.1.mlp.hook_out"
    with lens.hooks([(point, lambda value, hook: value / 2)]):
        expected = run.read(lens.forward(run.encoded))
    mixed = loss.forecast(torch.tensor([0.5]))
    close_in_float32(mixed.detach(), expected.detach(), depth=300)


def test_the_gradient_of_a_mask_is_that_of_finite_differences() -> None:
    """In double precision the gradient of the loss is its difference quotient."""
    lens = fresh("chronos-bolt")
    # lens.to() refuses a precision that the library does not run in by itself
    lens.model.double()
    run = lens.run(bundled("co2", "elnino").tail(40), 4)
    loss = loss_of(run, "components", ["decoder.*.cross_attn.*", "decoder.*.mlp"])
    count = len(list_nodes(lens, ["decoder.*.cross_attn.*", "decoder.*.mlp"], "nodes"))
    mask = torch.linspace(0.2, 0.8, count, dtype=torch.float64)
    leaf = mask.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss.mean(leaf), [leaf])
    with torch.no_grad():
        numeric = by_differences(loss.mean, mask)
    assert float((gradient - numeric).abs().max()) < STEP * float(gradient.abs().max())


def test_a_planted_mechanism_has_the_highest_scores() -> None:
    """The parts of a trend are ranked before heads and MLPs without a task."""
    lens_of("chronos-bolt")  # skips where the library is missing
    planted = plant("trend", "chronos-bolt")
    case = evaluation_case(planted.lens(), planted.card, series=6)
    true = set(planted.card.components("mechanism"))
    idle = ["encoder.1.mlp", "decoder.0.mlp", "decoder.0.self_attn.1"]
    found = learned_scores(case.clean, nodes=[*sorted(true), *idle], steps=20)
    labels = found["component"].isin(list(true)).values
    assert auroc(found["score"].values, labels) == 1
    assert found.attrs["best_step"] in found["at"]
    assert f"of {len(labels)} components" in read_scores(found)[0]
    # all kept are the model, and none is nothing
    assert_array_equal(found["kept"][-1], np.ones(found.sizes["series"]))
    close_in_float32(found["kept"][0], 0.0, magnitude=1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"units": "edges"}, "units"),
        ({"how": "noise"}, "how"),
        ({"steps": 0}, "steps is 0"),
        ({"nodes": ["decoder.0.mlp"]}, "1 unit"),
        ({"units": "neurons", "nodes": ["decoder.0.self_attn.1"]}, "hidden layer"),
    ],
)
def test_wrong_options_are_refused(arguments: dict[str, Any], message: str) -> None:
    """An option that has no meaning is refused, and named."""
    run = lens_of("chronos-bolt").run(bundled("co2", "elnino").tail(40), 4)
    expect_error(message, learned_scores, run, **arguments)
    expect_error("windows=", learned_scores, run.select(0))
    expect_error("corrupted=", learned_scores, run, run, how="mean")


def test_series_of_one_group_are_refused() -> None:
    """Of series that see each other none can be held out."""
    lens = lens_of("chronos-2")
    values = np.random.default_rng(0).normal(size=(2, 2, 40))
    expect_error("targets=", learned_scores, lens.run(values, 4))


def moved(base: Lens) -> tuple[Lens, str]:
    """A copy with noise on all weights, and more on the columns by which one head
    writes, with the name of their matrix.
    """
    tuned = copy.deepcopy(base)
    generator = torch.Generator().manual_seed(0)
    part = "decoder.block.1.layer.1.EncDecAttention.o.weight"
    columns = slice(0, tuned.wiring.output_stack.d_head)
    with torch.no_grad():
        for name, weight in tuned.model.named_parameters():
            draw = weight.std(correction=0) * torch.randn(
                weight.shape, generator=generator
            )
            weight += 0.001 * draw
            if name == part:
                weight[:, columns] += draw[:, columns]
    return tuned, part


def test_rows_of_weights_are_set_back_as_by_hand() -> None:
    """Some rows kept are the model whose other weights are those of the base; all are
    the tuned model to the last bit, and none is the base.
    """
    base = lens_of("chronos-bolt")
    tuned, part = moved(base)
    changes = _list_changes(base, tuned)
    (change,) = [change for change in changes if change.name == part]
    assert change.axis == 1
    mixed = _Mixed(tuned, changes)
    run = tuned.run(bundled("co2", "elnino").tail(40), 4)
    count = sum(len(change.rows) for change in changes)
    plain = base.run(run.batch, 4).point
    assert_array_equal(mixed.forecast(run, torch.ones(count)).detach(), run.point)
    assert_array_equal(mixed.forecast(run, torch.zeros(count)).detach(), plain)
    by_hand = copy.deepcopy(base)
    weights = dict(by_hand.model.named_parameters())
    with torch.no_grad():
        weights[part][:, 1] = change.tuned[:, 1]
    mask = torch.cat([torch.zeros(len(other.rows)) for other in changes])
    mask[sum(len(other.rows) for other in changes[: changes.index(change)]) + 1] = 1
    expected = by_hand.run(run.batch, 4).point
    assert_array_equal(mixed.forecast(run, mask).detach(), expected)


def test_a_planted_change_of_a_head_carries_the_change() -> None:
    """Among noise on all weights, the columns by which one head writes come first, and
    they keep the change of the forecast on other series.
    """
    base = lens_of("chronos-bolt")
    tuned, part = moved(base)
    run = base.run(bundled("co2", "elnino", "nile", "sunspots").tail(40), 4)
    found = tuned_weights(base, tuned, run, steps=60)
    columns = range(tuned.wiring.output_stack.d_head)
    labels = found["row"].isin([f"{part} {column}" for column in columns]).values
    assert labels.sum() == len(columns)
    assert auroc(found["score"].values, labels) > 0.95
    assert found["cumulative_weights"][-1] == 1
    assert found["gain"][-1] == 1
    assert found.attrs["weights"] < 0.2
    assert "of the changed weights" in read_weights(found)[0]
    expect_error("nothing differs", tuned_weights, base, base, run)
    expect_error("three|3 or more", tuned_weights, base, tuned, run.select([0, 1]))
