"""Reader of CSV and Parquet files as series."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tsfm_lens.data.batch import SeriesBatch
from tsfm_lens.data.ends import noted_ends
from tsfm_lens.data.formulas import restored
from tsfm_lens.data.frame_covariates import column_names
from tsfm_lens.data.frames import from_frame
from tsfm_lens.data.labels import in_units
from tsfm_lens.data.layout import key_and_time, value_columns
from tsfm_lens.data.numerals import MISSING, Numerals, numeric_columns
from tsfm_lens.data.paths import regular_file
from tsfm_lens.data.tables import from_arrow
from tsfm_lens.data.text_table import TextTable, read_table
from tsfm_lens.errors import InputError, UnknownNameError

READABLE = (".csv", ".csv.gz", ".txt", ".txt.gz", ".tsv", ".tsv.gz", ".parquet", ".pq")


def read_series(
    path: str | Path,
    *,
    freq: str | None = None,
    units: str | Sequence[str] = "",
    targets: Sequence[str] | None = None,
    variates: Sequence[str] | None = None,
    id_column: str | None = None,
    time_column: str | None = None,
    delimiter: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    header: bool | None = None,
    known: Sequence[str] | None = None,
    past: Sequence[str] | None = None,
) -> SeriesBatch:
    """Read the series of a file, from the columns that :func:`tsfm_lens.data.frames.from_frame` reads.

    Ids stay text. The delimiter is the one sign that splits all rows alike, and the decimal sign is the one that the
    numbers show. Ambiguous files are refused, never guessed; docs/data.md has the rules. Apostrophes that defuse
    formulas in our own CSV are removed.

    Args:
        path: .csv, .tsv or .txt, each also with .gz, .parquet or .pq.
        freq: pandas frequency alias; inferred from timestamps if None.
        units: unit of all series but covariates, or one per series.
        targets: columns to read, each a series of its own.
        variates: columns to read together, as the variates of one group.
        id_column: whose values tell the series apart; found by its name if None.
        time_column: of the timestamps; found by its name if None.
        delimiter: sign between the cells of text; "tab" and "space" are names for those.
        decimal: "." or ",".
        encoding: of text; UTF-8, or that of its byte order mark, if None.
        header: whether the first line has names; by rule if None.
        known: columns of covariates whose future is known; see :func:`tsfm_lens.data.frames.from_frame`.
        past: columns of covariates that are seen up to the end of the context.

    Raises:
        InputError: the file is missing, empty or unreadable; the message names row and column.
        UnknownNameError: a column that is named does not exist.

    Example:
        >>> _ = (folder / "load.csv").write_text("date;load\\n2024-01-01;1,5\\n2024-01-02;2,5\\n")
        >>> data.read_series(folder / "load.csv").values[0].tolist()
        [1.5, 2.5]
    """
    file = regular_file(path, READABLE)
    if decimal not in (None, ".", ","):
        raise InputError(f"decimal={decimal!r} is no decimal sign; expected '.' or ','")
    columns: dict[str, Any] = {
        "targets": targets,
        "variates": variates,
        "id_column": id_column,
        "time_column": time_column,
        "known": known,
        "past": past,
    }
    try:
        if file.suffix.lower() in (".parquet", ".pq"):
            batch = from_frame(_parquet(file), freq=freq, **columns)
        else:
            table = read_table(file, delimiter=delimiter, encoding=encoding, header=header)
            batch = from_frame(_frame(table, decimal, **columns), freq=freq, **columns).noted(table.notes)
    except (InputError, UnknownNameError) as error:
        raise type(error)(f"{path}: {error}") from error
    except (OSError, MemoryError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    return in_units(noted_ends(batch), units)


def columns_of(path: str | Path) -> list[str]:
    """List the columns of a file of series, in their order, without reading its values as numbers.

    Raises:
        InputError: the file is missing, empty or unreadable.
    """
    file = regular_file(path, READABLE)
    if file.suffix.lower() in (".parquet", ".pq"):
        return [str(name) for name in _parquet(file).columns]
    return list(read_table(file).columns)


def _parquet(file: Path) -> pd.DataFrame:
    try:
        return from_arrow(pq.read_table(file))
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"it is no Parquet file that can be read: {error}") from error


def _frame(
    table: TextTable,
    decimal: str | None,
    *,
    targets: Sequence[str] | None,
    variates: Sequence[str] | None,
    id_column: str | None,
    time_column: str | None,
    known: Sequence[str] | None,
    past: Sequence[str] | None,
) -> pd.DataFrame:
    """Convert the columns of numbers; ids and timestamps stay text as written."""
    key, time = key_and_time(table.columns, id_column, time_column)
    covariates = set(column_names((*(known or ()), *(past or ())), table.columns)) & set(table.columns)
    requested = value_columns(table.columns, targets if variates is None else variates, {key, time, *covariates})
    free = {name: column for name, column in table.columns.items() if name not in (key, time)}
    # a column without a name may number the rows
    numeric = set(free if requested is None else requested) | ({"Unnamed: 0"} & set(free))
    # a covariate may be text; one that is all numbers is read as such
    numeric = (numeric - covariates) | set(numeric_columns({name: free[name] for name in covariates if name in free}))
    cells = {name: column for name, column in free.items() if name in numeric}
    numbers = Numerals(cells, table.first_row, decimal=decimal, doubtful_point=table.delimiter != ",").values
    others = numeric_columns({name: column for name, column in free.items() if name not in numeric | covariates})
    plain = {
        name: numbers[name] if name in numbers else _text(column, is_id=name == key, number=name in others)
        for name, column in table.columns.items()
    }
    rows = len(next(iter(table.columns.values())))
    return pd.DataFrame(plain, index=pd.RangeIndex(table.first_row, table.first_row + rows), copy=False)


def _text(column: pa.Array, *, is_id: bool, number: bool) -> np.ndarray:
    """Return cells as text, None where missing; zeros for numbers that are not read."""
    if number:
        return np.zeros(len(column))
    missing = pc.equal(column, "") if is_id else pc.is_in(pc.utf8_trim_whitespace(column), pa.array(MISSING))
    texts = column
    if pc.any(pc.match_substring(column, "'")).as_py():
        texts = pa.array(restored(column.to_pylist()), pa.string())
    return np.asarray(pc.if_else(missing, None, texts).to_numpy(zero_copy_only=False), dtype=object)
