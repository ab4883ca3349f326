"""Columns of time, and the regular grids on which series stand.

:func:`read_times` reads dates, text or step numbers; :func:`on_clock` applies a time
zone and rounding; :func:`make_grids` infers the frequency and finds the step of each
row. What can be read in two ways is refused with the option that decides. Spellings of
frequencies are in :mod:`.frequencies`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from difflib import get_close_matches
from typing import Any
from zoneinfo import available_timezones

import numpy as np
import pandas as pd
import pyarrow as pa

from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.data.frequencies import nearest_dates, read_offset
from tsfm_lens.data.text import MISSING, NUMBER

# a date in digits alone, such as 20240131, is read only with a format, since it may be
# a number; with a time after a T it is none
_ISO_DATE = re.compile(
    r"\d{4}-\d{2}(-\d{2})?([T ].+)?|\d{8}T\d{2,6}.*|\d{4}-?(Q[1-4]|W\d\d)"
)
_OFFSET = r"Z|UTC|GMT|[+-](?:0\d|1[0-4])(?::?[0-5]\d)?"
# an offset counts only after a time of day, since the -05 in 2020-01-05 is a day
_ZONED = re.compile(
    rf"(.*\d[T ]\d{{1,2}}(?::?\d{{2}})*(?:\.\d+)?(?: ?[AP]M)?) ?({_OFFSET})", re.I
)
# the years 1700 to 2199; a number with another year in it is rather a step
_MONTH = re.compile(r"(0[1-9]|1[0-2])\.(1[789]|2[01])\d{2}")
_YEAR_MONTH = re.compile(r"(1[789]|2[01])\d\d\.(0?[1-9]|1[0-2])")
_CENTURY = r"(?:1[789]|2[01])\d\d"
_DATE_NAME = re.compile(
    rf"{_CENTURY}(?:[-/](?:0?[1-9]|1[0-2])|[-/.](?:0?[1-9]|1[0-2])[-/.]\d{{1,2}})(?:[T"
    r" ]\d.*)?"
    rf"|\d{{1,2}}[-/.]\d{{1,2}}[-/.]{_CENTURY}(?:[T ]\d.*)?|{_CENTURY}-?[QW]\d\d?"
)
_DIGITS = {
    4: "%Y",
    6: "%Y%m",
    8: "%Y%m%d",
    10: "%Y%m%d%H",
    12: "%Y%m%d%H%M",
    14: "%Y%m%d%H%M%S",
}
_UNITS = ("s", "ms", "us", "ns")
_ISO_WEEK = "%G%V"
_INTERVALS = (
    *("1s", "2s", "5s", "10s", "15s", "30s", "1min", "2min", "5min", "10min"),
    *("15min", "20min", "30min", "1h", "2h", "3h", "6h", "12h", "1D"),
)
# as seconds since 1970, it is a day in March 1973
_STEPS = 10**8  # larger numbers are no steps
# the whole years that nanoseconds hold, so that no offset from UTC leads beyond them
_FIRST = pd.Timestamp("1678-01-01")
_END = pd.Timestamp("2262-01-01")
_BEYOND = (
    "beyond the dates from 1678-01-01 to 2261-12-31; leave the column out to read the"
    " values without dates"
)
_SLACK = 50
_FREE = 1000
"""A grid may have _FREE steps, and _SLACK more for every value.

A longer one comes from a mistyped date or frequency.
"""
_SPARSE = 0.2
"""Share of their grid that step numbers may leave empty.

