"""Layout of a frame: columns of ids, timestamps and values, and levels of an index."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.data.headers import ID_COLUMNS, TARGET_COLUMNS, TIME_COLUMNS
from tsfm_lens.data.instants import holds_dates, looks_like_dates
from tsfm_lens.errors import InputError, unknown_name


def flat(
    frame: pd.DataFrame, id_column: str | None = None, time_column: str | None = None
) -> tuple[pd.DataFrame, str | None, str | None, list[str]]:
    """Turn the levels of a frame's index into columns.

    If one of two levels holds timestamps or is named like them, the other holds the ids, as in AutoGluon's
    TimeSeriesDataFrame. An index of dates holds the timestamps, and an index that is named like an id the ids.

    Returns:
        The frame, its columns of ids and of timestamps where the index says so, and notes.

    Raises:
        InputError: the frame has no rows, its columns have levels or repeat, or an index's levels cannot be told.
    """
    if frame.columns.nlevels > 1:
        raise InputError(f"the frame's columns have {frame.columns.nlevels} levels, expected one name per column")
    if frame.empty and not (len(frame) and frame.index.nlevels > 1):
        raise InputError(f"the frame has no rows (columns: {', '.join(map(str, frame.columns)) or 'none'})")
    if frame.columns.has_duplicates:
        raise InputError(f"the frame has two columns {str(frame.columns[frame.columns.duplicated()][0])!r}")
    frame = pd.DataFrame(frame)
    index = frame.index
    notes: list[str] = []
    if index.nlevels > 1:
        frame, id_column, time_column = _levels(frame, id_column, time_column)
    elif _says_something(index, id_column, time_column):
        name = _free_name(frame, index)
        if time_column is None and _is_time(index) and find(frame.columns, TIME_COLUMNS) is None:
            time_column = name
        frame = frame.rename_axis(name).reset_index()
    frame, more_notes = _without_row_numbers(frame, {id_column, time_column})
    return frame, id_column, time_column, notes + more_notes


def _says_something(index: pd.Index, id_column: str | None, time_column: str | None) -> bool:
    if index.name is not None and index.name in (id_column, time_column):
        return True
    if isinstance(index, pd.RangeIndex) or pd.api.types.is_integer_dtype(index.dtype):
        return index.name is not None and find([index.name], (*ID_COLUMNS, *TIME_COLUMNS)) is not None
    return True


def _is_time(index: pd.Index) -> bool:
    if holds_dates(index.dtype):
        return True
    return index.name is None and looks_like_dates(pd.Series(index.array))


def _free_name(frame: pd.DataFrame, index: pd.Index) -> str:
    name = str(index.name) if index.name is not None else "timestamp" if _is_time(index) else "index"
    if name in frame.columns:
        raise InputError(f"the frame has {name!r} both as its index and as a column; drop one of them")
    return name


def _levels(frame: pd.DataFrame, id_column: str | None, time_column: str | None) -> tuple[pd.DataFrame, str, str]:
    """Turn the levels of a MultiIndex into columns, and tell those of ids and timestamps."""
    index = frame.index
    assert isinstance(index, pd.MultiIndex)
    names = [f"level_{place}" if name is None else str(name) for place, name in enumerate(index.names)]
    both = sorted(set(names) & set(map(str, frame.columns)))
    if both:
        raise InputError(f"the frame has {both[0]!r} both as a level of its index and as a column; drop one of them")
    date_levels = [name for place, name in enumerate(names) if index.levels[place].dtype.kind == "M"]
    date_levels += [name for place, name in enumerate(names) if isinstance(index.levels[place].dtype, pd.PeriodDtype)]
    contrary = find(date_levels, ID_COLUMNS) is not None or find(names, TIME_COLUMNS) not in (None, *date_levels)
    if time_column is None and not (len(date_levels) == 1 and contrary):
        time_column = date_levels[0] if len(date_levels) == 1 else find(names, TIME_COLUMNS)  # type: ignore[assignment]
    others = [name for name in names if name != time_column]
    if id_column is None:
        id_column = others[0] if len(others) == 1 else find(others, ID_COLUMNS)  # type: ignore[assignment]
    if time_column is None or id_column is None:
        raise InputError(
            f"the frame's index has the levels {', '.join(names)}: expected ids and timestamps, as in (item_id, "
            "timestamp). Name them with id_column=… and time_column=…, or join the levels that make an id"
        )
    return frame.set_axis(index.set_names(names)).reset_index(), id_column, time_column


def _without_row_numbers(frame: pd.DataFrame, keys: Collection[Hashable | None]) -> tuple[pd.DataFrame, list[str]]:
    """Drop columns without a name that number the rows, as ``to_csv`` makes of an index.

    Raises:
        InputError: such a column has values.
    """
    nameless = [name for name in frame.columns if re.fullmatch(r"(Unnamed: \d+)?", str(name)) and name not in keys]
    drop: list[Hashable] = []
    notes: list[str] = []
    for name in nameless:
        column = frame[name]
        if column.isna().all():
            drop.append(name)
        elif name == frame.columns[0] and _numbers_rows(column):
            drop.append(name)
            notes.append("the first column has no name and numbers the rows; it is not read")
        elif pd.api.types.is_numeric_dtype(column) or name != frame.columns[0]:
            raise InputError(f"a column has no name ({name}) and holds {column.dropna().iloc[0]!r}; give it one")
    return (frame.drop(columns=drop) if drop else frame), notes


def _numbers_rows(column: pd.Series) -> bool:
    if not pd.api.types.is_numeric_dtype(column) or column.isna().any():
        return False
    numbers = column.to_numpy(dtype=float)
    return bool((numbers == np.round(numbers)).all() and (np.diff(numbers) > 0).all())


def key_and_time(
    columns: Collection[Hashable], id_column: str | None, time_column: str | None
) -> tuple[Hashable | None, Hashable | None]:
    """Return the columns of ids and timestamps: those that are asked for, or those with a standard name.

    Raises:
        UnknownNameError: no such column.
        InputError: they are the same.
    """
    for name in (id_column, time_column):
        if name is not None and name not in columns:
            raise unknown_name("column", name, map(str, columns))
    if id_column is not None and id_column == time_column:
        raise InputError(f"column {id_column!r} cannot hold both the ids and the timestamps")
    key: Hashable | None = id_column
    time: Hashable | None = time_column
    if key is None:
        key = find([column for column in columns if column != time], ID_COLUMNS)
    if time is None:
        time = find([column for column in columns if column != key], TIME_COLUMNS)
    return key, time


def dated_column(frame: pd.DataFrame, other_columns: Collection[Hashable | None]) -> Hashable | None:
    """Return the one column with timestamps where no name tells; None if there is none, or several."""
    candidates = [
        column
        for column, kind in zip(frame.columns, frame.dtypes, strict=True)
        if column not in other_columns and (holds_dates(kind) or (_is_text(kind) and looks_like_dates(frame[column])))
    ]
    return candidates[0] if len(candidates) == 1 else None


def _is_text(kind: Any) -> bool:
    return isinstance(kind, pd.StringDtype | np.dtype | pd.ArrowDtype) and kind.kind == "O"


def find(columns: Iterable[Hashable], names: Sequence[str]) -> Hashable | None:
    """Find the column with the first of these names, in any case."""
    lower = {str(column).strip().lower(): column for column in columns}
    return next((lower[name] for name in names if name in lower), None)


def value_columns(
    columns: Collection[Hashable], requested: Sequence[str] | None, other_columns: Collection[Hashable | None]
) -> list[Hashable] | None:
    """Return the columns of values that are asked for or have a standard name; None if their content must decide.

    Raises:
        UnknownNameError: no such column.
        InputError: one holds the ids or timestamps or is a covariate, or none is named.
    """
    free = [column for column in columns if column not in other_columns]
    if requested is None:
        target = find(free, TARGET_COLUMNS)
        return None if target is None else [target]
    available = set(columns)
    for column in requested:
        if column not in available:
            raise unknown_name("column", column, map(str, free))
        if column in other_columns:
            raise InputError(f"column {column!r} is named as ids, timestamps or covariate, too, and cannot be a target")
    if not requested:
        raise InputError("no column of values is named")
    return list(requested)
