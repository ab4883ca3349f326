"""Conversion of the frequencies of benchmarks into pandas' present aliases.

Files hold the period spelling of pandas before 2.2 ("H", "15T", "A-DEC", "W-SUN"). A period's stamp is its beginning,
so that W-SUN, whose weeks end on Sunday, is stamped every Monday.
"""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.errors import InputError

BASES = {
    **dict.fromkeys(("A", "Y", "YE", "YS", "AS", "BYS", "BYE"), "A"),
    **dict.fromkeys(("Q", "QE", "QS", "BQS", "BQE"), "Q"),
    **dict.fromkeys(("M", "ME", "MS", "BMS", "BME"), "M"),
    **dict.fromkeys(("W",), "W"),
    **dict.fromkeys(("D",), "D"),
    **dict.fromkeys(("B",), "B"),
    **dict.fromkeys(("H", "h"), "H"),
    **dict.fromkeys(("T", "min"), "T"),
    **dict.fromkeys(("S", "s"), "S"),
}
"""Every spelling -> one letter, as GIFT-Eval and gluonts use it."""
PERIODS = {"A": "Y", "H": "h", "T": "min", "S": "s"}
STAMPS = {"A": "YS", "Q": "QS", "M": "MS", "H": "h", "T": "min", "S": "s"}
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
DAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")


@lru_cache
def parse_frequency(freq: str) -> tuple[int, str, str]:
    """Split a frequency into multiple, letter and last month or day, as "W-WED" into (1, "W", "WED").

    Raises:
        InputError: it is none that benchmarks use.
    """
    parts = re.fullmatch(r"(\d*)([A-Za-z]+)(?:-([A-Z]{3}))?", str(freq))
    if parts is None or parts[2] not in BASES or parts[1] == "0" or not _is_anchor(BASES[parts[2]], parts[3]):
        raise InputError(
            f"{freq!r} is no frequency of a benchmark; examples: '10S', '15T', 'H', 'D', 'W-SUN', 'M', 'Q-DEC', 'A-DEC'"
        )
    letter, anchor = BASES[parts[2]], parts[3] or ""
    if letter in "AQ":
        # spelled by their beginnings, these name the month after the last
        begins = parts[2].endswith("S")
        anchor = _shift(MONTHS, anchor or "JAN", -1) if begins else anchor or "DEC"
    elif letter == "W":
        anchor = anchor or "SUN"
    return int(parts[1] or 1), letter, anchor


def _is_anchor(letter: str, anchor: str | None) -> bool:
    return anchor is None or (letter in "AQ" and anchor in MONTHS) or (letter == "W" and anchor in DAYS)


def stamp_frequency(freq: str) -> str:
    """Return the pandas alias of the periods' beginnings: "M" -> "MS", "W-SUN" -> "W-MON", "Q-DEC" -> "QS-JAN"."""
    multiple, letter, anchor = parse_frequency(freq)
    alias = STAMPS.get(letter, letter)
    if anchor:
        alias += f"-{_shift(DAYS if letter == 'W' else MONTHS, anchor, 1)}"
    return f"{multiple if multiple > 1 else ''}{alias}"


def start_of(start: Any, freq: str) -> pd.Timestamp | None:
    """Return the beginning of the period that a series starts with; None if it is unknown or beyond pandas' dates.

    Args:
        start: text, a timestamp, datetime or period, or None.
        freq: in any spelling.

    Raises:
        InputError: it is no time.
    """
    if start is None or start is pd.NaT:
        return None
    if not isinstance(start, str | date | np.datetime64 | pd.Period):
        raise InputError(
            f"start={start!r} is no timestamp; expected a date such as '2020-01-31', a timestamp or a period"
        )
    return _start_of(start, freq)


@lru_cache(maxsize=10_000)  # the series of a dataset share few dates
def _start_of(start: Any, freq: str) -> pd.Timestamp | None:
    _, letter, anchor = parse_frequency(freq)
    # pandas gives up periods of business days
    unit = "D" if letter == "B" else PERIODS.get(letter, letter) + (f"-{anchor}" if anchor else "")
    try:
        if isinstance(start, pd.Period):
            return start.start_time
        stamp = pd.Timestamp(start)
        return None if stamp is pd.NaT else pd.Period(stamp, freq=unit).start_time
    except (pd.errors.OutOfBoundsDatetime, OverflowError):
        return None
    except ValueError as error:
        raise InputError(f"start={start!r} is no timestamp; expected a date such as '2020-01-31'") from error


def _shift(names: tuple[str, ...], name: str, by: int) -> str:
    return names[(names.index(name) + by) % len(names)]
