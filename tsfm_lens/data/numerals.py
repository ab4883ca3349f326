"""Numbers in text: the columns of a table that hold them, and their decimal sign."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tsfm_lens.data.formulas import COMMA_NUMBER, NUMBER
from tsfm_lens.errors import InputError

MISSING = (
    *("", "NA", "N/A", "n/a", "NaN", "nan", "-nan", "-NaN", "null", "NULL", "None", "<NA>", "#N/A", "#NA"),
    *("#N/A N/A", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
)
"""Cells that stand for a missing value."""
_INFINITE = r"[+-]?(?:[iI]nf|INF|[iI]nfinity)"
_POINT = rf"^(?:{NUMBER}|{_INFINITE})$"
_COMMA = rf"^(?:{COMMA_NUMBER})$"
_THOUSANDS = r"^[+-]?\d{1,3}(?:([., '’\x{a0}\x{202f}])\d{3})+(?:[.,]\d+)?$"
# either a decimal part of three digits, or thousands
_EITHER = r"^[+-]?[1-9]\d{0,2}[.,]\d{3}$"
_CELLS = 4_000_000


class Numerals:
    """Columns of a table of text that are numbers.

    Args:
        columns: text columns of equal length, by name.
        first_row: number of the first row, for messages.
        decimal: "." or ",", or None for the one that the cells show.
        doubtful_point: a point before three digits may stand for thousands here, as where semicolons part columns.

    Attributes:
        values: float64 arrays, NaN where missing, of the columns that hold nothing but numbers.

    Raises:
        InputError: most cells of a column are numbers and some are not, thousands are separated, or it cannot be told
            which sign is the decimal one; the message has column and row.
    """

    def __init__(
        self, columns: dict[str, pa.Array], first_row: int, *, decimal: str | None = None, doubtful_point: bool = False
    ) -> None:
        self.values: dict[str, np.ndarray] = {}
        self._first, self._decimal = first_row, decimal
        # where a decimal sign was first seen, and where it was no separator of thousands
        self._examples: dict[str, str] = {}
        self._clear: set[str] = set() if doubtful_point else {"."}
        for block in _blocks(columns):
            self._read(block)
        if decimal is not None:
            return
        if len(self._examples) == 2:
            words = " and ".join(self._examples.values())
            raise InputError(f"{words}: points and commas are both decimal signs here; give decimal='.' or decimal=','")
        for sign, where in self._examples.items():
            if sign not in self._clear:
                raise InputError(
                    f"{where}: that may be a decimal sign or a thousands separator, and no other cell tells which; "
                    "give decimal='.' or decimal=','"
                )

    def _read(self, block: dict[str, pa.Array]) -> None:
        names, rows = list(block), len(next(iter(block.values())))
        cells, point, comma = _matches(list(block.values()))
        shape = (len(names), rows)
        all_point, all_comma = point.reshape(shape).all(axis=1), comma.reshape(shape).all(axis=1)
        commas = all_comma & ~all_point if self._decimal is None else all_comma & (self._decimal == ",")
        points = all_point if self._decimal != "," else np.zeros_like(all_point)
        valid = _numpy(cells.is_valid()).reshape(shape)
        for place in np.flatnonzero(~(points | commas)):
            column = cells[place * rows : (place + 1) * rows]
            self._refuse_damage(names[place], column, point.reshape(shape)[place], comma.reshape(shape)[place])
        for sign, mask in ((".", points), (",", commas)):
            self._note(sign, names, cells, np.repeat(mask, rows) & valid.reshape(-1))
        if commas.any():
            cells = pc.replace_substring(cells, ",", ".")
        floats = _floats(pc.if_else(pa.array(np.repeat(points | commas, rows)), cells, None)).reshape(shape)
        self.values |= {names[place]: floats[place] for place in np.flatnonzero(points | commas)}

    def _note(self, sign: str, names: Sequence[str], cells: pa.Array, mask: np.ndarray) -> None:
        """Record one cell with this sign, and if any cell shows that it does not separate thousands."""
        if self._decimal is not None or not mask.any():
            return
        hits = mask & _numpy(pc.fill_null(pc.match_substring(cells, sign), False))
        if not hits.any():
            return
        first = int(np.flatnonzero(hits)[0])
        rows = len(cells) // len(names)
        self._examples.setdefault(sign, self._at(names[first // rows], first % rows, cells[first].as_py()))
        if sign not in self._clear:
            either = _numpy(pc.fill_null(pc.match_substring_regex(cells, _EITHER), False))
            self._clear |= {sign} if (hits & ~either).any() else set()

    def _refuse_damage(self, name: str, column: pa.Array, point: np.ndarray, comma: np.ndarray) -> None:
        """Refuse a column of numbers with a few cells that are none; a column of text passes."""
        valid = _numpy(column.is_valid())
        thousands = _numpy(pc.fill_null(pc.match_substring_regex(column, _THOUSANDS), False))
        prefers = self._decimal or ("," if (comma & valid).sum() > (point & valid).sum() else ".")
        number, other = (comma, point) if prefers == "," else (point, comma)
        bad = np.flatnonzero(valid & ~number)
        if 2 * int(((number & valid) | thousands).sum()) < int(valid.sum()) or not len(bad):
            return
        where = self._at(name, int(bad[0]), column[int(bad[0])].as_py())
        if other[bad[0]] and not thousands[bad[0]]:
            raise InputError(f"{where}, where {prefers!r} is the decimal sign; decimal={prefers!r} was given or found")
        if thousands[bad[0]]:
            raise InputError(f"{where}: thousands separators are not read; write numbers without, as in 1234.5")
        raise InputError(f"{where}, which is not a number")

    def _at(self, column: str, row: int, text: str) -> str:
        return f"column {column!r} holds {text!r} in row {self._first + row}"


def numeric_columns(columns: dict[str, pa.Array]) -> set[str]:
    """Name the text columns that hold nothing but numbers, with either decimal sign."""
    numeric: set[str] = set()
    for block in _blocks(columns):
        _, point, comma = _matches(list(block.values()))
        whole = point.reshape(len(block), -1).all(axis=1) | comma.reshape(len(block), -1).all(axis=1)
        numeric |= {name for name, all_numbers in zip(block, np.atleast_1d(whole), strict=True) if all_numbers}
    return numeric


def _matches(columns: list[pa.Array]) -> tuple[pa.Array, np.ndarray, np.ndarray]:
    """Join all cells, null where missing, with masks of numbers with a point and with a comma, True where missing."""
    texts = pc.utf8_trim_whitespace(pa.concat_arrays(columns))
    missing = _numpy(pc.is_in(texts, pa.array(MISSING)))
    cells = pc.if_else(pa.array(~missing), texts, None)
    point = _numpy(pc.fill_null(pc.match_substring_regex(cells, _POINT), True))
    comma = _numpy(pc.fill_null(pc.match_substring_regex(cells, _COMMA), True))
    return cells, point, comma


def _blocks(columns: dict[str, pa.Array]) -> Iterator[dict[str, pa.Array]]:
    """Yield so many columns at once that a thousand short ones cost like one long one."""
    block: dict[str, pa.Array] = {}
    for name, column in columns.items():
        block[name] = column
        if len(block) * len(column) >= _CELLS:
            yield block
            block = {}
    if block and len(next(iter(block.values()))):
        yield block


def _numpy(mask: pa.Array) -> np.ndarray:
    return np.asarray(mask.to_numpy(zero_copy_only=False), dtype=bool)


def _floats(texts: pa.Array) -> np.ndarray:
    """Convert each text to the correctly rounded float64, null to NaN."""
    plain = pc.replace_substring_regex(texts, r"^\+", "")
    try:
        return np.asarray(pc.cast(plain, pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)
    except pa.ArrowInvalid:
        return np.array([np.nan if text is None else float(text) for text in plain.to_pylist()], dtype=np.float64)
