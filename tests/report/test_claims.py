"""What a page claims: leaders by the quantity that is named, one baseline, the test of
learning, twins by a rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr

import planted
import tsfm_lens
from tsfm_lens.core import registry
from tsfm_lens.core.estimates import TWIN_WORK, add_estimates, with_twins
from tsfm_lens.core.results import Results
from tsfm_lens.data import bundled
from tsfm_lens.models import Run
from tsfm_lens.probes import ablation_effects, layer_gain, logit_lens
from tsfm_lens.report.cards import make_cards
from tsfm_lens.viz.findings import read_estimate
from tsfm_lens.viz.forecast import naive_forecast, read_forecast
from tsfm_lens.viz.logit_lens import read_gain
from tsfm_lens.viz.zero_ablation import read_ablation

# learned


def sizes(
    observed: list[float], twins: list[list[float]], groups: list[str]
) -> xr.Dataset:
    def result(values: list[float]) -> xr.Dataset:
        data = xr.Dataset(
            {"effect": (("component", "series"), np.tile(np.array(values)[:, None], 9))}
        )
        return add_estimates(data, "effect", floor=0.0, groups=groups)

    return with_twins(result(observed), [result(item) for item in twins])


def test_negative_sentence_states_its_test() -> None:
    """A layer has three times the size that it has in any twin; one twin has a higher
    score in another group.
    """
    rng = np.random.default_rng(0)
    twins = [[0.1, 0.1, 0.2 * float(np.exp(0.05 * rng.normal()))] for _ in range(24)]
    twins[0][0] = 30.0
    found = sizes([0.1, 0.1, 0.8], twins, ["head", "head", "layer"])
    assert (found["effect"][2, 0] > 3 * found["effect_twins"][:, 2]).all()
    assert int(found["effect_twin_rank"][2]) == 1
    assert not found["effect_learned"].any()
    *_, text = read_estimate(found, "effect", "component").standing(
        ["a", "b", "c"], "parts"
    )
    for part in ("None of 3 parts", "test", "score", "24 untrained twins"):
        assert part in text
    assert "larger than all" not in text


def test_a_positive_sentence_names_what_passes() -> None:
    found = sizes([0.1, 5.0, 0.2], [[0.1, 0.1, 0.2]] * 24, ["head", "head", "layer"])
    *_, text = read_estimate(found, "effect", "component").standing(
        ["a", "b", "c"], "parts"
    )
    assert text.startswith("Learned")
    assert re.search(r"\bb\.$", text)
    assert "24 untrained twins" in text


# twins by a rule


class Work:
    """A run whose probes cost so many parameters × forwards, on any machine."""

    def __init__(self, cost: int, n_twins: int = -1) -> None:
        self.cost = cost
        self.n_twins = n_twins
        self.work = 10**15

    def twin(self, number: int) -> Work:
        return Work(self.cost, 0)


def costly(run: Any) -> xr.Dataset:
    run.work += run.cost
    data = xr.Dataset({"effect": (("component", "series"), np.ones((2, 3)))})
    return add_estimates(data, "effect", floor=0.0)


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Callable[..., xr.Dataset]:
    monkeypatch.setattr(registry, "_MEASUREMENTS", dict(registry.measurements()))
    monkeypatch.setenv("TSFM_LENS_TWINS", "3")
    return registry.probe()(costly)


def last_statement(data: xr.Dataset) -> str:
    return read_estimate(data, "effect", "component").standing(["a", "b"], "parts")[-1]


def test_amount_of_work_decides_about_twins(
    probe: Callable[..., xr.Dataset],
) -> None:
    """The amount of work decides whether untrained twins are run."""
    assert probe(Work(TWIN_WORK))["effect_twins"].sizes["twin"] == 3
    beyond = probe(Work(TWIN_WORK + 1))
    assert "effect_twins" not in beyond
    for part in (
        "Not compared with untrained twins",
        "parameters × forwards",
        "--twins 24",
        "twins=24",
    ):
        assert part in last_statement(beyond)
    # the advice works, whatever the work
    asked = probe(Work(10 * TWIN_WORK, n_twins=24))
    assert asked["effect_twins"].sizes["twin"] == 24
    assert "parameters × forwards" not in last_statement(probe(Work(1, n_twins=0)))


def measure_work(name: str, **options: Any) -> tuple[Run, int]:
    run = tsfm_lens.load(name).run(bundled("co2", "nile").tail(64), 4, **options)
    before = run.work
    ablation_effects(run)
    return run, run.work - before


@pytest.mark.parametrize("name", ["bolt-nano", "chronos-nano", "chronos2-nano"])
def test_work_counts_forwards_not_memory(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work counts forward passes and does not depend on memory."""
    run, work = measure_work(name, num_samples=2 if name == "chronos-nano" else None)
    parameters = sum(
        parameter.numel() for parameter in run.lens.adapter.model.parameters()
    )
    variants = ablation_effects(run).sizes["component"]
    assert work % parameters == 0
    # every variant and the model itself on both series, and little besides
    assert variants * 2 < work // parameters <= variants * 2 + 20
    little = 4 * 10**7
    monkeypatch.setattr("tsfm_lens.models.batching.BYTES_AT_ONCE", little)
    monkeypatch.setattr("tsfm_lens.models.batching.memory_limit", lambda _: little)
    again, same = measure_work(name, num_samples=run.num_samples)
    assert again is not run
    assert same == work


