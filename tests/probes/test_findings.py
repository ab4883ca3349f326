"""Planted leaders stand out and noise does not, and floors are those by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal

import tsfm_lens
from closeness import close_in_float32
from refusals import expect_error
from tiny_lenses import lens_of
from tsfm_lens.core import registry
from tsfm_lens.core.axes import depth_coords
from tsfm_lens.core.estimates import (
    add_estimates,
    corrected,
    twins_of_reports,
    with_twins,
)
from tsfm_lens.core.stats import holm, ratio_units, sign_test
from tsfm_lens.data import bundled
from tsfm_lens.hooks import EditPattern
from tsfm_lens.probes import (
    attribution,
    context_parroting,
    induction_overlap,
    induction_scores,
    layer_gain,
    logit_lens,
)
from tsfm_lens.probes.induction import frequent_tokens

PARTS = ("acts", "size", "low", "high", "p", "leads", "lead_share")


def effects(values: np.ndarray) -> xr.Dataset:
    return xr.Dataset({"effect": (("component", "series"), values)})


def test_the_four_statements_on_planted_effects() -> None:
    rng = np.random.default_rng(2)
    values = 0.004 * rng.normal(size=(10, 12))
    values[3] += 0.5 + 0.1 * rng.random(12)
    values[7] += 0.3 + 0.1 * rng.random(12)
    found = add_estimates(
        effects(values), "effect", floor=0.05, groups=["head"] * 5 + ["mlp"] * 5
    )
    assert found["effect_acts"].values.tolist() == [
        12 * (i in (3, 7)) for i in range(10)
    ]
    assert_allclose(found["effect_size"], np.median(values, axis=1))
    assert_allclose(found["effect_low"], values.min(1))
    assert_allclose(found["effect_high"], values.max(1))
    for part in ("significant", "leads"):
        assert np.flatnonzero(found[f"effect_{part}"]).tolist() == [3, 7]
    assert found["effect_lead_share"].values[[3, 7]].tolist() == [1.0, 1.0]
    metadata = found["effect_p"].attrs
    assert [metadata[name] for name in ("target", "units", "family", "needed")] == [
        "other series like these",
        12,
        10,
        8,
    ]
    assert (found["effect_floor"] == 0.05).all()


def test_one_series_acts_and_decides_nothing() -> None:
    found = add_estimates(
        effects(np.array([[0.4], [0.3], [0.0], [np.nan]])), "effect", floor=0.05
    )
    assert found["effect_acts"].values.tolist() == [1, 1, 0, 0]
    assert (
        found["effect_low"].values[0]
        == found["effect_high"].values[0]
        == found["effect_size"].values[0]
        == 0.4
    )
    assert not found["effect_significant"].any()
    assert not found["effect_leads"].any()


def test_verdicts_survive_when_series_are_added() -> None:
    """Skewed ratios, of which a t test finds fewer with three series than with one."""
    rng = np.random.default_rng(5)
    values = 0.02 + np.exp(3 * rng.normal(size=(6, 40)))
    for count in range(1, 41):
        found = add_estimates(
            effects(values[:, :count]), "effect", floor=1e-6, signed=True
        )
        assert (found["effect_acts"] == count).all()
        assert bool(found["effect_significant"].all()) == (
            count >= found["effect_p"].attrs["needed"]
        )


def test_windows_are_averaged_within_series() -> None:
    """Windows are averaged within series; of a single series they are the units."""
    rng = np.random.default_rng(9)
    values = rng.normal(size=(4, 12)) + 1.0

    def of_items(items: list[str]) -> xr.Dataset:
        data = effects(values).assign_coords(item=("series", items))
        return add_estimates(data, "effect", floor=0.0, signed=True)

    found = of_items([f"s{i % 3}" for i in range(12)])
    by_series = values.reshape(4, 4, 3).mean(1)
    assert_allclose(found["effect_size"], np.median(by_series, axis=1))
    metadata = found["effect_p"].attrs
    assert (metadata["units"], metadata["entries"]) == (3, 12)
    alone = of_items(["s"] * 12)
    assert alone["effect_p"].attrs["target"] == "other times of this series"
    assert_allclose(alone["effect_p"], sign_test(values, 0.01))


def test_a_page_is_one_family() -> None:
    rng = np.random.default_rng(10)
    one, other = (
        add_estimates(effects(rng.normal(size=(k, 9)) + 2.0), "effect", floor=0.0)
        for k in (2, 30)
    )
    assert one["effect_significant"].all()
    page = corrected({"one": one, "other": other})
    together = (
        holm(np.concatenate([page[key]["effect_p"].values for key in page])) <= 0.05
    )
    assert [
        bool(item) for key in page for item in page[key]["effect_significant"]
    ] == together.tolist()
    assert {page[key]["effect_p"].attrs["family"] for key in page} == {32}


def test_only_effects_beyond_twins_are_learned() -> None:
    """Only what no untrained twin has is called learned."""
    rng = np.random.default_rng(11)
    sizes = np.abs(rng.normal(size=(6, 8))) / 20
    sizes[2] += 3.0
    twins = [
        add_estimates(
            effects(np.abs(rng.normal(size=(6, 8))) / 20), "effect", floor=0.0
        )
        for _ in range(24)
    ]
    found = with_twins(add_estimates(effects(sizes), "effect", floor=0.0), twins)
    assert np.flatnonzero(found["effect_learned"]).tolist() == [2]
    assert int(found["effect_twin_rank"][2]) == 1
    assert found["effect_twins"].sizes == {"twin": 24, "component": 6}
    like = with_twins(twins[0], twins[1:])
    assert not like["effect_learned"].any()


def test_members_are_judged_as_one_list() -> None:
    """Flattened by hand into components, the same effects have the same verdicts."""
    rng = np.random.default_rng(6)
    values = 0.1 * rng.normal(size=(4, 5, 3, 7))
    values[2, 1, 0] += 1.0
    values[0, 3, 2] -= 2.0
    grid = xr.DataArray(
        values,
        dims=("layer", "head", "metric", "series"),
        coords={"metric": ["a", "b", "c"]},
    )
    floors = rng.uniform(0.05, 0.1, size=(3, 7))
    found = add_estimates(
        xr.Dataset({"effect": grid}),
        "effect",
        floor=xr.DataArray(floors, dims=("metric", "series")),
        signed=True,
        groups="metric",
    )
    for at, floor in enumerate(floors):
        flat = effects(values[:, :, at].reshape(20, 7))
        alone = add_estimates(flat, "effect", floor=floor, signed=True)
        for part in PARTS:
            cell = found[f"effect_{part}"].isel(metric=at)
            assert_array_equal(cell.values.ravel(), alone[f"effect_{part}"])
    assert np.argwhere(found["effect_leads"].values).tolist() == [[0, 3, 2], [2, 1, 0]]


def test_ratios_have_pooled_mean_and_spread() -> None:
    """Its standard error is that of Cochran's ratio estimator; of equal counts the
    units are their own means.
    """
    rng = np.random.default_rng(0)
    totals = rng.normal(size=(3, 12))
    counts = rng.integers(1, 9, 12)
    units = ratio_units(totals, counts)
    ratio = totals.sum(-1) / counts.sum()
    assert_allclose(units.mean(-1), ratio)
    error = (
        np.sqrt(np.square(totals - ratio[:, None] * counts).sum(-1) / 11 / 12)
        / counts.mean()
    )
    assert_allclose(units.std(-1, ddof=1) / np.sqrt(12), error)
    assert_allclose(ratio_units(totals, np.full(12, 2)), totals / 2)


def test_heads_must_beat_chance_and_others() -> None:
    """A head that always finds the key leads; one that attends evenly, or writes
    nothing, does not stand out.
    """
    lens = lens_of("chronos")
    motif = 6
    repeats = 3

    def found_keys(pattern: torch.Tensor) -> torch.Tensor:
        out = torch.full_like(pattern, 1.0 / pattern.shape[-1])
        out[:, 0] = 0.0
        for query in range(1, out.shape[-2]):
            out[:, 0, query, (repeats - 1) * motif + query] = 1.0
        return out

    with (
        lens.edit(EditPattern("decoder.0.cross_attn", found_keys)),
        lens.ablate("decoder.1.cross_attn.2"),
    ):
        found = induction_scores(
            lens,
            motif=motif,
            repeats=repeats,
            n_sequences=12,
            decoding="forced",
            positions="all",
        )
    leads = np.argwhere(found["prefix_matching_leads"].values)
    assert leads.tolist() == [[0, 0]]
    assert not found["prefix_matching_significant"].sel(layer=0)[1:].any()
    close_in_float32(found["prefix_matching_floor"], 1 / (motif * repeats + 1))
    assert not bool(found["copy_score_significant"].sel(layer=1, head=2))
    for name in ("prefix_matching", "copy_score"):
        mean = found[f"{name}_by_sequence"].mean("sequence")
        xr.testing.assert_allclose(mean, found[name])
    assert found["copy_score_p"].attrs["target"] == "other sequences drawn like these"
    overlap = induction_overlap(found)
    spread = found["entropy"] - found["entropy"].min()
    assert_allclose(overlap["normalised"], spread / spread.max())
    for part in (*PARTS, "floor"):
        name = f"copy_score_{part}"
        xr.testing.assert_identical(overlap[name], found[name])


def test_liking_all_tokens_is_not_copying() -> None:
    """Where every token that a motif can hold is the right one, the copy score is its
    own floor.
    """
    lens = lens_of("chronos")
    narrow = {"within": 1e-3, "motif": 3, "repeats": 2, "n_sequences": 4}
    found = induction_scores(lens, **narrow, decoding="forced", positions="last")
    assert len(frequent_tokens(lens, narrow["within"])) == 1
    floor = found["copy_score_floor"].mean("sequence")
    close_in_float32(floor, np.fmax(found["copy_score"], 0), magnitude=10.0)
    assert not found["copy_score_significant"].any()


def test_noisy_copies_count_as_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A forecast that is a copy is one within the noise of the series."""
    nano = tsfm_lens.load("chronos-nano")
    season = np.tile([0.0, 2.0, 1.0, 5.0, 3.0, 4.0, -1.0], 8)
    noise = np.random.default_rng(1)
    true = nano.forecast

    def noisy(series: Any, horizon: int, **options: Any) -> Any:
        found = true(series, horizon, **options)
        found.samples[:] = season[-49:][:horizon] + 0.1 * noise.normal(
            size=(*found.samples.shape[:1], 1, horizon)
        )
        found.quantiles[:] = found.samples[:, :1]
        return found

    monkeypatch.setattr(nano, "forecast", noisy)
    run = nano.run([season] * 6, 14, num_samples=2)
    found = context_parroting(run)
    assert not bool(found["copy_error_significant"])
    separate = np.abs(run.redraw().forecast.median - run.forecast.median).mean(-1)
    assert_allclose(found["copy_error_floor"], separate / season.std())


