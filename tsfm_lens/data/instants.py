"""Columns of time: timestamps in text, with and without zones, and integers in seconds, as dates or as steps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from tsfm_lens.data.formulas import NUMBER
from tsfm_lens.data.numerals import MISSING
from tsfm_lens.errors import InputError

_CLOCK = r"\d{2}(?::?\d{2}(?::?\d{2}(?:\.\d{1,9})?)?)?"
_ISO = re.compile(rf"\d{{4}}-\d{{2}}(?:-\d{{2}}(?:[T ]{_CLOCK})?)?|\d{{8}}T\d{{2}}(?:\d{{2}}){{0,2}}")
_MONTH = re.compile(r"(?:0[1-9]|1[0-2])\.(?:1[789]|20|21)\d{2}")
_OFFSET = r"Z|UTC|GMT|[+-](?:0\d|1[0-4])(?::?[0-5]\d)?"
_ZONED = re.compile(rf"(.*\d[T ]\d{{1,2}}(?::?\d{{2}})*(?:\.\d+)?(?: ?[AP]M)?) ?({_OFFSET})", re.I)
_DATES = (
    *("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%Y/%m"),
    *("%m/%Y", "%m.%Y", "%d-%b-%Y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y", "%b %Y", "%B %Y"),
    *("%b-%Y", "%Y-%b", "%Y %b"),
)
_CLOCKS = ("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%I:%M %p", "%I:%M:%S %p")
_DIGITS = {4: "%Y", 6: "%Y%m", 8: "%Y%m%d", 10: "%Y%m%d%H", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
_WORDS = {4: "years", 6: "yyyymm", 8: "yyyymmdd", 10: "yyyymmddHH", 12: "yyyymmddHHMM", 14: "yyyymmddHHMMSS"}
# since 1970, from 1973 on: (lowest, highest, numpy's unit)
_EPOCHS = {
    "seconds": (10**8, 10**10, "s"),
    "milliseconds": (10**11, 10**13, "ms"),
    "microseconds": (10**14, 10**16, "us"),
    "nanoseconds": (10**17, 2**63, "ns"),
}
# the whole years that nanoseconds hold, so that no offset from UTC leads beyond them
_FIRST, _END = pd.Timestamp("1678-01-01"), pd.Timestamp("2262-01-01")
RANGE = "1678-01-01 to 2261-12-31"
_CURE = "leave the column out, or number the steps in it, to read the values without dates"


@dataclass(frozen=True, eq=False)
class Times:
    """Column of times, or of step numbers.

    Attributes:
        clock: datetime64[ns] as a clock on the wall shows them; or step numbers, int64 or float64.
        utc: datetime64[ns] in UTC, where the column says how far the clock is from it.
        note: how the column was read, "" where there was no choice.
        doubtful: true of steps, years and months read from numbers, which may mean something else.
    """

    clock: np.ndarray
    utc: np.ndarray | None = None
    note: str = ""
    doubtful: bool = False

    @property
    def steps(self) -> bool:
        """True if the column holds step numbers and not dates."""
        return self.clock.dtype.kind != "M"

    @property
    def instants(self) -> np.ndarray:
        """Times in UTC where the column gives offsets, else as the clock shows them."""
        return self.clock if self.utc is None else self.utc


def times_of(column: pd.Series, name: str) -> Times:
    """Read a column of time.

    Whole numbers are the first of these that fits all of them: calendar digits with 4, 6, 8, 10, 12 or 14 digits and
    dates from 1700 to 2200 (yyyy, yyyymm, yyyymmdd, …); seconds, milliseconds, microseconds or nanoseconds since 1970,
    in the range of 10⁸ to 10¹⁰, 10¹¹ to 10¹³, 10¹⁴ to 10¹⁶, or from 10¹⁷ on; step numbers below 10⁸. Fractional numbers
    are steps. Text is ISO 8601, or all of it fits one format of day, month and year. Dates may have any unit, and lie
    in the whole years that nanoseconds hold, 1678 to 2261. Periods are read by their beginnings.

    Raises:
        InputError: a cell is missing, no time or beyond these years, or the text can be read in two ways.
    """
    missing = column.isna().to_numpy()
    column = _plain(column) if not missing.any() else column
    if column.dtype == object:
        missing |= np.array([isinstance(cell, str) and cell.strip() in MISSING for cell in column])
    if missing.any():
        raise InputError(f"column {name!r} has no timestamp in row {column.index[np.flatnonzero(missing)[0]]}")
    if isinstance(column.dtype, pd.PeriodDtype):
        return _from_periods(column, name)
    if column.dtype.kind == "M":
        return _from_stamps(column, name)
    if column.dtype.kind in "iuf" and column.dtype != bool:
        return _from_numbers(column.to_numpy(), column, name)
    if column.dtype.kind in "mb":
        raise InputError(f"column {name!r} holds {column.dtype}, expected timestamps or numbers")
    cells = column.tolist()
    if all(isinstance(cell, date | np.datetime64) for cell in cells):
        return _from_objects(cells, column, name)
    if all(isinstance(cell, int | float | np.number) and not isinstance(cell, bool) for cell in cells):
        return _from_numbers(_array(cells, column, name), column, name)
    if not all(isinstance(cell, str) for cell in cells):
        odd = next(cell for cell in cells if not isinstance(cell, str))
        raise InputError(f"column {name!r} holds {odd!r} beside other kinds of cells, expected timestamps of one kind")
    return _from_text([cell.strip() for cell in cells], column, name)


def holds_dates(dtype: Any) -> bool:
    """Return True for a type of dates or periods, of numpy, pandas or Arrow."""
    return dtype.kind == "M" or isinstance(dtype, pd.PeriodDtype)


def looks_like_dates(column: pd.Series) -> bool:
    """Return True for a column whose first cells are timestamps, also such as :func:`times_of` refuses."""
    cells = _plain(column.dropna().head(20))
    if cells.empty or holds_dates(cells.dtype):
        return not cells.empty
    if all(isinstance(cell, date | np.datetime64) for cell in cells):
        return True
    if not all(isinstance(cell, str) for cell in cells) or all(map(_is_number, cells)):
        return False
    try:
        return not times_of(cells, "").steps
    except InputError as error:
        return "may be" in str(error) or "beyond the dates" in str(error)


def _plain(column: pd.Series) -> pd.Series:
    """Replace Arrow's cells by numpy's, and categories by their values."""
    while isinstance(column.dtype, pd.ArrowDtype | pd.CategoricalDtype):
        if isinstance(column.dtype, pd.ArrowDtype):
            cells = pa.array(column.array).to_pandas(integer_object_nulls=True, date_as_object=False)
            column = pd.Series(cells.array, column.index, name=column.name)
        else:
            column = column.astype(column.cat.categories.dtype)
    return column


def _is_number(text: str) -> bool:
    return re.fullmatch(NUMBER, text.strip()) is not None


def _from_stamps(column: pd.Series, name: str) -> Times:
    stamps = pd.DatetimeIndex(column)
    if stamps.tz is None:
        return Times(_nanoseconds(stamps, column, name))
    utc = _nanoseconds(stamps.tz_convert(None), column, name)
    return Times(stamps.as_unit("ns").tz_localize(None).to_numpy(), utc)


def _nanoseconds(stamps: pd.DatetimeIndex, column: pd.Series, name: str) -> np.ndarray:
    """Convert dates of any unit, without a zone, into datetime64[ns].

    Raises:
        InputError: one lies beyond the years that nanoseconds hold.
    """
    beyond = np.flatnonzero((stamps < _FIRST) | (stamps >= _END))
    if len(beyond):
        raise _beyond(stamps.to_numpy()[beyond[0]], column.index[beyond[0]], name)
    return stamps.as_unit("ns").to_numpy()


def _beyond(value: Any, row: Any, name: str) -> InputError:
    return InputError(f"column {name!r}: {value} in row {row} is beyond the dates from {RANGE}; {_CURE}")


def _from_periods(column: pd.Series, name: str) -> Times:
    """Read periods by their beginnings."""
    periods = pd.PeriodIndex(column)
    beyond = np.flatnonzero((periods.year < _FIRST.year) | (periods.year >= _END.year))
    if len(beyond):
        raise _beyond(periods[beyond[0]], column.index[beyond[0]], name)
    return Times(periods.to_timestamp().to_numpy())


def _from_objects(cells: list[Any], column: pd.Series, name: str) -> Times:
    """Read Python's dates and datetimes and pandas' timestamps."""
    clock, utc = [], []
    for cell, row in zip(cells, column.index, strict=True):
        try:
            stamp = pd.Timestamp(cell)
            since = stamp if stamp.tz is None else stamp.tz_convert(None)
        except (ValueError, OverflowError) as error:
            raise _beyond(cell, row, name) from error
        if not _FIRST <= since < _END:
            raise _beyond(cell, row, name)
        clock.append(stamp.as_unit("ns").tz_localize(None).to_datetime64())
        if stamp.tz is not None:
            utc.append(since.as_unit("ns").to_datetime64())
    if utc and len(utc) < len(clock):
        raise InputError(f"column {name!r} has times with a zone and times without; give all of them one")
    return Times(np.array(clock, dtype="datetime64[ns]"), np.array(utc, dtype="datetime64[ns]") if utc else None)


def _array(cells: list[Any], column: pd.Series, name: str) -> np.ndarray:
    try:
        whole = all(float(cell).is_integer() for cell in cells)
        return np.array([int(cell) if whole else float(cell) for cell in cells])
    except (OverflowError, ValueError) as error:
        raise InputError(f"column {name!r} holds a number that is no time: {error}") from error


def _from_numbers(numbers: np.ndarray, column: pd.Series, name: str) -> Times:
    """Read whole numbers as dates, as time since 1970 or as steps, by the rule of :func:`times_of`."""
    if numbers.dtype.kind == "f":
        if not np.isfinite(numbers).all():
            row = column.index[np.flatnonzero(~np.isfinite(numbers))[0]]
            raise InputError(f"column {name!r} has no timestamp in row {row}")
        if (numbers == np.round(numbers)).all() and np.abs(numbers).max() < 2**53:
            numbers = numbers.astype(np.int64)
        else:
            note = f"the broken numbers of column {name!r} are read as positions in time, without a date"
            return Times(numbers.astype(np.float64), note=note, doubtful=True)
    if numbers.dtype.kind not in "iu" or int(np.max(numbers)) >= 2**63:
        raise InputError(f"column {name!r} holds {numbers[0]}…, numbers too large for times")
    numbers = numbers.astype(np.int64)
    low, high = int(numbers.min()), int(numbers.max())
    dates = _calendar_digits(numbers, column, name)
    if dates is not None:
        return dates
    for words, (least, most, unit) in _EPOCHS.items():
        if least <= low and high < most:
            since = _nanoseconds(pd.DatetimeIndex(numbers.astype(f"datetime64[{unit}]")), column, name)
            return Times(since, note=f"the whole numbers of column {name!r} are read as {words} since 1970")
    if low > -(10**8) and high < 10**8:
        note = f"the whole numbers of column {name!r} are read as step numbers, without a date"
        return Times(numbers, note=note, doubtful=True)
    raise InputError(
        f"column {name!r} holds whole numbers from {low} to {high}: neither dates nor seconds to nanoseconds since "
        "1970 throughout, and too large for step numbers; write timestamps such as 2020-01-31 12:00"
    )


def _calendar_digits(numbers: np.ndarray, column: pd.Series, name: str) -> Times | None:
    """Read whole numbers as dates; None if they are none.

    Raises:
        InputError: most are dates, and one is not.
    """
    widths = np.char.str_len(numbers.astype(str))
    sizes, counts = np.unique(widths, return_counts=True)
    digits = int(sizes[np.argmax(counts)])
    if digits not in _DIGITS:
        return None
    texts = pd.Series(numbers.astype(str)).where(widths == digits)
    stamps = pd.to_datetime(texts, format=_DIGITS[digits], errors="coerce")
    valid = stamps.dt.year.between(1700, 2200).to_numpy()
    if valid.all():
        note = f"the whole numbers of column {name!r} are read as {_WORDS[digits]}"
        return Times(stamps.to_numpy(), note=note, doubtful=digits <= 6)
    # four digits may count steps, and some of any steps look like years
    if valid.mean() <= (0.9 if digits == 4 else 0.5):
        return None
    row = int(np.flatnonzero(~valid)[0])
    raise InputError(
        f"column {name!r} holds {_WORDS[digits]}, but {numbers[row]} in row {column.index[row]} is no such date; write "
        "dates such as 2020-01-31, or leave the column out to read the values without dates"
    )


def _from_text(texts: list[str], column: pd.Series, name: str) -> Times:
    if all(map(_is_number, texts)) and not all(map(_MONTH.fullmatch, texts)):
        return _from_numbers(_array([_exact(text) for text in texts], column, name), column, name)
    unique = list(dict.fromkeys(texts))
    matches = {text: _ZONED.fullmatch(text) for text in unique}
    with_zone = sum(match is not None for match in matches.values())
    if 0 < with_zone < len(unique):
        odd = next(text for text in unique if matches[text] is None)
        raise InputError(f"column {name!r} has times with an offset and times without, such as {odd!r}")
    plain = {text: match[1].strip() if match else text for text, match in matches.items()}
    bare = list(dict.fromkeys(plain.values()))
    stamps, note = _parse(bare, name, lambda wrong: column.index[texts.index(_first(plain, wrong))])
    clock = pd.Series(stamps, index=bare).reindex([plain[text] for text in texts]).to_numpy()
    if not with_zone:
        return Times(clock, note=note)
    offsets = {text: _offset(match[2]) for text, match in matches.items() if match}
    utc = clock - np.array([offsets[text] for text in texts], dtype="timedelta64[ns]")
    return Times(clock, utc, note)


def _exact(text: str) -> int | float:
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)


def _first(plain: dict[str, str], wrong: str) -> str:
    return next(text for text, bare in plain.items() if bare == wrong)


def _offset(text: str) -> np.timedelta64:
    if text.upper() in ("Z", "UTC", "GMT"):
        return np.timedelta64(0, "ns")
    digits = text[1:].replace(":", "").ljust(4, "0")
    size = np.timedelta64((int(digits[:2]) * 60 + int(digits[2:])) * 60 * 10**9, "ns")
    return -size if text[0] == "-" else size


def _parse(texts: list[str], name: str, row_of: Any) -> tuple[np.ndarray, str]:
    """Parse unique texts without zones into datetime64[ns], with a note on their format.

    Raises:
        InputError: a text is no time, or all fit two formats that differ.
    """
    wrong = next((text for text in texts if not _ISO.fullmatch(text)), None)
    if wrong is None:
        return _iso(texts, name, row_of), ""
    quarters = [re.fullmatch(r"(\d{4})-?Q([1-4])", text) for text in texts]
    if all(quarters):
        return _iso([f"{q[1]}-{3 * int(q[2]) - 2:02d}-01" for q in quarters if q], name, row_of), ""
    fits: dict[str, np.ndarray] = {}
    odd = texts[0]
    for form in _formats(texts[0]):
        stamps = pd.to_datetime(pd.Series(texts), format=form, errors="coerce")
        if stamps.notna().all():
            fits[form] = stamps.to_numpy()
        else:
            odd = texts[int(np.flatnonzero(stamps.isna())[0])]
    if not fits:
        odd = wrong if _ISO.fullmatch(odd) else odd
        hint = f", or is beyond the dates from {RANGE}" if any(_formats(odd)) else ""
        raise InputError(
            f"column {name!r} holds no timestamps of one format: {odd!r} in row {row_of(odd)} differs{hint}; write "
            "them as 2020-01-31 or 2020-01-31 12:00"
        )
    first, *others = fits.items()
    for form, other_stamps in others:
        if (other_stamps != first[1]).any():
            raise InputError(
                f"column {name!r} holds dates such as {texts[0]!r}, which may be {first[0]} or {form} "
                "throughout; write them as 2020-01-31"
            )
    # with the month in words or the year in front there is no choice
    clear = "%b" in first[0] or "%B" in first[0] or first[0].startswith("%Y")
    return first[1], "" if clear else f"timestamps such as {texts[0]!r} are read as {first[0]}"


def _iso(texts: list[str], name: str, row_of: Any) -> np.ndarray:
    stamps = pd.to_datetime(pd.Series(texts), format="ISO8601", errors="coerce")
    if stamps.isna().any():
        odd = texts[int(np.flatnonzero(stamps.isna())[0])]
        valid = 1 <= int(odd[4:].lstrip("-")[:2] or 0) <= 12 and not 1678 <= int(odd[:4]) <= 2261
        why = f"is beyond the dates from {RANGE}; {_CURE}" if valid else "is no date"
        raise InputError(f"column {name!r} holds no timestamps: {odd!r} in row {row_of(odd)} {why}")
    return np.asarray(stamps.to_numpy(), dtype="datetime64[ns]")


def _formats(text: str) -> Iterator[str]:
    """Yield the formats that one text fits."""
    for form in (f"{day}{sep}{clock}".strip() for day in _DATES for sep in " T" for clock in ("", *_CLOCKS)):
        if form.endswith("T"):
            continue
        try:
            datetime.strptime(text, form)
        except ValueError:
            continue
        yield form
