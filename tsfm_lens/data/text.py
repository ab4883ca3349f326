"""Delimited text as columns of text cells, and the numbers among them.

:func:`read_table` finds delimiter, encoding and header, and refuses a file where an
option must decide; the :class:`TextTable` that it returns converts columns. What
:mod:`tsfm_lens.core.spreadsheets` writes is read back as it was.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.spreadsheets import NUMBER, restored

ID_COLUMNS = ("id", "item_id", "unique_id", "series_id", "series")
TIME_COLUMNS = ("timestamp", "ds", "date", "datetime", "time", "year")
TARGET_COLUMNS = ("target", "y", "value", "values")
MISSING = (
    "",
    "NA",
    "N/A",
    "n/a",
    "NaN",
    "nan",
    "-nan",
    "-NaN",
    "null",
    "NULL",
    "None",
    "<NA>",
    "#N/A",
    "#NA",
    "#N/A N/A",
    "1.#IND",
    "-1.#IND",
    "1.#QNAN",
    "-1.#QNAN",
)
"""Cells that stand for a missing value."""
_LINES = 100  # of which a delimiter is inferred for a message
_DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
# whole cells that are numbers, by their decimal sign
_NUMBER_FORMS = {
    ".": rf"^(?:{NUMBER}|[+-]?(?:[iI]nf|INF|[iI]nfinity))$",
    ",": "^" + NUMBER.replace(r"\.", ",") + "$",
}
# whole cells with separators between groups of three digits
_THOUSANDS = r"^[+-]?\d{1,3}(?:[., '’\x{a0}\x{202f}]\d{3})+(?:[.,]\d+)?$"
# signs that the option thousands stands for
_SEPARATORS = {
    ".": r"\.",
    ",": ",",
    "'": "['’]",
    **dict.fromkeys(("space", " "), "[ \u00a0\u202f]"),
}
# the point is a decimal sign or separates thousands, as in 1.234
_AMBIGUOUS_POINT = r"^[+-]?[1-9]\d{0,2}\.\d{3}$"
_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}([-/.]\d{1,2})?([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}([T"
    r" ].*)?|\d{4}-?[QW]\d\d?"
)


@dataclass(frozen=True)
class Dialect:
    """How a delimited file is written; None where the file has to tell.

    Attributes:
        delimiter: sign between cells, or its name, such as "tab"; if None, the only
            one in the first line.
        decimal: "." or ","; if None ".", unless every point may separate thousands,
            which is refused.
        thousands: sign between groups of three digits; none if None.
        encoding: as Python names it; if None UTF-8, or what a byte order mark says.
        header: whether the first line has names; if None it has, and a line that may
            be values is refused.

    Raises:
        InputError: a sign in numbers is none, or contradicts the other one.
    """

    delimiter: str | None = None
    decimal: str | None = None
    thousands: str | None = None
    encoding: str | None = None
    header: bool | None = None

    def __post_init__(self) -> None:
        decimal = self.decimal or "."
        if self.decimal not in (None, ".", ","):
            raise InputError(
                f"decimal={self.decimal!r} is not a decimal sign; expected '.' or ','"
            )
        if self.thousands not in {None, *_SEPARATORS} - {decimal}:
            raise InputError(
                f"thousands={self.thousands!r} beside the decimal sign {decimal!r} is"
                " no separator; expected '.', ',', \"'\" or 'space', and decimal='.'"
                " or decimal=',' with it"
            )


def split_dialect(options: Mapping[str, Any]) -> tuple[Dialect, dict[str, Any]]:
    """Split options of ``read_series`` into the dialect of the text, and the others."""
    others = dict(options)
    names = [item.name for item in fields(Dialect) if item.name in options]
    return Dialect(**{name: others.pop(name) for name in names}), others


@dataclass(frozen=True, eq=False)
class TextTable:
    """Cells of a file as written.

    Attributes:
        columns: cells of each column, by its name; "Unnamed: 3" where it has none.
        first_row: row number in the file of the first cells, counted from 1.
        delimiter: sign between cells.
        decimal, thousands: signs in numbers, as its :class:`Dialect` has them.
        notes: sentences on what was left out.
    """

    columns: dict[str, pa.Array]
    first_row: int
    delimiter: str
    decimal: str | None
    notes: tuple[str, ...]
    thousands: str | None = None

    def text(self, name: str, is_id: bool = False) -> np.ndarray:
        """Return the cells of a column, None where missing.

        In a column of ids only an empty cell is missing, since "NA" may be an id.
        """
        column = self.columns[name]
        if is_id:
            missing = pc.equal(column, "")
        else:
            missing = pc.is_in(pc.utf8_trim_whitespace(column), pa.array(MISSING))
        column = pa.array(restored(column.to_pylist()), pa.string())
        return np.asarray(
            pc.if_else(missing, None, column).to_numpy(zero_copy_only=False),
            dtype=object,
        )

    def numbers(self, name: str, share: float) -> np.ndarray | None:
        """Return a column as float64, NaN where missing.

        Returns:
            None if less than ``share`` of the cells look like numbers.

        Raises:
            InputError: so many do, but a cell is no number under the options given.
        """
        cells, masks = self._matches(name)
        # missing cells are True in the masks, so that shares must be of the valid ones
        # alone
        valid = _mask(cells.is_valid())
        decimal = self.decimal or "."
        wrong = np.flatnonzero(valid & ~masks[decimal])
        if not len(wrong):
            # Arrow casts neither decimal commas nor a plus sign
            plain = pc.replace_substring_regex(
                pc.replace_substring(cells, ",", "."), r"^\+", ""
            )
            try:
                return np.asarray(
                    pc.cast(plain, pa.float64()).to_numpy(zero_copy_only=False),
                    dtype=np.float64,
                )
            # Python reads more spellings of a number than Arrow
            except pa.ArrowInvalid:
                return np.array(
                    [
                        np.nan if cell is None else float(cell)
                        for cell in plain.to_pylist()
                    ]
                )
        # a column of numbers in another spelling than that of the options is refused
        # below, and not left as text
        looks_numeric = masks["."] | masks[","] | masks["thousands"]
        if looks_numeric[valid].mean() < share:
            return None
        row = int(wrong[0])
        other_decimal = ".,".strip(decimal)
        cell = cells[row].as_py()
        location = f"column {name!r} holds {cell!r} in row {self.first_row + row}"
        if masks["thousands"][row] and not masks[other_decimal][valid].all():
            # the sign after the first digits separates thousands; the decimal sign can
            # only come last
            first_sign = cell.lstrip("+-").lstrip("0123456789")[0]
            separator = next(
                name for name, form in _SEPARATORS.items() if re.match(form, first_sign)
            )
            # as in 1.234,5 while decimal is "."
            separates_thousands = separator == decimal
            # as in 1 234,5
            has_other_decimal = separator != other_decimal and other_decimal in cell
            more = ""
            if separates_thousands or has_other_decimal:
                more = f" and decimal={other_decimal!r}"
            cure = {"thousands": separator}
            if more:
                cure["decimal"] = other_decimal
            raise InputError(f"{location}: thousands separators").with_cures(
                cure, advice=f" are read with thousands={separator!r}{more}"
            )
        if masks[other_decimal][row]:
            more = ""
            if masks["thousands"][row]:
                more = f"; if it separates thousands, give thousands={other_decimal!r}"
            raise InputError(
                f"{location}, and the decimal sign is {decimal!r}"
            ).with_cures(
                {"decimal": other_decimal},
                advice=f"; give decimal='.' or decimal=',', one for all{more}",
            )
        raise InputError(f"{location}, which is not a number")

    def check_mixed_cells(self, name: str) -> None:
        """Refuse a covariate with numbers in some cells and words in others."""
        cells, masks = self._matches(name)
        valid = _mask(cells.is_valid())
        # a comma may have another meaning
        numbers = np.flatnonzero(valid & masks["."])
        looks_numeric = masks["."] | masks[","] | masks["thousands"]
        words = np.flatnonzero(valid & ~looks_numeric)
        if len(numbers) and len(words):
            row = int(words[0])
            number = cells[int(numbers[0])].as_py()
            raise InputError(
                f"covariate {name!r} holds {cells[row].as_py()!r} in row"
                f" {self.first_row + row} beside the number {number!r};"
                " leave a missing cell empty, or read both as categories"
            ).with_cures(
                {"categories": (name,)}, advice=f": give categories={[name]!r}"
            )

    def is_numeric(self, name: str) -> bool:
        """Return True if all cells are missing or numbers, of either decimal sign."""
        _, masks = self._matches(name)
        return bool((masks["."] | masks[","]).all())

    def check_points(self, names: Sequence[str]) -> None:
        """Refuse columns in which every point may separate thousands, as in 1.234.

        Where the decimal sign or the thousands separator is given, or commas separate
        cells, points are decimal signs.
        """
        if (
            self.decimal is not None
            or self.thousands is not None
            or self.delimiter == ","
        ):
            return
        example = ""
        for name in names:
            cells = self.columns[name]
            points = pc.utf8_trim_whitespace(
                cells.filter(pc.match_substring(cells, "."))
            )
            is_ambiguous = pc.match_substring_regex(points, _AMBIGUOUS_POINT)
            # any other point shows that all are decimal signs; of no cells, ``pc.all``
            # gives null unless ``min_count`` is 0
            if not pc.all(is_ambiguous, min_count=0).as_py():
                return
            if len(points) and not example:
                example = f"column {name!r} holds {points[0].as_py()!r}"
        if example:
            raise InputError(
                f"{example}: that may be a decimal sign or a thousands separator, and"
                " no other cell tells which"
            ).with_cures(
                {"decimal": ",", "thousands": "."},
                {"decimal": "."},
                advice="; give decimal='.', or decimal=',' and thousands='.'",
            )

    def _matches(self, name: str) -> tuple[pa.Array, dict[str, np.ndarray]]:
        """Return the cells of a column, and masks of those that are numbers.

        The masks are by decimal sign, and "thousands" for cells with separators. A
        missing cell is null, and True in each mask, so that it refutes none.
        """
        texts = pc.utf8_trim_whitespace(self.columns[name])
        # nulls pass through all kernels below, so that no pattern has to spell them
        cells = pc.if_else(pc.is_in(texts, pa.array(MISSING)), None, texts)
        if self.thousands is not None:
            separator = _SEPARATORS[self.thousands]
            decimal = re.escape(self.decimal or ".")
            grouped = pc.match_substring_regex(
                cells, rf"^[+-]?\d{{1,3}}(?:{separator}\d{{3}})+(?:{decimal}\d*)?$"
            )
            cells = pc.if_else(
                grouped, pc.replace_substring_regex(cells, separator, ""), cells
            )
        forms = {**_NUMBER_FORMS, "thousands": _THOUSANDS}
        masks = {
            key: pc.match_substring_regex(cells, form) for key, form in forms.items()
        }
        return cells, {
            key: _mask(pc.fill_null(mask, True)) for key, mask in masks.items()
        }


_MAX_EXPANSION = 100
"""Largest ratio of decompressed to compressed bytes that measurements reach."""
_SMALL = 2**26
"""Bytes that a file may expand to, however small it is."""


# what the reading of a damaged gzip file raises
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile)


def _damaged_file(error: Exception) -> InputError:
    return InputError(
        f"its compressed content is damaged or cut short ({error}); copy it again"
    )


def file_content(file: Path) -> bytes:
    """Read a file; a gzip file is decompressed.

    Returns:
        The bytes.

    Raises:
        InputError: its content is damaged, or so much larger than the file that it
            hardly holds measurements and may fill the memory.
    """
    if not file.name.lower().endswith(".gz"):
        return file.read_bytes()
    # a constant series of any length compresses far beyond the ratio, and is read as
    # long as it is small
    limit = max(_SMALL, _MAX_EXPANSION * file.stat().st_size)
    try:
        with gzip.open(file) as stream:
            # one byte above the limit shows whether it is exceeded
            content = stream.read(limit + 1)
    except _DAMAGED as error:
        raise _damaged_file(error) from error
    if len(content) > limit:
        raise InputError(
            f"its {file.stat().st_size:,} bytes expand to more than {limit:,}, which"
            " measurements hardly do; if it is as it should be, decompress it (gunzip"
            f" {file.name}) and give the file inside"
        )
    return content


def read_table(file: Path, dialect: Dialect | None = None) -> TextTable:
    """Read the cells of a delimited file.

    Returns:
        Cells as text, by column.

    Raises:
        InputError: the file is damaged, or can be read in two ways and an option must
            decide.
    """
    dialect = dialect or Dialect()
    text = _decode(file_content(file), dialect.encoding)
    return _table(text, file, dialect)


def read_tables(file: Path, rows: int, dialect: Dialect) -> Iterator[TextTable]:
    """Read a delimited file as tables of at most about ``rows`` rows, one by one.

    No more than one of them is in memory. Errors are those of :func:`read_table`, which
    decides by each table what it decides by the file.

    Yields:
        Cells as text, by column.
    """
    head = ""
    n_before = 0
    for text in _parts(file, rows, dialect.encoding):
        if not n_before:
            table = _table(text, file, dialect)
            first = _FIRST_LINE.match(text)
            if first is not None and dialect.header is not False:
                head = first[0]
        else:
            if not text.strip():
                continue
            try:
                table = _table(head + text, file, dialect)
            except InputError as error:
                raise InputError(
                    f"{error} (rows are counted from row {n_before} of the file)"
                ) from error
            table = replace(table, first_row=table.first_row + n_before)
        n_before += len(next(iter(table.columns.values())))
        yield table


# with the line of Excel that names the delimiter, where there is one
_FIRST_LINE = re.compile(r"(?:sep=.\r?\n)?[^\r\n]*(?:\r\n|\r|\n)")


def _parts(file: Path, rows: int, encoding: str | None) -> Iterator[str]:
    """Yield the text of a file in parts of at least ``rows`` rows."""
    is_zipped = file.name.lower().endswith(".gz")
    opened: Any = gzip.open if is_zipped else open
    with opened(file, "rb") as binary:
        mark = binary.read(2)
        binary.seek(0)
        name = encoding or _default_encoding(mark)
        try:
            lines = io.TextIOWrapper(binary, encoding=name, newline="")
            # beside the names, and Excel's line above them
            while part := "".join(islice(lines, rows + 2)):
                # a quoted cell may hold line breaks, and is not cut in two
                while part.count('"') % 2 and (line := lines.readline()):
                    part += line
                yield _checked_text(part)
        except (UnicodeError, LookupError):
            # the message needs all bytes before the wrong one
            _decode(file_content(file), encoding)
            raise
        except _DAMAGED as error:
            raise _damaged_file(error) from error


def _table(text: str, file: Path, dialect: Dialect) -> TextTable:
    """Cut text into cells; errors as :func:`read_table`."""
    delimiter = dialect.delimiter
    declaration = re.match(r"sep=(.)\r?\n", text)
    if declaration:
        # in files for Excel, a first line such as sep=; names the delimiter
        delimiter = delimiter or declaration[1]
        text = text[declaration.end() :]
    if delimiter is None:
        delimiter = _find_delimiter(text, file, dialect.decimal)
    else:
        delimiter = _parse_delimiter(delimiter)
    rows = _rows(text, delimiter)
    # as written for now: whether they are values is asked before any apostrophe is
    # dropped
    names = [cell.strip() for cell in rows[0]]
    if dialect.header is None:
        _refuse_values(names)
    if dialect.header or dialect.header is None:
        names = [
            # the name that pandas gives to such a column, by which :mod:`.frames` knows
            # it
            name or f"Unnamed: {index}"
            for index, name in enumerate(restored(names))
        ]
        first_row = 2
        body = rows[1:]
    else:
        names = [f"column-{index}" for index in range(len(names))]
        first_row = 1
        body = rows
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise InputError(f"two columns are named {repeated!r}")
    stop = len(body)
    # only at the end: an empty row between others is a step without values
    while stop and not any(cell.strip() for cell in body[stop - 1]):
        stop -= 1
    if not stop:
        raise InputError(f"there are no rows below the header ({', '.join(names[:8])})")
    # ``_rows`` has made sure that all rows have the same width
    cells_by_column = zip(*body[:stop], strict=True)
    columns = dict(zip(names, map(pa.array, cells_by_column), strict=True))
    # with a single column these are the blank lines that many files end with
    empty = len(body) - stop if len(names) > 1 else 0
    notes: tuple[str, ...] = ()
    if empty:
        notes = (f"{empty} rows at the end hold nothing and were left out",)
    return TextTable(
        columns, first_row, delimiter, dialect.decimal, notes, dialect.thousands
    )


def _decode(content: bytes, encoding: str | None) -> str:
    """Decode by the encoding that is given, by a byte order mark, or as UTF-8."""
    name = encoding or _default_encoding(content)
    try:
        text = content.decode(name)
    except UnicodeError as error:
        row = content[: getattr(error, "start", 0)].count(b"\n") + 1
        label = name.removesuffix("-sig").upper()
        source = f" as encoding={encoding!r} asks for" if encoding else ""
        # latin-1 decodes any bytes
        first = content.partition(b"\n")[0].decode("latin-1").strip()[:80]
        raise InputError(f"row {row} is not text in {label}{source}").with_cures(
            *_encodings(content),
            advice=(
                "; give its encoding, as in encoding='cp1252' (Western Europe) or"
                " 'cp1250' (Central Europe); its first line, with the delimiter and the"
                f" columns, is {first!r}"
            ),
        ) from error
    except (LookupError, ValueError) as error:
        raise InputError(
            f"encoding={encoding!r} is unknown; examples: 'utf-8', 'cp1252', 'latin-1'"
        ).with_cures(*_encodings(content)) from error
    text = _checked_text(text)
    if not text.strip():
        raise InputError("the file is empty")
    return text


def _default_encoding(content: bytes) -> str:
    """Return the encoding that the first bytes of a file speak for."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    # it drops a byte order mark, and reads text without one
    return "utf-8-sig"


