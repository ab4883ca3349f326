"""Layout of a frame: columns of ids, timestamps, values and covariates, and levels of an index."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any

import pandas as pd

from tsfm_lens.data.instants import holds_dates, looks_like_dates
from tsfm_lens.data.text import ID_COLUMNS, TARGET_COLUMNS, TIME_COLUMNS
from tsfm_lens.errors import InputError, unknown_name


def flat(
    frame: pd.DataFrame, id_column: str | None, time_column: str | None
) -> tuple[pd.DataFrame, str | None, str | None, list[str]]:
    """Turn the levels of a frame's index into columns; also return those of ids and timestamps, and notes."""
    if frame.columns.nlevels > 1:
        raise InputError(f"the frame's columns have {frame.columns.nlevels} levels, expected one name per column")
    if frame.empty and not (len(frame) and frame.index.nlevels > 1):
        raise InputError(f"the frame has no rows (columns: {', '.join(map(str, frame.columns)) or 'none'})")
    if frame.columns.has_duplicates:
        raise InputError(f"the frame has two columns {str(frame.columns[frame.columns.duplicated()][0])!r}")
    frame, index = pd.DataFrame(frame), frame.index
    names = _index_names(index, id_column, time_column)
    both = sorted(set(names) & set(map(str, frame.columns)))
    if both:
        raise InputError(f"the frame has {both[0]!r} both in its index and as a column; drop one of them")
    if index.nlevels > 1:
        id_column, time_column = _levels(index, names, id_column, time_column)
    elif names and time_column is None and _is_time(index) and find(frame.columns, TIME_COLUMNS) is None:
        time_column = names[0]
    frame = frame.set_axis(index.set_names(names)).reset_index() if names else frame
    frame, notes = _without_row_numbers(frame, {id_column, time_column})
    return frame, id_column, time_column, notes


def _index_names(index: pd.Index, id_column: str | None, time_column: str | None) -> list[str]:
    """Name the levels that are to be columns; none of an index that only numbers the rows."""
    if index.nlevels > 1:
        return [f"level_{place}" if name is None else str(name) for place, name in enumerate(index.names)]
    if index.name is None:
        if isinstance(index, pd.RangeIndex) or pd.api.types.is_integer_dtype(index.dtype):
            return []
        return ["timestamp" if _is_time(index) else "index"]
    counts = pd.api.types.is_integer_dtype(index.dtype) and find([index.name], (*ID_COLUMNS, *TIME_COLUMNS)) is None
    return [] if counts and index.name not in (id_column, time_column) else [str(index.name)]


def _is_time(index: pd.Index) -> bool:
    return holds_dates(index.dtype) or (index.name is None and looks_like_dates(pd.Series(index.array)))


def _levels(index: Any, names: list[str], id_column: str | None, time_column: str | None) -> tuple[str, str]:
    """Tell the levels of ids and timestamps."""
    dated = [name for name, level in zip(names, index.levels, strict=True) if holds_dates(level.dtype)]
    contrary = find(dated, ID_COLUMNS) is not None or find(names, TIME_COLUMNS) not in (None, *dated)
    if time_column is None and not (len(dated) == 1 and contrary):
        time_column = dated[0] if len(dated) == 1 else find(names, TIME_COLUMNS)
    others = [name for name in names if name != time_column]
    if id_column is None:
        id_column = others[0] if len(others) == 1 else find(others, ID_COLUMNS)
    if time_column is None or id_column is None:
        raise InputError(
            f"the frame's index has the levels {', '.join(names)}: expected ids and timestamps, as in (item_id, "
            "timestamp). Name them with id_column=… and time_column=…, or join the levels that make an id"
        )
    return id_column, time_column


def _without_row_numbers(frame: pd.DataFrame, keys: Collection[Hashable | None]) -> tuple[pd.DataFrame, list[str]]:
    """Drop columns without a name that are empty or number the rows, as ``to_csv`` makes of an index."""
    notes: list[str] = []
    for name in frame.columns:
        if name in keys or not re.fullmatch(r"(Unnamed: \d+)?", str(name)):
            continue
        column, is_first = frame[name], name == frame.columns[0]
        numeric = pd.api.types.is_numeric_dtype(column)
        if column.isna().all():
            frame = frame.drop(columns=name)
        elif (
            is_first and numeric and column.notna().all() and (column % 1 == 0).all() and column.is_monotonic_increasing
        ):
            frame = frame.drop(columns=name)
            notes.append("the first column has no name and numbers the rows; it is not read")
        elif numeric or not is_first:
            raise InputError(f"a column has no name ({name}) and holds {column.dropna().iloc[0]!r}; give it one")
    return frame, notes


def key_and_time(
    columns: Collection[Hashable], id_column: str | None, time_column: str | None
) -> tuple[Hashable | None, Hashable | None]:
    """Return the columns of ids and timestamps: those that are asked for, or those with a standard name."""
    for name in (id_column, time_column):
        if name is not None and name not in columns:
            raise unknown_name("column", name, map(str, columns))
    if id_column is not None and id_column == time_column:
        raise InputError(f"column {id_column!r} cannot hold both the ids and the timestamps")
    key: Hashable | None = id_column
    if key is None:
        key = find([column for column in columns if column != time_column], ID_COLUMNS)
    return key, time_column or find([column for column in columns if column != key], TIME_COLUMNS)


def dated_column(frame: pd.DataFrame, other_columns: Collection[Hashable | None]) -> Hashable | None:
    """Return the one column with timestamps where no name tells; None if there is none, or several."""
    candidates = [
        column
        for column, kind in zip(frame.columns, frame.dtypes, strict=True)
        if column not in other_columns
        and (holds_dates(kind) or (getattr(kind, "kind", "") == "O" and looks_like_dates(frame[column])))
        and not isinstance(kind, pd.CategoricalDtype)
    ]
    return candidates[0] if len(candidates) == 1 else None


def find(columns: Iterable[Any], names: Sequence[str]) -> Any:
    """Find the column with the first of these names, in any case; None if there is none."""
    lower = {str(column).strip().lower(): column for column in columns}
    return next((lower[name] for name in names if name in lower), None)


def value_columns(
    columns: Collection[Hashable], requested: Sequence[str] | None, other_columns: Collection[Hashable | None]
) -> list[Hashable] | None:
    """Return the columns of values that are asked for or have a standard name; None if their content must decide."""
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


def covariate_roles(
    columns: Collection[Hashable],
    known: Sequence[str] | None,
    past: Sequence[str] | None,
    other_columns: Collection[Hashable | None],
) -> dict[Hashable, str]:
    """Return the columns of covariates and the role of each, past ones first."""
    available = set(columns)
    roles: dict[Hashable, str] = {}
    for role, names in (("past", past), ("known", known)):
        for name in column_names(names or (), available):
            if name not in available:
                raise unknown_name("column", name, [str(column) for column in columns if column not in other_columns])
            if name in other_columns:
                raise InputError(f"column {name!r} holds the ids or timestamps and cannot be a covariate")
            if name in roles:
                again = "leave one out" if roles[name] == role else f"as {roles[name]} and as {role}; choose one"
                raise InputError(f"covariate {name!r} is named twice, {again}")
            roles[name] = role
    return roles


def column_names(texts: Sequence[str], columns: Collection[Hashable]) -> list[str]:
    """Split texts into names of columns at commas; a column whose name has a comma wins."""
    name_lists = [[text] if text in columns else text.split(",") for text in texts]
    return [name if name in columns else name.strip() for names in name_lists for name in names if name.strip()]
