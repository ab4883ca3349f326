"""Causal effects, self-repair and circuits against edited weights and accounting."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from closeness import close_in_float32
from edited_weights import silenced
from refusals import expect_error
from tiny_lenses import NAMES, archetypes, lens_of
from tiny_series import make_series
from tsfm_lens import probes
from tsfm_lens.ablation.points import point_forecasts
from tsfm_lens.data import SeriesBatch, bundled, shift_phase
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.models import Lens
from tsfm_lens.probes import (
    causal_effects,
    component_writes,
    minimal_circuit,
    zero_ablation,
)
from tsfm_lens.probes.effects import self_repair
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.circuits import read_circuit
from tsfm_lens.zoo.planted import (
    add_cancelling_pair,
    add_second_way,
    draw_contexts,
    plant,
)

TWO = ("co2", "elnino")
KEPT = ("decoder.0.cross_attn.1", "decoder.1.cross_attn.3", "decoder.1.mlp")


@cache
def sparse_lens() -> Lens:
    """A Bolt in whose decoder all but three heads and MLPs write nothing: their output
    weights are zero.
    """
    lens = lens_of("chronos-bolt")
    names = ["decoder.*.*_attn.*", "decoder.*.mlp"]
    return silenced(
        lens,
        [
            component
            for component in lens.components(*names)
            if str(component) not in KEPT
        ],
    )


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
def test_direct_effects_take_the_write_off(name: str) -> None:
    """With everything later held, zeroing a head takes its write off the last stream
    and does nothing else.
    """
    lens = lens_of(name)
    chosen = writers(lens.wiring)[::3]
    run = lens.run(make_series(lens, *TWO), 4)
    found = causal_effects(run, components=chosen)
    names, writes = component_writes(run)
    last = writes.sum(0)
    with torch.no_grad():
        plain = run.read(lens.readout(last, run.encoded))
        for index, component in enumerate(chosen):
            without = lens.readout(last - writes[names.index(component)], run.encoded)
            expected = (run.read(without) - plain).double().numpy()
            size = float(plain.abs().max())
            close_in_float32(found["direct"].values[index], expected, magnitude=size)
    assert_allclose(found["indirect"], found["total"] - found["direct"])


@pytest.mark.parametrize("name", archetypes(NAMES))
def test_nothing_repairs_the_last_branch(name: str) -> None:
    lens = lens_of(name)
    last = writers(lens.wiring)[-1]
    found = causal_effects(
        lens.run(make_series(lens, *TWO), 4), components=[last], smallest=0.0
    ).isel(component=0)
    assert_allclose(found["total"], found["direct"])
    # a share of one, in the float64 that effects are compared in
    assert_close(found["self_repair"], 0, depth=100, magnitude=1.0)


def test_self_repair_of_known_effects() -> None:
    direct = np.array([[2.0, -2.0], [1.0, 1.0], [0.1, 0.0], [1.0, 0.0]])
    total = np.array([[1.0, -1.0], [1.0, 1.0], [3.0, 3.0], [-1.0, 5.0]])
    none = np.array([False, False, True, False])
    assert_allclose(self_repair(total, direct, none), [0.5, 0.0, np.nan, 2.0])
    assert np.isnan(self_repair(total, 0 * direct, np.full(4, False))).all()


@pytest.mark.parametrize("name", ["chronos-bolt", "chronos"])
def test_encoder_effects_pass_through_the_decoder(
    name: str,
) -> None:
    """A direct effect is what the decoder makes of a stream without the write."""
    lens = lens_of(name)
    run = lens.run(make_series(lens, *TWO), 4)
    writes = {
        "encoder.0.self_attn.1": "encoder_blocks.0.self_attn.hook_result",
        "encoder.1.mlp": "encoder_blocks.1.mlp.hook_out",
    }
    found = causal_effects(run, components=list(writes))
    stream = (
        f"encoder_blocks.{lens.wiring.stack('encoder').n_layers - 1}.hook_resid_post"
    )
    for name, point in writes.items():
        write = run.record([point])[point]
        if "attn" in point:
            write = write[:, :, 1]
        taken_off = [(stream, lambda value, hook, write=write: value - write)]
        with torch.no_grad():
            output = lens.run_with_hooks(run.encoded, fwd_hooks=taken_off)
        close_in_float32(
            found["direct"].sel(component=name),
            run.read(output).double().numpy() - run.point,
            depth=200,
            magnitude=float(np.abs(run.point).max()),
        )
    assert np.abs(found["direct"]).max() > 0


@pytest.mark.parametrize("ranking", ["greedy", "effects", "edges"])
def test_circuits_hold_no_silent_nodes(
    ranking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where kernels sum in another order for every place in a batch: each
    forecast is off by a few last digits.
    """
    rng = np.random.default_rng(3)

    def off(*arguments: Any) -> np.ndarray:
        found = point_forecasts(*arguments)
        return found + rng.integers(-2, 3, found.shape) * np.spacing(np.float32(found))

    monkeypatch.setattr(zero_ablation, "point_forecasts", off)
    context = bundled("co2").tail(40)
    runs = [
        sparse_lens().run(item, 4)
        for item in (context, shift_phase(context, 6, period=12))
    ]
    found = minimal_circuit(*runs, ranking=ranking, tolerance=1e-6)
    assert circuit_members(found) == set(KEPT)
    for name in ("faithfulness", "completeness"):
        close_in_float32(found[name], 1)
    parts = found["forecast"]
    for one, other in (("circuit", "model"), ("complement", "nothing")):
        close_in_float32(parts.sel(part=one), parts.sel(part=other))
    repair = causal_effects(runs[0])["self_repair"]
    assert repair.drop_sel(component=list(KEPT)).isnull().all()
    assert np.isfinite(repair.sel(component="decoder.1.mlp")).all()