def _checked_text(text: str) -> str:
    """Refuse what is no text, and drop a byte order mark and empty lines before it."""
    # UTF-16 without a byte order mark decodes as UTF-8, with a NUL beside each letter
    if "\0" in text:
        row = text.partition("\0")[0].count("\n") + 1
        raise InputError(f"row {row} holds a NUL: this is not a text file")
    # an encoding that is given, such as utf-8, leaves the mark in the text
    return text.removeprefix("\ufeff").lstrip("\r\n")


def _encodings(content: bytes) -> list[dict[str, str]]:
    """List the usual encodings under which a file is text."""
    cures = []
    for name in ("utf-8", "cp1252", "cp1250", "latin-1"):
        try:
            content.decode(name)
        except UnicodeError:
            continue
        cures.append({"encoding": name})
    return cures


def _delimiters(text: str, signs: Sequence[str]) -> list[dict[str, str]]:
    """List the delimiters that cut the first lines into equally many cells."""
    lines = text.splitlines()[:_LINES]
    cures = []
    for sign in signs:
        try:
            widths = {len(row) for row in csv.reader(lines, delimiter=sign) if row}
        except csv.Error:
            continue
        if len(widths) == 1 and widths != {1}:
            name = "tab" if sign == "\t" else sign
            cures.append({"delimiter": name})
    return cures


