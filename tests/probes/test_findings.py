"""Planted leaders stand out and noise does not, and floors are those by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xarray as xr

import tsfm_lens
from tiny_lenses import lens_of
from tsfm_lens.data import bundled
from tsfm_lens.errors import UnknownNameError
from tsfm_lens.hooks import EditPattern
from tsfm_lens.probes import attribute, context_parroting, induction_overlap, induction_scores, layer_gain, logit_lens
from tsfm_lens.probes.findings import judge
from tsfm_lens.probes.induction import frequent_tokens
from tsfm_lens.stats import mean_interval, ratio_units
from tsfm_lens.testing import assert_close

PARTS = ("estimate", "low", "high", "stands_out", "leads")


def effects(values: np.ndarray) -> xr.Dataset:
    return xr.Dataset({"effect": (("component", "series"), values)})


def test_a_planted_leader_is_found_in_its_group() -> None:
    rng = np.random.default_rng(2)
    values = 0.1 + 0.02 * rng.normal(size=(10, 8))
    values[3] += 0.5
    values[7] += 0.3
    found = judge(effects(values), "effect", floor=0.05, groups=["head"] * 5 + ["mlp"] * 5)
    assert np.flatnonzero(found["effect_leads"]).tolist() == [3, 7]
    assert found["effect_low"].values[3] < 0.6 < found["effect_high"].values[3]
    assert (found["effect_floor"] == 0.05).all()
    assert "Benjamini and Yekutieli" in judge(effects(values), "effect", floor=0.0, control="by").attrs["test"]
    with pytest.raises(UnknownNameError, match="holm"):
        judge(effects(values), "effect", floor=0.0, control="bonferroni")  # type: ignore[arg-type]


def test_one_series_is_spoken_of_as_it_is() -> None:
    found = judge(effects(np.array([[0.4], [0.3], [0.0], [np.nan]])), "effect", floor=0.05)
    assert found["effect_stands_out"].values.tolist() == [True, True, False, False]
    assert found["effect_leads"].values.tolist() == [True, False, False, False]
    assert found["effect_low"].values[0] == found["effect_high"].values[0] == 0.4
    assert found.attrs["test"] == "none"
    assert not judge(effects(np.array([[0.4], [0.38]])), "effect", floor=0.05)["effect_leads"].any()
    assert not judge(effects(np.array([[0.04], [0.0]])), "effect", floor=0.05)["effect_leads"].any()


def test_members_of_several_dimensions_are_judged_as_one_list_of_them() -> None:
    """Flattened by hand into components, the same effects have the same verdicts."""
    rng = np.random.default_rng(6)
    values = 0.1 * rng.normal(size=(4, 5, 3, 7))
    values[2, 1, 0] += 1.0
    values[0, 3, 2] -= 2.0
    grid = xr.DataArray(values, dims=("layer", "head", "metric", "series"), coords={"metric": ["a", "b", "c"]})
    floors = xr.DataArray(rng.uniform(0.05, 0.1, size=(3, 7)), dims=("metric", "series"))
    found = judge(xr.Dataset({"effect": grid}), "effect", floor=floors, signed=True, groups="metric")
    for at in range(3):
        flat = effects(values[:, :, at].reshape(20, 7))
        alone = judge(flat, "effect", floor=floors.values[at], signed=True)
        for part in PARTS:
            cell = found[f"effect_{part}"].isel(metric=at)
            np.testing.assert_array_equal(cell.values.reshape(-1), alone[f"effect_{part}"])
    assert found["effect_floor"].dims == ("metric", "series")
    assert np.argwhere(found["effect_leads"].values).tolist() == [[0, 3, 2], [2, 1, 0]]


def test_a_result_says_that_it_is_below_its_noise() -> None:
    rng = np.random.default_rng(8)
    data = effects(0.01 * rng.normal(size=(5, 6)))
    assert judge(data, "effect", floor=1.0).attrs["below_noise"] == "effect: the noise floor is above every effect"
    above = judge(effects(rng.normal(size=(5, 6))), "effect", floor=1e-3)
    assert above.attrs["below_noise"] == "effect: no effect stands out of the noise floor"
    assert "noise" not in judge(effects(np.ones((2, 6))), "effect", floor=0.1).attrs


def test_a_ratio_by_unit_has_the_pooled_mean_and_the_ratios_spread() -> None:
    """Its standard error is that of Cochran's ratio estimator; of equal counts the units are their own means."""
    rng = np.random.default_rng(0)
    totals, counts = rng.normal(size=(3, 12)), rng.integers(1, 9, 12)
    units = ratio_units(totals, counts)
    ratio = totals.sum(-1) / counts.sum()
    np.testing.assert_allclose(units.mean(-1), ratio)
    error = np.sqrt(np.square(totals - ratio[:, None] * counts).sum(-1) / 11 / 12) / counts.mean()
    np.testing.assert_allclose(units.std(-1, ddof=1) / np.sqrt(12), error)
    np.testing.assert_allclose(ratio_units(totals, np.full(12, 2)), totals / 2)


