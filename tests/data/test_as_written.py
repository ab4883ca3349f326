"""Data mean what was written: ids, dialects, headers, times, grids and paths, read as
they stand or refused.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refusals import expect_error
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.spreadsheets import defused, restored
from tsfm_lens.data import SeriesBatch, as_series, read_series


@pytest.fixture
def reading(tmp_path: Path) -> Any:
    def read(content: str | bytes, name: str = "a.csv", **options: Any) -> SeriesBatch:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_series(path, **options)

    return read


def days(*values: object) -> str:
    rows = zip(pd.date_range("2020-01-01", periods=len(values)), values, strict=True)
    return "date,y\n" + "".join(f"{stamp.date()},{value}\n" for stamp, value in rows)


def test_ids_are_text_in_any_file(reading: Any) -> None:
    """Ids are read as text in files of any size."""
    ids = ["01", "1", "1.10", "1.1", "007", "NA", "nan", "1e3", "Ä", "'=x", "'90s"]
    small = reading(
        "id,y\n"
        + "".join(
            f"{name},{row}\n{name},{row}.5\n" for row, name in enumerate([*ids, "=x"])
        )
    )
    assert small.ids == (*ids, "=x")
    assert [v.tolist() for v in small.values] == [
        [row, row + 0.5] for row in range(len(ids) + 1)
    ]
    # far beyond the part of a file that a reader looks at to guess a type
    many = reading("id,y\n" + "7,1\n" * 300_000 + "x7,2\n" + "007,3\n" * 2)
    assert dict(zip(many.ids, many.lengths, strict=True)) == {
        "7": 300_000,
        "x7": 1,
        "007": 2,
    }


def panel(
    names: tuple[str | None, str | None] = ("item_id", "timestamp"),
) -> pd.DataFrame:
    index = pd.MultiIndex.from_product(
        [["b", "a"], pd.date_range("2020-01-01", periods=4)], names=names
    )
    return pd.DataFrame({"target": np.arange(8.0), "promo": 0.0}, index=index)


@pytest.mark.parametrize(
    "frame",
    [
        panel(),
        panel((None, None)),
        panel().swaplevel(),
        panel()["target"],
        panel()
        .reset_index()
        .rename(columns={"item_id": "unique_id", "timestamp": "ds", "target": "y"}),
        panel()
        .reset_index()
        .rename(columns={"item_id": "unique_id", "timestamp": "ds"})
        .set_index("unique_id"),
        panel().sample(frac=1, random_state=1),
    ],
    ids=lambda frame: type(frame).__name__,
)
def test_layouts_of_autogluon_and_nixtla(frame: Any) -> None:
    batch = as_series(frame)
    found = {
        name: values.tolist()
        for name, values in zip(batch.ids, batch.values, strict=True)
    }
    assert found == {"b": [0, 1, 2, 3], "a": [4, 5, 6, 7]}
    assert (batch.freq, batch.starts[0]) == ("D", pd.Timestamp("2020-01-01"))


def test_ambiguous_indexes_are_refused() -> None:
    """Indexes that can be read in more than one way are refused."""
    with pytest.raises(InputError, match="columns have 2 levels"):
        as_series(
            pd.DataFrame([[1.0]], columns=pd.MultiIndex.from_tuples([("a", "b")]))
        )
    expect_error(
        "no id in row 1",
        as_series,
        pd.DataFrame({"id": pd.array([1, None], dtype="Int64"), "y": [1, 2]}),
    )


COMMA = {"decimal": ","}


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (
            'date,load\n2020-01-01,"1,5"\n2020-01-02,"2,25"\n2020-01-03,"1234,5"\n',
            COMMA,
        ),
        (
            '"date, day";load\n2020-01-01;1.5\n2020-01-02;2.25\n2020-01-03;1234.5\n',
            {"time_column": "date, day"},
        ),
    ],
)
def test_dialects(reading: Any, text: str | bytes, options: dict) -> None:
    batch = reading(text, **options)
    assert (batch.ids, batch.freq, batch.starts[0]) == (
        ("load",),
        "D",
        pd.Timestamp("2020-01-01"),
    )
    assert batch.values[0].tolist() == [1.5, 2.25, 1234.5]


REFUSED = {
    "decimal comma in a comma file": (
        "date,load\n2020-01-01,1,5\n2020-01-02,2,5\n",
        "row 2 has 3 cells.*decimal=','",
    ),
    "decimal comma": (
        "a;b\n1;1,5\n2;2,5\n",
        "'b' holds '1,5' in row 2, and the decimal sign is '.'; give decimal=",
    ),
    "point or thousands": (
        "d;load\n1;1.500\n2;2.500\n",
        "may be a decimal sign or a thousands separator.*decimal=",
    ),
    "thousands beside decimals": (
        "d;load\n1;1,200\n2;2.5\n",
        "separators are read with thousands=','",
    ),
    "thousands or decimals": (
        "d;load\n1;1,200\n2;2\n",
        "one for all; if it separates thousands, give thousands=','",
    ),
    "decimal or row names": (
        "load\n1,5\n2,6\n",
        r"row 2 has 2 cells .*needs delimiter=';' and decimal=','",
    ),
    "two delimiters": (
        "a;b,c\n1;2,3\n",
        "cut at commas and semicolons; give delimiter=",
    ),
    "blanks": (
        "a b\n1 2\n3 4\n",
        "blanks may separate the columns; give delimiter='space'",
    ),
    "no name": ("a,,c\n1,2,3\n", "has no name"),
    "other encoding": (
        "Größe,b\n1,2\n".encode("cp1252"),
        r"not text in UTF-8.*encoding='cp1252'",
    ),
    "names or values": ("a,5\nb,6\n", "may be names or values; give header="),
    "duplicate names": ("a,a\n1,2\n", "two columns are named 'a'"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_told_is_refused(
    reading: Any, text: str | bytes, message: str
) -> None:
    expect_error(message, reading, text)


@pytest.mark.parametrize(
    ("text", "options", "ids", "columns"),
    [
        (",0,1\n0,5,6\n1,7,8\n", {"header": True}, ("0", "1"), [[5, 7], [6, 8]]),
        (
            *(",3,4\n1,5,6\n", {"header": False}),
            *(("column-0", "column-1", "column-2"), [[np.nan, 1], [3, 5], [4, 6]]),
        ),
        ("2020-01-01,5\n2020-01-02,6\n", {"header": False}, ("column-1",), [[5, 6]]),
        (
            "a,5\nb,6\n",
            {"header": False, "targets": ["column-1"], "id_column": "column-0"},
            "ab",
            [[5], [6]],
        ),
        ("value\n1\n\n3\n", {}, ("value",), [[1, np.nan, 3]]),
        ("load\n1,5\n\n-3,25e1\n", COMMA, ("load",), [[1.5, np.nan, -32.5]]),
    ],
)
def test_headers_and_single_columns(
    reading: Any, text: str, options: dict, ids: tuple, columns: list
) -> None:
    batch = reading(text, **options)
    assert batch.ids == tuple(ids)
    for values, expected in zip(batch.values, columns, strict=True):
        np.testing.assert_array_equal(values, expected)


def test_text_that_identifies_series_is_kept(reading: Any) -> None:
    """Text that tells series apart is never left out."""
    text = "Shop name,sales\nNord,1\nSüd,2\nNord,3\nSüd,4\n"
    expect_error(
        r"rows differ in 'Shop name' \(text such as 'Nord'\).*id_column=…",
        reading,
        text,
    )
    assert reading(text, id_column="Shop name").ids == ("Nord", "Süd")


@pytest.mark.parametrize(
    ("cells", "form", "freq", "start"),
    [
        ([1577836800, 1577840400, 1577844000], "s", "h", "2020-01-01"),
        ([1577836800 * 10**9 + i for i in range(3)], "ns", "ns", "2020-01-01"),
        ([20200228, 20200229, 20200301], "%Y%m%d", "D", "2020-02-28"),
        ([1999, 2000, 2001], "%Y", "YS-JAN", "1999-01-01"),
        (["31.12.2020", "01.01.2021", "02.01.2021"], "%d.%m.%Y", "D", "2020-12-31"),
        (["2020Q1", "2020-Q2", "2020Q3"], None, "QS-OCT", "2020-01-01"),
        (
            [f"01.01.2020 {hour:02d}:00+02:00" for hour in (3, 4, 5)],
            "%d.%m.%Y %H:%M",
            "h",
            "2020-01-01 01:00",
        ),
    ],
)
def test_times(
    reading: Any, cells: list, form: str | None, freq: str | None, start: str | None
) -> None:
    frame = pd.DataFrame({"time": cells, "y": [1.0, 2.0, 3.0]})
    for batch in (
        reading(frame.to_csv(index=False), time_format=form),
        as_series(frame, time_format=form),
    ):
        assert (batch.freq, batch.values[0].tolist()) == (freq, [1.0, 2.0, 3.0])
        assert batch.starts[0] == (None if start is None else pd.Timestamp(start))
        assert any("without a date" in note for note in batch.notes) == (start is None)


BAD_TIMES = {
    "either order": (
        ["01/02/2020", "01/03/2020"],
        {},
        "'01/02/2020' in row 2 is not a date of ISO 8601; give time_format=",
    ),
    "seconds": (
        ["1577836800", "1577836801"],
        {},
        "may be dates; give time_format='s' or 'ms' or 'us' or 'ns'",
    ),
    "one bad date": (
        ["20200130", "20200132"],
        {"time_format": "%Y%m%d"},
        "'20200132' in row 3 is not a date of time_format",
    ),
    "no format": (
        ["01.01.2020"],
        {"time_format": "mixed"},
        "time_format='mixed' is not a format such as",
    ),
    "broken seconds": (["1577836800.5"], {"time_format": "s"}, "no whole numbers"),
    "too late": (
        ["2300-01-01", "2300-01-02"],
        {},
        "beyond the dates from 1678-01-01 to 2261-12-31",
    ),
    "some offsets": (
        ["2020-01-01T00:00Z", "2020-01-01T01:00", "2020-01-01T02:00Z"],
        {},
        "offset and times without",
    ),
    "no time": (["2020-01-01", "", "2020-01-03"], {}, "no timestamp in row 3"),
    "back in UTC": (
        ["2020-01-01T00:00Z", "2020-01-01T01:00Z", "2020-01-01T02:00+01:00"],
        {},
        "offsets is wrong",
    ),
    "two at once": (
        ["2020-01-01", "2020-01-02", "2020-01-02"],
        {},
        r"two values at 2020-01-02 00.* \(rows 3 and 4\)",
    ),
}


@pytest.mark.parametrize(
    ("cells", "options", "message"), BAD_TIMES.values(), ids=BAD_TIMES
)
def test_ambiguous_times_are_refused(
    reading: Any, cells: list, options: dict, message: str
) -> None:
    """Times that can be read in more than one way are refused."""
    expect_error(
        message,
        reading,
        "date,y\n" + "".join(f"{cell},1\n" for cell in cells),
        **options,
    )


@pytest.mark.parametrize(
    "night", [datetime(2021, 3, 27), datetime(2021, 10, 30)], ids=["forward", "back"]
)
def test_clock_changes(reading: Any, night: datetime) -> None:
    zone = ZoneInfo("Europe/Berlin")
    hours = pd.date_range(night, periods=60, freq="h", tz=zone)
    nights = pd.date_range(night, periods=6, freq="D", tz=zone)
    for stamps, start, clock in (
        (hours, hours[0].tz_convert("UTC").tz_localize(None), "UTC"),
        (nights, pd.Timestamp(night), "the local clock"),
    ):
        frame = pd.DataFrame({"ds": stamps, "y": np.arange(len(stamps), dtype=float)})
        text = "ds,y\n" + "".join(
            f"{s.isoformat()},{i}\n" for i, s in enumerate(stamps)
        )
        for batch in (
            as_series(frame),
            reading(text),
            as_series(frame.assign(ds=list(stamps.to_pydatetime()))),
        ):
            assert (batch.starts[0], batch.values[0].tolist()) == (
                start,
                list(range(len(stamps))),
            )
            assert any(f"on the grid of {clock}" in note for note in batch.notes)
    plain = pd.DataFrame(
        {
            "ds": [datetime(2020, 1, day, tzinfo=UTC) for day in (1, 2, 3)],
            "y": [1.0, 2, 3],
        }
    )
    assert not as_series(plain).notes


def test_grids_have_a_limit(reading: Any) -> None:
    typo = days(*range(100)) + "2200-01-01,5\n"
    expect_error(
        r"between 2020-04-09 .*\(row 101\) and 2200-01-01 .*\(row 102\) 65\d+ are",
        reading,
        typo,
    )
    expect_error(
        r"100 values on a grid of 8553601 steps with frequency 's'",
        reading,
        days(*range(100)),
        freq="s",
    )
    expect_error("off the regular grid", reading, days(*range(100)), freq="YS")
    expect_error("between step 2 ", reading, "time,y\n0,1\n1,1\n2,1\n90000,1\n")


@pytest.mark.parametrize(
    "options",
    [
        *(
            {"freq": "0D"},
            {"freq": "-1D"},
            {"freq": 5},
            {"start": "NaT"},
            {"start": "2300-01-01"},
        ),
        *(
            {"units": 5},
            {"units": ["a", "b"]},
            {"ids": 5},
            {"seasonality": 1.5},
            {"seasonality": "x"},
        ),
        *({"delimiter": ";"}, {"time_format": "%Y"}),
    ],
    ids=str,
)
def test_arguments_that_mean_nothing_are_refused(options: dict) -> None:
    with pytest.raises(InputError):
        as_series([1.0, 2.0, 3.0], **options)


def test_paths_that_are_no_plain_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "folder.csv").mkdir()
    names = [
        tmp_path / "pipe.csv",
        tmp_path / "folder.csv",
        "a\0b.csv",
        "~nosuchuser/a.csv",
        "a" * 5000 + ".csv",
    ]
    for name in (*names, "/dev/zero", "/dev/stdin"):
        with pytest.raises(InputError):
            read_series(name)


TEXTS = st.text(st.sampled_from("=+-@\t\r\n'\",;|a1. "), max_size=6) | st.text(
    max_size=5
)


@given(st.lists(TEXTS, max_size=5))
@settings(deadline=None, max_examples=300)
def test_defused_text_is_restored(texts: list[str]) -> None:
    safe = [defused(text) for text in texts]
    assert restored(safe) == texts
    for text in safe:
        cells = [text, *(part for sign in ",;|\t" for part in text.split(sign))]
        risky = [cell for cell in cells if cell[:1] in tuple("=+-@\t\r\n") and cell]
        assert not risky or _is_number(text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