def _parse_delimiter(delimiter: str) -> str:
    """Return the sign that the option delimiter stands for."""
    names = {"tab": "\t", "\\t": "\t", "space": " ", "semicolon": ";", "comma": ","}
    sign = names.get(delimiter, delimiter)
    # a letter, a digit or a sign of numbers would cut through values
    if len(sign) != 1 or sign in "\"\r\n'.+-\0" or sign.isalnum() or not sign.isascii():
        raise InputError(
            f"delimiter={delimiter!r} is not a single sign; expected ',', ';', '|',"
            " 'tab' or 'space'"
        )
    return sign


def _find_delimiter(text: str, file: Path, decimal: str | None) -> str:
    """Return the only delimiter in the first line.

    If it has none, the file has one column, and any sign will do that no cell uses.
    """
    first, _, rest = text.partition("\n")
    # a quoted name may hold a delimiter, as in "Load, MW"
    unquoted = re.sub('"[^"]*"', "", first)
    signs = [sign for sign in _DELIMITERS if sign in unquoted]
    if len(signs) > 1:
        listing = " and ".join(_DELIMITERS[sign] for sign in signs)
        raise InputError(f"the first line may be cut at {listing}").with_cures(
            *_delimiters(text, signs), advice="; give delimiter=',', ';', '|' or 'tab'"
        )
    if signs:
        return signs[0]
    # blanks in the first line and in the second one
    if re.match(r"[^\s\"]+ +[^\s\"]", rest) and " " in first.strip():
        raise InputError("blanks may separate the columns").with_cures(
            {"delimiter": "space"},
            advice="; give delimiter='space', or delimiter=',' for one column",
        )
    # a comma would cut decimals in two, and a file called .tsv has tabs further down if
    # any
    if decimal == "," or ".tsv" in file.name.lower():
        return "\t"
    return ","