def test_a_rollout_counts_every_pass() -> None:
    lens = tsfm_lens.load("chronos-nano")
    before = lens.registry.state.forwards
    lens.forecast(bundled("co2", "nile").tail(64), 6, num_samples=5)
    assert lens.registry.state.forwards - before == 2 * 5 * 6


# gains without a truth


@pytest.mark.parametrize("name", ["bolt-nano", "chronos-nano", "chronos2-nano"])
def test_last_layer_has_no_own_gain(name: str) -> None:
    """The last layer has no gain against its own forecast."""
    samples = None
    if name == "chronos-nano":
        samples = 2
    run = tsfm_lens.load(name).run(
        bundled("co2", "nile", "pedestrians").tail(64), 8, num_samples=samples
    )
    lens = logit_lens(run)
    found = layer_gain(lens, reference="model")
    assert np.isnan(found["gain"].isel(layer=-1)).all()
    assert not found["gain_acts"].isel(layer=-1).any()
    assert np.isfinite(found["gain"].isel(layer=1)).all()
    text = " ".join(read_gain(found))
    assert "100 %" not in text.replace("−", "-").replace("-100", "100")
    assert "own forecast" in text
    known = lens.assign(truth=lens["point_forecast"].isel(layer=-1, drop=True) + 1.0)
    assert np.isfinite(layer_gain(known)["gain"].isel(layer=-1)).all()


# leaders


def ablation(shape: list[float], size: list[float], change: list[float]) -> xr.Dataset:
    """Four heads and MLPs with these distances, shifts and changes of the error, alike
    on twelve series.
    """
    ds = planted.ablation(planted.series([f"s{i}" for i in range(12)], apart=1.0))
    position = np.flatnonzero(ds["kind"].values != "layer")[: len(shape)]
    for name, values in (
        ("spearman_distance", shape),
        ("mean_shift", size),
        ("mae_change", change),
    ):
        effect = np.full(ds[name].shape, 0.001)
        effect[position] = np.array(values)[:, None]
        ds[name] = (("component", "series"), effect)
        ds = add_estimates(ds, name, floor=1e-6, signed=name == "mae_change")
    return ds


def test_leaders_in_size_and_shape_differ() -> None:
    """The leader in size and the leader in shape are told apart."""
    ds = ablation([0.9, 0.1, 0.1, 0.1], [0.1, 0.1, 0.8, 0.1], [0.3, 0.1, 0.5, 0.1])
    labels = [
        str(value) for value in ds["component"].values[ds["kind"].values != "layer"]
    ]
    texts = read_ablation(ds, "spearman_distance")
    (why,) = [
        text
        for text in texts
        if "size" in text and "shape" in text and labels[0] in text
    ]
    assert labels[2] in why
    assert not any("error falls" in text for text in texts)