@pytest.mark.parametrize("name", ["chronos-nano", "bolt-nano"])
def test_attributions_tell_how_many_series_agree(name: str) -> None:
    """Attributions and gains say on how many series they act."""
    batch = bundled("co2", "pedestrians", "electricity").tail(128)
    run = tsfm_lens.load(name).run(batch, 12, holdout=True)
    parts = attribution(run)
    steps = parts["attribution"]
    if "quantile" in steps.dims:
        steps = steps.sel(quantile=0.5)
    steps = steps.isel(step=slice(run.first_step, None))
    size = abs(steps).mean("step")
    mean = steps.mean("step")
    # series of other units count alike
    share = size / size.sum("component")
    up, down = ((sign * mean > 0).mean("series") for sign in (1, -1))
    for found, expected in (
        (parts["size_share"], share),
        (parts["size_share_size"], share.median("series")),
        (parts["attribution_share"], mean / size.sum("component")),
        (parts["sign_agreement"], (np.sign(steps) == np.sign(mean)).mean("step")),
        (parts["series_agreement"], np.maximum(up, down)),
    ):
        assert_allclose(found, expected.transpose(*found.dims))
    gain = layer_gain(logit_lens(run))
    assert gain["gain_leads"].dims == ("metric", "layer")
    assert not gain["gain_acts"].isel(layer=0).any()