def _rows(text: str, delimiter: str) -> list[list[str]]:
    """Split text into rows of equally many cells."""
    if delimiter == " ":
        # blanks at the end of a line separate nothing
        text = re.sub(r" +(?=\r?\n|\Z)", "", text)
    reader = csv.reader(
        # with ``newline=""``, a lone carriage return ends a line, too, and line breaks
        # inside quotes stay as written
        io.StringIO(text, newline=""),
        delimiter=delimiter,
        strict=True,
        skipinitialspace=delimiter == " ",
    )
    try:
        rows = list(reader)
    except csv.Error as error:
        raise InputError(
            f"line {reader.line_num} has a quotation mark or line break out of place:"
            f" {error}"
        ) from error
    width = len(rows[0])
    # asked once, since the search through all cells is slow and most files have no
    # quotes
    quoted = '"' in text
    # an empty line of a single column is a missing value
    rows = [row or [""] for row in rows if row or width == 1]
    for number, row in enumerate(rows, 1):
        if len(row) != width:
            message = _uneven(delimiter.join(row), number, len(row), width, delimiter)
            signs = [sign for sign in _DELIMITERS if sign != delimiter]
            raise InputError(message).with_cures(*_delimiters(text, signs))
        # a quotation mark that is never closed swallows the next rows
        if quoted and any(
            delimiter in cell and ("\n" in cell or "\r" in cell) for cell in row
        ):
            raise InputError(
                f"a cell of row {number} goes over several lines; a quotation mark is"
                " amiss"
            )
    return rows


