"""Causal effects, self-repair and circuits against edited weights and accounting."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch

from refusals import expect_error
from tiny_lenses import NAMES, archetypes, lens_of
from tiny_series import series_for
from tsfm_lens import probes
from tsfm_lens.ablation.points import point_forecasts
from tsfm_lens.core.errors import InputError
from tsfm_lens.data import SeriesBatch, bundled, shift_phase
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.models import Lens, load
from tsfm_lens.probes import (
    causal_effects,
    component_writes,
    minimal_circuit,
    zero_ablation,
)
from tsfm_lens.probes.effects import self_repair
from tsfm_lens.testing import assert_close
from tsfm_lens.zoo.planted import add_cancelling_pair, draw_contexts, mechanisms, plant

TWO = ("co2", "elnino")
KEPT = ("decoder.0.cross_attn.1", "decoder.1.cross_attn.3", "decoder.1.mlp")


@cache
def sparse_lens() -> Lens:
    """A Bolt in whose decoder all but three heads and MLPs write nothing: their output weights are zero."""
    native = copy.deepcopy(lens_of("chronos-bolt").native)
    width = native.model.config.d_kv
    for layer, block in enumerate(native.model.decoder.block):
        for kind, part in (
            ("self_attn", block.layer[0].SelfAttention),
            ("cross_attn", block.layer[1].EncDecAttention),
        ):
            for head in range(native.model.config.num_heads):
                if f"decoder.{layer}.{kind}.{head}" not in KEPT:
                    part.o.weight.data[:, head * width : (head + 1) * width] = 0
        if f"decoder.{layer}.mlp" not in KEPT:
            block.layer[2].DenseReluDense.wo.weight.data[:] = 0
    return load(native, check=False)


@pytest.mark.parametrize(
    "name",
    archetypes(
        [
            "chronos",
            "chronos-2",
            "chronos-bolt",
            "moirai-2",
            "t5",
            "timestral",
            "toto-1",
        ]
    ),
)
def test_a_direct_effect_is_the_readout_without_the_write(name: str) -> None:
    """With everything later held, zeroing a head takes its write off the last stream and does nothing else."""
    lens = lens_of(name)
    chosen = writers(lens.wiring)[::3]
    run = lens.run(series_for(lens, *TWO), 4)
    found = causal_effects(run, components=chosen)
    names, writes = component_writes(run)
    last = writes.sum(0)
    with torch.no_grad():
        plain = run.read(lens.readout(last, run.encoded))
        for index, component in enumerate(chosen):
            without = lens.readout(last - writes[names.index(component)], run.encoded)
            expected = (run.read(without) - plain).double().numpy()
            size = float(plain.abs().max())
            assert_close(
                found["direct"].values[index],
                expected,
                depth=100,
                magnitude=size,
                dtype=np.float32,
            )
    np.testing.assert_allclose(found["indirect"], found["total"] - found["direct"])


@pytest.mark.parametrize("name", archetypes(NAMES))
def test_nothing_repairs_the_last_branch(name: str) -> None:
    lens = lens_of(name)
    last = writers(lens.wiring)[-1]
    found = causal_effects(
        lens.run(series_for(lens, *TWO), 4), components=[last], smallest=0.0
    ).isel(component=0)
    np.testing.assert_allclose(found["total"], found["direct"])
    # a share of one, in the float64 that effects are compared in
    assert_close(found["self_repair"], 0, depth=100, magnitude=1.0)


def test_in_rollouts_too() -> None:
    lens = lens_of("chronos-bolt")
    series, horizon = (
        bundled("co2").tail(40),
        lens_of("chronos-bolt").adapter.longest_pass + 3,
    )
    last = writers(lens.wiring)[-1]
    found = causal_effects(lens.run(series, horizon), components=[last])
    with lens.ablate(last):
        ablated = lens.forecast(series, horizon).median
    plain = lens.forecast(series, horizon).median
    level = float(np.abs(plain).max())
    assert_close(
        found["total"].values[0],
        ablated - plain,
        depth=100,
        magnitude=level,
        dtype=np.float32,
    )
    assert_close(found["indirect"], 0, depth=100, magnitude=level, dtype=np.float32)


def test_self_repair_of_known_effects() -> None:
    direct = np.array([[2.0, -2.0], [1.0, 1.0], [0.1, 0.0], [1.0, 0.0]])
    total = np.array([[1.0, -1.0], [1.0, 1.0], [3.0, 3.0], [-1.0, 5.0]])
    none = np.array([False, False, True, False])
    np.testing.assert_allclose(
        self_repair(total, direct, none), [0.5, 0.0, np.nan, 2.0]
    )
    assert np.isnan(self_repair(total, 0 * direct, np.full(4, False))).all()


@pytest.mark.parametrize("name", ["chronos-bolt", "chronos"])
def test_the_direct_effect_of_an_encoder_is_what_the_decoder_makes_of_its_stream_without_the_write(
    name: str,
) -> None:
    lens = lens_of(name)
    run = lens.run(series_for(lens, *TWO), 4)
    chosen = lens.components("encoder.0.self_attn.1", "encoder.0.mlp", "encoder.1.mlp")
    found = causal_effects(run, components=chosen)
    stream = (
        f"encoder_blocks.{lens.wiring.stack('encoder').n_layers - 1}.hook_resid_post"
    )
    for index, component in enumerate(chosen):
        end = "hook_out" if component.head is None else "hook_result"
        point = f"encoder_blocks.{component.layer}.{component.kind}.{end}"
        write = run.record([point])[point]
        write = write if component.head is None else write[:, :, component.head]
        taken_off = [(stream, lambda value, hook, write=write: value - write)]
        with torch.no_grad():
            without = (
                run.read(lens.run_with_hooks(run.encoded, fwd_hooks=taken_off))
                .double()
                .numpy()
            )
        size = float(np.abs(run.point).max())
        expected = without - run.point
        assert_close(
            found["direct"].values[index],
            expected,
            depth=200,
            magnitude=size,
            dtype=np.float32,
        )
    assert np.abs(found["direct"]).max() > 0


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("ranking", ["greedy", "effects", "edges"])
def test_a_circuit_holds_nothing_that_writes_nothing(
    ranking: str, rounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where kernels sum in another order for every place in a batch: each forecast is off by a few last digits."""
    rng = np.random.default_rng(3)

    def off(*arguments: Any) -> np.ndarray:
        found = point_forecasts(*arguments)
        return found + rounded * rng.integers(-2, 3, found.shape) * np.spacing(
            np.float32(found)
        )

    monkeypatch.setattr(zero_ablation, "point_forecasts", off)
    context = bundled("co2").tail(40)
    runs = [
        sparse_lens().run(each, 4)
        for each in (context, shift_phase(context, 6, period=12))
    ]
    found = minimal_circuit(*runs, ranking=ranking, tolerance=1e-6)
    assert sorted(found["component"].values[found["in_circuit"].values]) == sorted(KEPT)
    for name in ("faithfulness", "completeness"):
        assert_close(found[name], 1, depth=100, dtype=np.float32)
    parts = found["forecast"]
    for one, other in (("circuit", "model"), ("complement", "nothing")):
        assert_close(
            parts.sel(part=one), parts.sel(part=other), depth=100, dtype=np.float32
        )
    order = found["taken"].values
    assert order[order >= 0].tolist() == list(
        range(len(order) - len(KEPT))
    )  # nothing to choose between them
    effects = causal_effects(runs[0])
    silent = [name for name in effects["component"].values if name not in KEPT]
    assert np.isnan(effects["self_repair"].sel(component=silent)).all()
    assert np.isfinite(effects["self_repair"].sel(component="decoder.1.mlp")).all()


