"""Ablated components beside random directions that are as large as their write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from refusals import expect_error
from tiny_lenses import archetypes, having, lens_of
from tsfm_lens import load, probes, viz
from tsfm_lens.core.nulls import centre, claimed, draw_changes
from tsfm_lens.hooks.component import Component
from tsfm_lens.models import Run
from tsfm_lens.probes import zero_ablation
from tsfm_lens.probes.patching import contrast, null_pairs
from tsfm_lens.probes.sites import parse_sites
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.effects import read_effects
from tsfm_lens.viz.patching import read_patching
from tsfm_lens.viz.zero_ablation import read_ablation
from tsfm_lens.zoo.planted import draw_contexts, plant

SERIES = [
    np.sin(2 * np.pi * (np.arange(48) + shift) / 12) + shift for shift in range(4)
]


# a language model takes no series of numbers
@pytest.mark.parametrize(
    "name", archetypes([name for name in having("additive") if name != "t5"])
)
def test_draws_have_the_norm_of_what_is_ablated(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Token by token, for a head, an MLP and a layer, in every architecture."""
    lens = lens_of(name)
    run = lens.run(SERIES, 4, rollout=False)
    every = lens.components("**")
    parts = [part for part in every if part.layer == 0 and part.kind is not None]
    parts = [part for part in parts if part.stack == parts[0].stack]
    # one of the first layer, a head where it has heads, its last branch, and the layer
    chosen = [parts[0], parts[-1], Component(parts[0].stack, 0)]
    seen: list[Any] = []

    def keep(_: Run, variants: Sequence[Any]) -> np.ndarray:
        seen.extend(variants)
        return np.zeros((len(variants), *run.point.shape))

    monkeypatch.setattr(zero_ablation, "point_forecasts", keep)
    zero_ablation.forecast_nulls(run, chosen, 2)
    assert len(seen) == 6
    for index, component in enumerate(chosen):
        norms = write_norms(run, component)
        for variant in seen[2 * index : 2 * index + 2]:
            (patch,) = variant.interventions
            plain = run.record([patch.target])[patch.target]
            change = (patch.source[patch.target] - plain).double().numpy()
            size = float(plain.abs().max())
            assert_close(
                np.linalg.norm(change, axis=-1),
                norms,
                depth=100,
                magnitude=max(size, float(norms.max())),
                dtype=np.float32,
            )


def write_norms(run: Run, component: Component) -> np.ndarray:
    """Norm of what a component adds to the stream, (series, token)."""
    block = f"{run.lens.wiring.stack(component.stack).prefix}.{component.layer}"
    if component.kind is None:
        names = [f"{block}.hook_resid_pre", f"{block}.hook_resid_post"]
        before, after = (run.record([name])[name] for name in names)
        write = after - before
    elif component.head is None:
        name = f"{block}.{component.kind}.hook_out"
        write = run.record([name])[name]
    else:
        name = f"{block}.{component.kind}.hook_result"
        write = run.record([name])[name][:, :, component.head]
    norms: np.ndarray = np.linalg.norm(write.double().numpy(), axis=-1)
    return norms


@pytest.mark.parametrize("seed", range(3))
def test_planted_heads_exceed_draws_of_their_size(seed: int) -> None:
    """The planted encoder head is claimed, which no draw does, and no other is."""
    pytest.importorskip("chronos")
    planted = plant("seasonal-copy", "chronos-bolt", seed=seed)
    lens = planted.lens()
    contexts = draw_contexts(planted.card.rule, 12, planted.card.context, seed=seed)
    run = lens.run(list(contexts), planted.card.horizon)
    data = probes.ablation_effects(run, components=["encoder.*.self_attn.*"], nulls=8)
    true = {name for name in planted.card.components("mechanism") if "encoder" in name}
    assert set(data["component"].values[claimed(data, "mean_shift")].tolist()) == true
    assert (data["null_low"] <= data["null_high"]).all()


def test_sentence_and_figure_have_the_draws() -> None:
    """The sentence says how many move the forecast as far; a band spans them."""
    run = load("bolt-nano").run(SERIES, 6)
    data = probes.ablation_effects(run, components=["*.*.mlp"], nulls=3)
    text = " ".join(read_ablation(data, "spearman_distance"))
    assert "3 random directions" in text
    drawn = viz.ablation_forecasts(data).data
    assert any(trace.name == "draws" for trace in drawn)
    plain = probes.ablation_effects(run, components=["*.*.mlp"])
    assert "mean_shift_nulls" not in plain
    assert "random directions" not in " ".join(
        read_ablation(plain, "spearman_distance")
    )


