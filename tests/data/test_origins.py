"""Windows of one series, cut at chosen origins."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tsfm_lens
from refusals import expect_error
from tsfm_lens.data import SeriesBatch, as_series, bundled, windows

DAYS = pd.date_range("2024-01-01", periods=10, freq="D")


def frame(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"id": "a", "timestamp": DAYS, "target": range(10)} | columns)


def test_run_of_windows_forecasts_from_each_origin() -> None:
    """A run that holds the horizon out begins at the origins, with their truth."""
    origins = ["2016-12-16", "2016-12-09"]
    batch = windows("pedestrians", origins, 24, context=60)
    run = tsfm_lens.load("bolt-nano").run(batch, 24, holdout=True)
    (series,) = bundled("pedestrians").values
    stamps = bundled("pedestrians").timestamps()
    for row, origin in enumerate(origins):
        begin = stamps.get_loc(origin).start
        np.testing.assert_array_equal(run.truth[row], series[begin : begin + 24])
        np.testing.assert_array_equal(run.batch.values[row], series[begin - 60 : begin])
        future = run.batch.timestamps(row, ahead=24)[-24:]
        assert future[0] == pd.Timestamp(origin)
    assert batch.ids == ("pedestrians 2016-12-16", "pedestrians 2016-12-09")
    assert batch.groups == batch.ids
    assert batch.items == ("pedestrians", "pedestrians")
    assert batch.units == ("pedestrians an hour",) * 2


@pytest.mark.parametrize(
    "series",
    [
        frame(),
        as_series(frame()),
        pd.Series(np.arange(10.0), DAYS),
    ],
    ids=["frame", "batch", "series"],
)
@pytest.mark.parametrize(
    "origin",
    ["2024-01-05", pd.Timestamp("2024-01-05"), np.datetime64("2024-01-05"), 4, -6],
    ids=str,
)
def test_origins_are_dates_or_positions(series: Any, origin: Any) -> None:
    batch = windows(series, origin, 2, context=3)
    assert batch.values[0].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert batch.starts == (pd.Timestamp("2024-01-02"),)
    assert batch.ids[0].endswith(" 2024-01-05")


def test_date_between_steps_is_the_later_step() -> None:
    assert windows(frame(), "2024-01-04 07:00").lengths == (4,)


def test_dates_are_read_on_the_clock_of_the_series() -> None:
    hours = pd.date_range("2024-01-01", periods=48, freq="h", tz="Europe/Berlin")
    batch = windows(pd.Series(np.arange(48.0), hours), "2024-01-02T00:00+01:00")
    assert batch.lengths == (24,)


def test_arrays_are_cut_at_positions() -> None:
    batch = windows(np.arange(6.0), [2, 6])
    assert batch.lengths == (2, 6)
    assert batch.ids == ("series-0 @ 2", "series-0 @ 6")


def test_covariates_are_cut_with_their_future() -> None:
    """A known covariate of a window goes on after it, and a past one does not."""
    data = frame(price=np.arange(10.0) + 50, stock=np.arange(10.0) + 90)
    series = as_series(data.iloc[:8], known=["price"], past=["stock"])
    batch = windows(series, [4, 6], 1, context=3)
    target, stock, price = batch.values[:3]
    assert target.tolist() == [1, 2, 3, 4]
    assert stock.tolist() == [91, 92, 93, 94]
    assert price.tolist() == [51, 52, 53, 54]
    assert batch.futures[2].tolist() == [55, 56, 57]
    assert len(set(batch.groups)) == 2


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((frame(), "2030-01-01"), {}, ["2024-01-02 to 2024-01-11", "1 to 10"]),
        ((frame(), 3, 2), {"context": 4}, ["2024-01-05", "position 4 to 8"]),
        ((np.arange(4.0), 9), {}, ["position 1 to 4"]),
        ((np.arange(4.0), "2024-01-05"), {}, ["no dates", "positions"]),
        ((frame(), []), {}, ["no origins"]),
        ((frame(), True), {}, ["neither a date nor a position"]),
        ((frame(), 1.5), {}, ["neither a date nor a position"]),
        ((frame(), "Friday week"), {}, ["neither a date nor a position"]),
        ((frame(), 4, 10), {}, ["10 steps", "shorter"]),
        ((frame(), 4, -1), {}, ["horizon=-1"]),
        ((frame(), 4), {"context": 0}, ["context=0"]),
        ((frame(), [4, 4]), {}, ["unique"]),
        ((bundled("co2", "nile"), 4), {}, ["2 series", "select('co2')"]),
    ],
)
def test_unusable_origins_are_refused(
    arguments: tuple[Any, ...], options: dict[str, Any], words: list[str]
) -> None:
    message = ".*".join(map(re.escape, words))
    expect_error(message, windows, *arguments, **options)


def test_notes_are_kept_once() -> None:
    series = SeriesBatch((np.arange(9.0),), notes=("read from a file",))
    assert windows(series, [3, 5]).notes == ("read from a file",)
