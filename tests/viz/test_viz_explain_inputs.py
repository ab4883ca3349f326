"""Figures of what inputs do show the numbers of their results."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import xarray as xr

from tsfm_lens import explain, viz
from tsfm_lens.core.errors import InputError
from tsfm_lens.data import as_series
from tsfm_lens.models import load
from tsfm_lens.viz.input_attribution import read_inputs

HORIZON = 8


@cache
def results() -> dict[str, xr.Dataset]:
    """Of three items with a covariate: a short and a long cut, and the effects over
    all.
    """
    rng = np.random.default_rng(0)
    items = []
    for _ in range(3):
        known = rng.normal(size=72 + HORIZON)
        target = 20 + 5 * np.sin(np.arange(72) / 4) + known[:72]
        items.append(
            {
                "target": target,
                "past_covariates": {"k": known[:72]},
                "future_covariates": {"k": known[72:]},
            }
        )
    run = load("chronos2-nano").run(as_series(items), HORIZON)
    sampled = {"parts": 8, "others": "stretches", "season": 1}
    return {
        "exact": explain.input_attribution(run, 0, reference="mean", parts=3),
        "occlusion": explain.input_attribution(
            run, 1, method="occlusion", reference="zero", parts=2
        ),
        "sampled": explain.input_attribution(
            run, 0, reference="mean", parts=sampled, budget=100, tolerance=0
        ),
        "effects": explain.input_effects(run, parts=2),
    }


def by_step(ds: xr.Dataset) -> np.ndarray:
    """(segment, step) at the median."""
    return ds["attribution"].sel(quantile=0.5).transpose("segment", "step").values


def groups(ds: xr.Dataset) -> list[np.ndarray]:
    """Sites of each stretch of the target, and of the covariate (the second series) in
    all, largest first.
    """
    steps = by_step(ds)
    row = ds["row"].values
    parts = [*np.flatnonzero(row == 0)[:, None], np.flatnonzero(row == 1)]
    return sorted(parts, key=lambda positions: -np.abs(steps[positions].sum(0)).mean())


def totals(ds: xr.Dataset) -> list[np.ndarray]:
    """(step,) of each group."""
    return [by_step(ds)[positions].sum(0) for positions in groups(ds)]


def test_strips_cover_segments_of_each_series() -> None:
    ds = results()["exact"]
    fig = viz.input_timeline(ds)
    strips = [trace for trace in fig.data if trace.type == "heatmap"]
    assert len(strips) == 2
    size = np.abs(by_step(ds)).mean(1)
    mean = by_step(ds).mean(1)
    np.testing.assert_allclose(
        np.concatenate([np.ravel(strip.z) for strip in strips]), size
    )
    arrows = np.where(np.abs(mean) < 0.9 * size, "↕", np.where(mean > 0, "↑", "↓"))
    assert (
        np.concatenate([np.ravel(strip.text) for strip in strips]).tolist()
        == arrows.tolist()
    )
    for row, strip in enumerate(strips):
        here = ds.isel(segment=np.flatnonzero(ds["row"].values == row))
        edges = [*here["start"].values, here["stop"].values[-1]]
        np.testing.assert_array_equal(np.array(strip.x) + 0.5, edges)
    holed = viz.input_timeline(ds.isel(segment=[0, 2, 3]))
    first = next(trace for trace in holed.data if trace.type == "heatmap")
    assert np.isnan(np.ravel(first.z)[1])
    assert len(first.x) == 4
    drawn = {trace.name: trace for trace in fig.data if trace.name}
    np.testing.assert_array_equal(drawn["forecast"].y, ds["forecast"].sel(quantile=0.5))
    np.testing.assert_array_equal(
        drawn["reference forecast"].y, ds["reference_forecast"].sel(quantile=0.5)
    )


@pytest.mark.parametrize("name", ["input_timeline", "input_waterfall"])
def test_items_missing_a_series_are_refused(name: str) -> None:
    """An item without one of its series is refused."""
    with pytest.raises(InputError, match="covers 2 series, of which 1 are left"):
        getattr(viz, name)(results()["exact"].isel(series=[0]))


def test_a_single_step_is_drawn() -> None:
    ds = results()["exact"].isel(step=[0])
    fig = viz.input_timeline(ds)
    dots = [
        trace
        for trace in fig.data
        if trace.type == "scatter" and trace.mode == "lines+markers"
    ]
    assert [float(trace.y[0]) for trace in dots] == [
        float(ds[name].sel(quantile=0.5)[0])
        for name in ("forecast", "reference_forecast")
    ]
    assert "one step" in str(fig.layout.title.text)


@pytest.mark.parametrize("name", ["exact", "occlusion", "sampled"])
def test_bars_lead_from_reference_to_forecast(name: str) -> None:
    ds = results()[name]
    fig = viz.input_waterfall(ds, top=3)
    # beside the median's, the way to the width of the interval
    way, widths = (trace for trace in fig.data if trace.type == "waterfall")
    outer = ds.isel(quantile=[0, -1])
    narrow, wide = (
        outer[item].mean("step").diff("quantile").item()
        for item in ("reference_forecast", "forecast")
    )
    rounding = ds.attrs["rounding"]
    assert widths.base == pytest.approx(narrow)
    assert widths.base + sum(widths.x) == pytest.approx(wide, abs=2 * rounding)
    reference, forecast = (
        float(ds[item].sel(quantile=0.5).mean())
        for item in ("reference_forecast", "forecast")
    )
    assert way.base == pytest.approx(reference)
    assert way.base + sum(way.x) == pytest.approx(forecast, abs=rounding)
    means = [total.mean() for total in totals(ds)[:3]]
    np.testing.assert_allclose(way.x[:3], means)
    whiskers = [trace.error_x.array for trace in fig.data if trace.type == "scatter"]
    whiskers = [whisker for whisker in whiskers if whisker is not None]
    assert bool(whiskers) == (name == "sampled")
    if name == "sampled":
        distance = ds["mean_half_width"].sel(quantile=0.5).values
        sums = [distance[positions].sum() for positions in groups(ds)[:3]]
        np.testing.assert_allclose(whiskers[0][:3], sums)


def test_readings_name_sum_and_outliers() -> None:
    """Readings give the sum and what stands out."""
    exact = results()["exact"]
    reported = read_inputs(exact)
    sizes = [f"s it by {np.abs(total).mean():.3g}" for total in totals(exact)[:3]]
    assert [reported[0].index(size) for size in sizes] == sorted(
        reported[0].index(size) for size in sizes
    )
    # a mean that hides the moves of single steps is told beside their size
    steps = np.where(np.arange(HORIZON) % 2, -60.0, 59.0)
    alone = xr.DataArray(steps, dims="step") * (exact["segment"] == "k, past")
    hidden, *_ = read_inputs(exact.assign(attribution=exact["attribution"] * 0 + alone))
    assert "most: k in total moves it by 59.5 (up at 4 of 8 steps)." in hidden
    always_up = exact.assign(attribution=abs(alone) + exact["attribution"] * 0)
    assert "most: k in total raises it by 59.5." in read_inputs(always_up)[0]
    always_down = exact.assign(attribution=-always_up["attribution"])
    assert "k in total lowers it by 59.5." in read_inputs(always_down)[0]
    # a step that goes the other way takes from the mean, which the verb goes with
    uneven = xr.where(exact["step"] == 0, -10.0, 60.0) * (exact["segment"] == "k, past")
    mostly_up = exact.assign(attribution=uneven + exact["attribution"] * 0)
    assert "k in total raises it by 51.2." in read_inputs(mostly_up)[0]
    mostly_down = exact.assign(attribution=-mostly_up["attribution"])
    assert "k in total lowers it by 51.2." in read_inputs(mostly_down)[0]
    assert (
        "the explanation holds in part (criteria below)."
        in read_inputs(exact.assign_attrs(verdict="holds in part"))[0]
    )
    separate = results()["exact"].assign(remainder=results()["exact"]["remainder"] + 5)
    assert "Segments also act jointly: +5 belongs to no single one." in read_inputs(
        separate
    )
    assert not any("act jointly" in item for item in reported)
    assert any(
        "Masks were sampled" in item for item in read_inputs(results()["sampled"])
    )
    forecast = 100 + np.repeat([0.0, 10.0], HORIZON // 2)
    for course, text in (
        (forecast, "10 higher in its second half than in its first"),
        (forecast[::-1], "10 lower in its second half"),
        (np.resize([1.0, -1.0], HORIZON), "as high in its second half as in its first"),
    ):
        steps_of = xr.DataArray(course, dims="step")
        changed = exact.assign(forecast=0 * exact["forecast"] + steps_of)
        assert text in read_inputs(changed)[0]
    same = results()["exact"].assign(attribution=0 * results()["exact"]["attribution"])
    assert "No part of the input moves it" in read_inputs(same)[0]
    far = results()["exact"].assign_attrs(reference_distance=50.0)
    assert "50 standard deviations from the mean of the context" in " ".join(
        read_inputs(far)
    )


def test_interval_width_is_split_exactly() -> None:
    """The width of an interval is divided among the inputs exactly."""
    ds = results()["exact"]
    low, high = (ds.sel(quantile=level) for level in (0.1, 0.9))
    parts = (high["attribution"] - low["attribution"]).mean("step").values
    widths = [
        float((high[name] - low[name]).mean())
        for name in ("reference_forecast", "forecast")
    ]
    fig = viz.input_waterfall(ds, quantile=(0.1, 0.9))
    (way,) = (trace for trace in fig.data if trace.type == "waterfall")
    bars = np.array(way.x)
    np.testing.assert_allclose(
        sum(bars), widths[1] - widths[0], atol=ds.attrs["rounding"]
    )
    assert sorted(np.abs(bars))[-1] <= np.abs(parts).sum()
    diamonds = [
        float(mark.x[0])
        for mark in fig.data
        if mark.type == "scatter" and mark.marker.symbol == "diamond"
    ]
    np.testing.assert_allclose(diamonds, widths)
    assert "width of the 0.1 to 0.9 interval" in fig.layout.meta["subtitle"]
    strip = next(
        trace
        for trace in viz.input_timeline(ds, quantile=(0.1, 0.9)).data
        if trace.type == "heatmap"
    )
    size = np.abs(
        (high["attribution"] - low["attribution"]).transpose("segment", "step").values
    ).mean(1)
    np.testing.assert_allclose(np.ravel(strip.z), size[ds["row"].values == 0])
    with pytest.raises(InputError, match="lower and the upper end"):
        viz.input_timeline(ds, quantile=(0.9, 0.1))