def _uneven(text: str, number: int, cells: int, width: int, delimiter: str) -> str:
    """Write the message on a row that has not as many cells as the first one."""
    message = f"row {number} has {cells} cells and the first row {width}: {text[:80]!r}"
    if delimiter == "," and cells > width:
        cure = "decimal=',' and another delimiter, or quotes"
        if width == 1:
            cure = "delimiter=';' and decimal=','"
        return f"{message}. If the comma is the decimal sign, the file needs {cure}"
    if delimiter in text:
        return message
    name = _DELIMITERS.get(delimiter, delimiter)
    return f"{message}. If not split at {name}, give delimiter=…"


def _refuse_values(first: Sequence[str]) -> None:
    """Refuse a first line that may be values and not names.

    That is a line with numbers, dates or only missing cells, and without any standard
    name of a column.
    """
    dates = [cell for cell in first if _DATE.fullmatch(cell)]
    values = [
        cell
        for cell in first
        if any(re.fullmatch(form, cell) for form in _NUMBER_FORMS.values())
    ]
    has_standard = not {cell.lower() for cell in first}.isdisjoint(
        (*ID_COLUMNS, *TIME_COLUMNS, *TARGET_COLUMNS)
    )
    if not has_standard and (dates or values or all(cell in MISSING for cell in first)):
        raise InputError(
            f"the first line ({', '.join(map(repr, first[:6]))}) may be names or values"
        ).with_cures(
            {"header": False},
            {"header": True},
            advice="; give header=True or header=False",
        )


def _mask(array: pa.Array) -> np.ndarray:
    # Arrow packs truth values in bits, of which numpy has no view
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=bool)
