"""Generated files of series, and a slow reader that is told how each is written; no
pandas, no package code.
"""

from __future__ import annotations

import csv
import gzip
import io
import random
import re
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from zoneinfo import ZoneInfo

MISSING = ("", "NA", "nan")
IDS = (
    "01",
    "1",
    "1.10",
    "1.1",
    "007",
    "7",
    "NA",
    "a b",
    "=x",
    "+1+1",
    "Ä",
    "1e3",
    "-5",
    "x/y",
    "@z",
    "None",
    "1_0",
)
NAMES = ("load", "heat", "01", "1", "x", "Größe", "2020", "wind (m/s)")
EPOCH = datetime(1970, 1, 1)
FORMATS = {
    "iso": "%Y-%m-%d %H:%M:%S",
    "iso T": "%Y-%m-%dT%H:%M",
    "date": "%Y-%m-%d",
    "dotted": "%d.%m.%Y",
    "american": "%m/%d/%Y",
    "british": "%d/%m/%Y",
    "words": "%d %b %Y",
    "yyyymmdd": "%Y%m%d",
    "years": "%Y",
    "months": "%Y-%m",
}
UNITS = {
    "seconds": "s",
    "milliseconds": "ms",
    "microseconds": "us",
    "nanoseconds": "ns",
}
EPOCHS = {
    "seconds": 10**9,
    "milliseconds": 10**6,
    "microseconds": 10**3,
    "nanoseconds": 1,
}


class Unreadable(Exception):
    """The text does not say what the case says it does."""


@dataclass
class Case:
    """A file and how it is written."""

    content: bytes
    suffix: str
    layout: str
    time: str
    delimiter: str
    decimal: str
    encoding: str
    damage: str = ""
    options: dict = field(default_factory=dict)


