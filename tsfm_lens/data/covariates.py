"""Covariates: series of a batch that the model sees and does not forecast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from tsfm_lens.data.floats import is_missing, to_floats
from tsfm_lens.errors import InputError, unknown_name

ROLES = ("target", "past", "known")
"""Roles in the order of the series of a group; libraries stack them in this order."""


class Rows(Protocol):
    """Series of a batch, as checks of covariates see them; see :class:`tsfm_lens.data.SeriesBatch`."""

    @property
    def ids(self) -> Sequence[str]: ...

    @property
    def groups(self) -> Sequence[str]: ...

    @property
    def roles(self) -> Sequence[str]: ...

    @property
    def futures(self) -> Sequence[np.ndarray | None]: ...

    def __len__(self) -> int: ...


def checked_future(future: object, name: str) -> np.ndarray | None:
    """Copy a covariate's known future as a read-only array.

    Raises:
        InputError: it is no row of finite numbers.
    """
    if future is None:
        return None
    values = to_floats(future, f"the future of {name!r}")
    if values.ndim != 1:
        raise InputError(f"the future of {name!r} has shape {values.shape}, expected one axis: time")
    refuse_gaps(values, name)
    values.flags.writeable = False
    return values


def refuse_gaps(future: np.ndarray, name: str, place: Callable[[int], str] | None = None) -> None:
    """Refuse a known future that has gaps.

    Args:
        future: (step,).
        name: of the covariate.
        place: returns the user's name of a step, such as its timestamp and row.

    Raises:
        InputError: names the first gap, steps counted from 1.
    """
    gaps = np.flatnonzero(~np.isfinite(future))
    if not len(gaps):
        return
    first = int(gaps[0])
    where = "" if place is None else f"{place(first)}, "
    raise InputError(
        f"the future of known covariate {name!r} has no number at {where}step {first + 1} of {len(future)} after the "
        "context; fill the gap, or give it as a past covariate"
    )


def check_roles(batch: Rows) -> None:
    """Refuse covariates without a target.

    Raises:
        InputError: a group has no target, its series stand in another order than :data:`ROLES`, or a future is missing
            or too much.
    """
    last: dict[str, int] = {}
    for name, group, role, future in zip(batch.ids, batch.groups, batch.roles, batch.futures, strict=True):
        if role not in ROLES:
            raise unknown_name("role", role, ROLES)
        if (role == "known") != (future is not None):
            raise InputError(
                f"series {name!r} is a {role} {'series' if role == 'target' else 'covariate'} and has "
                f"{'no' if future is None else 'a'} known future; known covariates have one, and they alone"
            )
        place = ROLES.index(role)
        if group not in last and place:
            raise InputError(f"group {group!r} begins with covariate {name!r}; expected its target first")
        if place < last.get(group, 0):
            raise InputError(f"{role} series {name!r} of group {group!r} stands after a {ROLES[last[group]]} covariate")
        last[group] = place


def later(future: np.ndarray | None, held_out: np.ndarray) -> np.ndarray | None:
    """Return the known future of a series whose end has been held out."""
    return None if future is None else np.concatenate([held_out, future])


def known_future(batch: Rows, horizon: int) -> np.ndarray:
    """Return the known future; see :meth:`SeriesBatch.known_future`."""
    values = np.full((len(batch), horizon), np.nan)
    for row, name, future in zip(values, batch.ids, batch.futures, strict=True):
        if future is None:
            continue
        if len(future) < horizon:
            raise InputError(
                f"known covariate {name!r} ends {len(future)} steps after the context, and the horizon is {horizon}; "
                "give its future up to there, shorten the horizon, or give it as a past covariate"
            )
        row[:] = future[:horizon]
    return values


def numbers_or_categories(values: np.ndarray, name: str) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Read a covariate: numbers as they are, text as categories.

    Args:
        values: (step,) numbers, or objects.
        name: of the covariate.

    Returns:
        float64, NaN where missing, and the names of the categories; None of numbers.

    Raises:
        InputError: a value is neither a number nor text, or both kinds stand side by side.
    """
    cells = values.tolist() if values.dtype.kind in "OUS" else []
    texts = [cell for cell in cells if isinstance(cell, str)]
    if not texts:
        return to_floats(values, f"covariate {name!r}"), None
    odd = next((cell for cell in cells if not isinstance(cell, str) and not is_missing(cell)), None)
    if odd is not None:
        raise InputError(
            f"covariate {name!r} holds text ({texts[0]!r}) beside {odd!r}; make numbers of all values, or text of all, "
            "which is categories"
        )
    return number_categories(values, name)


def number_categories(values: np.ndarray, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Index the categories of texts from 0 in alphabetical order, NaN where missing, and return their names.

    Raises:
        InputError: nothing but missing values.
    """
    missing = np.array([is_missing(value) for value in values])
    if missing.all():
        raise InputError(f"covariate {name!r} has no value")
    names, numbers = np.unique(values[~missing].astype(str), return_inverse=True)
    out = np.full(len(values), np.nan)
    out[~missing] = numbers
    return out, tuple(map(str, names))
