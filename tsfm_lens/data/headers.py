"""Detection of a header line in a table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from tsfm_lens.data.formulas import COMMA_NUMBER, NUMBER
from tsfm_lens.data.numerals import MISSING
from tsfm_lens.errors import InputError

ID_COLUMNS = ("id", "item_id", "unique_id", "series_id", "series")
TIME_COLUMNS = ("timestamp", "ds", "date", "datetime", "time", "year")
TARGET_COLUMNS = ("target", "y", "value", "values")
NAMES = {*ID_COLUMNS, *TIME_COLUMNS, *TARGET_COLUMNS}

_NUMBER = re.compile(f"(?:{NUMBER})|(?:{COMMA_NUMBER})")
_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}(?:[-/.]\d{1,2})?(?:[T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}(?:[T ].*)?|\d{4}-?Q[1-4]|\d{8}T\d+Z?"
)


def kind_of(cell: str) -> str:
    """Return "missing", "date", "number" or "text"."""
    text = cell.strip()
    if text in MISSING:
        return "missing"
    if _NUMBER.fullmatch(text):
        return "number"
    return "date" if _DATE.fullmatch(text) else "text"


def has_header(first: Sequence[str], below: Sequence[Sequence[str]]) -> tuple[bool, str]:
    """Decide by rule if the first line holds names, with a note where the rule had a choice.

    Words are names. Numbers and dates are values, with three exceptions: the cells below are of another kind; the
    first cell is empty above row numbers or dates; or the numbers count up by one above fractional numbers.

    Args:
        first: its cells.
        below: the first cells of each column below it.

    Raises:
        InputError: it may be either, or the columns are named by dates.
    """
    kinds, under = [kind_of(cell) for cell in first], [_common(column) for column in below]
    same = [a == b or "missing" in (a, b) for a, b in zip(kinds, under, strict=True)]
    pairs = list(zip(kinds, under, strict=True))
    if "text" in kinds:
        has_name = any(cell.strip().lower() in NAMES for cell in first)
        values = {"date", "number"} & set(kinds)
        if ("date", "date") in pairs or (values and all(same) and not has_name):
            raise InputError(
                f"the first line ({', '.join(map(repr, first[:6]))}) may be names or values; give header=True or "
                "header=False, or write names such as id, timestamp, target above it"
            )
        _refuse_dates(first, kinds)
        return True, ""
    if ("date", "date") in pairs:
        return False, "the first line holds values; columns are named column-0, column-1, …"
    if "date" in kinds or not all(same):
        _refuse_dates(first, kinds)
        return True, "" if "date" not in kinds else "the first line holds names"
    if kinds[0] == "missing" and under[0] in ("date", "text"):
        return True, ""
    if kinds[0] == "missing" and _is_count(below[0]) and len(set(first)) == len(first) > 1:
        return True, "the first line holds names, since its first cell is empty above a count of rows"
    if _counts_up(first) and all(any(re.search(r"\d[.,]\d", cell) for cell in column) for column in below):
        return (
            True,
            f"the first line ({first[0]}, {first[1]}, …) counts up: read as names; header=False reads it as values",
        )
    return False, "the first line holds numbers alone and is read as values; header=True reads it as names"


def _common(column: Sequence[str]) -> str:
    """Return the kind of all cells of a column that are not missing, "text" if they differ."""
    kinds = {kind_of(cell) for cell in column} - {"missing"}
    if not kinds:
        return "missing"
    return kinds.pop() if len(kinds) == 1 else "text"


def _is_count(column: Sequence[str]) -> bool:
    text = [cell.strip() for cell in column]
    return bool(text) and text in ([str(i) for i in range(len(text))], [str(i + 1) for i in range(len(text))])


def _counts_up(first: Sequence[str]) -> bool:
    if len(first) < 2 or not all(re.fullmatch(r"\d{1,9}", cell) for cell in first):
        return False
    return all(int(b) - int(a) == 1 for a, b in pairwise(first))


def _refuse_dates(first: Sequence[str], kinds: Sequence[str]) -> None:
    dates = [cell for cell, kind in zip(first, kinds, strict=True) if kind == "date"]
    if len(dates) > 1:
        raise InputError(
            f"the columns are named by dates ({', '.join(dates[:3])} …): expected one row per time step; transpose the "
            "table"
        )
