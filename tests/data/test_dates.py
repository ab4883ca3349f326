"""Dates of every type, unit, zone and year: read as they are written, or refused;
numbers that may be dates.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, timedelta, timezone
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from refusals import expect_error
from tsfm_lens.data import SeriesBatch, as_series

VALUES = [1.0, 2.0, 3.0, 4.0]
YEARS = (1600, 1678, 2024, 2261, 2900)
UNITS: tuple[Literal["s", "ns"], ...] = ("s", "ns")
ZONES = (
    None,
    UTC,
    "Asia/Tokyo",
    "America/New_York",
    timezone(timedelta(hours=5, minutes=30)),
)
RANGE = "beyond the dates from 1678-01-01 to 2261-12-31; leave the column out"
DAYS = (pa.date32(), pa.date64())

Given = Callable[[pd.DatetimeIndex, Path], Any]


def arrow(stamps: pd.DatetimeIndex) -> pd.Series:
    return pd.Series(stamps).convert_dtypes(dtype_backend="pyarrow")


def parquet(stamps: pd.DatetimeIndex, folder: Path) -> Path:
    pd.DataFrame({"when": stamps, "y": VALUES}).to_parquet(folder / "a.parquet")
    return folder / "a.parquet"


def text(stamps: pd.DatetimeIndex, folder: Path) -> Path:
    (folder / "a.csv").write_text(
        "ds,y\n"
        + "".join(f"{s.isoformat()},{y}\n" for s, y in zip(stamps, VALUES, strict=True))
    )
    return folder / "a.csv"


def dates(batch: SeriesBatch) -> pd.DatetimeIndex:
    stamps = batch.timestamps()
    assert stamps is not None
    return stamps


def levels(stamps: pd.Index | pd.Series) -> pd.DataFrame:
    index = pd.MultiIndex.from_arrays(
        [["a"] * len(stamps), stamps], names=["item_id", "timestamp"]
    )
    return pd.DataFrame({"target": VALUES}, index=index)


SOURCES: dict[str, Given] = {
    "column": lambda stamps, _: pd.DataFrame({"ds": stamps, "y": VALUES}),
    "column without a name of time": lambda stamps, _: pd.DataFrame(
        {"when": stamps, "y": VALUES}
    ),
    "index": lambda stamps, _: pd.Series(VALUES, index=stamps),
    "level": lambda stamps, _: levels(stamps),
    "categories": lambda stamps, _: pd.DataFrame(
        {"ds": pd.Categorical(stamps), "y": VALUES}
    ),
    "objects": lambda stamps, _: pd.DataFrame(
        {"ds": pd.Series(list(stamps), dtype=object), "y": VALUES}
    ),
    "Arrow's column": lambda stamps, _: pd.DataFrame(
        {"ds": arrow(stamps), "y": VALUES}
    ),
    "Arrow's column without a name": lambda stamps, _: pd.DataFrame(
        {"when": arrow(stamps), "y": VALUES}
    ),
    "Arrow's index": lambda stamps, _: pd.Series(VALUES, index=pd.Index(arrow(stamps))),
    "Arrow's level": lambda stamps, _: levels(arrow(stamps)),
    "Parquet": parquet,
    "CSV": text,
}


@pytest.mark.parametrize("source", SOURCES)
def test_dates_are_read_exactly_or_refused(source: str, tmp_path: Path) -> None:
    """Dates are read as they are written, or refused."""
    for year, unit, zone in product(YEARS, UNITS, ZONES):
        if unit == "ns" and not 1678 <= year <= 2261:
            continue
        if year < 1678 and isinstance(zone, str):
            continue  # pandas itself dies of such dates before a zone's first rule
        naive = np.datetime64(f"{year}-06-01T12", unit) + np.arange(4) * np.timedelta64(
            1, "h"
        )
        stamps = pd.DatetimeIndex(naive).tz_localize("UTC").tz_convert(zone)
        data = SOURCES[source](stamps, tmp_path)
        if not 1678 <= year <= 2261:
            expect_error(rf"{year}-06.* in row .*{RANGE}", as_series, data)
            continue
        batch = as_series(data)
        assert dates(batch).equals(pd.DatetimeIndex(naive).as_unit("ns"))
        assert batch.values[0].tolist() == VALUES


@pytest.mark.parametrize("year", [*YEARS, 9998])
def test_periods_and_days(year: int, tmp_path: Path) -> None:
    periods = pd.PeriodIndex(
        [pd.Period(ordinal=year - 1970 + k, freq="Y") for k in range(4)],
        dtype="period[Y]",
    )
    days = pa.array([date(year, 1, k) for k in (1, 2, 3, 4)])
    pq.write_table(pa.table({"when": days, "y": VALUES}), tmp_path / "a.parquet")
    first = f"{year}-01-01"
    datas: dict[str, list[Any]] = {
        "YS-JAN": [
            pd.Series(VALUES, index=periods),
            pd.DataFrame({"when": periods, "y": VALUES}),
            levels(periods),
        ],
        "D": [
            *(
                pd.DataFrame(
                    {
                        "when": pd.Series(days.cast(kind), dtype=pd.ArrowDtype(kind)),
                        "y": VALUES,
                    }
                )
                for kind in DAYS
            ),
            tmp_path / "a.parquet",
        ],
    }
    for freq, given in datas.items():
        for data in given:
            if year in (1678, 2024) or (year == 2261 and freq == "D"):
                batch = as_series(data)
                assert (batch.starts[0], batch.freq, batch.values[0].tolist()) == (
                    pd.Timestamp(first),
                    freq,
                    VALUES,
                )
                continue
            expect_error(RANGE, as_series, data)


def rolled(first: int, base: int, length: int) -> np.ndarray:
    """36 numbers of a year and one of its parts, from the last but three parts of a
    year on.
    """
    steps = length - 4 + np.arange(36)
    return (first + steps // length) * base + steps % length + 1


@pytest.mark.parametrize(
    "numbers",
    [
        *(
            rolled(2017, 100, 52),
            rolled(2017, 100, 53),
            rolled(2017, 10, 4),
            rolled(2017, 100, 4),
            rolled(17, 100, 12),
        ),
        *(
            rolled(2017, 1000, 365),
            rolled(1871, 100, 12) / 100,
            rolled(2017, 10, 4) / 10,
            rolled(2, 100, 24),
        ),
    ],
    ids=[
        "weeks",
        "53 weeks",
        "quarters",
        "2-digit quarters",
        "yymm",
        "days",
        "year.month",
        "year.quarter",
        "ddHH",
    ],
)
def test_years_are_no_step_numbers(numbers: np.ndarray, tmp_path: Path) -> None:
    """A year with its week or month in one number is not taken for a step number."""
    frame = pd.DataFrame({"time": numbers, "y": np.arange(36.0)})
    frame.to_csv(tmp_path / "a.csv", index=False)
    panel = pd.concat([frame.assign(id="a"), frame.assign(id="b")], ignore_index=True)
    for data in (frame, tmp_path / "a.csv", panel):
        expect_error(
            r"The numbers of the time column may be |may be dates; give time_format=",
            as_series,
            data,
        )
    assert as_series(frame.drop(columns="time")).lengths == (36,)
