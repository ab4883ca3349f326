"""Figures of parroting, attention at a lag and seasons show the numbers of their results."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import xarray as xr

from tsfm_lens import probes, viz
from tsfm_lens.data import bundled
from tsfm_lens.errors import InputError, UnknownNameError
from tsfm_lens.models import load


@cache
def results() -> dict[str, xr.Dataset]:
    lens = load("bolt-nano")
    context, truth = bundled("co2", "electricity").split(24)
    context = context.tail(120)
    return {
        "parroting": probes.context_parroting(lens.run(context, 24, truth=truth)),
        "seasonality": probes.seasonality_bias(lens.run(context, 24, truth=truth)),
        "lag_attention": probes.lag_attention(load("chronos-nano").run(context.select(0), 8), 12),
    }


def curves(fig) -> dict[str, np.ndarray]:
    return {trace.name: np.asarray(trace.y, dtype=float) for trace in fig.data if trace.name}


def test_copies_are_drawn_beside_the_forecast() -> None:
    ds = results()["parroting"]
    fig = viz.parroting_forecast(ds, series="electricity")
    lag = int(ds["best_lag"][1])
    drawn = curves(fig)
    np.testing.assert_array_equal(drawn["forecast"], ds["forecast"][1])
    np.testing.assert_array_equal(drawn["naive parrot"], ds["parrot"][1])
    np.testing.assert_array_equal(drawn["truth"], ds["truth"][1])
    # the copy that is drawn is the one whose error is given
    copy = drawn[f"context {lag} back"]
    spread = np.nanstd(ds["context"].values[1])
    assert np.abs(copy - drawn["forecast"]).mean() / spread == pytest.approx(float(ds["copy_error"][1]))
    np.testing.assert_array_equal(copy[:lag], ds["context"].values[1][120 - lag :][:24])
    below, best = fig.data[-2:]
    np.testing.assert_array_equal(below.y, ds["lag_error"][1])
    assert (best.x[0], best.y[0]) == (lag, float(ds["copy_error"][1]))
    # the start of the forecast above, the parrot's error below
    assert fig.layout.shapes[-1].y0 == float(ds["parrot_error"][1])
    assert fig.layout.yaxis.title.text == "value (MW)"
    assert "sd of context" in fig.layout.yaxis2.title.text
    with pytest.raises(UnknownNameError, match="electricity"):
        viz.parroting_forecast(ds, series="electrcity")


def test_a_copy_at_a_short_lag_repeats_itself() -> None:
    ds = results()["parroting"].isel(series=[1]).copy(deep=True)
    ds["best_lag"][:], ds["copy_error"][:] = 5.0, float(ds["lag_error"].sel(lag=5)[0])
    copy = curves(viz.parroting_forecast(ds))["context 5 back"]
    np.testing.assert_array_equal(copy, np.tile(ds["context"].values[0][-5:], 5)[:24])


def test_a_constant_context_has_no_copies() -> None:
    ds = results()["parroting"].isel(series=[0]).copy(deep=True)
    for name in ("lag_error", "parrot", "best_lag", "copy_error", "parrot_error", "parrot_match"):
        ds[name] = ds[name] * np.nan
    fig = viz.parroting_forecast(ds)
    assert set(curves(fig)) == {"context", "truth", "forecast"}
    assert "no lag can be copied" in fig.layout.meta["subtitle"]


def test_the_map_of_a_lag_is_in_percent_from_zero() -> None:
    ds = results()["lag_attention"]
    fig = viz.lag_attention_map(ds)
    np.testing.assert_allclose(fig.data[0].z, 100 * ds["mass"])
    assert fig.layout.coloraxis.cmin == 0
    assert fig.layout.coloraxis.colorbar.title.text == "attention (%)"
    assert "at lag 12 of co2" in fig.layout.meta["title"]
    assert "give or take 1" in fig.layout.meta["subtitle"]
    with pytest.raises(InputError, match="autoregressive_attention_map draws that kind"):
        viz.lag_attention_map(ds.assign_attrs(kind="autoregressive_attention"))


def test_amplitudes_are_a_line_a_part_on_shared_axes() -> None:
    ds = results()["seasonality"]
    fig = viz.season_amplitudes(ds)
    assert len(fig.data) == 3 * ds.sizes["series"]
    named = {"context": "end of the context", "truth": "truth", "forecast": "forecast"}
    for i in range(ds.sizes["series"]):
        panel = {trace.name: trace for trace in fig.data[3 * i : 3 * i + 3]}
        for part, name in named.items():
            np.testing.assert_array_equal(panel[name].y, ds["amplitude"].sel(part=part)[i])
            np.testing.assert_array_equal(panel[name].x, ds["trial_period"])
    marks = [shape.x0 for shape in fig.layout.shapes]
    assert marks == [v for p in ds["period"].values for v in (p, ds.attrs["patch"]) if 3 <= v <= 24]
    assert f"period {float(ds['period'][0]):.3g}: {float(ds['amplitude_ratio'][0]):.2f} × context" in (
        fig.layout.annotations[0].text
    )
    assert len({axis.matches for axis in fig.select_yaxes()} - {None}) == 1
    assert len(viz.season_amplitudes(ds, series=["electricity"]).data) == 3
    with pytest.raises(UnknownNameError):
        viz.season_amplitudes(ds, series=[5])


def test_without_a_truth_there_are_two_lines() -> None:
    ds = results()["seasonality"].sel(part=["context", "forecast"])
    assert {trace.name for trace in viz.season_amplitudes(ds).data} == {"end of the context", "forecast"}


def test_figures_of_copies_refuse_other_kinds() -> None:
    ds = results()["seasonality"]
    with pytest.raises(InputError, match="season_amplitudes draws that kind"):
        viz.parroting_forecast(ds)
    with pytest.raises(InputError, match="parroting_forecast draws that kind"):
        viz.season_amplitudes(results()["parroting"])
    with pytest.raises(InputError, match="no variable 'amplitude'"):
        viz.season_amplitudes(ds.drop_vars("amplitude"))
