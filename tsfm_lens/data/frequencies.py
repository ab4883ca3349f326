"""Frequencies: those of pandas, calendars of weekdays, and those of benchmarks.

Benchmarks spell frequencies as pandas did before 2.2; :func:`parse_frequency` and
:func:`stamp_frequency` turn them into present aliases. :func:`read_offset` reads all
others, and :func:`grid_date` places a start on the grid of its frequency.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.core.errors import InputError

_SPELLINGS = {
    "A": "A Y YE YS AS BYS BYE",
    "Q": "Q QE QS BQS BQE",
    "M": "M ME MS BMS BME",
    "H": "H h",
    "T": "T min",
    "S": "S s",
}
_LETTERS = {
    word: letter for letter, words in _SPELLINGS.items() for word in words.split()
} | dict(zip("WDB", "WDB", strict=True))
"""Every spelling -> one letter, as GIFT-Eval and gluonts use it."""
# periods and stamps spell the same unit differently in pandas: "M" is a period, and
# "MS" its first day
_PERIODS = {"A": "Y", "H": "h", "T": "min", "S": "s"}
_STAMPS = {"A": "YS", "Q": "QS", "M": "MS", "H": "h", "T": "min", "S": "s"}
_MONTHS = (
    "JAN",
    "FEB",
    "MAR",
    "APR",
    "MAY",
    "JUN",
    "JUL",
    "AUG",
    "SEP",
    "OCT",
    "NOV",
    "DEC",
)
_DAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
_ANCHORS = {"A": _MONTHS, "Q": _MONTHS, "W": _DAYS}
# offsets whose dates stand for a whole period; weeks are none, since a date within one
# may be the day on which its series counts
_BEGINNINGS = (pd.offsets.MonthBegin, pd.offsets.QuarterBegin, pd.offsets.YearBegin)
_ENDS = (pd.offsets.MonthEnd, pd.offsets.QuarterEnd, pd.offsets.YearEnd)


@lru_cache
def read_offset(freq: Any) -> Any:
    """Return the offset of a pandas alias or of a calendar of weekdays.

    A calendar is "MonThu", or a range less some dates: "Mon-Sat,2024-12-25".
    """
    # offsets and None are not split, and go on to pandas as they are
    days, *dates = freq.split(",") if isinstance(freq, str) else [""]
    first, _, last = days.upper().partition("-")
    if first[:3] not in _DAYS:
        return pd.tseries.frequencies.to_offset(freq)
    if last:
        start = _DAYS.index(first)
        stop = _DAYS.index(last)
        # two weeks in a row, so that a range such as Sat-Wed may pass Sunday; numpy
        # reads days spelled as "Mon"
        days = " ".join((_DAYS * 2)[start : start + (stop - start) % 7 + 1]).title()
    else:
        parts = [first[at : at + 3] for at in range(0, len(first), 3)]
        if set(parts) <= set(_DAYS):
            days = " ".join(parts).title()
    return pd.offsets.CustomBusinessDay(
        weekmask=days, holidays=list(map(date.fromisoformat, dates))
    )


@lru_cache(maxsize=10_000)  # the series of a dataset share few dates
def grid_date(start: pd.Timestamp, freq: str) -> pd.Timestamp:
    """Return the date on the grid of a frequency with which a series begins.

    On a grid of months, quarters or years, it is the date of the period around the
    start.

    Raises:
        InputError: the start lies between two dates of another grid.

    Example:
        >>> grid_date(pd.Timestamp("2024-01-15"), "ME")
        Timestamp('2024-01-31 00:00:00')
    """
    offset = read_offset(freq)
    stamp = pd.Timestamp(start)
    if offset.is_on_offset(stamp):
        return start
    try:
        # a date inside a period stands for the period
        if isinstance(offset, _BEGINNINGS):
            # without its time of day, which ``rollback`` would keep
            return offset.rollback(stamp.normalize())
        if isinstance(offset, _ENDS):
            return offset.rollforward(stamp.normalize())
    except (pd.errors.OutOfBoundsDatetime, OverflowError) as error:
        raise InputError(
            f"start {stamp} lies in a period of freq={freq!r} beyond the dates of"
            " pandas"
        ) from error
    raise InputError(
        f"start {stamp} is off the grid of freq={freq!r}; {nearest_dates(stamp, freq)}"
    )


def nearest_dates(stamp: pd.Timestamp, freq: str) -> str:
    """Name the dates of a grid on both sides of a date that is off it.

    For weeks, also name the frequency on whose grid the date is.

    Returns:
        A text for a message.
    """
    offset = read_offset(freq)
    try:
        text = (
            f"its nearest dates are {offset.rollback(stamp)} and"
            f" {offset.rollforward(stamp)}"
        )
    except (pd.errors.OutOfBoundsDatetime, OverflowError):
        return "it is beyond the dates of pandas"
    if not isinstance(offset, pd.offsets.Week):
        return text
    multiple = ""
    if offset.n > 1:
        multiple = str(offset.n)
    return f"{text}, and freq='{multiple}W-{_DAYS[stamp.weekday()]}' has this one"


def format_calendar(weekdays: Iterable[int], dates: Iterable[Any]) -> str:
    """Spell weekdays less some dates as :func:`read_offset` reads them.

    Monday is 0.

    Returns:
        Text such as "Mon-Fri,2024-12-25".
    """
    numbers = sorted(set(weekdays))
    days = [_DAYS[number].title() for number in numbers]
    if 1 < len(days) == numbers[-1] - numbers[0] + 1:
        text = f"{days[0]}-{days[-1]}"
    else:
        text = "".join(days)
    excluded = sorted(f"{pd.Timestamp(day):%Y-%m-%d}" for day in dates)
    return ",".join([text, *excluded])


def without_gaps(
    past: np.ndarray, future: np.ndarray, start: pd.Timestamp | None, freq: str | None
) -> str:
    """Suggest a calendar without the days of the future that have no value.

    ``future`` is (time,).

    Returns:
        The end of a message that names the option, "" if steps are no days.
    """
    offset = read_offset(freq)
    if (
        start is None
        or not isinstance(offset, pd.offsets.Day | pd.offsets.BusinessDay)
        or offset.n > 1
    ):
        return ""
    days = pd.date_range(start, periods=len(past) + len(future), freq=offset)
    present = days[np.isfinite(np.append(past, future))]
    # of the future alone, since gaps of the past may be missing values
    absent = pd.date_range(days[len(past)], days[-1]).difference(present)
    calendar = format_calendar(
        present.weekday, absent[absent.weekday.isin(present.weekday)]
    )
    gap = days[len(past) :].difference(present)[0]
    return f"; if days such as {gap.date()} have no step, give freq={calendar!r}"


@lru_cache
def parse_frequency(freq: str) -> tuple[int, str, str]:
    """Split a frequency into multiple, letter and last month or day.

    Returns:
        Multiple, letter and last month or day: (1, "W", "WED") of "W-WED".
    """
    parts = re.fullmatch(r"(\d*)([A-Za-z]+)(?:-([A-Z]{3}))?", str(freq))
    letter = None
    if parts:
        letter = _LETTERS.get(parts[2])
    if (
        parts is None
        or letter is None
        or parts[1] == "0"
        or (parts[3] and parts[3] not in _ANCHORS.get(letter, ()))
    ):
        raise InputError(
            f"{freq!r} is not a frequency of a benchmark; examples: '15T', 'H',"
            " 'W-SUN', 'M', 'Q-DEC'"
        )
    anchor = parts[3] or ""
    if letter in "AQ":
        # spelled by their beginnings, these name the month after the last
        if parts[2].endswith("S"):
            anchor = _shift(_MONTHS, anchor or "JAN", -1)
        else:
            anchor = anchor or "DEC"
    if letter == "W" and not anchor:
        anchor = "SUN"
    return int(parts[1] or 1), letter, anchor


def stamp_frequency(freq: str) -> str:
    """Return the pandas alias of the beginnings of a frequency's periods.

    "M" becomes "MS", "W-SUN" "W-MON", and "Q-DEC" "QS-JAN".
    """
    multiple, letter, anchor = parse_frequency(freq)
    alias = _STAMPS.get(letter, letter)
    if anchor:
        # a period begins the day or month after the last of the one before
        alias += f"-{_shift(_ANCHORS[letter], anchor, 1)}"
    if multiple > 1:
        return f"{multiple}{alias}"
    return alias


def find_start(start: Any, freq: str) -> pd.Timestamp | None:
    """Return the beginning of the period that a series starts with.

    None if it is unknown or beyond the dates of pandas.
    """
    if start is None or start is pd.NaT:
        return None
    if not isinstance(start, str | date | np.datetime64 | pd.Period):
        raise InputError(
            f"start={start!r} is not a timestamp; expected '2020-01-31', or a timestamp"
            " or period"
        )
    return _find_start(start, freq)


@lru_cache(maxsize=10_000)  # the series of a dataset share few dates
def _find_start(start: Any, freq: str) -> pd.Timestamp | None:
    _, letter, anchor = parse_frequency(freq)
    # pandas gives up periods of business days
    if letter == "B":
        unit = "D"
    else:
        unit = _PERIODS.get(letter, letter) + (f"-{anchor}" if anchor else "")
    try:
        if isinstance(start, pd.Period):
            return start.start_time
        stamp = pd.Timestamp(start)
        if stamp is pd.NaT:
            return None
        beginning = pd.Period(stamp, freq=unit).start_time
        if letter == "B":
            # a start on a weekend is that of the next business day
            return pd.offsets.BusinessDay().rollforward(beginning)
        return beginning
    except (pd.errors.OutOfBoundsDatetime, OverflowError):
        return None
    except ValueError as error:
        raise InputError(
            f"start={start!r} is not a timestamp; expected a date such as '2020-01-31'"
        ) from error


def _shift(names: tuple[str, ...], name: str, steps: int) -> str:
    return names[(names.index(name) + steps) % len(names)]