def test_a_part_that_stands_in_is_found_under_an_ablation() -> None:
    """Of two heads of which either is enough, a circuit has one; without it, the
    other.
    """
    lens_of("chronos-bolt")  # skips where the library is missing
    planted = add_second_way(plant("gate", "chronos-bolt"))
    card = planted.card
    either = {part.component for part in card.parts if "either" in part.does}
    nodes = sorted({part.component for part in card.parts})
    series = draw_contexts(card.rule, 4, card.context, seed=1)
    lens = planted.lens()

    def search() -> set[str]:
        run = lens.run(series, card.horizon)
        found = minimal_circuit(run, nodes=nodes, ranking="effects")
        return either & circuit_members(found)

    first = search()
    with lens.ablate(*first):
        second = search()
    assert len(first) == len(second) == 1
    assert first | second == either


def circuit_members(circuit: Any) -> set[str]:
    return set(circuit["component"].values[circuit["in_circuit"].values].tolist())


@pytest.mark.parametrize(
    ("mechanism", "name", "ranking"),
    [
        ("trend", "chronos-bolt", "greedy"),
        ("trend", "chronos-bolt", "effects"),
        ("trend", "chronos", "greedy"),
        ("seasonal-copy", "chronos-2", "effects"),
    ],
)
def test_cancelling_heads_leave_the_circuit_together(
    mechanism: str, name: str, ranking: str
) -> None:
    """With a pair that does nothing together, the circuit is that of the model without
    the pair.
    """
    lens_of(name)  # skips where the library is missing
    planted = plant(mechanism, name)
    with_pair = add_cancelling_pair(planted)
    card = with_pair.card
    pair = set(card.components("cancelling"))
    attention = replace(Component.parse(min(pair)), head=None)
    heads = [f"{attention}.{head}" for head in range(4)]
    nodes = sorted({*(part.component for part in card.parts), *heads})
    series = draw_contexts(card.rule, 2, card.context, seed=1)
    run, plain = (
        item.lens().run(series, card.horizon) for item in (with_pair, planted)
    )
    found, before = (
        minimal_circuit(item, nodes=nodes, ranking=ranking) for item in (run, plain)
    )
    assert circuit_members(found) == circuit_members(before)
    assert found.attrs["minimal"] == "up to pairs"
    # what never goes one by one is what the pairs are for
    alone = minimal_circuit(run, nodes=nodes, ranking=ranking, order=1)
    assert pair <= circuit_members(alone)
    assert "minimal" not in alone.attrs
    assert "is minimal" not in str(read_circuit(alone))
    assert "no pairs" in str(read_circuit(alone))
    assert "no pairs" not in str(read_circuit(found))


@pytest.mark.parametrize("how", ["zero", "mean"])
def test_greedy_search_stops_at_minimal_circuits(how: str) -> None:
    """The greedy search stops where nothing more can go."""
    lens = lens_of("chronos-bolt")
    context = bundled("co2", "elnino").tail(40)
    rest = bundled("pedestrians", "electricity", "sunspots").tail(40)
    options = {"how": how}
    if how == "mean":
        options["reference"] = rest
    found = minimal_circuit(lens.run(context, 4), **options, tolerance=0.3)
    stays = found["in_circuit"].to_series()
    retained = list(stays.index[stays])
    gone = list(stays.index[~stays])
    assert retained
    model, nothing = (
        found["forecast"].sel(part=part).values for part in ("model", "nothing")
    )

    def lost(*ablated: str) -> float:
        with lens.ablate(*ablated, **options):
            forecast = lens.forecast(context, 4).median
        gap, full = ((item - model) ** 2 for item in (forecast, nothing))
        return float(np.sqrt(gap.mean(-1) / full.mean(-1)).mean())

    assert lost(*gone) <= 0.3
    assert all(lost(*gone, item) > 0.3 - 1e-6 for item in retained)
    assert all(lost(*gone, *pair) > 0.3 - 1e-6 for pair in combinations(retained, 2))
    # what each component cost adds up to what is lost, and nothing that stays has a
    # cost
    cost = found["cost"].to_series()
    assert cost[retained].isna().all()
    first = found["taken"].to_series()[gone].idxmin()
    faithfulness = found["faithfulness"].mean()
    for actual, expected in (
        (1 - faithfulness, lost(*gone)),
        (1 - found["curve"][len(retained)], lost(*gone)),
        (cost[gone].sum(), lost(*gone)),
        (cost[first], lost(first)),
    ):
        close_in_float32(actual, expected, magnitude=1.0)


