"""Starts on and off the grid of a frequency, as an option, of entries and of batches;
items of a single row.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest

from refusals import expect_error
from tsfm_lens.core.errors import InputError
from tsfm_lens.data import SeriesBatch, as_series

VALUES = [1.0, 2.0, 3.0]
PERIODS = {
    "MS": "2024-02-01",
    "ME": "2024-02-29",
    "QS": "2024-01-01",
    "QS-FEB": "2024-02-01",
    "YS-JUN": "2023-06-01",
}
"""Of each frequency the date of the period around 17 February 2024, a Saturday."""
BETWEEN = {
    "W-MON": ("2024-02-12", "2024-02-19"),
    "2W-WED": ("2024-02-14", "2024-02-21"),
    "B": ("2024-02-16", "2024-02-19"),
    "Mon-Fri,2024-02-19": ("2024-02-16", "2024-02-20"),
    "SMS": ("2024-02-15", "2024-03-01"),
}
"""Of each frequency the dates around that day."""
ANY = ("h", "15min", "D", "3D", "Mon-Sat")
DAY = "2024-02-17"

Given = Callable[[Any, str], SeriesBatch]
GIVEN: dict[str, Given] = {
    "an option": lambda start, freq: as_series(VALUES, start=start, freq=freq),
    "of a dict": lambda start, freq: as_series(
        {"a": VALUES, "b": VALUES}, start=start, freq=freq
    ),
    "of a batch": lambda start, freq: as_series(
        SeriesBatch((np.array(VALUES),), starts=(pd.Timestamp(start),)), freq=freq
    ),
    "a batch": lambda start, freq: SeriesBatch(
        (np.array(VALUES),), starts=(pd.Timestamp(start),), freq=freq
    ),
    "an entry": lambda start, freq: as_series(
        {"target": VALUES, "start": start}, freq=freq
    ),
    "entries": lambda start, freq: as_series(
        [
            {
                "target": VALUES,
                "start": start,
                "item_id": name,
                "feat_dynamic_real": [[*VALUES, 4.0]],
            }
            for name in "ab"
        ],
        freq=freq,
    ),
}
SPELLINGS: dict[str, Callable[[str], Any]] = {
    "text": str,
    "a timestamp": pd.Timestamp,
    "a datetime": datetime.fromisoformat,
    "a date": date.fromisoformat,
    "numpy's": np.datetime64,
}


def check_dates(batch: SeriesBatch) -> None:
    for row in range(len(batch)):
        stamps = batch.timestamps(row, ahead=2)
        assert stamps is not None
        assert batch.starts[row] == stamps[0]
        assert len(stamps) == batch.lengths[row] + 2
        offset = stamps.freq
        assert offset is not None
        assert all(later == earlier + offset for earlier, later in pairwise(stamps))


@pytest.mark.parametrize("way", GIVEN)
@pytest.mark.parametrize("freq", PERIODS)
def test_start_within_period_comes_with_note(freq: str, way: str) -> None:
    """A start within a period stands for that period, and a note says so."""
    for spelled in SPELLINGS.values():
        if way in ("of a batch", "a batch"):
            spelled = pd.Timestamp
        batch = GIVEN[way](spelled(DAY), freq)
        assert set(batch.starts) == {pd.Timestamp(PERIODS[freq])}
        assert any(
            DAY in note and PERIODS[freq] in note and freq in note
            for note in batch.notes
        )
        check_dates(batch)
    exact = GIVEN[way](pd.Timestamp(PERIODS[freq]), freq)
    assert (set(exact.starts), exact.notes) == ({pd.Timestamp(PERIODS[freq])}, ())
    check_dates(exact)


@pytest.mark.parametrize("way", GIVEN)
@pytest.mark.parametrize("freq", BETWEEN)
def test_start_between_dates_is_refused(freq: str, way: str) -> None:
    """A start between two dates is refused, and the dates it names are taken."""
    with pytest.raises(InputError, match="off the grid") as caught:
        GIVEN[way](pd.Timestamp(DAY), freq)
    message = str(caught.value)
    assert f"freq={freq!r}" in message
    for near in BETWEEN[freq]:
        assert near in message
        batch = GIVEN[way](pd.Timestamp(near), freq)
        assert set(batch.starts) == {pd.Timestamp(near)}
        check_dates(batch)
    named = re.search(r"freq='(2?W-SAT)'", message)
    assert (named is not None) == ("W" in freq)
    if named:
        batch = GIVEN[way](pd.Timestamp(DAY), named[1])
        assert set(batch.starts) == {pd.Timestamp(DAY)}
        check_dates(batch)


@pytest.mark.parametrize("way", GIVEN)
@pytest.mark.parametrize("freq", ANY)
@pytest.mark.parametrize("start", [DAY, f"{DAY} 12:34"])
def test_clocks_and_days_allow_any_start(start: str, freq: str, way: str) -> None:
    """Frequencies of clocks and of days allow any start."""
    batch = GIVEN[way](pd.Timestamp(start), freq)
    assert (set(batch.starts), batch.notes) == ({pd.Timestamp(start)}, ())
    check_dates(batch)


@pytest.mark.parametrize(
    ("period", "freq", "first"),
    [
        *(
            ("M", None, "2024-02-01"),
            ("M", "ME", "2024-02-29"),
            ("M", "MS", "2024-02-01"),
            ("Q", "QE", "2024-03-31"),
        ),
        *(
            ("Q", None, "2024-01-01"),
            ("Y", "YE", "2024-12-31"),
            ("Y", None, "2024-01-01"),
            ("D", None, DAY),
        ),
        *(("W-SUN", None, "2024-02-12"), ("h", None, DAY), ("15min", None, DAY)),
    ],
)
def test_periods_of_gluonts(period: str, freq: str | None, first: str) -> None:
    start = pd.Period(DAY, freq=period)
    batch = as_series(
        [{"target": VALUES, "start": start, "item_id": name} for name in "ab"],
        freq=freq,
    )
    assert set(batch.starts) == {pd.Timestamp(first)}
    check_dates(batch)


ON_AND_OFF = {
    **{freq: (first, DAY) for freq, first in PERIODS.items()},
    **{freq: (dates[0], DAY) for freq, dates in BETWEEN.items()},
    **dict.fromkeys((*ANY, "s"), (DAY, None)),
    "Mon-Sat": (DAY, "2024-02-18"),
}
"""Of each frequency a date on its grid, and one off it where there is any."""


@pytest.mark.parametrize("freq", ON_AND_OFF)
def test_one_row_items_at_every_frequency(freq: str) -> None:
    """Items of one row are read at every frequency."""
    on, off = ON_AND_OFF[freq]
    dates = as_series(np.arange(9.0), start=on, freq=freq).timestamps()
    long = pd.DataFrame({"id": "long", "ds": dates, "y": np.arange(9.0)})
    for day in filter(None, (on, off)):
        lone = pd.DataFrame({"id": ["one"], "ds": [pd.Timestamp(day)], "y": [5.0]})
        for data in (lone, lone.set_index("ds").y, pd.concat([lone, long])):
            if day == off:
                text = f"{day}.*off the regular grid of frequency '{freq}'"
                expect_error(text, as_series, data, freq=freq)
                continue
            batch = as_series(data, freq=freq)
            row = int(np.argmin(batch.lengths))
            assert batch.lengths[row] == 1
            assert batch.starts[row] == pd.Timestamp(on)
            check_dates(batch)
    # the other item tells the frequency
    if freq not in ("Mon-Sat", "Mon-Fri,2024-02-19", "SMS"):
        batch = as_series(pd.concat([long, long[:1].assign(id="one")]))
        assert (batch.lengths, batch.freq) == ((9, 1), as_series(long).freq)
