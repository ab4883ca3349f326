"""Dates that a user gives are of the clock that the file shows, or say their offset."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from refusals import expect_error
from tiny_lenses import lens_of
from tsfm_lens import explain
from tsfm_lens.explain.segments import find_step
from tsfm_lens.models import Run

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
