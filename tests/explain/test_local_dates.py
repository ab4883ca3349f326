"""Dates that a user gives are of the clock that the file shows, or say their offset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from refusals import expect_error
from tiny_lenses import lens_of
from tsfm_lens import explain
from tsfm_lens.core.estimates import Result
from tsfm_lens.explain.parts import _classes
from tsfm_lens.explain.segments import find_step
from tsfm_lens.models import Run
from tsfm_lens.report.explanation import Explanation
from tsfm_lens.report.pipeline import as_plain
from tsfm_lens.viz.panels import timeline
from tsfm_lens.viz.tables import steps_table

HOURS = pd.date_range("2025-10-18", periods=240, freq="h", tz="UTC")


def make_run(times: pd.Index, **options: object) -> Run:
    load = 20 + 5 * np.sin(np.arange(240) / 24 * 2 * np.pi)
    frame = pd.DataFrame({"time": times, "load": load, "heat": load - 10})
    return lens_of("chronos-2").run(
        frame[:216], 24, future=frame[216:].drop(columns="load"), **options
    )


def steps(run: Run, *dates: object) -> list[int]:
    row = int(np.flatnonzero([role == "known" for role in run.batch.roles])[0])
    return [find_step(run.batch, row, date) for date in dates]


@pytest.fixture(scope="module")
def vienna() -> Run:
    """The local clock of a file, with the hour of autumn twice, and no offsets."""
    return make_run(
        HOURS.tz_convert("Europe/Vienna").tz_localize(None), timezone="Europe/Vienna"
    )


def test_dates_without_offsets_are_local(vienna: Run) -> None:
    # the forecast begins at 0:00 in UTC, 1:00 in Vienna
    assert steps(
        vienna, "2025-10-27 08:00", "2025-10-27 08:00+01:00", "2025-10-27 08:00+05:00"
    ) == [7, 7, 3]
    assert steps(vienna, pd.Timestamp("2025-10-27 08:00", tz="Europe/Vienna")) == [7]
    found = explain.what_if(
        vienna,
        heat="+1",
        start="2025-10-27 08:00",
        stop="2025-10-27 10:00",
        routes=False,
    )
    assert (int(found["start"][0]), int(found["stop"][0])) == (7, 9)


@pytest.mark.parametrize(
    ("zone", "first"),
    [
        ("Europe/Vienna", "2025-10-27T01:00:00+01:00"),
        ("Asia/Kolkata", "2025-10-27T05:30:00+05:30"),
        ("", "2025-10-27T00:00:00+00:00"),
    ],
)
def test_outputs_are_on_the_clock_of_the_file(zone: str, first: str) -> None:
    """Tables write the offset, and a figure the zone that all its dates are of."""
    local = HOURS.tz_convert(zone or "Europe/Vienna")
    if zone:
        run = make_run(local.tz_localize(None), timezone=zone)
    else:
        run = make_run(local)
    start = pd.Timestamp(first)
    before = run.batch.to_frame()["timestamp"].iloc[-1]
    after = run.forecast.to_frame()["timestamp"].iloc[0]
    assert (before, after) == (start - pd.Timedelta("1h"), start)
    assert before.utcoffset() == after.utcoffset() == start.utcoffset()
    result = run.forecast.to_dataset()
    plain = as_plain(result)["coords"]["forecast_timestamp"]["data"]
    assert plain[0][0] == first
    table = steps_table(result, 0)
    assert table["timestamp"].iloc[0] == start
    wall = start.tz_localize(None)
    time = timeline(result, 0)
    assert pd.Timestamp(time.at(0.0).item()) == wall
    assert time.title == f"time ({zone or 'UTC'})"
    found = explain.what_if(run, heat="+1", start=first, routes=False)
    axes = [axis.title.text for axis in found.plot().select_xaxes()]
    assert time.title in axes
    assert explanation_of(found)["clock"] == (zone or "UTC")


def explanation_of(found: Result) -> dict[str, Any]:
    return Explanation({"what_if": found}).summary()


def test_parts_by_hour_are_of_the_local_clock() -> None:
    """An hour of the day is that of the people, not of UTC."""
    local = HOURS.tz_convert("Asia/Tokyo").tz_localize(None)
    run = make_run(local, timezone="Asia/Tokyo")
    target = run.batch.rows("series-0/load")[0]
    hours = _classes(run.batch, target, 24, ["hour of day"])["hour of day"]
    # the forecast begins at 0:00 in UTC, 9:00 in Tokyo
    assert hours[0] == 9


def test_repeated_hours_need_an_offset(vienna: Run) -> None:
    """An hour that the clock shows twice needs an offset."""
    expect_error("write its offset", steps, vienna, "2025-10-26 02:30")
    assert steps(vienna, "2025-10-26 02:00+02:00", "2025-10-26 02:00+01:00") == [
        -24,
        -23,
    ]


def test_dates_need_the_file_s_offsets() -> None:
    """Where the file has offsets, a date needs one."""
    run = make_run(HOURS.tz_convert("Europe/Vienna"))
    expect_error("came with offsets", steps, run, "2025-10-27 08:00")
    assert steps(run, "2025-10-27 08:00+01:00") == [7]


def test_files_without_offsets_refuse_them() -> None:
    """Where the file has no offsets, a date has none."""
    run = make_run(HOURS.tz_localize(None))
    expect_error("have none", steps, run, "2025-10-27 08:00+01:00")
    assert steps(run, "2025-10-27 08:00") == [8]
    expect_error("what the model is shown", steps, run, "2024-01-01")