def stamps(rng: random.Random, kind: str, count: int) -> list:
    """Regular times: naive datetimes, aware ones, or integers."""
    if kind == "steps":
        first = rng.randrange(-5, 900)
        step = rng.choice([1, 1, 2, 10])
        return [first + step * i for i in range(count)]
    if kind == "years":
        first = rng.randrange(1900, 2100 - count)
        return [datetime(first + i, 1, 1) for i in range(count)]
    start = datetime(
        rng.randrange(1990, 2030), rng.randrange(1, 13), rng.randrange(1, 28)
    )
    if kind == "months":
        months = [start.year * 12 + start.month + i for i in range(count)]
        return [datetime(m // 12, m % 12 + 1, 1) for m in months]
    whole_days = kind in ("date", "dotted", "american", "british", "words", "yyyymmdd")
    if kind.startswith("zone"):
        zone = ZoneInfo(
            rng.choice(["Europe/Berlin", "America/New_York", "Asia/Kolkata", "UTC"])
        )
        near = datetime(
            rng.randrange(2000, 2030), rng.choice([3, 10, 11]), rng.randrange(20, 29)
        )
        if kind == "zone days":
            return [
                (near + timedelta(days=i)).replace(tzinfo=zone) for i in range(count)
            ]
        first = near.replace(tzinfo=zone).astimezone(UTC)
        return [
            (first + timedelta(minutes=rng.choice([30]) * i)).astimezone(zone)
            for i in range(count)
        ]
    if whole_days:
        step = timedelta(days=rng.choice([1, 7]))
    else:
        step = rng.choice([timedelta(hours=1), timedelta(minutes=15)])
    return [start + step * i for i in range(count)]


def spelled(kind: str, stamp: object) -> str:
    if isinstance(stamp, int):
        return str(stamp)
    assert isinstance(stamp, datetime)
    if kind in EPOCHS:
        return str((stamp - EPOCH) // timedelta(microseconds=1) * 1000 // EPOCHS[kind])
    if kind.startswith("zone"):
        return stamp.isoformat(" " if kind == "zone days" else "T")
    return stamp.strftime(FORMATS[kind])


def parsed(kind: str, text: str) -> object:
    """What a cell of time says: a datetime, or an integer."""
    text = text.strip()
    if text in MISSING:
        raise Unreadable("no time")
    try:
        if kind == "steps":
            return _whole(text)
        if kind in EPOCHS:
            return EPOCH + timedelta(microseconds=_whole(text) * EPOCHS[kind] // 1000)
        if kind.startswith("zone"):
            # hours and days of one digit are as clear as of two
            stamp = datetime.fromisoformat(
                re.sub(r"(?<=[- T])(\d)(?=[-: T])", r"0\1", text)
            )
            if stamp.tzinfo is None:
                raise Unreadable(text)
            return stamp
        return datetime.strptime(text, FORMATS[kind])
    except (ValueError, OverflowError) as error:
        raise Unreadable(text) from error


def _whole(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise Unreadable(text)
    return int(text)


def number(text: str, decimal: str) -> float | None:
    """The nearest double, None where missing."""
    text = text.strip()
    if text in MISSING or text in ("null", "None", "NULL", "NaN"):
        return None
    found = re.fullmatch(
        r"([+-]?)([0-9]*)(?:([.,])([0-9]*))?(?:[eE]([+-]?[0-9]+))?", text
    )
    if found is None or not (found[2] or found[4]) or found[3] not in (None, decimal):
        raise Unreadable(text)
    exact = Fraction(int((found[2] or "0") + (found[4] or ""))) * Fraction(10) ** (
        int(found[5] or 0) - len(found[4] or "")
    )
    return float(-exact if found[1] == "-" else exact)


def slow_read(
    case: Case, *, without: Collection[str] = ()
) -> dict[str, dict[object, float | None]]:
    """Ids, in order of appearance, with values by time (by row where there is none),
    without some columns.
    """
    series: dict[str, dict[object, float | None]] = {}
    for position, (when, cells) in enumerate(_rows(case)):
        key: object = position if when is None else parsed(case.time, when)
        if isinstance(key, datetime) and key.tzinfo:
            key = key.astimezone(UTC)
        for name, cell in cells.items():
            if name in without:
                continue
            values = series.setdefault(name, {})
            if key in values:
                raise Unreadable("two values at one time")
            values[key] = number(cell, case.decimal)
    return series


def fair_reading(case: Case) -> tuple[dict[str, dict[object, float | None]], set[str]]:
    """What may be read of a file, and the columns of a wide one that are text;
    Unreadable if it is to be refused.
    """
    text = _text_columns(case)
    found = slow_read(case, without=text)
    if not found or _sign_is_open(case, text):
        raise Unreadable("there are no numbers, or each point may part thousands")
    return found, text


def _values(case: Case) -> dict[str, list[str]]:
    """The text of all values that are not missing, by id."""
    found: dict[str, list[str]] = {}
    for _, cells in _rows(case):
        for name, cell in cells.items():
            found.setdefault(name, []).extend(
                [] if cell.strip() in MISSING else [cell.strip()]
            )
    return found


def _sign_is_open(case: Case, without: Collection[str]) -> bool:
    """Whether each point stands where a sign of thousands may, which it does only
    beside other delimiters.
    """
    if (
        "decimal" in case.options
        or case.delimiter == ","
        or (len(_rows(case)[0][1]) == 1 and case.layout == "values")
    ):
        return False
    values = [
        cell
        for name, cells in _values(case).items()
        if name not in without
        for cell in cells
    ]
    signed = [cell for cell in values if "." in cell]
    return bool(signed) and all(
        re.fullmatch(r"[+-]?[1-9][0-9]{0,2}[.][0-9]{3}", cell) for cell in signed
    )


def _text_columns(case: Case) -> set[str]:
    """Columns of a wide table with more text than numbers, of either sign."""

    def is_text(cell: str) -> bool:
        try:
            number(cell.replace(",", "."), ".")
        except Unreadable:
            return True
        return False

    if case.layout != "long":
        columns = _values(case)
    else:
        columns = {}
    return {
        name
        for name, cells in columns.items()
        if 2 * sum(map(is_text, cells)) > len(cells)
    }


def _rows(case: Case) -> list[tuple[str | None, dict[str, str]]]:
    """The time of each row, None where there is none, and its values by id."""
    try:
        if case.suffix.endswith(".gz"):
            content = gzip.decompress(case.content)
        else:
            content = case.content
        text = content.decode(case.encoding)
        rows = list(
            csv.reader(
                io.StringIO(text.lstrip("\ufeff"), newline=""),
                delimiter=case.delimiter,
                strict=True,
            )
        )
    except (OSError, EOFError, zlib.error, UnicodeError, csv.Error) as error:
        raise Unreadable(str(error)) from error
    if "\0" in text:
        raise Unreadable("NUL")
    # an empty line of a single column is a missing value
    rows = [row or [""] for row in rows if row or (rows[0] and len(rows[0]) == 1)]
    while rows and not any(cell.strip() for cell in rows[-1]):
        rows.pop()
    if len(rows) < 2 or any(len(row) != len(rows[0]) for row in rows):
        raise Unreadable("rows differ in length")
    header = rows[0]
    body = rows[1:]
    if case.layout == "long":
        if not all(row[0] for row in body):
            raise Unreadable("no id")
        return [(row[1], {row[0]: row[2]}) for row in body]
    skip = 0
    if case.layout.startswith("index"):
        skip = 1
    if case.layout == "values":
        first = 0
    else:
        first = skip + 1
    return [
        (
            None if case.layout == "values" else row[skip],
            dict(zip(header[first:], row[first:], strict=True)),
        )
        for row in body
    ]


def value(rng: random.Random, decimal: str) -> str:
    if rng.random() < 0.05:
        return rng.choice(MISSING)
    form = rng.choice(
        ["{:.0f}", "{:.1f}", "{:.2f}", "{:.5f}", "{!r}", "{:.3e}", "{:+.1f}"]
    )
    return form.format(rng.gauss(0, 1) * 10 ** rng.randrange(-3, 6)).replace(
        ".", decimal
    )


def make(rng: random.Random) -> Case:
    """One file; a third are damaged below the header."""
    layout = rng.choice(
        ["long", "long", "wide", "single", "values", "index wide", "index single"]
    )
    zones = ["zone hours", "zone days"]
    time = "none"
    if layout != "values":
        time = rng.choice([*FORMATS, *EPOCHS, *zones, *zones, "steps"])
    delimiter = rng.choice([",", ",", ";", "\t", "|"])
    decimal = "."
    if delimiter != "," and rng.random() < 0.5:
        decimal = ","
    count = rng.randrange(3, 40)
    if time != "none":
        times = stamps(rng, time, count)
    else:
        times = list(range(count))
    if rng.random() < 0.4 and time not in ("years", "none") and count > 8:
        gone = set(rng.sample(range(4, count - 1), rng.randrange(1, 3)))
        times = [stamp for position, stamp in enumerate(times) if position not in gone]
    rows: list[list[str]] = []
    if layout == "long":
        header = [
            rng.choice(["id", "item_id", "unique_id"]),
            rng.choice(["timestamp", "ds", "Date"]),
            "target",
        ]
        chosen = rng.sample(IDS, rng.randrange(1, 5))
        rows = [
            [name, spelled(time, stamp), value(rng, decimal)]
            for name in chosen
            for stamp in times
        ]
    else:
        if "single" in layout:
            names = ["y"]
        else:
            names = rng.sample(NAMES, rng.randrange(2, 5))
        if layout == "values":
            names = ["first", *(name for name in names if not name.isdigit())]
        header = (["timestamp"] if layout != "values" else []) + names
        rows = [
            ([spelled(time, stamp)] if layout != "values" else [])
            + [value(rng, decimal) for _ in names]
            for stamp in times
        ]
        if layout.startswith("index"):
            header = ["", *header]
            rows = [[str(position), *row] for position, row in enumerate(rows)]
    if rng.random() < 0.2 and layout in ("long", "wide", "single"):
        rng.shuffle(rows)
    if decimal == ",":
        options = {"decimal": ","}
    else:
        options = {}
    if time in (*FORMATS, *EPOCHS) and time not in ("iso", "iso T", "date", "months"):
        options["time_format"] = FORMATS.get(time) or UNITS[time]
    return _file(
        rng,
        Case(b"", ".csv", layout, time, delimiter, decimal, "utf-8", options=options),
        header,
        rows,
    )


def _file(
    rng: random.Random, case: Case, header: list[str], rows: list[list[str]]
) -> Case:
    out = io.StringIO()
    quoting = rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    end = rng.choice(["\n", "\n", "\r\n"])
    writer = csv.writer(
        out, delimiter=case.delimiter, quoting=quoting, lineterminator=end
    )
    writer.writerow(header)
    writer.writerows(rows)
    text = out.getvalue() + end * rng.choice([0, 0, 2])
    if rng.random() < 1 / 3:
        case.damage, damage = rng.choice(list(DAMAGES.items()))
        head = text[: text.index(end) + len(end)]
        body = text[text.index(end) + len(end) :]
        text = head + damage(rng, body, case.delimiter)
    case.encoding = rng.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16"])
    case.content = text.encode(case.encoding)
    if case.encoding == "utf-8" and rng.random() < 0.2:
        case.suffix = ".csv.gz"
        case.content = gzip.compress(text.encode())
        if rng.random() < 0.2:
            case.damage = "gzip cut"
            case.content = case.content[: rng.randrange(len(case.content))]
    elif case.delimiter == "\t":
        case.suffix = ".tsv"
    return case


def _place(rng: random.Random, text: str) -> int:
    return rng.randrange(max(1, len(text) - 1))


def _line(
    rng: random.Random, text: str, change: Callable[[list[str], int], None]
) -> str:
    lines = text.splitlines(keepends=True)
    change(lines, rng.randrange(len(lines)))
    return "".join(lines)


def _put(rng: random.Random, text: str, what: str, *, instead: bool = False) -> str:
    position = _place(rng, text)
    return text[:position] + what + text[position + instead :]


DAMAGES: dict[str, Callable[[random.Random, str, str], str]] = {
    "a digit changed": lambda rng, text, _: _put(
        rng, text, rng.choice("0123456789"), instead=True
    ),
    "a sign changed": lambda rng, text, _: _put(
        rng, text, rng.choice("abc-+.,;:' \t/"), instead=True
    ),
    "a sign lost": lambda rng, text, _: _put(rng, text, "", instead=True),
    "a delimiter more": lambda rng, text, delimiter: _put(rng, text, delimiter),
    "a quote more": lambda rng, text, _: _put(rng, text, '"'),
    "two quotes more": lambda rng, text, _: _put(rng, _put(rng, text, '"'), '"'),
    "a line break more": lambda rng, text, _: _put(rng, text, "\n"),
    "a NUL": lambda rng, text, _: _put(rng, text, "\0"),
    "a line twice": lambda rng, text, _: _line(
        rng, text, lambda lines, at: lines.insert(at, lines[at])
    ),
    "a line lost": lambda rng, text, _: _line(
        rng, text, lambda lines, at: lines.pop(at)
    ),
    "cut short": lambda rng, text, _: text[: _place(rng, text)],
    "commas for points": lambda rng, text, _: re.sub(
        r"(\d)\.(\d+)(?=\W|$)", r"\1,\2", text, count=rng.choice([0, 1])
    ),
}
