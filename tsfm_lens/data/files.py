"""Reader of CSV and Parquet files as series.

:func:`read_series` reads the cells of a file, decides column by column whether they are
numbers, and hands the table to :func:`.frames.from_frame`. :mod:`.text` handles
delimiters, decimal signs and encodings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tsfm_lens.core.errors import InputError, LensError, UnknownNameError
from tsfm_lens.data.batch import SeriesBatch
from tsfm_lens.data.faults import Fault, Faults, find_faults, list_arguments
from tsfm_lens.data.frames import (
    column_names,
    from_frame,
    id_names,
    key_and_time,
    value_columns,
)
from tsfm_lens.data.text import TextTable, read_table, split_dialect
from tsfm_lens.data.values import from_arrow, name_lists, texts

PARQUET = (".parquet", ".pq")
READABLE = (".csv", ".csv.gz", ".txt", ".txt.gz", ".tsv", ".tsv.gz", *PARQUET)
_SHEETS = (".xlsx", ".xls", ".xlsm", ".ods")
LARGE = 2**25
"""Bytes of a file that is not read again and again to find all its faults."""
_MAX_FILES = 5  # files that a message names, the nearest first
_MIN_NUMBER_SHARE = 0.5  # with this share of numbers, a column must hold no words


def read_series(
    path: str | Path,
    *,
    units: str | Sequence[str] = "",
    seasonality: int | None = None,
    delimiter: str | None = None,
    decimal: str | None = None,
    thousands: str | None = None,
    encoding: str | None = None,
    header: bool | None = None,
    **columns: Any,
) -> SeriesBatch:
    r"""Read the series of a file.

    Ids stay text, and what can be read in two ways is refused.

    Args:
        path: ends in .csv, .tsv, .txt (or one of these and .gz), .parquet or .pq.
        units: unit of all series but covariates, or one per series.
        seasonality: season length in steps; from the frequency if None.
        delimiter: sign between cells, or "tab" or "space"; if None, the first line
            must hold a single kind of delimiter.
        decimal: "." or ","; a point if None.
        thousands: sign between thousands, ".", ",", "'" or "space"; none are read if
            None.
        encoding: of text; UTF-8, or UTF-16 with a byte order mark, if None.
        header: whether the first line has names; needed where it has numbers or dates.
        columns: which columns hold what, as of :func:`tsfm_lens.data.from_frame`:
            ``targets``, ``variates``, ``id_column``, ``time_column``, ``time_format``,
            ``timezone``, ``round_time``, ``freq``, ``known``, ``past``, ``categories``.

    Returns:
        The series; their ``notes`` say how times were read, and what was left out.

    Raises:
        InputError: the file is missing, empty, unreadable or ambiguous; the message
            names row and column, all faults at once, and the call that reads it.
        UnknownNameError: a column that is named does not exist.

    Example:
        >>> text = "date;load\n2024-01-01;1,5\n2024-01-02;2,5\n"
        >>> _ = (folder / "load.csv").write_text(text)
        >>> data.read_series(folder / "load.csv", decimal=",").values[0].tolist()
        [1.5, 2.5]
    """
    options: dict[str, Any] = {
        **name_lists(columns),
        "delimiter": delimiter,
        "decimal": decimal,
        "thousands": thousands,
        "encoding": encoding,
        "header": header,
    }
    options = {name: value for name, value in options.items() if value is not None}
    file = regular_file(path, READABLE)
    try:
        batch = _read(file, **options)
    except (InputError, UnknownNameError) as error:
        faults = _all_faults(path, file, options, error)
        # of the same class, and with the path as the caller wrote it
        refusal = type(error)(faults.describe(_call(path, options, faults)))
        refusal.faults = faults
        raise refusal from error
    except (OSError, MemoryError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    return in_units(with_season(batch, seasonality), units)


def _read(file: Path, **options: Any) -> SeriesBatch:
    """Read the series of a file; the first thing that cannot be decided is refused."""
    dialect, columns = split_dialect(name_lists(options))
    if file.suffix.lower() in PARQUET:
        # its columns have types, and text has none
        return from_frame(_parquet(file), **columns)
    table = read_table(file, dialect)
    return _from_table(table, columns).noted(table.notes)


def _all_faults(
    path: str | Path, file: Path, options: dict[str, Any], error: LensError
) -> Faults:
    """Find all faults of a file; of a large one the first alone, since it is slow."""
    if file.stat().st_size > LARGE:
        return Faults(str(path), (Fault(str(error), {}),), {}, readable=False)
    return find_faults(str(path), partial(_read, file), options, error)


def _call(path: str | Path, options: Mapping[str, Any], faults: Faults) -> str:
    """Write the call that reads a file, with all options that it takes."""
    arguments = {**options, **faults.changes}
    given = {name: value for name, value in arguments.items() if value is not None}
    written = ", ".join([repr(str(path)), *list_arguments(given)])
    return f"tsfm_lens.data.read_series({written})"


def with_season(batch: SeriesBatch, seasonality: int | None) -> SeriesBatch:
    """Give all series a season length in steps; without one, change nothing."""
    if seasonality is None:
        return batch
    if (
        # ``True`` is an ``int``, and would be a season of 1
        isinstance(seasonality, bool)
        or not isinstance(seasonality, int | np.integer)
        or seasonality < 1
    ):
        raise InputError(
            f"seasonality is {seasonality!r}, expected a whole number of steps, 1 or"
            " more"
        )
    # an empty tuple lets the batch give the season to each series anew
    return replace(batch, seasonality=int(seasonality), seasonalities=())


def in_units(batch: SeriesBatch, units: str | Sequence[str]) -> SeriesBatch:
    """Set one unit for all targets, or a unit for each series.

    Empty ``units`` change nothing.

    Returns:
        The batch with its units.
    """
    if not units:
        return batch
    if isinstance(units, str):
        # covariates seldom have the unit of the target
        return replace(
            batch,
            units=tuple(units if role == "target" else "" for role in batch.roles),
        )
    return replace(batch, units=texts(units, "units"))


def list_columns(path: str | Path) -> list[str]:
    """List the columns of a file of series, in their order.

    Values are not converted into numbers.

    Returns:
        Names of columns.
    """
    file = regular_file(path, READABLE)
    if file.suffix.lower() in PARQUET:
        return list(map(str, _parquet(file).columns))
    return list(read_table(file).columns)


def _parquet(file: Path) -> pd.DataFrame:
    try:
        return from_arrow(pq.read_table(file))
    # Arrow raises Python's own errors, too, for a file that is damaged or holds what
    # pandas has not
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"it is no Parquet file that can be read: {error}") from error


def _from_table(table: TextTable, options: Mapping[str, Any]) -> SeriesBatch:
    try:
        return from_frame(text_frame(table, options), **options)
    except InputError:
        # a message may name columns of ids, which are found among those that nobody
        # reads, too
        from_frame(text_frame(table, options, unread=True), **options)
        raise


def text_frame(
    table: TextTable, options: Mapping[str, Any], *, unread: bool = False
) -> pd.DataFrame:
    """Convert columns of numbers; others stay text as written.

    The index holds row numbers of the file, which error messages give. Columns of
    numbers that nobody reads are converted with ``unread`` alone.

    Returns:
        The frame.
    """
    names = list(table.columns)
    option = options.get
    ids = id_names(option("id_column"), names)
    # of several columns of ids one is enough here: all are in ``keys`` below
    key, time = key_and_time(names, ids[0] if ids else None, option("time_column"))
    keys = {*ids, key, time}
    covariates = set(
        column_names([*(option("known") or ()), *(option("past") or ())], names)
    )
    categories = set(column_names(option("categories") or (), names))
    values_option = "targets" if option("variates") is None else "variates"
    requested = value_columns(
        names, option(values_option), keys | covariates, values_option
    )
    # without a request, every column that is neither key nor covariate may hold values
    values: set[Any] = set(names) - keys - covariates
    if requested is not None:
        values = set(requested)
    columns: dict[str, np.ndarray] = {}
    numeric = []
    for name in names:
        stays_text = name in keys or name in covariates & categories
        # from_frame checks the numbers of columns without a name
        is_unnamed = name.startswith("Unnamed: ")
        cells = None
        if not stays_text and name in covariates:
            # a covariate may also be text, but not a mixture
            cells = table.numbers(name, 1.0)
            if cells is None:
                table.check_mixed_cells(name)
        elif not stays_text and (name in values or is_unnamed):
            cells = table.numbers(name, _MIN_NUMBER_SHARE)
        elif not stays_text and table.is_numeric(name):
            # zeros will do, since ``from_frame`` notes by type which unread columns are
            # numbers
            numbers = np.zeros(len(table.columns[name]))
            if unread:
                # a share above 1, so that no other spelling of numbers is refused
                converted = table.numbers(name, 2.0)
                numbers = numbers if converted is None else converted
            columns[name] = numbers
            continue
        if cells is None:
            cells = table.text(name, is_id=name in keys - {time})
        else:
            numeric.append(name)
        columns[name] = cells
    # of all columns together, since one point elsewhere may tell how the file writes
    # numbers
    table.check_points(numeric)
    stop = table.first_row + len(columns[names[0]])
    return pd.DataFrame(columns, index=pd.RangeIndex(table.first_row, stop), copy=False)


def local_path(path: str | Path) -> Path:
    """Resolve ``~`` in a path."""
    try:
        resolved = Path(path).expanduser()
        # the system refuses a name that is too long only when it looks for the file
        resolved.exists()
    except (OSError, ValueError, RuntimeError, TypeError) as error:
        text = str(path) if len(str(path)) <= 100 else f"{str(path)[:100]}…"
        # the system's own message repeats the whole path
        cause = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{text!r} is not a usable path: {cause}") from error
    return resolved


def missing_file(file: Path, readable: tuple[str, ...]) -> InputError:
    """Build the error for a file that does not exist.

    It names readable files of the folder, the nearest first.

    Returns:
        The error to raise.
    """
    names = sorted(
        item.name for item in file.parent.glob("*") if item.suffix in readable
    )
    near = get_close_matches(file.name, names, n=_MAX_FILES)
    nearest = [*near, *(name for name in names if name not in near)][:_MAX_FILES]
    hint = ""
    if names:
        more = ", …" if len(names) > _MAX_FILES else ""
        hint = f" That folder has: {', '.join(nearest)}{more}."
    # such a text is no path, but rather a sentence or a list of numbers
    if " " in str(file) and not file.suffix:
        hint = " Series are numbers: an array, a frame, or the path of a file."
    return InputError(f"there is no file {str(file)!r}.{hint}")


def regular_file(path: str | Path, readable: tuple[str, ...]) -> Path:
    """Return an existing plain file with one of these endings.

    Pipes and devices are refused, since reading them may never end.
    """
    file = local_path(path)
    if not file.exists():
        raise missing_file(file, readable)
    if not file.is_file() and not file.is_dir():
        raise InputError(
            f"{str(path)!r} is a pipe or a device, expected a plain file; save its"
            " content to one first"
        )
    if file.is_dir() or not file.name.lower().endswith(readable):
        hint = ""
        if file.suffix.lower() in _SHEETS:
            hint = (
                "; save its sheet as CSV, or read it in Python with"
                " tsfm_lens.as_series(pandas.read_excel(path))"
            )
        raise InputError(
            f"cannot read {str(path)!r}: expected a file that ends in"
            f" {', '.join(readable)}{hint}"
        )
    return file
