"""Routes of the input against patches set by hand, sums that must close, and mechanisms
that are known.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from closeness import close_in_float32
from refusals import expect_error
from tiny_lenses import archetypes, fresh
from tsfm_lens.core.errors import UnknownNameError
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.explain import Segment, input_routes, segments
from tsfm_lens.explain.masking import masked
from tsfm_lens.models import Lens, Run
from tsfm_lens.probes.sites import parse_sites
from tsfm_lens.zoo.planted import plant

# a finite step feels the curvature, of the order of its size
CURVATURE = 0.05


@pytest.fixture(scope="module")
def series() -> SeriesBatch:
    rng = np.random.default_rng(0)
    # around zero, so that the few bins of a tiny token model tell values apart
    return as_series(
        2 * np.sin(np.arange(96) / 4) + rng.normal(size=96), seasonality=24
    )


def by_hand(run: Run, parts: tuple[Segment, ...], number: int, name: str) -> np.ndarray:
    """(step,): plain torch hooks put what a component writes without a segment into the
    forward with it.
    """
    lens, (position,) = run.lens, parse_sites(run.lens, [name])
    keep = np.arange(len(parts))[None] != number
    other = masked(run.batch, parts, keep, "mean", horizon=run.horizon)
    if run.tokens_read:
        options = {"future": run.path}
    else:
        options = {"horizon": run.horizon}
    full = lens.encode(run.batch, **options)
    without = lens.encode(other, **options)
    _, there = lens.run_with_cache(without, names_filter=[position.point])

    def put(value: torch.Tensor, hook: Any) -> torch.Tensor:
        out = value.clone()
        if position.head is None:
            out[:] = there[position.point]
        else:
            out[:, :, position.head] = there[position.point][:, :, position.head]
        return out

    with torch.no_grad(), lens.hooks([(position.point, put)]):
        patched = run.read(lens.forward(full), full)
    with torch.no_grad():
        plain = run.read(lens.forward(full), full)
    return np.asarray((plain - patched)[0].double())


@pytest.mark.parametrize(
    "name",
    archetypes(
        ["chronos", "chronos-bolt", "chronos-2", "moirai-2", "timesfm-2.5", "timestral"]
    ),
)
def test_effects_equal_hand_set_patches(name: str, series: SeriesBatch) -> None:
    """An effect is that of a patch set by hand."""
    lens = fresh(name)
    run = lens.run(series, 4)
    parts = segments(run, parts=2)
    components = [
        str(item)
        for item in lens.components(
            f"{lens.wiring.output_stack.name}.*.mlp".lstrip(".")
        )
    ][:1]
    head = next(row.kind for row in lens.wiring.stacks[0].rows(0) if "attn" in row.kind)
    components.append(f"{lens.wiring.stacks[0].name}.0.{head}.1".lstrip("."))
    routes = input_routes(run, parts=parts, reference="mean", components=components)
    magnitude = float(np.abs(run.point).max())
    for number in range(len(parts)):
        for component in components:
            effect = routes["effect"].sel(component=component)[number].values
            expected = by_hand(run, parts, number, component)
            close_in_float32(
                effect, expected, depth=400, magnitude=magnitude, what=component
            )
    assert float(routes["size"].max()) > float(routes["size_floor"].max())


def test_the_last_branch_reaches_readout_only(bolt_run: Run) -> None:
    """The last branch has no other way than to the readout."""
    last = f"decoder.{bolt_run.lens.wiring.output_stack.n_layers - 1}.mlp"
    routes = input_routes(bolt_run, parts=2, reference="mean", components=[last])
    magnitude = float(bolt_run.point.max())
    handed = routes["branch_direct"].sel(branch=last).values
    close_in_float32(
        routes["effect"].sel(component=last).values,
        handed,
        depth=400,
        magnitude=magnitude,
    )


def test_estimates_are_exact_for_small_changes(bolt_run: Run) -> None:
    """Of a reference that is almost the series itself, first order is all that there
    is.
    """
    parts = segments(bolt_run, parts=2)
    batch = bolt_run.batch
    rng = np.random.default_rng(0)
    near = (
        np.concatenate(
            [
                batch.values[0] + 1e-3 * rng.normal(size=batch.lengths[0]),
                np.full(16, np.nan),
            ]
        ),
    )
    routes = input_routes(bolt_run, parts=parts, reference=near)
    size = np.abs(routes["effect"].values).max()
    error = np.abs(routes["estimate"].values - routes["effect"].values).max()
    assert error <= CURVATURE * size + float(routes["size_floor"].max())


def test_planted_covariates_pass_through_their_head() -> None:
    """A planted covariate goes through its head alone."""
    planted = plant("covariate", "chronos-2")
    lens = planted.lens()
    head = planted.card.components("mechanism")[0]
    rng = np.random.default_rng(1)
    target, past, ahead = (
        rng.normal(size=size) for size in (96, 96, planted.card.horizon)
    )
    item = {
        "target": target.cumsum(),
        "past_covariates": {"k": past},
        "future_covariates": {"k": ahead},
    }
    run = lens.run(as_series([item]), planted.card.horizon)
    parts = segments(run, parts=2)
    routes = input_routes(run, parts=parts, reference="mean")
    future = [
        part.kind == "known covariate" and part.start == 0 for part in parts
    ].index(True)
    one = routes.isel(segment=future)
    share = dict(zip(one["component"].values, one["share"].values, strict=True))
    # the norms feel the covariate, too
    assert share.pop(head) > 0.95
    assert max(np.abs(list(share.values()))) < 0.05
    assert abs(float(one["no_attention_share"])) < 0.05
    # the parts sum to the whole, the readout being all but linear
    assert np.abs(one["rest"]).max() < 0.05 * np.abs(one["total"]).max()


def test_rollouts_have_effects_of_their_passes(bolt: Lens, series: SeriesBatch) -> None:
    """Within the first pass nothing has been fed back yet, so that a rollout's first
    steps are those of one pass.
    """
    most = bolt.longest_pass
    components = ["decoder.0.cross_attn.1"]
    long = bolt.run(series, most + 4)
    assert long.rollout
    routes = input_routes(long, parts=2, reference="mean", components=components)
    once = input_routes(
        bolt.run(series, most), parts=2, reference="mean", components=components
    )
    magnitude = float(np.abs(long.point).max())
    for name in ("effect", "total"):
        first = routes[name].isel(step=slice(most)).values
        close_in_float32(
            first, once[name].values, depth=400, magnitude=magnitude, what=name
        )
    assert routes["effect"].sizes["step"] == most + 4
    assert "estimate" not in routes
    assert routes.attrs["search"] == "full"


def test_gradient_search_agrees_with_full_search(bolt_run: Run) -> None:
    full = input_routes(bolt_run, parts=4, reference="mean")
    assert full.attrs["search"] == "full"
    some = input_routes(bolt_run, parts=4, reference="mean", top=16)
    tried = np.isfinite(some["effect"].values)
    assert (tried.all(-1).sum(-1) == 16 + 8).all()
    close_in_float32(
        some["effect"].values[tried],
        full["effect"].values[tried],
        depth=400,
        magnitude=20,
    )
    assert some.attrs["spot_checks"] == 8 * full.sizes["segment"]
    assert 0 <= some.attrs["miss_rate"] <= some.attrs["miss_rate_high"] <= 1


def test_what_is_no_component_is_refused(bolt_run: Run) -> None:
    expect_error(
        "residual stream",
        input_routes,
        bolt_run,
        components=["decoder_blocks.0.hook_resid_pre"],
    )
    with pytest.raises(UnknownNameError):
        input_routes(bolt_run, components=["decoder.0.mpl"])
    expect_error("top is 0", input_routes, bolt_run, top=0)