def test_single_leader_needs_no_remark() -> None:
    """One leader in both size and shape needs no remark."""
    ds = ablation([0.9, 0.1, 0.1, 0.1], [0.8, 0.1, 0.1, 0.1], [0.3, 0.1, 0.5, 0.1])
    assert not any("shape" in item for item in read_ablation(ds, "spearman_distance"))


@pytest.mark.parametrize("leader", [0, 2])
def test_leader_that_hurts_is_remarked_on(leader: int) -> None:
    """A leader without which the error falls is remarked on."""
    change = [0.1, 0.1, 0.1, 0.1]
    change[leader] = -0.4
    ds = ablation([0.9, 0.1, 0.1, 0.1], [0.1, 0.1, 0.8, 0.1], change)
    name = str(ds["component"].values[ds["kind"].values != "layer"][leader])
    (remark,) = [
        item for item in read_ablation(ds, "spearman_distance") if "error falls" in item
    ]
    assert name in remark
    assert "40 %" in remark


def test_card_of_needed_parts_remarks_too() -> None:
    """The card of the needed components has the same remark."""
    ds = planted.ablation()
    baseline = xr.DataArray([229.0, 229.0, 229.0], dims="series")
    ds["mae_baseline"], ds["mae"] = baseline, baseline * (1 + ds["mae_change"])
    (card,) = make_cards({"ablation_effects": ds}, {"ablation_effects": "s1"})
    assert "error falls" not in card["cards"]["a"]["note"]
    ds["mae_change"] = ds["mae_change"] * 0 - 0.4
    ds["mae"] = baseline * (1 + ds["mae_change"])
    (card,) = make_cards({"ablation_effects": ds}, {"ablation_effects": "s1"})
    note = card["cards"]["a"]["note"]
    assert "size" in note
    assert re.search(r"error falls from 229\b.* to 137\b", note)
    # a token decoder's first step is in the error of the forecast, but not in this one
    assert "second step" not in note
    later = ds.assign(first_step_shift=ds["mean_shift"])
    (card,) = make_cards({"ablation_effects": later}, {"ablation_effects": "s1"})
    assert "from the second step on" in card["cards"]["a"]["note"]


# one baseline


@pytest.mark.parametrize("gap", [0, 1, 5])
@pytest.mark.parametrize("name", ["pedestrians", "co2", "nile"])
def test_a_page_has_one_baseline(name: str, gap: int) -> None:
    """Chapter and card tell the error of one naive forecast, that of the last season
    where there is one.
    """
    series = bundled(name).tail(100)
    values = series.values[0].copy()
    if gap:
        values[-14 - gap : -14] = np.nan
    series = type(series)(
        (values,), ids=series.ids, freq=series.freq, units=series.units
    )
    run = tsfm_lens.load("bolt-nano").run(series, 12, holdout=True)
    ds = Results(run)["forecast"]
    season = run.batch.seasonalities[0]
    label, naive = naive_forecast(ds, 0)
    past = run.batch.values[0]
    steps = np.arange(12)
    if season > 1:
        expected = past[len(past) - season + steps % season]
    else:
        expected = np.full(12, past[np.isfinite(past)][-1])
    known = np.isfinite(expected)
    np.testing.assert_allclose(naive[known], expected[known])
    assert np.isfinite(naive).all()
    error = float(np.abs(naive - run.truth[0]).mean())
    text = " ".join(read_forecast(ds, 0))
    (card,) = make_cards({"forecast": ds}, {"forecast": "s1"})
    _, bar = card["cards"][name]["bars"]
    assert bar[0] == label
    assert label in text
    assert f"{error:.3g}" in text
    assert bar[1].split()[0] == f"{error:.4g}"
    assert "last value" not in text + str(card) or season == 1