def test_gains_within_rounding_are_none() -> None:
    """A layer that moves the forecast by less than rounding has no gain that stands
    out; one that moves it has.
    """
    truth = np.array([[10.0, 12.0], [20.0, 25.0], [5.0, 4.0]])
    layers = np.stack(
        [truth + 1.0, truth + 1.0 + 1e-9 * np.array([[1.0], [1.1], [0.9]]), truth + 0.5]
    )
    data = xr.Dataset(
        {
            "point_forecast": (("layer", "series", "step"), layers),
            "truth": (("series", "step"), truth),
            "rounding": ("series", np.full(3, 1e-6)),
        },
        coords={**depth_coords("layer", 2), "step": [0, 1]},
        attrs={"kind": "logit_lens"},
    )
    found = layer_gain(data)
    assert found["gain_acts"].sel(metric="MAE").values.tolist() == [0, 0, 3]
    without = layer_gain(data.drop_vars("rounding"))
    assert int(without["gain_acts"].sel(metric="MAE", layer=0)) == 3


class CountedRun:
    """What the decorator of probes needs of a run with twins."""

    def __init__(self, n_twins: int = 2) -> None:
        self.n_twins = n_twins

    def twin(self, number: int) -> CountedRun:
        return CountedRun(0)


def test_nested_probes_run_twins_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A probe that calls another probe runs the untrained twins once."""
    monkeypatch.setattr(registry, "_MEASUREMENTS", dict(registry.measurements()))
    calls = []

    def inner(run: Any) -> xr.Dataset:
        calls.append(run)
        return add_estimates(effects(np.ones((2, 3))), "effect", floor=0.0)

    inner = registry.probe()(inner)

    @registry.probe()
    def outer(run: Any) -> xr.Dataset:
        return inner(run)

    assert outer(CountedRun())["effect_twins"].sizes["twin"] == 2
    assert len(calls) == 3
    assert "effect_twins" in inner(CountedRun())


def test_probes_of_several_runs_have_twins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_MEASUREMENTS", dict(registry.measurements()))
    calls = []

    def several(runs: Any, names: Any) -> xr.Dataset:
        calls.append([run.n_twins for run in runs])
        assert names == ["one", "other"]
        return add_estimates(effects(np.ones((2, 3))), "effect", floor=0.0)

    several = registry.probe()(several)
    found = several([CountedRun(2), CountedRun(2)], ["one", "other"])
    assert found["effect_twins"].sizes["twin"] == 2
    assert calls == [[2, 2], [0, 0], [0, 0]]


def test_invalid_numbers_of_twins_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TSFM_LENS_TWINS", "many")
    expect_error("TSFM_LENS_TWINS='many'", twins_of_reports)


@pytest.mark.parametrize("number", [0, 2])
def test_results_without_tests_say_that_they_have_no_twins(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Twins that were asked for and cannot be compared are not left out silently."""
    monkeypatch.setattr(registry, "_MEASUREMENTS", dict(registry.measurements()))

    @registry.probe()
    def untested(run: Any) -> xr.Dataset:
        return effects(np.ones((2, 3)))

    found = untested(CountedRun(number))
    assert ("twins_refused" in found.attrs) == (number > 0)