def kept_in(circuit: Any) -> set[str]:
    return set(circuit["component"].values[circuit["in_circuit"].values].tolist())


@pytest.mark.parametrize(
    ("mechanism", "name", "ranking"),
    [
        *((*pair, "greedy") for pair in mechanisms() if pair[0] != "covariate"),
        ("trend", "chronos-bolt", "effects"),
        ("seasonal-copy", "chronos-2", "effects"),
    ],
)
def test_heads_that_cancel_each_other_leave_the_circuit_together(
    mechanism: str, name: str, ranking: str
) -> None:
    """With a pair that does nothing together, the circuit is that of the model without the pair."""
    lens_of(name)  # skips where the library is missing
    planted = plant(mechanism, name)
    try:
        with_pair = add_cancelling_pair(planted)
    except InputError:
        pytest.skip("every head of these layers has a task")
    card = with_pair.card
    one, other = map(Component.parse, card.components("cancelling"))
    same_attention = replace(one, head=None)
    beside = [f"{same_attention}.{head}" for head in range(4)]
    nodes = sorted({*(part.component for part in card.parts), *beside})
    series = draw_contexts(card.rule, 2, card.context, seed=1)
    run, plain = (
        with_pair.lens().run(series, card.horizon),
        planted.lens().run(series, card.horizon),
    )

    def faithful_without(*heads: str) -> bool:
        with run.lens.ablate(*heads):
            without = run.lens.run(series, card.horizon).point
        return bool(
            np.sqrt(np.square(without - run.point).mean(-1)).max()
            < 0.1 * np.std(run.point)
        )

    assert faithful_without(str(one), str(other))
    mechanism_heads = card.components("mechanism")
    copied = [
        head
        for head in mechanism_heads
        if replace(Component.parse(head), head=None) == same_attention
    ]
    if any(
        faithful_without(head, str(member))
        for head in copied
        for member in (one, other)
    ):
        pytest.skip("one of the pair can take the place of the head that it copies")
    assert not faithful_without(str(one))
    found, before = (
        minimal_circuit(each, nodes=nodes, ranking=ranking) for each in (run, plain)
    )
    assert kept_in(found) == kept_in(before)
    assert found.attrs["minimal"] == "up to pairs"
    # what never goes one by one is what the pairs are for
    assert {str(one), str(other)} <= kept_in(
        minimal_circuit(run, nodes=nodes, ranking=ranking, pairs=False)
    )