@pytest.mark.parametrize("at", ["branches", "heads"])
@pytest.mark.parametrize("positions", ["all", 3])
def test_patches_stand_beside_draws_of_their_norm(at: str, positions: Any) -> None:
    """A source of draws differs from the base as much, at right angles."""
    lens = load("bolt-nano")
    runs = lens.run(SERIES, 6), lens.run([one[::-1].copy() for one in SERIES], 6)
    sites = parse_sites(lens, at)
    points = sorted({site.point for site in sites})
    pair = contrast(*runs, sites, base_names=points)
    (drawn,) = null_pairs(pair, sites, 1)
    for point in points:
        base = pair.base_acts[point].double().numpy()
        changes = [
            one[point].double().numpy() - base
            for one in (pair.source_acts, drawn.source_acts)
        ]
        norms = [np.linalg.norm(change, axis=-1) for change in changes]
        scale = float(max(np.abs(base).max(), norms[0].max()))
        assert_close(*norms, depth=100, magnitude=scale, dtype=np.float32)
        products = (changes[0] * changes[1]).sum(-1)
        assert_close(products, 0.0, depth=100, magnitude=scale**2, dtype=np.float32)
    data = probes.activation_patching(*runs, at=at, positions=positions, nulls=2)
    assert data["recovered_nulls"].sizes["null"] == 2
    assert "2 random directions" in " ".join(read_patching(data, 0))
    drawn = viz.patching_map(data).layout
    if positions == "all":
        (shape,) = [shape for shape in drawn.shapes if shape.type == "rect"]
        assert shape.x1 == float(data["recovered_nulls"].max())
    else:
        assert "random directions" in drawn.meta["subtitle"]


def test_direct_effects_stand_beside_draws_with_later_parts_frozen() -> None:
    """Behind the last component nothing is frozen, so both nulls are the same."""
    run = load("bolt-nano").run(SERIES, 6)
    data = probes.causal_effects(run, components=["decoder.*.mlp"], nulls=2)
    direct, total = (data[f"{name}_share_nulls"] for name in ("direct", "total"))
    assert_close(direct[:, -1], total[:, -1], depth=100, dtype=np.float32)
    assert (direct[:, 0] != total[:, 0]).all()
    assert "2 random directions" in " ".join(read_effects(data))


def test_twins_are_compared_without_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes of twins are those of a result without draws; only the model has some."""
    lens = load("bolt-nano")
    options = {"components": ["decoder.*.mlp"]}
    plain = probes.ablation_effects(lens.run(SERIES, 6, twins=2), **options)
    made = []
    draw = zero_ablation.forecast_nulls

    def count(run: Run, *args: Any) -> Any:
        made.append(run.original)
        return draw(run, *args)

    monkeypatch.setattr(zero_ablation, "forecast_nulls", count)
    data = probes.ablation_effects(lens.run(SERIES, 6, twins=2), nulls=2, **options)
    assert made == [None]
    assert data["mean_shift_nulls"].sizes["null"] == 2
    assert data["mean_shift_twins"].equals(plain["mean_shift_twins"])


def test_nulls_of_other_ablations_and_rollouts_are_refused() -> None:
    """The message says which draws there are."""
    run = load("bolt-nano").run(SERIES, 6)
    expect_error("how='noise'", probes.ablation_effects, run, how="noise", nulls=2)
    expect_error("how='mean'", probes.causal_effects, run, how="mean", nulls=2)
    rollout = load("bolt-nano").run(SERIES, 6, rollout=True)
    expect_error("rollout", probes.activation_patching, rollout, rollout, nulls=2)
    expect_error("nulls is -2", probes.ablation_effects, run, nulls=-2)


@pytest.mark.parametrize("count", [1, 2])
def test_draws_of_a_stream_that_does_not_vary_are_refused(count: int) -> None:
    """The decoder of Chronos-Bolt has one token, so one series has no covariance."""
    run = load("bolt-nano").run(SERIES[:count], 6)
    options = {"components": ["decoder.0.mlp"], "nulls": 2}
    expect_error("take more series", probes.ablation_effects, run, **options)
    expect_error("take more series", probes.causal_effects, run, **options)


def test_draws_beside_patches_leave_padding_out() -> None:
    """What a model computes at padding is in no covariance."""
    lens = load("bolt-nano")
    shorter = [SERIES[0], *(one[-16:] for one in SERIES[1:])]
    runs = [lens.run(some, 6) for some in (shorter, [one[::-1] for one in shorter])]
    sites = parse_sites(lens, ["encoder_blocks.1.hook_resid_pre"])
    name = sites[0].point
    pair = contrast(*runs, sites, base_names=[name])
    (drawn,) = null_pairs(pair, sites, 1)
    shown = pair.base.encoded.shown("encoder").numpy()
    assert not shown.all()
    acts = [one[name].double().numpy() for one in (pair.base_acts, pair.source_acts)]
    rows = centre(np.concatenate([one[shown] for one in acts]))
    expected = draw_changes(rows, 1, acts[1] - acts[0], pair.base.seed)[0]
    found = drawn.source_acts[name].double().numpy() - acts[0]
    scale = float(np.abs(acts[0]).max())
    assert_close(found, expected, depth=1, magnitude=scale, dtype=np.float32)