def test_own_and_several_behaviours_are_allowed() -> None:
    """A behaviour can be the user's own, and several can be searched at once."""
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
    close_in_float32(found["faithfulness"], expected, depth=16, magnitude=1.0)


def nearly(batch: SeriesBatch, row: int, share: float) -> SeriesBatch:
    """The same series, one of them off by a share of its range."""
    values = list(batch.values)
    values[row] = values[row] + share * np.ptp(values[row]) * np.sin(
        np.arange(len(values[row]))
    )
    return replace(batch, values=tuple(values))


def test_unchanged_series_get_no_verdict() -> None:
    """A series that hardly any node changes gets no verdict and no vote."""
    clean = bundled("co2", "elnino").tail(40)
    shifted = shift_phase(clean, 6, period=12)
    corrupted = replace(
        shifted, values=(shifted.values[0], nearly(clean, 1, 1e-4).values[1])
    )
    runs = [sparse_lens().run(item, 4) for item in (clean, corrupted)]
    found = minimal_circuit(*runs, tolerance=1e-6)
    alone = minimal_circuit(*(run.select(0) for run in runs), tolerance=1e-6)
    assert found["refused"].values.tolist() == [False, True]
    assert "elnino" in found.attrs["refused"]
    assert "refused" not in alone.attrs
    assert_array_equal(found["in_circuit"], alone["in_circuit"])
    for name in ("faithfulness", "completeness"):
        assert np.isnan(found[name].values[1])
        close_in_float32(found[name].values[0], alone[name].values[0], magnitude=1.0)
        assert float(found[f"{name}_size"]) == found[name].values[0]
    forecasts = found["forecast"]
    moved = forecasts.sel(part="nothing") - forecasts.sel(part="model")
    assert_allclose(found["gap"], np.sqrt((moved**2).mean("step")))
    expect_error(
        r"by more than 0\.01 of the series' range.*smallest",
        minimal_circuit,
        *(run.select(1) for run in runs),
    )


def test_sampling_noise_is_no_circuit() -> None:
    """A sampling model's rollouts: with few paths, all that the corruption does is less
    than another seed does.
    """
    lens = lens_of("chronos")
    clean = bundled("nile", "sunspots").tail(40)
    full = lens.run(clean, 2, rollout=True, num_samples=2)
    separate = np.square(full.redraw().forecast.median - full.point).mean(-1) ** 0.5
    found = minimal_circuit(full, ranking="effects", smallest=0.0)
    assert_allclose(found["gap_floor"], separate)
    assert_array_equal(found["refused"], found["gap"] <= separate)
    nodes = ["decoder.1.cross_attn.0"]
    expect_error("more sample paths", minimal_circuit, full, nodes=nodes, smallest=0.0)


def test_small_direct_effects_have_no_ratio() -> None:
    run = lens_of("chronos-bolt").run(
        bundled("co2", "elnino", "pedestrians").tail(40), 4
    )
    everything = causal_effects(run, smallest=0.0)
    limit = float(everything["direct_share"].median())
    some = causal_effects(run, smallest=limit)
    expected = everything["self_repair"].where(everything["direct_share"] > limit)
    assert_array_equal(some["self_repair"], expected)
    assert 0 < np.isfinite(expected).sum() < expected.size
    empty = some["self_repair_size"].isnull()
    assert not (some["self_repair_significant"] & empty).any()


def test_finished_ablations_are_reused_unchanged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Forecasts of a rollout by ablation_effects are those of causal_effects."""
    lens = lens_of("chronos-bolt")
    series = bundled("co2").tail(40)
    horizon = lens.adapter.longest_pass + 3
    asked = []

    def counted(run: Any, variants: Any, progress: Any = None) -> np.ndarray:
        asked.extend(variant.name for variant in variants)
        return point_forecasts(run, variants, progress)

    monkeypatch.setattr(zero_ablation, "point_forecasts", counted)
    alone = probes.causal_effects(lens.run(series, horizon))
    again = [name for name in asked if not name.startswith("direct")]
    assert len(again) == alone.sizes["component"]
    shared = lens.run(series, horizon)
    probes.ablation_effects(shared)
    asked.clear()
    found = probes.causal_effects(shared)
    assert all(name.startswith("direct") for name in asked)
    close_in_float32(found["total"], alone["total"], depth=1000, magnitude=400.0)
