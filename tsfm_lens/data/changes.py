"""Changes of series: new values of a stretch, and a later end.

:func:`edited` reads a change such as "+5", :func:`later_by` tells how much later one
batch ends than another. Neither needs a model, so that commands refuse what cannot be
before one is loaded.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from tsfm_lens.core.errors import InputError
from tsfm_lens.data.batch import SeriesBatch
from tsfm_lens.data.categories import category_code
from tsfm_lens.data.frequencies import read_offset

_OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "=": lambda _, new: new,
}
# an operator, then one number with its own sign, as in "*-1" or "=1e3"
_EDIT = re.compile(r"\s*([-+*/=])\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")
Edit = str | float | Sequence[float] | np.ndarray
"""New values of a stretch.

"+5", "-5", "*1.1", "/2", "=7", the name of a category, one value, or one for each step.
"""


def edited(
    values: np.ndarray, edit: Edit, name: str, categories: Sequence[str] | None
) -> np.ndarray:
    """Return the new values of a stretch, one for each of the old ``values``.

    Categories are read as names, and are returned as codes.
    """
    if categories is not None:
        texts = np.ravel(np.asarray(edit, dtype=object)).tolist()
        if len(texts) not in (1, len(values)):
            raise InputError(
                f"{name} has {len(texts)} new values, expected one, or one for each of"
                f" {len(values)} steps"
            )
        codes = [
            category_code(str(text).removeprefix("=").strip(), categories, name)
            for text in texts
        ]
        return np.broadcast_to(np.array(codes), values.shape)
    if isinstance(edit, str):
        if (match := _EDIT.fullmatch(edit)) is None:
            comma_hint = ""
            if _EDIT.fullmatch(edit.replace(",", ".")):
                comma_hint = f"; decimals have a point: {edit.replace(',', '.')!r}"
            raise InputError(
                f"{name}={edit!r} is no change; expected such as '+5', '-5', '*1.1',"
                f" '/2' or '=7'{comma_hint}"
            )
        # a division by 0 or an overflow is refused with a message of its own below
        with np.errstate(all="ignore"):
            changed = _OPERATORS[match[1]](
                values, np.full(len(values), float(match[2]))
            )
    else:
        column = np.asarray(edit, dtype=float)
        if column.shape not in ((), values.shape):
            raise InputError(
                f"{name} has {column.shape} new values, expected one, or one for each"
                f" of {len(values)} steps"
            )
        changed = np.broadcast_to(column, values.shape)
    # a gap that is edited by an operator stays a gap, so only other steps are tested
    if not np.isfinite(changed[np.isfinite(values)]).all():
        raise InputError(
            f"{name}={edit!r} makes values that are not finite, of which nothing can be"
            " forecast"
        )
    return changed


def later_by(old: SeriesBatch, new: SeriesBatch) -> int:
    """Return by how many steps the first series of a batch ends later than another.

    It is taken from their dates, or from lengths if the context only grew.

    Raises:
        InputError: neither says how far they are apart.
    """
    # with ahead=1 the last timestamp is that of the forecast start
    old_dates, new_dates = (batch.timestamps(0, ahead=1) for batch in (old, new))
    if old_dates is not None and new_dates is not None:
        old_start = old_dates[-1]
        new_start = new_dates[-1]
        # steps are counted on the calendar, since months and years differ in length
        offset = read_offset(new.freqs[0])
        # date_range() counts forwards only; the caller refuses what is below 0
        if old_start > new_start:
            return 1 - len(pd.date_range(new_start, old_start, freq=offset))
        between = pd.date_range(old_start, new_start, freq=offset)
        if not len(between) or (between[0], between[-1]) != (old_start, new_start):
            raise InputError(
                f"the forecasts start at {old_start} and {new_start}, which are no"
                " whole steps apart"
            )
        return len(between) - 1
    before = old.values[0]
    after = new.values[0]
    # A context that was cut to the model's length loses its oldest steps as it moves
    # on. It does not begin with the earlier one, and so needs dates.
    if np.array_equal(before, after[: len(before)], equal_nan=True):
        return len(after) - len(before)
    raise InputError(
        "neither dates nor one context that goes on in the other say how far they are"
        " apart; give shift="
    )


def check_shared(ahead: int, horizon: int | None, known: int | None) -> None:
    """Refuse forecasts that have no step in common.

    The later one starts ``ahead`` steps later. The earlier one has ``horizon`` steps,
    or any number if None, and its covariates are known for ``known`` steps, or it has
    no known ones if None.
    """
    if ahead < 0:
        raise InputError(
            f"the later forecast starts {-ahead} steps before the earlier one; give the"
            " earlier run first"
        )
    # first: a longer horizon would be refused by the covariates
    if known is not None and ahead >= known:
        raise InputError(
            f"the later forecast starts {ahead} steps after the earlier one, whose"
            f" known covariates end after {known}, so they have no step in common; add"
            f" rows of their future to the earlier series, {ahead + 1 - known} or more,"
            " or drop these rows in both and give them as past covariates"
        )
    if horizon is not None and ahead >= horizon:
        raise InputError(
            f"the later forecast starts {ahead} steps after the earlier one, which has"
            f" {horizon}, so they have no step in common; give the earlier one"
            f" horizon={ahead + 1} or more"
        )
