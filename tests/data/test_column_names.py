"""Names of columns and shapes of tables: exact names first, alike ones refused, wide
tables and columns in dicts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from refusals import expect_error
from tsfm_lens.core.errors import InputError
from tsfm_lens.data import SeriesBatch, as_series

DAYS = pd.date_range("2024-01-01", periods=4)
LONG: dict[str, Any] = {
    "id": ["a"] * 4 + ["b"] * 4,
    "ds": [*DAYS, *DAYS],
    "target": np.arange(8.0),
}
OTHER: dict[str, Any] = {
    "id": ["same"] * 8,
    "ds": [*DAYS[::-1], *DAYS[::-1]],
    "target": np.full(8, -1.0),
}
OPTIONS = {"id": "id_column", "ds": "time_column", "target": "targets"}


def parquet(frame: pd.DataFrame, folder: Path) -> Path:
    frame.to_parquet(folder / "a.parquet")
    return folder / "a.parquet"


def text(frame: pd.DataFrame, folder: Path) -> Path:
    frame.to_csv(folder / "a.csv", index=False)
    return folder / "a.csv"


def polars(frame: pd.DataFrame, folder: Path) -> Any:
    return pytest.importorskip("polars").from_pandas(frame)


CARRIERS: dict[str, Callable[[pd.DataFrame, Path], Any]] = {
    "pandas": lambda frame, _: frame,
    "levels": lambda frame, _: (
        frame.set_index(list(frame.columns[:-2]))
        if frame.columns[-2] != "ds"
        else frame
    ),
    "Arrow": lambda frame, _: pa.Table.from_pandas(frame, preserve_index=False),
    "polars": polars,
    "Parquet": parquet,
    "CSV": text,
}
TABLES = ("pandas", "Arrow", "polars", "Parquet", "CSV")


def content(batch: SeriesBatch) -> tuple[Any, ...]:
    return batch.ids, [row.tolist() for row in batch.values], batch.starts


def folded(name: str) -> tuple[str, ...]:
    return name.upper(), name.title(), f" {name} "


@pytest.mark.parametrize("carrier", TABLES)
@pytest.mark.parametrize("index", [0, 99], ids=["before", "after"])
@pytest.mark.parametrize("name", LONG)
def test_exact_column_name_is_preferred(
    name: str, index: int, carrier: str, tmp_path: Path
) -> None:
    """An exact name goes before one that differs in case or blanks."""
    expected = content(as_series(pd.DataFrame(LONG)))
    for other in folded(name):
        if carrier == "CSV" and other.strip() == name:
            continue  # names of a file lose their blanks, and two are refused as equal
        frame = pd.DataFrame(LONG)
        frame.insert(min(index, 3), other, OTHER[name])
        assert content(as_series(CARRIERS[carrier](frame, tmp_path))) == expected


@pytest.mark.parametrize("carrier", TABLES)
@pytest.mark.parametrize("name", LONG)
def test_similar_names_are_refused_with_option(
    name: str, carrier: str, tmp_path: Path
) -> None:
    """Two similar names are refused, and the message names the option that chooses."""
    expected = content(as_series(pd.DataFrame(LONG)))
    upper = name.upper()
    title = f"{name.title()} " if carrier != "CSV" else name.title()
    for first, second in ((upper, title), (title, upper)):
        frame = pd.DataFrame(LONG).rename(columns={name: first})
        frame[second] = OTHER[name]
        given = CARRIERS[carrier](frame, tmp_path)
        label = (
            rf"(?=.*'{re.escape(upper)}')(?=.*'{re.escape(title)}').*{OPTIONS[name]}="
        )
        expect_error(label, as_series, given)
        options: dict[str, Any] = {
            OPTIONS[name]: [first] if name == "target" else first
        }
        assert content(as_series(given, **options)) == expected


def test_case_and_blanks_may_differ() -> None:
    """A single name that differs only in case or blanks is found."""
    expected = content(as_series(pd.DataFrame(LONG)))
    for make in (str.upper, str.title, lambda name: f"\t{name}  "):
        assert content(as_series(pd.DataFrame(LONG).rename(columns=make))) == expected
    levels = pd.DataFrame(LONG).rename(columns={"ds": "DS"}).set_index(["id", "DS"])
    assert content(as_series(levels)) == expected


WIDE = pd.DataFrame(
    {
        "id": ["a", "b", "c"],
        **{str(day.date()): np.arange(3.0) + 10 * k for k, day in enumerate(DAYS)},
    }
)
VALUES = [[0.0, 10.0, 20.0, 30.0], [1.0, 11.0, 21.0, 31.0], [2.0, 12.0, 22.0, 32.0]]


def named(columns: Any) -> pd.DataFrame:
    return WIDE.set_axis(["id", *columns], axis=1)


WIDES: dict[str, pd.DataFrame] = {
    "text": WIDE,
    "quarters": named(["2024Q1", "2024Q2", "2024Q3", "2024Q4"]),
    "timestamps": named(DAYS),
    "dates": named([day.date() for day in DAYS]),
    "times": named([f"2024-01-01 0{hour}:00" for hour in range(4)]),
    "German dates": named([day.strftime("%d.%m.%Y") for day in DAYS]),
    "years": named([2019, 2020, 2021, 2022]),
    "months as digits": named([202401, 202402, 202403, 202404]),
    "weeks as digits": named([202351, 202352, 202401, 202402]),
    "more columns": (
        named(DAYS).assign(region="x", area=1.5)[["region", "id", "area", *DAYS]]
    ),
    "an index of ids": WIDE.set_index("id"),
    "an index without a name": WIDE.set_index("id").rename_axis(None),
    "no ids": WIDE.drop(columns="id"),
    "no ids, days as digits": (
        WIDE.drop(columns="id").set_axis([f"{day:%Y%m%d}" for day in DAYS], axis=1)
    ),
    "a name over the dates": named(DAYS).set_index("id").rename_axis("day", axis=1),
}


FORMATS = {"German dates": "%d.%m.%Y", "American dates": "%m/%d/%Y"}


@pytest.mark.parametrize("kind", WIDES)
def test_date_columns_are_refused_with_call(
    kind: str,
) -> None:
    """Dates as column names are refused with the call that reads them."""
    frame = WIDES[kind]
    with pytest.raises(InputError, match="named by dates") as caught:
        as_series(frame)
    call = re.search(r"as_series\(frame\..*\)$", str(caught.value))
    assert call, str(caught.value)
    namespace = {"frame": frame, "as_series": as_series}
    if kind in FORMATS:
        expect_error("time_format", eval, call[0], namespace)
        batch = eval(f"{call[0][:-1]}, time_format={FORMATS[kind]!r})", namespace)
    else:
        batch = eval(call[0], namespace)
    assert [row.tolist() for row in batch.values][:3] == VALUES
    assert batch.starts[0] is not None
    assert batch.ids[:3] == (("0", "1", "2") if "no ids" in kind else ("a", "b", "c"))


@pytest.mark.parametrize("carrier", ["Arrow", "polars", "Parquet", "CSV"])
@pytest.mark.parametrize("kind", ["text", "quarters", "German dates"])
def test_tables_with_date_columns_are_refused(
    kind: str, carrier: str, tmp_path: Path
) -> None:
    """Tables and files with dates as column names are refused."""
    given = CARRIERS[carrier](WIDES[kind], tmp_path)
    expect_error("named by dates.*melt", as_series, given)


@pytest.mark.parametrize("prefix", ["d_", "week ", "T"])
@pytest.mark.parametrize("first", [0, 1])
def test_step_columns_are_refused_with_call(prefix: str, first: int) -> None:
    """Columns that count steps are refused with the call that reads them."""
    names = [f"{prefix}{number}" for number in range(first, first + 5)]
    table = pd.DataFrame(np.arange(15.0).reshape(3, 5), columns=names)
    table.insert(0, "item_id", ["a", "b", "c"])
    table["store"] = "north"
    with pytest.raises(InputError, match="one row per time step") as refusal:
        as_series(table)
    call = str(refusal.value).rsplit("In pandas: ", 1)[1]
    batch = eval(call, {"as_series": as_series, "frame": table})
    assert batch.ids == ("a", "b", "c")
    assert batch.values[1].tolist() == [5.0, 6.0, 7.0, 8.0, 9.0]
    # several rows an id are steps of several series
    assert as_series(pd.concat([table, table])).lengths == (2,) * 15


def test_row_numbers_that_fall_are_told() -> None:
    falling = pd.Series(np.arange(5.0), index=range(2024, 2019, -1))
    for batch in (
        as_series(falling),
        as_series(falling.to_frame("y")),
        as_series([falling, falling]),
    ):
        assert batch.values[0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
        assert sum("row numbers fall" in note for note in batch.notes) == 1
    assert not as_series(falling[::-1]).notes


def test_seemingly_wide_tables_are_read() -> None:
    """Tables that only look wide are read."""
    # a column of each series, and rows with dates
    panel = pd.DataFrame({"north": np.arange(4.0), "south": np.arange(4.0)}, index=DAYS)
    assert as_series(panel).ids == ("north", "south")
    assert as_series(panel.reset_index(names="ds")).starts == (DAYS[0], DAYS[0])
    # columns that the caller names, and vintages of the same dates
    bare = WIDE.drop(columns="id")
    both = ["2024-01-01", "2024-01-02"]
    assert as_series(bare, targets=both).ids == tuple(both)
    assert as_series(bare.set_axis(DAYS[:3])).starts[0] == DAYS[0]
    # one column, a column of each year, and numbers that are no dates
    assert as_series(WIDE[["2024-01-01"]]).lengths == (3,)
    years = pd.DataFrame(np.ones((12, 3)), columns=[2019, 2020, 2021])
    assert as_series(years).ids == ("2019", "2020", "2021")
    bands = pd.DataFrame({"1000.5": np.arange(4.0), "1001.5": np.arange(4.0)})
    assert as_series(bands).lengths == (4, 4)


STEPS = np.arange(4.0)
COLUMNS: dict[str, dict[str, Any]] = {
    "nixtla": {
        "unique_id": ["a", "a", "b", "b"],
        "ds": [*DAYS[:2], *DAYS[:2]],
        "y": STEPS,
    },
    "numbers as ids": {"id": [1, 1, 2, 2], "target": STEPS},
    "ids and another name": {"unique_id": [1, 1, 2, 2], "load": STEPS},
    "dates as text": {"date": [str(day.date()) for day in DAYS], "load": STEPS},
    "date objects": {
        "time": [date(2024, 1, day) for day in (1, 2, 3, 4)],
        "load": STEPS,
    },
    "text ids and several columns": {
        "series": list("aabb"),
        "load": STEPS,
        "heat": STEPS,
    },
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_dict_of_columns_is_refused(kind: str) -> None:
    """A dict of columns is refused with the call that reads it."""
    columns = COLUMNS[kind]
    expect_error(r"columns.*as_series\(pd\.DataFrame\(data\)\)", as_series, columns)
    batch = as_series(pd.DataFrame(columns))
    assert not {"id", "series", "unique_id"} & set(batch.ids)
    assert sum(batch.lengths) == 4 * (2 if "several" in kind else 1)


SERIES: dict[str, dict[str, Any]] = {
    "in and out of distribution": {"id": STEPS, "ood": STEPS},
    "one id": {"id": STEPS},
    "lengths of their own": {"time": STEPS, "value": np.arange(5.0)},
    "variates": {"date": np.ones((2, 4)), "value": np.ones((2, 4))},
}


@pytest.mark.parametrize("kind", SERIES)
def test_dict_of_series_is_read(kind: str) -> None:
    """A dict that may hold series is read as series."""
    batch = as_series(SERIES[kind])
    assert tuple(dict.fromkeys(batch.groups)) == tuple(SERIES[kind])
