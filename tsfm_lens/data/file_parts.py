"""Reader of files larger than memory, a part of their series at a time.

Read :func:`read_parts` first. It reads the rows of a long file one block after the
other, cuts them where the id changes, and hands whole series to
:func:`.frames.from_frame`, as :func:`.files.read_series` does with a whole file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tsfm_lens.core.errors import InputError, UnknownNameError
from tsfm_lens.data.batch import SeriesBatch
from tsfm_lens.data.categories import TRUTHS
from tsfm_lens.data.files import (
    LARGE,
    PARQUET,
    READABLE,
    in_units,
    read_series,
    regular_file,
    text_frame,
    with_season,
)
from tsfm_lens.data.frames import from_frame, id_names, key_and_time
from tsfm_lens.data.text import Dialect, read_tables, split_dialect
from tsfm_lens.data.values import from_arrow, name_lists

PART_ROWS = 2**16
"""Rows of a file that are read at a time; a series that has more is read whole."""


def read_parts(
    path: str | Path,
    rows: int = PART_ROWS,
    *,
    units: str = "",
    seasonality: int | None = None,
    **options: Any,
) -> Iterator[SeriesBatch]:
    """Read the series of a long file, in parts of about so many rows.

    The series are those of :func:`.files.read_series`. The rows of an id stand one
    after the other. The frequency is that of the first part, if none is given. A file
    without ids is read as a whole.

    Args:
        path: ends in .csv, .tsv, .txt (or one of these and .gz), .parquet or .pq.
        rows: of a part, at least; a part ends where an id does.
        units: unit of all series but covariates, or one per series.
        seasonality: season length in steps; from the frequency if None.
        options: further options of :func:`tsfm_lens.data.read_series`.

    Yields:
        Batches, in the order of the file.

    Raises:
        InputError: as :func:`.files.read_series`; the rows of an id stand apart, a
            column is numbers in one part and text in another, or a covariate has
            categories, which are numbered over the whole file.
    """
    file = regular_file(path, READABLE)
    seen: set[str] = set()
    try:
        dialect, columns = split_dialect(name_lists(options))
        blocks = _blocks(file, rows, dialect, columns)
        first = next(blocks, None)
        keys = [] if first is None else _id_columns(first, columns)
        if first is None or not keys:
            yield read_series(path, units=units, seasonality=seasonality, **options)
            return
        for number, frame in enumerate(_whole_ids(first, blocks, keys)):
            batch = from_frame(frame, **columns)
            _check_part(batch, number, seen)
            seen.update(batch.groups)
            # later parts are put on the grid of the first one
            if batch.freq is not None:
                columns["freq"] = batch.freq
            yield in_units(with_season(batch, seasonality), units)
    except (InputError, UnknownNameError) as error:
        if str(path) in str(error):
            raise
        if not seen and file.stat().st_size <= LARGE:
            # read whole, a file says all that is wrong with it, and not the first alone
            read_series(path, units=units, seasonality=seasonality, **options)
        raise type(error)(f"{path}: {error}") from error
    except (OSError, MemoryError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def _blocks(
    file: Path, rows: int, dialect: Dialect, columns: Mapping[str, Any]
) -> Iterator[pd.DataFrame]:
    """Yield the rows of a file, so many at a time, with the row numbers as index."""
    numeric: frozenset[str] | None = None
    named: set[str] = set()
    if columns.get("targets") or columns.get("variates"):
        for option in ("targets", "variates", "known", "past"):
            named.update(columns.get(option) or ())
    for frame in _frames(file, rows, dialect, columns):
        found = frozenset(
            str(name)
            for name, kind in frame.dtypes.items()
            if pd.api.types.is_numeric_dtype(kind)
        )
        if named:
            found &= named
        if numeric is not None and found != numeric:
            name = min(found ^ numeric)
            raise InputError(
                f"column {name!r} is numbers in some rows and text in others, from row"
                f" {frame.index[0]} on; name the columns of values with targets=[…]"
            )
        numeric = found
        yield frame


def _frames(
    file: Path, rows: int, dialect: Dialect, columns: Mapping[str, Any]
) -> Iterator[pd.DataFrame]:
    if file.suffix.lower() not in PARQUET:
        for table in read_tables(file, rows, dialect):
            yield text_frame(table, columns)
        return
    try:
        with pq.ParquetFile(file) as source:
            first = 0
            for block in source.iter_batches(batch_size=rows):
                frame = from_arrow(pa.Table.from_batches([block]))
                # ids may stand in an index, whose levels are columns in the file
                if any(name is not None for name in frame.index.names):
                    frame = frame.reset_index()
                frame.index = pd.RangeIndex(first, first + len(frame))
                first += len(frame)
                yield frame
    except (pa.ArrowException, ValueError, TypeError, KeyError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"it is no Parquet file that can be read: {error}") from error


def _id_columns(frame: pd.DataFrame, options: Mapping[str, Any]) -> list[Any]:
    """Return the columns of ids; none for a file without ids."""
    named = id_names(options.get("id_column"), list(frame.columns))
    if named:
        return named
    key, _ = key_and_time(frame.columns, None, options.get("time_column"))
    return [] if key is None else [key]


def _whole_ids(
    first: pd.DataFrame, blocks: Iterator[pd.DataFrame], keys: list[Any]
) -> Iterator[pd.DataFrame]:
    """Yield blocks that are cut where an id ends."""
    rest = [first]
    for block in blocks:
        starts = _id_starts(block, keys)
        # the last rows so far may go on in this block
        begins_anew = (rest[-1][keys].iloc[-1] != block[keys].iloc[0]).any()
        if begins_anew:
            yield pd.concat(rest)
            rest = []
        elif len(starts) > 1:
            stop = starts[1]
            yield pd.concat([*rest, block.iloc[:stop]])
            block = block.iloc[stop:]
            rest = []
        rest.append(block)
    yield pd.concat(rest)


def _id_starts(block: pd.DataFrame, keys: list[Any]) -> np.ndarray:
    """Return the index of each row whose id is another than that of the row before."""
    cells = block[keys]
    differs = (cells != cells.shift()).any(axis=1).to_numpy()
    starts: np.ndarray = np.flatnonzero(differs)
    return starts


def _check_part(batch: SeriesBatch, number: int, seen: set[str]) -> None:
    """Refuse series that go on after others, and categories."""
    repeated = seen.intersection(batch.groups)
    if repeated:
        raise InputError(
            f"the rows of {min(repeated)!r} stand apart; sort the file by its ids, or"
            " read it whole with tsfm_lens.data.read_series"
        )
    for name, categories in zip(batch.ids, batch.categories, strict=True):
        if categories not in (None, TRUTHS):
            raise InputError(
                f"covariate {name!r} is text, whose categories are numbered over the"
                " whole file; give numbers, or read it whole with"
                " tsfm_lens.data.read_series"
            )
