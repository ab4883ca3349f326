"""Delimited text as a table of text cells: encoding, delimiter and header are found by rule or refused."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from tsfm_lens.data.formulas import restored
from tsfm_lens.data.headers import has_header, kind_of
from tsfm_lens.errors import InputError

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_BOMS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# a quoted cell, or blanks
_QUOTATION = r'(?<![^ \t\r\n])("(?:[^"]|"")*")'
_BLANKS = re.compile(rf"{_QUOTATION}|[ \t]+")
_BLANKS_AT_ENDS = re.compile(rf"{_QUOTATION}|(?<![^\r\n])[ \t]+|[ \t]+(?![^\r\n])")
_SAMPLE = 60  # lines that the delimiter is told from; the whole file must then agree


@dataclass(frozen=True, eq=False)
class TextTable:
    """Table of cells as they are written.

    Attributes:
        columns: text of each column, by name; "Unnamed: 3" where the header has none.
        first_row: number of the first row of ``columns`` in the file, counted from 1.
        delimiter: sign between the cells.
        notes: choices made by rule.
    """

    columns: dict[str, pa.Array]
    first_row: int
    delimiter: str
    notes: tuple[str, ...]


def read_table(
    file: Path, *, delimiter: str | None = None, encoding: str | None = None, header: bool | None = None
) -> TextTable:
    """Read the cells of a delimited file, plain or gzipped.

    Raises:
        InputError: the file is empty or damaged, no text in this encoding, rows differ in length, or delimiter or
            header cannot be told; the message names the row.
    """
    text = _decode(_content(file), encoding)
    declaration = re.match(r"sep=(.)\r?\n", text)
    if declaration:
        delimiter, text = delimiter or declaration[1], text[declaration.end() :]
    if text.count('"') % 2:
        raise InputError("a quotation mark opens a cell that is never closed; the rows after it cannot be told apart")
    plain = file.name.lower().removesuffix(".gz")
    sign = _known_delimiter(delimiter) if delimiter is not None else _delimiter(text, plain)
    if sign == " ":
        text, sign = _with_tabs(text), "\t"
    if '"' in text:
        _refuse_stray_quotes(text, sign)
    cells = _cells(text, sign)
    if '"' in text:
        _refuse_swallowed(cells, sign)
    first = [column[0].as_py().strip() for column in cells]
    sample = [column.slice(1, _SAMPLE).to_pylist() for column in cells]
    is_header, note = (header, "") if header is not None else has_header(first, sample)
    names = restored(first) if is_header else [f"column-{number}" for number in range(len(first))]
    names = [name or f"Unnamed: {number}" for number, name in enumerate(names)]
    if len(set(names)) < len(names):
        raise InputError(f"two columns are named {next(name for name in names if names.count(name) > 1)!r}")
    body = [column.slice(1) if is_header else column for column in cells]
    columns, n_empty = _without_empty_end(body)
    if n_empty:
        note = "; ".join(filter(None, (note, f"{n_empty} rows at the end hold nothing and were left out")))
    if not len(columns[0]):
        raise InputError(f"there are no rows below the header ({', '.join(names[:8])})")
    return TextTable(dict(zip(names, columns, strict=True)), 2 if is_header else 1, sign, (note,) if note else ())


def _content(file: Path) -> bytes:
    if file.name.lower().endswith(".gz"):
        try:
            return gzip.decompress(file.read_bytes())
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InputError(f"its compressed content is damaged or cut short ({error}); copy it again") from error
    return file.read_bytes()


def _decode(content: bytes, encoding: str | None) -> str:
    if encoding is None:
        encoding = next((name for mark, name in _BOMS.items() if content.startswith(mark)), "utf-8")
        source = ""
    else:
        source = f" as encoding={encoding!r} asks for"
    try:
        text = content.decode(encoding)
    except UnicodeError as error:
        where = getattr(error, "start", 0)
        row = content[:where].count(b"\n") + 1
        raise InputError(
            f"row {row} is not text in {encoding.upper()}{source}; give its encoding, as in encoding='cp1252'"
        ) from error
    except (LookupError, ValueError) as error:
        raise InputError(f"encoding={encoding!r} is unknown; examples: 'utf-8', 'cp1252', 'latin-1'") from error
    if "\0" in text:
        raise InputError(f"row {text[: text.index(chr(0))].count(chr(10)) + 1} holds a NUL: this is no text file")
    text = text.removeprefix("\ufeff").lstrip("\r\n")
    if not text.strip():
        raise InputError("the file is empty")
    return text


def _known_delimiter(delimiter: str) -> str:
    sign = {"tab": "\t", "\\t": "\t", "space": " ", "semicolon": ";", "comma": ","}.get(delimiter, delimiter)
    if len(sign) != 1 or sign in "\"\r\n'.+-\0" or sign.isalnum() or not sign.isascii():
        raise InputError(f"delimiter={delimiter!r} is no single sign; expected ',', ';', '|', 'tab' or 'space'")
    return sign


def _delimiter(text: str, name: str) -> str:
    """Find the one sign that splits all first lines alike.

    Raises:
        InputError: several do.
    """
    lines = list(islice(io.StringIO(text, newline=""), _SAMPLE))
    rows: dict[str, list[list[str]]] = {}
    for sign in DELIMITERS:
        if sign not in lines[0]:
            continue
        table = [row for row in _split(lines, sign) if row]
        if len(lines) == _SAMPLE and "".join(lines).count('"') % 2:
            table = table[:-1]  # cut inside a cell
        if len({len(row) for row in table}) == 1 and len(table[0]) > 1:
            rows[sign] = table
    if len(rows) > 1:
        rows = {sign: table for sign, table in rows.items() if _clean(table, set(rows) - {sign})}
        if len(rows) != 1:
            raise InputError("more than one sign may part the columns; give delimiter=',', ';', '|' or 'tab'")
    if rows:
        return next(iter(rows))
    if name.endswith(".txt"):
        widths = {len(row) for row in _split([_with_tabs(line) for line in lines], "\t") if row}
        if len(widths) == 1 and widths != {1}:
            return " "
    inside = [sign for sign in DELIMITERS if sign in lines[0]]
    if len(inside) > 1:
        listing = " and ".join(DELIMITERS[sign] for sign in inside)
        raise InputError(f"the first line has {listing}, and neither parts all rows alike; give delimiter=…")
    return inside[0] if inside else _sign_of_one_column(lines, name)


def _sign_of_one_column(lines: Sequence[str], name: str) -> str:
    """Find a sign that splits no row, where the first line is one cell and commas below may be decimal signs.

    Raises:
        InputError: they may as well part numbered rows from values, whose column has no name.
    """
    rows = [row for row in _split(lines[1:], ",") if row]
    absent = next((sign for sign in ";\t|" if not any(sign in line for line in lines)), None)
    if absent is None or all(len(row) == 1 for row in rows):
        return ","
    if name.endswith(".tsv"):
        return "\t"
    kinds = {kind_of(row[0]) for row in _split(lines[1:], absent) if row}
    if not kinds <= {"number", "missing"}:
        return ","
    # two columns have as many cells in each row, and the names of rows differ
    if all(len(row) == 2 for row in rows) and len({row[0] for row in rows}) == len(rows):
        line = ",".join(rows[0])
        raise InputError(
            f"the first line has one cell and each row below it a comma, as in {line!r}: that may be the decimal sign "
            "(give delimiter=';' and decimal=','), or part two columns of which one has no name"
        )
    return absent


def _split(lines: Iterable[str], sign: str) -> Iterator[list[str]]:
    try:
        yield from csv.reader(lines, delimiter=sign)
    except csv.Error as error:
        raise InputError(f"the rows cannot be told apart: {error}; if that is one column, give delimiter=…") from error


def _with_tabs(text: str) -> str:
    """Replace each run of blanks between cells by one tab; text in quotes stays."""
    return _BLANKS.sub(lambda match: match[1] or "\t", _BLANKS_AT_ENDS.sub(r"\1", text))


def _clean(rows: list[list[str]], others: set[str]) -> bool:
    """Return True if no cell holds another sign that might split it, other than a decimal comma."""
    return not any(sign in cell and kind_of(cell) != "number" for row in rows for cell in row for sign in others)


def _cells(text: str, sign: str) -> list[pa.Array]:
    content = text.encode()
    header = next(iter(_split(io.StringIO(text, newline=""), sign)))
    wrong: list[arrow_csv.InvalidRow] = []

    def keep(row: arrow_csv.InvalidRow) -> str:
        wrong.append(row)
        return "error"

    names = [str(place) for place in range(len(header))]
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(content),
            read_options=arrow_csv.ReadOptions(
                column_names=names, block_size=min(len(content) + 1, 2**30), use_threads=False
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=sign,
                newlines_in_values=True,
                # an empty line of a single column is a missing value
                ignore_empty_lines=len(names) > 1,
                invalid_row_handler=keep,
            ),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
            ),
        )
    except pa.ArrowInvalid as error:
        if not wrong:
            raise InputError(f"the rows cannot be told apart: {error}") from error
        raise InputError(_uneven(wrong[0], len(header), sign)) from error
    return [column.combine_chunks() for column in table.columns]


def _uneven(row: arrow_csv.InvalidRow, width: int, sign: str) -> str:
    text = row.text if len(row.text) <= 80 else f"{row.text[:80]}…"
    place = f"row {row.number}" if row.number is not None else "a row"
    message = f"{place} has {row.actual_columns} cells and the first row {width}: {text!r}"
    if sign == "," and row.actual_columns > width:
        message += (
            ". If the comma is the decimal sign, it cannot part the columns too: write the file with semicolons, or "
            "quote the numbers"
        )
    elif sign not in row.text:
        message += f". If {DELIMITERS.get(sign, repr(sign))} do not part the columns, give delimiter=…"
    return message


def _refuse_stray_quotes(text: str, sign: str) -> None:
    """Refuse text behind a closing quotation mark, which Arrow would join to the cell."""
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=sign, strict=True)
    try:
        for _ in rows:
            pass
    except csv.Error as error:
        raise InputError(f"line {rows.line_num} has a quotation mark that is out of place: {error}") from error


def _refuse_swallowed(cells: list[pa.Array], sign: str) -> None:
    """Refuse a cell over several lines that holds delimiters: an open quotation mark has merged rows."""
    for number, column in enumerate(cells):
        if not pc.any(pc.match_substring_regex(column, r"[\r\n]")).as_py():
            continue
        for row, text in enumerate(column.to_pylist()):
            if sign in text and re.search(r"[\r\n]", text):
                raise InputError(
                    f"the cell of row {row + 1} and column {number + 1} goes over several lines: {text[:60]!r}; a "
                    "quotation mark is missing or one too many"
                )


def _without_empty_end(columns: list[pa.Array]) -> tuple[list[pa.Array], int]:
    """Drop the rows at the end that hold nothing, and count them."""
    rows = len(columns[0])
    stop = rows
    while stop and not any(column[stop - 1].as_py().strip() for column in columns):
        stop -= 1
    return [column.slice(0, stop) for column in columns], rows - stop if len(columns) > 1 else 0