@pytest.mark.parametrize("how", ["zero", "mean"])
def test_greedy_stops_where_nothing_more_can_go(how: str) -> None:
    lens = lens_of("chronos-bolt")
    context = bundled("co2", "elnino").tail(40)
    reference = (
        bundled("pedestrians", "electricity", "sunspots").tail(40)
        if how == "mean"
        else None
    )
    found = minimal_circuit(
        lens.run(context, 4), how=how, reference=reference, tolerance=0.3
    )
    kept = [str(name) for name in found["component"].values[found["in_circuit"].values]]
    gone = [
        str(name) for name in found["component"].values[~found["in_circuit"].values]
    ]
    assert kept
    assert float(found["faithfulness"].mean()) >= 0.7
    model, nothing = (
        found["forecast"].sel(part=part).values for part in ("model", "nothing")
    )

    def faithfulness(*ablated: str) -> float:
        with torch.no_grad(), lens.ablate(*ablated, how=how, reference=reference):
            forecast = lens.forecast(context, 4).median
        gap, whole = ((each - model) ** 2 for each in (forecast, nothing))
        return float((1 - np.sqrt(gap.mean(-1) / whole.mean(-1))).mean())

    assert_close(
        faithfulness(*gone),
        float(found["faithfulness"].mean()),
        depth=100,
        magnitude=1.0,
        dtype=np.float32,
    )
    assert all(faithfulness(*gone, each) < 0.7 + 1e-6 for each in kept)
    assert all(
        faithfulness(*gone, *pair) < 0.7 + 1e-6 for pair in combinations(kept, 2)
    )
    # what each component cost adds up to what is lost, and nothing that stays has a cost
    lost = found["cost"].to_series()
    assert lost[kept].isna().all()
    assert_close(
        float(lost[gone].sum()),
        1 - faithfulness(*gone),
        depth=100,
        magnitude=1.0,
        dtype=np.float32,
    )
    first = gone[int(np.argmin(found["taken"].sel(component=gone).values))]
    assert_close(
        float(lost[first]),
        1 - faithfulness(first),
        depth=100,
        magnitude=1.0,
        dtype=np.float32,
    )
    assert_close(
        found["curve"][len(kept)],
        found["faithfulness"].mean(),
        depth=100,
        magnitude=1.0,
        dtype=np.float32,
    )
    order = found["taken"].values
    assert sorted(order[order >= 0]) == list(range(len(gone)))


def test_a_behaviour_of_ones_own_and_several_at_once() -> None:
    lens = lens_of("chronos-bolt")
    context = bundled("co2", "elnino").tail(40)

    def level(forecasts: np.ndarray) -> np.ndarray:
        return forecasts.mean(-1)

    found = minimal_circuit(
        lens.run(context, 4), behaviour=level, tolerance=0.3, per_round=4
    )
    assert found.attrs["behaviour"] == "level"
    means = found["forecast"].mean("step")
    model, circuit, nothing = (
        means.sel(part=part).values for part in ("model", "circuit", "nothing")
    )
    # from the very forecasts that the result holds, so in float64
    expected = 1 - np.abs(circuit - model) / np.abs(nothing - model)
    assert_close(
        found["faithfulness"], expected, depth=16, magnitude=1.0, dtype=np.float32
    )


def nearly(batch: SeriesBatch, row: int, share: float) -> SeriesBatch:
    """The same series, one of them off by a share of its range."""
    values = list(batch.values)
    values[row] = values[row] + share * np.ptp(values[row]) * np.sin(
        np.arange(len(values[row]))
    )
    return replace(batch, values=tuple(values))


