"""Files as they come: what the plain reading refuses, with the option that it names,
and what that option reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from refusals import expect_error
from tsfm_lens.cli import app
from tsfm_lens.core.errors import InputError
from tsfm_lens.data import SeriesBatch, as_series, read_series

COUNT = 60
UP = np.arange(1.0, COUNT + 1)
BIG = 1000 * UP + 404.75
DAYS = pd.date_range("2024-01-01", periods=COUNT)


class Frame(NamedTuple):
    """A file, the words of its refusal, the options that read it, the series that it
    was made of, and more options.
    """

    text: str
    refusal: str
    options: dict[str, Any]
    values: Sequence[np.ndarray]
    times: pd.DatetimeIndex
    ids: Sequence[str]
    plain: dict[str, Any]


def table(head: str, *columns: Iterable[Any]) -> str:
    return (
        "\n".join(
            [head, *(";".join(map(str, row)) for row in zip(*columns, strict=True))]
        )
        + "\n"
    )


def load(
    cells: Any,
    loads: Any,
    refusal: str,
    times: pd.DatetimeIndex,
    values: np.ndarray,
    **options: Any,
) -> Frame:
    """One series."""
    return Frame(
        table("time;load", cells, loads),
        refusal,
        options,
        [values],
        times,
        ["load"],
        {},
    )


def panel(head: str, ids: Sequence[str], refusal: str, **options: Any) -> Frame:
    """A series of each id of two columns, as 01/7, at the same days."""
    keys = [key.replace("/", ";") for key in ids]
    rows = [
        f"{key};{time};{100 * k + t}"
        for t, time in enumerate(DAYS, 1)
        for k, key in enumerate(keys)
    ]
    return Frame(
        "\n".join([head, *rows]),
        refusal,
        options,
        [UP + 100 * k for k in range(len(ids))],
        DAYS,
        ids,
        {},
    )


def shop(days: pd.DatetimeIndex, freq: str) -> Frame:
    """Loads and a promotion, which is known for the last days."""
    loads = np.arange(1.0, len(days) - 11)
    text = table(
        "date;load;promo", days.date, [*loads, *[""] * 12], np.arange(len(days)) % 3
    )
    plain = {"known": ["promo"], "targets": ["load"]}
    return Frame(
        text,
        f"give freq='{freq}'",
        {"freq": freq},
        [loads],
        days[:-12],
        ["series-0/load"],
        plain,
    )


def grouped(
    comma: str, point: str, numbers: Iterable[float] = BIG, form: str = ",.2f"
) -> list[str]:
    return [
        format(number, form).translate(str.maketrans({",": comma, ".": point}))
        for number in numbers
    ]


def local(
    zone: str, first: str, periods: int, freq: str
) -> tuple[pd.DatetimeIndex, pd.DatetimeIndex]:
    """Times as the clock of a zone shows them, and the same in UTC."""
    utc = pd.date_range(first, periods=periods, freq=freq, tz="UTC")
    return utc.tz_convert(zone).tz_localize(None), utc.tz_localize(None)


def jitter(times: pd.DatetimeIndex, most: int) -> pd.DatetimeIndex:
    shift = np.random.default_rng(8).integers(-most, most + 1, len(times))
    shift[:4] = most, -most, 0, most
    return times + pd.to_timedelta(shift, unit="s")


BERLIN = {"timezone": "Europe/Berlin"}
YORK = {"timezone": "America/New_York"}
GERMAN = {"thousands": ".", "decimal": ","}
AUTUMN, AUTUMN_UTC = local("Europe/Berlin", "2024-10-26", COUNT, "h")
YEAR, YEAR_UTC = local("Europe/Berlin", "2024-03-30", 5300, "h")
FALL, FALL_UTC = local("America/New_York", "2024-11-03", COUNT, "15min")
FIVE, HOURS = (
    pd.date_range("2024-01-01", periods=COUNT, freq=freq) for freq in ("5min", "h")
)
SIX = DAYS + pd.Timedelta("6h")
MONDAYS, SUNDAYS = (
    pd.date_range("2017-09-03", periods=COUNT, freq=freq) for freq in ("W-MON", "W-SUN")
)
MONTHS = pd.date_range("1871-01-01", periods=COUNT, freq="MS")
POINT = MONTHS.strftime("%Y.%m")
TRADING = pd.bdate_range("2024-01-02", "2024-04-12").drop("2024-03-29")
SPACE = "thousands='space' and decimal=','"
WEEKS = r"may be dates; give time_format='%G%V' or '%Y%U'"
STORE = "id_column='store,item'"
ZONE = "give timezone=…"
MONTH = r"give time_format='%Y\.%m'"
FRAMES = {
    "German": load(
        DAYS, grouped(".", ","), r"thousands='\.' and decimal=','", DAYS, BIG, **GERMAN
    ),
    "American": load(
        DAYS, grouped(",", "."), "thousands=','", DAYS, BIG, thousands=","
    ),
    "French": load(
        DAYS, grouped("\u202f", ","), SPACE, DAYS, BIG, thousands="space", decimal=","
    ),
    "store and item": panel(
        "store;item;date;sales", ["A/x", "A/y", "B/x"], STORE, id_column="store,item"
    ),
    "numbers of stores": panel(
        "store;item;date;sales",
        ["01/7", "01/8", "02/7"],
        STORE,
        id_column=["store", "item"],
    ),
    "autumn": load(AUTUMN, UP, ZONE, AUTUMN_UTC, UP, **BERLIN),
    "spring to autumn": load(
        YEAR, np.arange(5300.0), ZONE, YEAR_UTC, np.arange(5300.0), **BERLIN
    ),
    "jitter": load(
        jitter(FIVE, 40), UP, "give round_time='5min'", FIVE, UP, round_time="5min"
    ),
    "about six each day": load(
        jitter(SIX, 900), UP, "give round_time='1D'", DAYS, UP, round_time="1D"
    ),
    "weeks": load(MONDAYS.strftime("%G%V"), UP, WEEKS, MONDAYS, UP, time_format="%G%V"),
    "year.month": load(POINT, UP, MONTH, MONTHS, UP, time_format="%Y.%m"),
    "year.month that was a float": load(
        map(float, POINT), UP, MONTH, MONTHS, UP, time_format="%Y.%m"
    ),
    "Monday to Saturday": shop(DAYS[DAYS.dayofweek < 6], "Mon-Sat"),
    "trading days": shop(TRADING, "Mon-Fri,2024-03-29"),
}


def check(frame: Frame, batch: SeriesBatch) -> None:
    targets = batch.targets()
    assert targets.ids == tuple(frame.ids)
    for row, values in enumerate(frame.values):
        assert targets.values[row].tolist() == values.tolist()
        assert frame.times.equals(targets.timestamps(row))


def forecast(frame: Frame, path: Path, options: dict[str, Any]) -> Result:
    args = [
        "forecast",
        "chronos2-nano" if frame.plain else "bolt-nano",
        "--data",
        str(path),
        "--horizon",
        "4",
        "--json",
    ]
    for option, value in (frame.plain | options).items():
        for item in value if isinstance(value, list) else [value]:
            args += [
                "--targets" if option == "targets" else f"--{option.replace('_', '-')}",
                item,
            ]
    return CliRunner().invoke(app, args)


@pytest.mark.parametrize("name", FRAMES)
def test_refused_file_reads_with_named_option(name: str, tmp_path: Path) -> None:
    """A refused file is read with the option that the message names."""
    frame = FRAMES[name]
    path = tmp_path / "a.csv"
    path.write_text(frame.text, encoding="utf-8")
    expect_error(frame.refusal, read_series, path, **frame.plain)
    if frame.plain:
        full = path.with_name("whole.csv")
        full.write_text(frame.text.replace(";;", ";1;"))
        expect_error(frame.refusal, read_series(full, **frame.plain).split, 20)
    check(frame, read_series(path, **frame.plain, **frame.options))
    if "thousands" not in frame.options and not re.search(
        "1871.1;.*1871.10;", frame.text, re.S
    ):
        of_pandas = pd.read_csv(path, sep=";", dtype={"store": str})
        expect_error(frame.refusal, as_series, of_pandas, **frame.plain)
        check(frame, as_series(of_pandas, **frame.plain, **frame.options))
    refused = forecast(frame, path, {})
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", refused.stderr).split())
    assert refused.exit_code == 1
    for option in frame.options:
        assert re.search(
            rf"(give|with|and|or|ids with) --{option.replace('_', '-')} ", text
        ), text


TWO_STORES = [
    f"2024-01-0{day},{day},{store},{price},0"
    for store, price in ((1, 2.5), (2, 3.5))
    for day in range(1, 5)
]
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    # an id among numbers that are not read is named as one that is
    (
        "\n".join(["ds,y,store,price,promo", *TWO_STORES]),
        {"targets": ["y"]},
        "give id_column='store'",
    ),
    (
        FRAMES["German"].text,
        {"thousands": "."},
        r"thousands='\.' beside the decimal sign '\.' is no separator",
    ),
    (
        FRAMES["German"].text,
        {"thousands": "x", "decimal": ","},
        "thousands='x' .* expected",
    ),
    (
        FRAMES["autumn"].text,
        {"timezone": "Europe/Berln"},
        "no time zone 'Europe/Berln'. Closest: Europe/Berlin",
    ),
    (
        table("time;load", HOURS + pd.Timedelta("90D"), UP),
        BERLIN,
        "NonExistentTimeError",
    ),
    (table("step;load", UP, UP), BERLIN, "need a column of dates"),
    (
        FRAMES["jitter"].text,
        {"round_time": "15min"},
        "two values at .*rounded to 15min, by up to .* may be finer",
    ),
    (
        "time;load\n1871.1;1\n1871.11;2\n1871.12;3\n",
        {"time_format": "%Y.%m"},
        "may be January or October",
    ),
    (
        "a;b;ds;y\nx/y;z;2024-01-01;1\nx;y/z;2024-01-01;2\n",
        {"id_column": "a,b"},
        "alike when joined by '/'",
    ),
    (
        FRAMES["Monday to Saturday"].text,
        {"freq": "Mon-Fri"},
        "2024-01-06.* off the regular grid",
    ),
]


def test_unsettled_problems_are_still_refused(tmp_path: Path) -> None:
    """What an option does not settle is refused."""
    for text, options, message in REFUSED:
        (tmp_path / "a.csv").write_text(text)
        expect_error(message, read_series, tmp_path / "a.csv", **options)


@pytest.mark.parametrize(
    ("freq", "mask", "dates"),
    [
        ("Sun-Thu", "Sun Mon Tue Wed Thu", []),
        ("MonThu", "Mon Thu", []),
        ("monthu", "Mon Thu", []),
        ("MONSAT", "Mon Sat", []),
        ("Mon-Sat,2024-01-03", "Mon Tue Wed Thu Fri Sat", ["2024-01-03"]),
    ],
)
def test_calendars(freq: str, mask: str, dates: list[str]) -> None:
    offset = pd.offsets.CustomBusinessDay(weekmask=mask, holidays=dates)
    for given in (freq, offset):
        batch = as_series([[1.0, 2.0, 3.0]], start="2024-01-01", freq=given)
        assert pd.date_range("2024-01-01", periods=8, freq=offset).equals(
            batch.timestamps(ahead=5)
        )
        assert batch.seasonality == len(mask.split())


@pytest.mark.parametrize(
    ("zone", "first"),
    [
        ("Europe/Berlin", "2025-10-20"),
        ("America/New_York", "2025-10-27"),
        ("Australia/Sydney", "2025-03-31"),
    ],
)
@pytest.mark.parametrize("sites", ["AB", "A"])
def test_the_hour_of_autumn_does_not_hide_ids(
    zone: str, first: str, sites: str, tmp_path: Path
) -> None:
    """A file whose clock goes back is told what reads it: its ids, and a zone."""
    hours = pd.date_range(first, periods=24 * 14, freq="h", tz=zone)
    frames = [
        pd.DataFrame(
            {
                "site": site,
                "when": hours.strftime("%d.%m.%Y %H:%M"),
                "load": np.arange(len(hours), dtype=float),
                "holiday": np.where(hours.dayofweek == 2, "yes", "no"),
            }
        )
        for site in sites
    ]
    path = tmp_path / "load.csv"
    pd.concat(frames).to_csv(path, index=False)
    with pytest.raises(InputError) as refusal:
        read_series(path)
    faults = refusal.value.faults
    assert faults is not None
    assert faults.readable
    assert faults.changes["timezone"] == zone
    assert faults.changes.get("id_column") == ("site" if len(sites) > 1 else None)
    batch = read_series(path, **faults.changes)
    assert batch.lengths == (len(hours),) * len(sites)
