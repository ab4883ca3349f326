"""Covariates in the columns of a frame."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.data.batch import SeriesBatch
from tsfm_lens.data.covariates import numbers_or_categories, refuse_gaps
from tsfm_lens.data.floats import plain_array
from tsfm_lens.data.formulas import NUMBER
from tsfm_lens.data.grid import Grid
from tsfm_lens.data.labels import id_texts
from tsfm_lens.errors import InputError, unknown_name

TRUTHS = {"true": 1.0, "false": 0.0}


@dataclass(frozen=True)
class Covariate:
    """Column that the model sees and does not forecast.

    Attributes:
        name: of the column.
        role: "past" or "known".
        values: (row,) of the frame; of categories their numbers.
        categories: their names; None of numbers.
    """

    name: str
    role: str
    values: np.ndarray
    categories: tuple[str, ...] | None


def chosen_covariates(
    columns: Collection[Hashable],
    known: Sequence[str] | None,
    past: Sequence[str] | None,
    other_columns: Collection[Hashable | None],
) -> dict[Hashable, str]:
    """Return the columns of covariates and the role of each, past ones first.

    Raises:
        UnknownNameError: no such column.
        InputError: one is asked for twice, or holds ids or timestamps.
    """
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


def columns_of_covariates(
    frame: pd.DataFrame, roles: Mapping[Hashable, str], numbers: Callable[[pd.Series, str], np.ndarray]
) -> list[Covariate]:
    """Read the columns: numbers as they are, truth values as 0 and 1, text and categories by their numbers."""
    return [_read(frame[name], str(name), role, numbers) for name, role in roles.items()]


def _read(column: pd.Series, name: str, role: str, numbers: Callable[[pd.Series, str], np.ndarray]) -> Covariate:
    kind = column.dtype
    of_numbers = isinstance(kind, pd.CategoricalDtype) and pd.api.types.is_numeric_dtype(kind.categories.dtype)
    if isinstance(kind, pd.CategoricalDtype):
        names = np.append(id_texts(kind.categories.to_series(), name), [None])
        column = pd.Series(names[column.cat.codes], column.index, dtype=object)
    elif pd.api.types.is_numeric_dtype(kind):
        return Covariate(name, role, numbers(column, name), None)
    cells = plain_array(column, f"covariate {name!r}")
    texts = [cell for cell in cells.tolist() if isinstance(cell, str)]
    if not of_numbers and all(re.fullmatch(NUMBER, text.strip()) for text in texts):
        return Covariate(name, role, numbers(column, name), None)
    if all(text.lower() in TRUTHS for text in texts):
        cells = np.array([TRUTHS[cell.lower()] if isinstance(cell, str) else cell for cell in cells], dtype=object)
    return Covariate(name, role, *numbers_or_categories(cells, name))


def with_covariates(
    groups: Sequence[tuple[str, np.ndarray]],
    grids: Sequence[Grid] | None,
    targets_of: Sequence[tuple[Hashable, ...]],
    numbers: Mapping[Hashable, np.ndarray],
    covariates: Sequence[Covariate],
    notes: Sequence[str],
    labels: pd.Index,
) -> SeriesBatch:
    """Make a batch of groups of targets with their covariates.

    Args:
        groups: of rows, by id.
        grids: of their times; None if rows are steps.
        targets_of: the targets of each group that an id makes.
        numbers: (row,) of each target.
        covariates: of all groups.
        notes: from reading.
        labels: name of each row in messages.
    """
    fields: dict[str, list[Any]] = {name: [] for name in ("values", "ids", "groups", "variates", "roles", "futures")}
    starts: list[Any] = []
    categories: list[tuple[str, ...] | None] = []
    has_future = any(covariate.role == "known" for covariate in covariates)
    for place, (group, rows) in enumerate(groups):
        grid = None if grids is None else grids[place]

        def on_grid(values: np.ndarray, rows: np.ndarray = rows, grid: Grid | None = grid) -> np.ndarray:
            return values[rows] if grid is None else grid.filled(values[rows])

        for targets in targets_of:
            name = f"{group}/{targets[0]}" if len(targets_of) > 1 else group
            series = {str(target): on_grid(numbers[target]) for target in targets}
            end = _last_value(series, name) if has_future else len(next(iter(series.values())))
            members: list[tuple[str, str, np.ndarray, tuple[str, ...] | None]] = []
            members += [(target, "target", values, None) for target, values in series.items()]
            members += [(each.name, each.role, on_grid(each.values), each.categories) for each in covariates]
            for variate, role, values, names in members:
                future = _until_missing(values[end:]) if role == "known" else None
                if future is not None:
                    refuse_gaps(future, f"{name}/{variate}", _step_labels(grid, rows, labels, end))
                row = (values[:end], f"{name}/{variate}", name, variate, role, future)
                for column, value in zip(fields.values(), row, strict=True):
                    column.append(value)
                starts.append(None if grid is None else grid.start)
                categories.append(names)
    columns: dict[str, Any] = {name: tuple(column) for name, column in fields.items()}
    freq = None if grids is None else grids[0].freq
    extra: dict[str, Any] = {"starts": tuple(starts), "categories": tuple(categories), "notes": tuple(notes)}
    return SeriesBatch(**columns, **extra, freq=freq)


def _last_value(targets: Mapping[str, np.ndarray], name: str) -> int:
    """Count the steps up to the last value of any target."""
    present = np.any([np.isfinite(values) for values in targets.values()], axis=0)
    if not present.any():
        raise InputError(f"{', '.join(map(repr, targets))} of {name!r} has no value")
    return int(np.flatnonzero(present)[-1]) + 1


def _until_missing(values: np.ndarray) -> np.ndarray:
    """Cut off the missing values at the end; a gap before them stays, to be refused."""
    finite = np.flatnonzero(np.isfinite(values))
    return values[: finite[-1] + 1] if len(finite) else values[:0]


def _step_labels(grid: Grid | None, rows: np.ndarray, labels: pd.Index, end: int) -> Callable[[int], str]:
    """Return a function that names a step after the context: by its timestamp, and its row if there is one."""

    def place(step: int) -> str:
        if grid is None:
            return f"row {labels[rows[end + step]]}"
        at = np.flatnonzero(grid.places == end + step)
        row = f"row {labels[rows[grid.order[at[0]]]]}" if len(at) else "no row has it"
        if grid.start is None or grid.freq is None:
            return row
        return f"{pd.date_range(grid.start, periods=end + step + 1, freq=grid.freq)[-1]} ({row})"

    return place