def test_a_series_that_all_nodes_hardly_change_has_no_verdict_and_no_say() -> None:
    clean = bundled("co2", "elnino").tail(40)
    shifted = shift_phase(clean, 6, period=12)
    corrupted = replace(
        shifted, values=(shifted.values[0], nearly(clean, 1, 1e-4).values[1])
    )
    lens = sparse_lens()
    found = minimal_circuit(lens.run(clean, 4), lens.run(corrupted, 4), tolerance=1e-6)
    alone = minimal_circuit(
        lens.run(clean.select(0), 4), lens.run(corrupted.select(0), 4), tolerance=1e-6
    )
    assert found["refused"].values.tolist() == [False, True]
    assert "elnino" in found.attrs["refused"]
    assert "refused" not in alone.attrs
    np.testing.assert_array_equal(found["in_circuit"], alone["in_circuit"])
    for name in ("faithfulness", "completeness"):
        assert np.isnan(found[name].values[1])
        assert_close(
            found[name].values[0],
            alone[name].values[0],
            depth=100,
            magnitude=1.0,
            dtype=np.float32,
        )
        assert float(found[f"{name}_size"]) == found[name].values[0]
    forecasts = found["forecast"]
    gap = np.sqrt(
        ((forecasts.sel(part="nothing") - forecasts.sel(part="model")) ** 2).mean(
            "step"
        )
    )
    np.testing.assert_allclose(found["gap"], gap)
    wide = [
        np.ptp([*v, *f])
        for v, f in zip(clean.values, forecasts.sel(part="model").values, strict=True)
    ]
    np.testing.assert_allclose(found["gap_share"], gap / wide)
    with pytest.raises(
        InputError, match=r"by more than 0\.01 of the series' range.*smallest"
    ):
        minimal_circuit(lens.run(clean.select(1), 4), lens.run(corrupted.select(1), 4))


def test_below_the_difference_between_seeds_there_is_no_circuit() -> None:
    """A sampling model's rollouts: with few paths, all that the corruption does is less than another seed does."""
    lens, clean = lens_of("chronos"), bundled("nile", "sunspots").tail(40)
    runs = [
        lens.run(each, 4, rollout=True, num_samples=2)
        for each in (clean, nearly(clean, 0, 0.05))
    ]
    apart = [
        np.sqrt(np.square(run.redraw().forecast.median - run.point).mean(-1))
        for run in runs
    ]
    whole = lens.run(clean, 4, rollout=True, num_samples=2)
    found = minimal_circuit(whole, ranking="effects", smallest=0.0)
    np.testing.assert_allclose(found["gap_floor"], apart[0])
    np.testing.assert_array_equal(found["refused"], found["gap"] <= apart[0])
    expect_error(
        "more sample paths",
        minimal_circuit,
        whole,
        nodes=["decoder.1.cross_attn.0"],
        smallest=0.0,
    )


def test_direct_effects_too_small_for_a_ratio_have_none() -> None:
    lens = lens_of("chronos-bolt")
    batch = bundled("co2", "elnino", "pedestrians").tail(40)
    everything = causal_effects(lens.run(batch, 4), smallest=0.0)
    wide = [
        np.ptp([*v, *f])
        for v, f in zip(batch.values, everything["plain_forecast"].values, strict=True)
    ]
    share = np.abs(everything["direct"]).mean("step") / wide
    np.testing.assert_allclose(everything["direct_share"], share)
    limit = float(share.median())
    some = causal_effects(lens.run(batch, 4), smallest=limit)
    expected = everything["self_repair"].where(everything["direct_share"] > limit)
    np.testing.assert_array_equal(some["self_repair"], expected)
    assert 0 < np.isfinite(expected).sum() < expected.size
    assert (
        not some["self_repair_significant"]
        .where(some["self_repair_size"].isnull(), False)
        .any()
    )


def test_what_was_ablated_is_not_run_again_and_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lens, series = load("bolt-nano"), bundled("co2").tail(64)
    asked: list[str] = []

    def counted(run: Any, variants: Any, progress: Any = None) -> np.ndarray:
        asked.extend(variant.name for variant in variants)
        return point_forecasts(run, variants, progress)

    monkeypatch.setattr(zero_ablation, "point_forecasts", counted)
    alone = probes.causal_effects(lens.run(series, 8))
    assert (
        sum(not name.startswith("direct") for name in asked) == alone.sizes["component"]
    )
    shared = lens.run(series, 8)
    probes.ablation_effects(shared)
    asked.clear()
    found = probes.causal_effects(shared)
    assert all(name.startswith("direct") for name in asked)
    assert_close(
        found["total"].values,
        alone["total"].values,
        depth=1000,
        magnitude=400.0,
        dtype=np.float32,
    )