def test_heads_of_repeated_tokens_are_held_against_chance_and_other_tokens() -> None:
    """A head that always finds the key leads; one that attends evenly, or writes nothing, does not stand out."""
    lens = lens_of("chronos")
    motif, repeats = 6, 3
    how = {"motif": motif, "repeats": repeats, "n_sequences": 12, "decoding": "forced", "positions": "all"}

    def found_keys(pattern: torch.Tensor) -> torch.Tensor:
        out = torch.full_like(pattern, 1.0 / pattern.shape[-1])
        out[:, 0] = 0.0
        for query in range(1, out.shape[-2]):
            out[:, 0, query, (repeats - 1) * motif + query] = 1.0
        return out

    with lens.edit(EditPattern("decoder.0.cross_attn", found_keys)), lens.ablate("decoder.1.cross_attn.2"):
        found = induction_scores(lens, **how)
    leads = np.argwhere(found["prefix_matching_leads"].values)
    assert leads.tolist() == [[0, 0]]
    assert not found["prefix_matching_stands_out"].sel(layer="0")[1:].any()
    assert_close(found["prefix_matching_floor"], 1 / (motif * repeats + 1), depth=100, dtype=np.float32)
    assert not bool(found["copy_score_stands_out"].sel(layer="1", head=2))
    for name in ("prefix_matching", "copy_score"):
        np.testing.assert_allclose(found[f"{name}_estimate"], found[name])
        assert (found[f"{name}_low"] <= found[name]).all()
    assert found.attrs["test"].startswith("t tests over sequences")
    overlap = induction_overlap(found)
    spread = found["entropy"] - found["entropy"].min()
    np.testing.assert_allclose(overlap["normalised"], spread / spread.max())
    for part in (*PARTS, "floor"):
        xr.testing.assert_identical(overlap[f"copy_score_{part}"], found[f"copy_score_{part}"])


def test_what_copies_no_more_than_it_likes_all_drawn_tokens_does_not_copy() -> None:
    """Where every token that a motif can hold is the right one, the copy score is its own floor."""
    lens = lens_of("chronos")
    narrow = {"within": 1e-3, "motif": 3, "repeats": 2, "n_sequences": 4, "decoding": "forced", "positions": "last"}
    found = induction_scores(lens, **narrow)
    assert len(frequent_tokens(lens, narrow["within"])) == 1
    floor = found["copy_score_floor"].mean("sequence")
    assert_close(floor, np.fmax(found["copy_score"], 0), depth=100, magnitude=10.0, dtype=np.float32)
    assert not found["copy_score_stands_out"].any()


def test_a_forecast_that_is_a_copy_is_one_within_its_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    nano = tsfm_lens.load("chronos-nano")
    season = np.tile([0.0, 2.0, 1.0, 5.0, 3.0, 4.0, -1.0], 8)
    noise = np.random.default_rng(1)
    true = nano.forecast

    def noisy(series: object, horizon: int, **options: object) -> object:
        found = true(series, horizon, **options)  # type: ignore[arg-type]
        found.samples[:] = season[-49:][:horizon] + 0.1 * noise.normal(size=(*found.samples.shape[:1], 1, horizon))
        found.quantiles[:] = found.samples[:, :1]
        return found

    monkeypatch.setattr(nano, "forecast", noisy)
    run = nano.run([season] * 6, 14, num_samples=2)
    found = context_parroting(run)
    assert not bool(found["copy_error_stands_out"])
    expected = np.abs(run.redraw().forecast.median - run.forecast.median).mean(-1) / season.std()
    np.testing.assert_allclose(found["copy_error_floor"], expected)


@pytest.mark.parametrize("name", ["chronos-nano", "bolt-nano"])
def test_attributions_and_gains_say_what_stands_out(name: str) -> None:
    lens, batch = tsfm_lens.load(name), bundled("co2", "pedestrians", "electricity").tail(128)
    run = lens.run(batch, 12, holdout=True, num_samples=8 if name == "chronos-nano" else None)
    first = run.first_step
    assert first == (name == "chronos-nano")
    parts = attribute(run, decompositions="all")
    steps = parts["attribution"].sel(quantile=0.5) if "quantile" in parts.dims else parts["attribution"]
    steps = steps.isel(step=slice(first, None))
    size, mean = abs(steps).mean("step"), steps.mean("step")
    # series of other units count alike
    share = size / size.sum("component")
    same = (np.sign(steps) == np.sign(mean)).mean("step")
    named = {"mean_absolute": size, "mean_attribution": mean, "size_share": share, "sign_agreement": same}
    for name, expected in (named | {"attribution_share": mean / size.sum("component")}).items():
        np.testing.assert_allclose(parts[name], expected.transpose(*parts[name].dims), err_msg=name)
    up = (mean > 0).mean("series")
    np.testing.assert_allclose(parts["series_agreement"], np.maximum(up, (mean < 0).mean("series")))
    mean, low, high = mean_interval(share.transpose("decomposition", "component", "series").values)
    for part, expected in (("estimate", mean), ("low", low), ("high", high)):
        np.testing.assert_allclose(parts[f"size_share_{part}"], expected)
    gain = layer_gain(logit_lens(run))
    assert gain["gain_leads"].dims == ("metric", "layer")
    assert not gain["gain_stands_out"].isel(layer=0).any()
    assert ("first_step_error" in gain) == bool(first)


def test_gains_within_rounding_are_none() -> None:
    """A layer that moves the forecast by less than rounding has no gain that stands out; one that moves it has."""
    truth = np.array([[10.0, 12.0], [20.0, 25.0], [5.0, 4.0]])
    layers = np.stack([truth + 1.0, truth + 1.0 + 1e-9 * np.array([[1.0], [1.1], [0.9]]), truth + 0.5])
    data = xr.Dataset(
        {
            "point_forecast": (("layer", "series", "step"), layers),
            "truth": (("series", "step"), truth),
            "rounding": ("series", np.full(3, 1e-6)),
        },
        coords={"layer": ["embed", "0", "1"], "step": [0, 1]},
        attrs={"kind": "logit_lens"},
    )
    found = layer_gain(data)
    assert found["gain_stands_out"].sel(metric="MAE").values.tolist() == [False, False, True]
    without = layer_gain(data.drop_vars("rounding"))
    assert bool(without["gain_stands_out"].sel(metric="MAE", layer="0"))