201752 and 201801, weeks of years, would leave more.
"""
_SCAN_LIMIT = 200
# clocks go back at different hours and dates
_ZONES = (
    *("Europe/Berlin", "Europe/London", "Europe/Athens"),
    *("America/New_York", "Australia/Sydney"),
)
_DAY = 86_400 * 10**9
# the day on which clocks go forward has 23 hours
_LOCAL = 23 * 3600 * 10**9  # from about a day on, steps follow the clock on the wall


@dataclass(frozen=True, eq=False)
class Times:
    """Times of the rows of a frame.

    They are datetime64[ns], as a clock on the wall shows them and, where the column has
    a zone or offsets, in UTC. Columns of step numbers give numbers without a date, and
    a note.
    """

    clock: np.ndarray
    utc: np.ndarray | None = None
    note: str = ""

    @property
    def instants(self) -> np.ndarray:
        """Times in UTC where the column gives offsets, else as the clock shows them."""
        if self.utc is None:
            return self.clock
        return self.utc


def read_times(column: pd.Series, name: str, time_format: str | None = None) -> Times:
    """Read a column of time.

    A week, of a format such as %G%V or %Y%U, stands for its first day.

    Returns:
        Times on the clock, and in UTC where offsets are known.
    """
    if time_format is not None and time_format not in _UNITS and "%" not in time_format:
        raise InputError(
            f"time_format={time_format!r} is not a format such as '%d.%m.%Y', and none"
            f" of {', '.join(_UNITS)}"
        ).with_cures({"time_format": None}, *_format_cures(column.astype(str).tolist()))
    missing = column.isna().to_numpy()
    if not missing.any():
        column = _plain(column)
    if column.dtype == object:
        missing |= np.array(
            [isinstance(cell, str) and cell.strip() in MISSING for cell in column]
        )
    if missing.any():
        raise InputError(
            f"column {name!r} has no timestamp in row"
            f" {column.index[np.flatnonzero(missing)[0]]}"
        )
    if column.dtype.kind == "M":
        stamps = pd.DatetimeIndex(column)
        utc = None if stamps.tz is None else stamps.tz_convert(None)
        return _dates(stamps.tz_localize(None), utc, column, name)
    if column.dtype.kind in "mb":
        raise InputError(
            f"column {name!r} holds {column.dtype}, expected timestamps or numbers"
        )
    cells = column.tolist()
    if all(isinstance(cell, date | np.datetime64 | pd.Period) for cell in cells):
        return _from_objects(cells, column, name)
    # before numbers and text part, since such months come as either
    if time_format == "%Y.%m":
        return _from_text(_months(cells, name), column, name, time_format)
    if all(isinstance(cell, str) for cell in cells):
        cells = [cell.strip() for cell in cells]
        # 12.2024 reads as a number; a column of such cells is of months
        are_months = all(map(_MONTH.fullmatch, cells))
        are_numbers = all(re.fullmatch(NUMBER, cell) for cell in cells)
        if time_format not in (None, *_UNITS) or are_months or not are_numbers:
            return _from_text(cells, column, name, time_format)
        cells = [
            # nanoseconds since 1970 have 19 digits, of which a float keeps 15 or 16
            int(cell) if re.fullmatch(r"[+-]?\d+", cell) else float(cell)
            for cell in cells
        ]
    if all(
        isinstance(cell, int | float | np.number | Decimal)
        # ``bool`` is a subclass of ``int``
        and not isinstance(cell, bool)
        for cell in cells
    ):
        return _from_numbers(cells, column, name, time_format)
    other = next(
        cell
        for cell in cells
        if type(cell) is not type(cells[0]) or not isinstance(cell, str)
    )
    raise InputError(
        f"column {name!r} holds {other!r} beside other kinds of cells, expected"
        " timestamps of one kind"
    )


def holds_dates(dtype: Any) -> bool:
    """Test if a type is one of dates or periods, of numpy, pandas or Arrow."""
    return dtype.kind == "M" or isinstance(dtype, pd.PeriodDtype)


def resembles_dates(column: pd.Series) -> bool:
    """Test if the first cells of a column are dates or text in ISO 8601.

    That includes text that :func:`read_times` refuses.

    Returns:
        True if they are.
    """
    # each candidate column of a frame is asked, and twenty cells tell text of dates
    # from other text
    cells = _plain(column.dropna().head(20))
    if cells.empty or holds_dates(cells.dtype):
        return not cells.empty
    return all(
        isinstance(cell, date | np.datetime64)
        or (isinstance(cell, str) and _ISO_DATE.fullmatch(cell.strip()))
        for cell in cells
    )


_DATE_FORMS = (
    *("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y/%m/%d"),
    *("%Y.%m.%d", "%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%Y%m%d"),
    *("%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%d-%b-%y", "%b %d, %Y", "%B %d, %Y"),
    *("%m/%Y", "%m.%Y", "%Y/%m", "%b %Y", "%B %Y", "%b-%y", "%b-%Y"),
)
_CLOCK_FORMS = ("", " %H:%M", " %H:%M:%S", "T%H:%M", "T%H:%M:%S", " %I:%M %p", " %Hh")


def fitting_formats(texts: Sequence[str]) -> list[str]:
    """List the usual formats of dates in which all of some texts are dates.

    Several fit where day and month cannot be told apart, as in 01/02/2024.

    Returns:
        Formats as of strftime.
    """
    unique = pd.Series(list(dict.fromkeys(text.strip() for text in texts)))
    forms = [f"{date}{clock}" for date in _DATE_FORMS for clock in _CLOCK_FORMS]
    fitting = []
    for form in forms:
        # the first text rules out most formats, and is read fast
        if pd.isna(pd.to_datetime(unique[0], format=form, errors="coerce")):
            continue
        stamps = pd.to_datetime(unique, format=form, errors="coerce")
        if stamps.dt.year.between(1700, 2200).all():
            fitting.append(form)
    return fitting


def _format_cures(texts: Sequence[str]) -> list[dict[str, str]]:
    return [{"time_format": form} for form in fitting_formats(texts)]


def is_date_name(name: Any) -> bool:
    """Test if the name of a column is a date, or text written as one."""
    return (
        isinstance(name, date | np.datetime64 | pd.Period)
        or _DATE_NAME.fullmatch(str(name).strip()) is not None
    )


def digit_dates(names: Sequence[Any]) -> tuple[list[Any], str | None]:
    """Return the names of digits that are dates, and their format.

    All of them must be dates of one format, such as years; else return no names.
    """
    digits = [name for name in names if re.fullmatch(r"\d{4}|\d{6}|\d{8}", str(name))]
    formats: list[str] = []
    if digits:
        formats = _date_formats(np.array([int(name) for name in digits]))
    if not formats:
        return [], None
    if formats[0] == _ISO_WEEK:
        # pandas reads a week only with a day, and these are weeks of years already
        return digits, formats[0]
    stamps = pd.to_datetime(
        pd.Series(list(map(str, digits))), format=formats[0], errors="coerce"
    )
    if stamps.dt.year.between(1700, 2200).all():
        return digits, formats[0]
    return [], None


def _plain(column: pd.Series) -> pd.Series:
    """Replace Arrow's cells by numpy's, and categories by their values."""
    # categories may be of Arrow's types, and Arrow's dictionaries become categories
    while isinstance(column.dtype, pd.ArrowDtype | pd.CategoricalDtype):
        if isinstance(column.dtype, pd.ArrowDtype):
            # days become dates of numpy at once, and no Python objects one by one
            cells = pa.array(column.array).to_pandas(
                integer_object_nulls=True, date_as_object=False
            )
            column = pd.Series(cells.array, column.index, name=column.name)
        else:
            column = column.astype(column.cat.categories.dtype)
    return column


def _dates(
    clock: pd.DatetimeIndex, utc: pd.DatetimeIndex | None, column: pd.Series, name: str
) -> Times:
    """Convert dates of any unit, without a zone, into nanoseconds.

    Returns:
        The times.

    Raises:
        InputError: a date is beyond the years that nanoseconds hold.
    """
    # compared in the unit that they came in, since ``as_unit`` refuses a date that
    # nanoseconds do not hold without naming its row
    instants = clock if utc is None else utc
    beyond = np.flatnonzero((instants < _FIRST) | (instants >= _END))
    if len(beyond):
        raise InputError(
            f"column {name!r}: {instants[beyond[0]]} in row {column.index[beyond[0]]}"
            f" is {_BEYOND}"
        )
    return Times(
        clock.as_unit("ns").to_numpy(),
        None if utc is None else utc.as_unit("ns").to_numpy(),
    )


def _from_objects(cells: list[Any], column: pd.Series, name: str) -> Times:
    """Read Python's dates and datetimes, and pandas' timestamps and periods.

    They may be of any zones.

    Returns:
        The times.
    """
    clock = []
    utc = []
    for cell, row in zip(cells, column.index, strict=True):
        try:
            if isinstance(cell, pd.Period):
                # a period stands for its beginning, the default of pandas
                stamp = cell.to_timestamp()
            else:
                stamp = pd.Timestamp(cell)
            instant = stamp
            if stamp.tz is not None:
                instant = stamp.tz_convert(None)
            if not _FIRST <= instant < _END:
                # caught below with the errors of pandas, which have the same message
                # here
                raise OverflowError
        except (ValueError, OverflowError) as error:
            raise InputError(
                f"column {name!r}: {cell} in row {row} is {_BEYOND}"
            ) from error
        clock.append(stamp.as_unit("ns").tz_localize(None).to_datetime64())
        if stamp.tz is not None:
            utc.append(instant.as_unit("ns").to_datetime64())
    if utc and len(utc) < len(clock):
        raise InputError(
            f"column {name!r} has times with a zone and times without; give all of"
            " them one"
        )
    return Times(
        np.array(clock, dtype="datetime64[ns]"),
        np.array(utc, dtype="datetime64[ns]") if utc else None,
    )


def _from_numbers(
    cells: list[Any], column: pd.Series, name: str, time_format: str | None
) -> Times:
    """Read numbers as dates of a format, or as steps where they can be no dates."""
    try:
        are_integers = all(float(cell).is_integer() for cell in cells)
        convert = int if are_integers else float
        numbers = np.array([convert(cell) for cell in cells])
    except (OverflowError, ValueError) as error:
        raise InputError(
            f"column {name!r} holds a number that is not a time: {error}"
        ) from error
    # whole numbers beyond int64 make an array of uint64 or of objects
    if numbers.dtype.kind != "i" and (time_format is not None or are_integers):
        raise InputError(
            f"column {name!r} holds {cells[0]!r}…, no whole numbers or too large ones"
            " for times"
        )
    if time_format in _UNITS:
        stamps = pd.DatetimeIndex(numbers.astype(f"datetime64[{time_format}]"))
        return _dates(stamps, None, column, name)
    if time_format is not None:
        return _from_text(numbers.astype(str).tolist(), column, name, time_format)
    formats: list[str] = []
    if are_integers:
        formats = _date_formats(numbers)
    else:
        # ten digits hide the rounding of a float, as in 2017.1000000000001
        texts = [f"{cell:.10g}" for cell in cells]
        are_months = all(map(_YEAR_MONTH.fullmatch, texts))
        # of quarters none is the eleventh
        if are_months and any(re.search(r"\.(0|1[12])", text) for text in texts):
            formats = ["%Y.%m"]
    if formats:
        raise InputError(
            f"the numbers of column {name!r}, such as {numbers[0]}, may be dates"
        ).with_cures(
            *({"time_format": form} for form in formats),
            advice=(
                f"; give time_format={' or '.join(map(repr, formats))}, or leave the"
                " column out to read the values without dates"
            ),
        )
    kind, reading = "broken", "as positions"
    if are_integers:
        kind, reading = "whole", "are read as step numbers"
    note = f"the {kind} numbers of column {name!r} {reading}, without a date"
    return Times(numbers, note=note)


def _date_formats(numbers: np.ndarray) -> list[str]:
    """List the formats in which whole numbers may be dates.

    Most of the numbers must be dates of the format, or all of them weeks of years.
    Numbers of steps have none.

    Returns:
        Formats as of strftime.
    """
    years, weeks = np.divmod(numbers, 100)
    # within a single year, weeks are steps of 1 like any others; above 12, the last two
    # digits are no months
    if 1700 < years.min() < years.max() < 2200 and 12 < weeks.max() <= 53:
        return [_ISO_WEEK, "%Y%U"]
    texts = numbers.astype(str)
    widths = np.char.str_len(texts)
    # the commonest width, since a single mistyped number must not make steps of dates
    digits = int(np.bincount(widths).argmax())
    formats: list[str] = []
    if np.abs(numbers).max() >= _STEPS:
        formats = list(_UNITS)
    if digits not in _DIGITS:
        return formats
    stamps = pd.to_datetime(
        pd.Series(texts).where(widths == digits),
        format=_DIGITS[digits],
        errors="coerce",
    )
    # four digits may count steps, and some of any steps look like years
    min_share = 0.9 if digits == 4 else 0.5
    if stamps.dt.year.between(1700, 2200).mean() > min_share:
        return [_DIGITS[digits], *formats]
    return formats


def _months(cells: list[Any], name: str) -> list[str]:
    """Write months with two digits where a float has lost the last one.

    October, as 1871.10, is 1871.1 as a float; it can be told from January where that is
    written 1871.01.

    Returns:
        Texts such as "1871.10".
    """
    texts = [
        f"{cell:.10g}" if isinstance(cell, float | Decimal) else str(cell).strip()
        for cell in cells
    ]
    # one January as .01 shows that months have two digits, and then .1 is an October
    # that lost its zero
    if any(text[4:6] == ".0" for text in texts):
        return [text.ljust(7, "0") for text in texts]
    short = [text for text in texts if len(text) == 6]
    if short and all(text.endswith(".1") for text in short):
        raise InputError(
            f"column {name!r}: {short[0]!r} may be January or October; write months"
            " with two digits"
        )
    return texts


def _from_text(
    texts: list[str], column: pd.Series, name: str, time_format: str | None
) -> Times:
    """Read text in one format, by default ISO 8601.

    All cells have an offset from UTC, or none has.

    Returns:
        The times.
    """
    # each text once, since the series of a panel repeat their times
    zones = {text: _ZONED.fullmatch(text) for text in dict.fromkeys(texts)}
    if 0 < sum(zone is not None for zone in zones.values()) < len(zones):
        bare_text = next(text for text, zone in zones.items() if zone is None)
        raise InputError(
            f"column {name!r} has times with an offset and times without, such as"
            f" {bare_text!r}"
        )
    bare = pd.Series(
        [zone[1].strip() if (zone := zones[text]) else text for text in texts]
    )
    # the ISO8601 of pandas has neither quarters nor weeks, so that each gets a form
    # that it can read
    if time_format is None and bare.str.fullmatch(r"\d{4}-?Q[1-4]").all():
        bare = bare.map(lambda text: f"{text[:4]}-{3 * int(text[-1]) - 2:02d}")
    if time_format is None:
        form = "ISO8601"
    else:
        # the offset is cut off above, where the form would look for it
        form = time_format.removesuffix("%z").strip()
    if form == "ISO8601" and bare.str.fullmatch(r"\d{4}-W\d\d").all():
        form = "%G-W%V"
    iso = time_format is not None or bare.str.fullmatch(_ISO_DATE)
    week = None
    if not re.search("%[aAuw]", form):
        # a form that also has the day of the week is complete
        week = re.search("%[UVW]", form)
    if week:
        # pandas reads a week only with a day; Sunday begins the weeks of %U
        bare = bare + (" 0" if week[0] == "%U" else " 1")
        form = f"{form} %w"
    try:
        # coerced, so that the message can name the first cell that is wrong, and its
        # row
        stamps = pd.to_datetime(bare, format=form, errors="coerce")
    except (ValueError, TypeError) as error:
        raise InputError(
            f"time_format={time_format!r} is not a format: {error}"
        ).with_cures({"time_format": None}, *_format_cures(texts)) from error
    if week:
        # of a week 53 that a year does not have, pandas makes one of the next year
        years = stamps.dt.strftime(re.findall("%[GYy]", form)[0]).fillna("")
        has_year = [year in text for year, text in zip(years, texts, strict=True)]
        stamps = stamps.where(np.array(has_year))
    wrong = np.flatnonzero(stamps.isna() | ~np.broadcast_to(iso, len(bare)))
    if len(wrong):
        expected = "ISO 8601"
        advice = "; give time_format=…, as in '%d.%m.%Y'"
        if time_format:
            expected = f"time_format={time_format!r}"
            advice = ""
        raise InputError(
            f"column {name!r}: {texts[wrong[0]]!r} in row {column.index[wrong[0]]} is"
            f" not a date of {expected}"
        ).with_cures(
            {"time_format": None},
            *_format_cures(texts),
            advice=f"{advice}; or it is {_BEYOND}",
        )
    clock = stamps.to_numpy(dtype="datetime64[ns]")
    offsets = {text: _offset(zone[2]) for text, zone in zones.items() if zone}
    if not offsets:
        return Times(clock)
    shifts = np.array([offsets[text] for text in texts], dtype="timedelta64[ns]")
    return Times(clock, clock - shifts)


def _offset(text: str) -> np.timedelta64:
    digits = "0000"
    if text[0] in "+-":
        digits = text[1:].replace(":", "").ljust(4, "0")
    size = np.timedelta64((int(digits[:2]) * 60 + int(digits[2:])) * 60 * 10**9, "ns")
    if text[0] == "-":
        return -size
    return size


@dataclass(frozen=True, eq=False)
class Grid:
    """Regular time grid of a series.

    ``order`` sorts its rows by time, ``positions`` has the step of each sorted row, and
    ``start`` and ``freq`` are None where there are no dates or no frequency.
    """

    order: np.ndarray
    positions: np.ndarray
    start: pd.Timestamp | None
    freq: str | None

    @property
    def length(self) -> int:
        """Number of steps."""
        return int(self.positions[-1]) + 1

    def filled(self, values: np.ndarray) -> np.ndarray:
        """Return the values on the grid, NaN in gaps."""
        full = np.full(self.length, np.nan)
        full[self.positions] = values[self.order]
        return full


def on_clock(
    times: Times | None,
    groups: Sequence[tuple[str, np.ndarray]],
    zone: str | None,
    interval: str | None,
) -> Times:
    """Convert the times of a zone's local clock into UTC, and round them.

    Where the clock repeats an hour in autumn, the order of rows decides.

    Returns:
        The times, with a note on what was changed.
    """
    if (
        times is None
        or times.clock.dtype.kind != "M"
        or (zone is not None and times.utc is not None)
    ):
        raise InputError(
            "timezone=… and round_time=… need a column of dates, and timezone=… one"
            " without offsets"
        )
    utc = times.utc
    if zone is not None:
        # ``tz_localize`` takes more than the names of zones, such as "dateutil/…" and
        # plain offsets
        if zone not in available_timezones():
            error = unknown_name("time zone", zone, available_timezones())
            near = get_close_matches(zone, available_timezones(), n=1)
            raise error.with_cures(*({"timezone": name} for name in near))
        utc = np.empty_like(times.clock)
        for group, rows in groups:
            # the latest may come first
            if times.clock[rows[0]] > times.clock[rows[-1]]:
                rows = rows[::-1]
            try:
                utc[rows] = (
                    pd.DatetimeIndex(times.clock[rows])
                    .tz_localize(zone, ambiguous="infer")
                    .tz_convert(None)
                )
            except Exception as error:
                # of pytz, where pandas uses it
                detail = f"{type(error).__name__}: {error}"
                raise InputError(
                    f"series {group!r} does not fit timezone={zone!r} ({detail}); leave"
                    " it out, or write offsets, as in 2024-10-27 02:00+01:00"
                ) from error
    clock = pd.DatetimeIndex(times.clock)
    try:
        # rounding to nanoseconds changes nothing, so that one path serves both options
        shift = (clock.round(interval or "ns") - clock).to_numpy()
    except ValueError as error:
        raise InputError(
            f"round_time={interval!r} is no fixed interval, as '5min', 'h' or 'D':"
            f" {error}"
        ) from error
    note = ""
    if interval:
        largest = pd.Timedelta(np.abs(shift).max())
        note = f"times are rounded to {interval}, by up to {largest}"
    # shifted as the clock is: rounding to days in UTC would hit another hour of the
    # zone
    rounded_utc = None if utc is None else utc + shift
    return Times(times.clock + shift, rounded_utc, note)


def zones_repeating(time: pd.Timestamp) -> list[str]:
    """List zones whose clock shows a time twice, one of each rule that is common."""
    # an hour that a clock leaves out in spring is none that it repeats
    return [
        zone
        for zone in _ZONES
        if pd.isna(time.tz_localize(zone, ambiguous="NaT", nonexistent="shift_forward"))
    ]


def _jitter(index: pd.DatetimeIndex) -> str:
    """Name the option that rounds sorted times which keep near a grid.

    Returns:
        Text such as "round_time='5min'", "" where they do not, or where there is only
        one.
    """
    if len(index) < 2:
        return ""
    step = pd.Timedelta(np.median(np.diff(index)))
    for interval in _INTERVALS:
        # any time is within half an interval of its grid, so that only less than that
        # shows one
        tolerance = 0.4 * pd.Timedelta(interval)
        if (
            abs(step - tolerance / 0.4) < tolerance
            and np.abs(index - index.round(interval)).max() < tolerance
        ):
            return f"round_time={interval!r}"
    return ""


def _jitter_cure(index: pd.DatetimeIndex) -> dict[str, str]:
    option = _jitter(index)
    if not option:
        return {}
    return {"round_time": option.partition("=")[2].strip("'")}


def make_grids(
    times: Times,
    groups: Sequence[tuple[str, np.ndarray]],
    rows: pd.Index,
    freq: str | None,
) -> tuple[list[Grid], list[str], bool]:
    """Return the grid of each series, all of one frequency.

    Also return notes on how time was read, and whether the grid is in UTC.
    """
    notes = [times.note] if times.note else []
    clocks = {"the local clock": times.clock}
    if times.utc is not None:
        steps = np.diff(np.sort(times.utc[groups[0][1]]))
        utc = {"UTC": times.utc}
        # the clock that is more likely to be regular is tried first; the first series
        # decides for all, which share one frequency
        if len(steps) and int(np.median(steps)) >= _LOCAL:
            clocks = clocks | utc
        else:
            clocks = utc | clocks
    errors: list[InputError] = []
    for clock, stamps in clocks.items():
        try:
            grids = _all_grids(stamps, groups, rows, freq)
        except InputError as error:
            errors.append(error)
            continue
        for (group, group_rows), grid in zip(groups, grids, strict=True):
            if times.utc is None:
                break
            # in the order of the local clock, time goes back in UTC only if an offset
            # is wrong
            steps = np.diff(times.utc[group_rows[grid.order]])
            if (steps <= np.timedelta64(0)).any():
                raise InputError(
                    f"series {group!r} goes forward on {clock}, not in UTC; one of the"
                    " offsets is wrong"
                )
        if times.utc is not None and (times.utc != times.clock).any():
            notes.append(
                "timestamps have a zone or offsets; the series stand on the grid of"
                f" {clock}"
            )
        return grids, notes, clock == "UTC"
    # the clock that was tried first is the likelier one
    raise errors[0]


def _all_grids(
    stamps: np.ndarray,
    groups: Sequence[tuple[str, np.ndarray]],
    rows: pd.Index,
    freq: str | None,
) -> list[Grid]:
    """Find the grid of each series, and one frequency for all."""
    # the series of a panel mostly share their times
    cache: dict[tuple[bytes, str | None], Grid] = {}

    def grid(group: str, rows_of_group: np.ndarray, step: str | None) -> Grid:
        times = stamps[rows_of_group]
        # an array cannot be a key, and its bytes can
        key = (times.tobytes(), step)
        if key not in cache:
            cache[key] = _grid(times, rows[rows_of_group], group, step)
        return cache[key]

    grids = [grid(*group, freq) for group in groups]
    freqs = sorted({series.freq for series in grids if series.freq is not None})
    if len(freqs) > 1:
        raise InputError(
            f"the series have different frequencies ({', '.join(freqs)}); read them"
            " apart"
        )
    # of fewer than three timestamps nothing can be inferred; they are to fit the
    # others' grid
    step = None
    if freqs:
        step = freqs[0]
    return [
        series if series.freq == step else grid(*group, step)
        for series, group in zip(grids, groups, strict=True)
    ]


def _grid(times: np.ndarray, rows: pd.Index, name: str, freq: str | None) -> Grid:
    """Find the grid of one series from its datetime64[ns] or step numbers.

    Messages name the rows of ``rows``.

    Returns:
        The grid, and the positions of the rows on it.
    """
    # stable, so that of two equal times the message names the earlier row first
    order = np.argsort(times, kind="stable")
    times = times[order]
    rows = rows[order]
    same = np.flatnonzero(times[1:] == times[:-1])
    if len(same):
        first = same[0]
        raise InputError(
            f"series {name!r} has two values at {time_text(times[first])} (rows"
            f" {rows[first]} and {rows[first + 1]})"
        )
    start = None
    alias = freq
    if times.dtype.kind != "M":
        step, positions = _step_positions(times, name)
    else:
        start = pd.Timestamp(times[0])
        index = pd.DatetimeIndex(times)
        alias = freq or (_frequency(index) if len(index) > 2 else None)
        if alias is None and len(index) > 2:
            raise InputError(
                f"series {name!r} has irregular timestamps ({index[0]}, {index[1]},"
                f" {index[2]}, …) and no frequency can be inferred"
            ).with_cures(
                _jitter_cure(index),
                advice=f"; give {_jitter(index) or 'freq=…'}, or resample it first",
            )
        step = f"frequency {alias!r}"
        if alias is None:
            positions = np.arange(len(index))
        else:
            positions = _date_positions(index, alias, name, rows)
    _check_length(positions, times, rows, name, step)
    return Grid(order, positions, start, alias)


def time_text(time: Any) -> str:
    """Write a time as a date, or as the number of a step."""
    if isinstance(time, np.datetime64 | pd.Timestamp):
        return str(pd.Timestamp(time))
    return f"step {time}"


def _step_positions(times: np.ndarray, name: str) -> tuple[str, np.ndarray]:
    """Place step numbers on the grid of their commonest distance."""
    # a single number has no distance, and any step will do
    if len(times) == 1:
        return "step 1", np.zeros(1, dtype=np.int64)
    sizes, counts = np.unique(np.diff(times), return_counts=True)
    if times.dtype.kind == "i":
        # the commonest of exact distances: gaps make others, and many gaps move a
        # median
        step = sizes[np.argmax(counts)]
    else:
        # rounding makes nearly all distances of floats different, so that none is the
        # commonest
        step = np.median(np.diff(times))
    exact = (times - times[0]) / step
    positions = np.round(exact)
    tolerance = 0.0
    if times.dtype.kind != "i":
        # sums of a broken step are off by rounding, of the largest number
        tolerance = 8 * np.finfo(float).eps * np.abs(times).max() / step + 1e-6
    wrong = np.flatnonzero(np.abs(exact - positions) > tolerance)
    if len(wrong) or (np.diff(positions) < 1).any():
        time = times[0]
        if len(wrong):
            time = times[wrong[0]]
        raise InputError(
            f"series {name!r} has a value at step {time}, which is off the regular"
            f" steps of {step} from {times[0]}; resample it first, or write the times"
            " as dates such as 2017-12-25"
        )
    return f"step {step}", positions.astype(np.int64)


def _date_positions(
    index: pd.DatetimeIndex, freq: str, name: str, rows: pd.Index
) -> np.ndarray:
    """Place sorted timestamps on the grid of a frequency that begins with the first."""
    offset = read_offset(freq)
    first = index[0]
    if isinstance(offset, pd.offsets.Tick):
        # as in _frequency, a difference may be too large for int64
        nanoseconds = index.asi8.view(np.uint64)
        positions, remainder = np.divmod(
            nanoseconds - nanoseconds[0], np.uint64(offset.nanos)
        )
        off_grid = np.flatnonzero(remainder)
    else:
        first_and_last = [0, -1]
        try:
            # over twelve steps, the lengths of months even out
            step = max((first + 12 * offset).value - first.value, _DAY) / 12
        except (ValueError, OverflowError):
            step = np.inf  # the last date of pandas is near
        estimate = int((index[-1].value - first.value) / step)
        # a calendar's steps are counted only once they are known to be few; twice what
        # is allowed, since the estimate may be off; the exact count is checked by the
        # caller
        if estimate > 2 * (_FREE + _SLACK * len(index)):
            _check_length(
                np.array([0, estimate]),
                index.to_numpy()[first_and_last],
                rows[first_and_last],
                name,
                f"frequency {freq!r}",
            )
        try:
            grid = pd.date_range(first, index[-1], freq=offset)
        except (ValueError, OverflowError) as error:
            raise InputError(
                f"series {name!r} cannot stand on a grid of frequency {freq!r} from"
                f" {first} to {index[-1]}: {error}"
            ) from error
        # -1 where a timestamp is not on the grid
        positions = grid.get_indexer(index)
        off_grid = np.flatnonzero(positions < 0)
    if len(off_grid):
        first_off = off_grid[0]
        location = f"{index[first_off]} (row {rows[first_off]})"
        message = (
            f"series {name!r} has a value at {location}, which is off the regular grid"
            f" of frequency {freq!r}"
        )
        if not isinstance(offset, pd.offsets.Tick):
            message += f"; {nearest_dates(index[first_off], freq)}"
        option = _jitter(index)
        advice = ""
        if option:
            advice = f"; if times are off by chance, give {option}"
        raise InputError(message).with_cures(_jitter_cure(index), advice=advice)
    return np.asarray(positions, dtype=np.int64)


def _check_length(
    positions: np.ndarray, times: np.ndarray, rows: pd.Index, name: str, step: str
) -> None:
    """Refuse a grid that is mostly empty, naming its widest gap."""
    length = int(positions[-1]) + 1
    values = len(positions)
    is_sparse = times.dtype.kind != "M" and length - values > _SPARSE * length
    # a single value has no gap to name
    if values < 2 or (length <= _FREE + _SLACK * values and not is_sparse):
        return
    cure = "Fix the mistyped time, give the true freq=…, or cut the series in two"
    if is_sparse:
        cure = (
            "The numbers of the time column may be years with days or quarters: give"
            " time_format=…, as in '%Y%j', write dates such as 2017-12-25, leave the"
            " column out, or give missing steps their rows"
        )
    widest = int(np.argmax(np.diff(positions)))
    before, after = (
        f"{time_text(times[index])} (row {rows[index]})"
        for index in (widest, widest + 1)
    )
    missing = int(positions[widest + 1] - positions[widest]) - 1
    raise InputError(
        f"series {name!r} has {values} values on a grid of {length} steps with {step}:"
        f" between {before} and {after} {missing} are missing. {cure}"
    )


def _frequency(index: pd.DatetimeIndex) -> str | None:
    """Infer the frequency of sorted timestamps.

    Where there are gaps, the first stretches without one decide.

    Returns:
        The alias of pandas, None if they are irregular.
    """
    # int64 ends at 292 years, and uint64 wraps round to the right difference
    steps = np.diff(index.asi8.view(np.uint64))
    if (steps == steps[0]).all() and steps[0] < _DAY:
        return str(
            pd.tseries.frequencies.to_offset(pd.Timedelta(int(steps[0]), "ns")).freqstr
        )
    sizes, counts = np.unique(steps, return_counts=True)
    # three timestamps at the commonest distance are the least from which pandas infers
    # a frequency
    pairs = np.flatnonzero(
        (steps[:-1] == steps[1:]) & (steps[1:] == sizes[np.argmax(counts)])
    )
    # pandas infers nothing from timestamps with a gap
    stretches = [index, *(index[first : first + 3] for first in pairs[:_SCAN_LIMIT])]
    # steps of unequal length need more than three: twelve cover every month of a year,
    # or two weekends between business days
    stretches += [
        index[first : first + 12] for first in range(min(len(index) - 11, _SCAN_LIMIT))
    ]
    return next(
        (str(freq) for stretch in stretches if (freq := pd.infer_freq(stretch))), None
    )
