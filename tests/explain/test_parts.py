"""Additive parts of the past: planted ones come back, they sum to the series, and
results and figures keep them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_array_equal

from closeness import close_in_float32
from refusals import expect_error
from tsfm_lens import explain, load, viz
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.explain.segments import read_segments
from tsfm_lens.models import Run
from tsfm_lens.testing import assert_close

DEPTH = 2000
LENGTH = 140
WEEK = 7
LINE = 100 + 0.3 * np.arange(LENGTH)
DAYS = np.resize([8.0, -3.0, 2.0, 5.0, -12.0, 4.0, -4.0], LENGTH)


def daily(values: np.ndarray, **more: Any) -> SeriesBatch:
    return as_series(
        {"target": values, "start": "2026-01-01", **more}, freq="D", seasonality=WEEK
    )


def split(series: Any, **options: Any) -> dict[str, np.ndarray]:
    """What each part of the target takes away, at each step of the past."""
    parts = [
        part
        for part in explain.components(series, **options)
        if part.values is not None
    ]
    return {
        part.name: np.pad(part.values, (part.start + LENGTH, -part.stop))
        for part in parts
    }


def test_lines_and_seasons_are_told_apart() -> None:
    truth = {"trend": LINE - LINE.mean(), "season of 7": DAYS, "rest": np.zeros(LENGTH)}
    for name, values in split(daily(LINE + DAYS)).items():
        assert_close(values, truth.pop(name), depth=DEPTH, magnitude=200.0, what=name)
    assert not truth
    assert_close(
        split(daily(LINE), seasons=[])["trend"],
        LINE - LINE.mean(),
        depth=DEPTH,
        magnitude=200.0,
    )


def test_events_are_what_parts_leave_over() -> None:
    """Events are what the other parts do not say."""
    dip = np.zeros(LENGTH)
    days = np.zeros(LENGTH)
    dip[100:106] = -40.0
    days[[24, 55]] = 25.0
    events = {
        "strike": ("2026-04-11", "2026-04-17"),
        "holiday": ["2026-01-25", 55 - LENGTH],
    }
    parts = split(daily(LINE + DAYS + dip + days), events=events)
    assert list(parts) == ["trend", "season of 7", "strike", "holiday", "rest"]
    for name, values in {"strike": dip, "holiday": days, "season of 7": DAYS}.items():
        # the split iterates until it changes little: to a part in four thousand of the
        # largest event
        assert np.abs(parts[name] - values).max() < 40 / 4000, name


def test_calendar_parts_are_means_of_steps() -> None:
    """The calendar takes the mean of the steps that share its value."""
    parts = split(daily(LINE + DAYS), seasons=[], calendar="day of week")
    assert list(parts) == ["trend", "day of week", "rest"]
    # a local regression follows the seasons a little, less than the smallest of them
    assert np.abs(parts["day of week"] - DAYS).max() < 1
    assert_array_equal(parts["day of week"][:-WEEK], parts["day of week"][WEEK:])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"seasons": [6, 12]},
        {"seasons": [], "calendar": "day of week"},
        {"events": {"dip": (-20, -11), "day": -3}},
    ],
)
def test_parts_sum_to_the_series(options: dict[str, Any]) -> None:
    """Parts sum to the series where it has values."""
    values = 50 + np.random.default_rng(0).normal(size=LENGTH).cumsum()
    values[[0, 7, 8, 40, 131]] = np.nan
    level = values - sum(split(daily(values), **options).values())
    assert (np.isnan(level) == np.isnan(values)).all()
    assert_close(
        level[np.isfinite(level)], np.nanmean(level), depth=DEPTH, magnitude=100.0
    )


@pytest.fixture(scope="module")
def run() -> Run:
    values = (LINE + DAYS)[:96] + np.random.default_rng(1).normal(size=96)
    values[[5, 40, 41]] = np.nan
    known = np.random.default_rng(2).normal(size=104)
    entry = daily(
        values, past_covariates={"k": known[:96]}, future_covariates={"k": known[96:]}
    )
    return load("chronos2-nano").run(entry, 8)


def test_results_and_figures_keep_their_parts(run: Run, tmp_path: Path) -> None:
    parts = explain.components(run, events={"dip": (-20, -15)})
    found = explain.input_attribution(run, parts=parts)
    close_in_float32(found["remainder"], 0.0, depth=DEPTH, magnitude=200.0)
    found.to_netcdf(tmp_path / "found.nc")
    with xr.open_dataset(tmp_path / "found.nc") as read:
        again = read_segments(read.transpose())
    assert again == parts
    for part, other in zip(parts, again, strict=True):
        assert_array_equal(part.values, other.values)
    curves = explain.deletion_curves(run, found, orders=4, twin=False)
    assert float(curves["r2"][0]) > 0.5
    routes = explain.input_routes(run, parts=parts, components=["*.mlp"])
    hidden = explain.forecasts(run, parts, ~np.eye(len(parts), dtype=bool))[:, 4]
    total = run.forecast.median[0] - hidden
    close_in_float32(routes["total"], total, depth=DEPTH, magnitude=200.0)
    names = ["target, trend", "target, season of 7", "target, dip", "target, rest"]
    lines = viz.input_timeline(found)
    bars = viz.input_waterfall(found)
    assert list(lines.layout.yaxis3.ticktext) == [*names, "k"]
    assert set(names) <= set(bars.data[0].y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seasons": [70]}, r"a season of 70 steps.*shows 140.*seasons=\[\]"),
        ({"calendar": "weekday"}, "day of week"),
        ({"events": {"late": (-3, 4)}}, "'late'.*outside of the 140 steps"),
        ({"events": {"early": "2025-12-01"}}, "lies outside"),
        ({"events": {"one": -3, "two": [-3]}}, "'two' at -3 overlaps another"),
        ({"events": {"all": (-LENGTH, 0)}}, "all of the past"),
    ],
)
def test_parts_that_cannot_be_are_refused(
    options: dict[str, Any], message: str
) -> None:
    expect_error(message, explain.components, daily(LINE), **options)


def test_unsupported_uses_of_parts_are_refused(run: Run) -> None:
    part = explain.components(run)[0]
    cases = {
        "attention goes to stretches": ("components", "attention rollout"),
        "components": ("component", "occlusion"),
        "called 'target, rest'": (
            explain.components(run, events={"rest": -3}),
            "occlusion",
        ),
        "overlap": ([part, explain.Segment("last", 0, -9, 0, "past")], "occlusion"),
        "expected 9 numbers": (
            [explain.Segment("short", 0, -9, 0, "past", np.ones(8))],
            "occlusion",
        ),
    }
    for text, (parts, method) in cases.items():
        expect_error(text, explain.input_attribution, run, method=method, parts=parts)
    expect_error(
        "no dates, and so no hour of day",
        explain.components,
        as_series(LINE),
        calendar=["hour of day"],
    )
    # what is missing of other series is no matter of the parts
    missing = explain.input_attribution(
        run, method="occlusion", reference="missing", parts="components"
    )
    assert np.isfinite(missing["attribution"]).all()
