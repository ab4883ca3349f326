"""Missing values at the ends of series: forecasts begin after them, and they are no truth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tsfm_lens.errors import InputError

if TYPE_CHECKING:
    from tsfm_lens.data.batch import SeriesBatch

_MOST_NAMES = 3  # series


def missing_at_end(values: np.ndarray) -> int:
    """Count the missing values at the end of a series (time,)."""
    finite = np.flatnonzero(np.isfinite(values))
    return len(values) - 1 - int(finite[-1]) if len(finite) else len(values)


def noted_ends(batch: SeriesBatch) -> SeriesBatch:
    """Return the batch with a note where targets end with missing values."""
    ends = {name: missing_at_end(row) for name, row in zip(batch.ids, batch.values, strict=True)}
    short = {
        name: steps for (name, steps), forecast in zip(ends.items(), batch.is_target, strict=True) if steps and forecast
    }
    if not short:
        return batch
    listing = _listing([f"{name!r} with {steps}" for name, steps in short.items()])
    cure = "drop these rows, or name covariates that go on with known=[…]"
    return batch.noted([f"missing values at the end, after which forecasts begin: {listing}; {cure}"])


def held_out(batch: SeriesBatch, horizon: int) -> tuple[SeriesBatch, np.ndarray]:
    """Return the context and the held-out truth (series, horizon), as :meth:`SeriesBatch.split` does.

    Raises:
        InputError: a series has no more than ``horizon`` steps, or no target has a value among the last ones.
    """
    context, truth = batch.split(horizon)
    unknown = np.flatnonzero(~np.isfinite(truth).any(-1) & batch.is_target)
    if not len(unknown):
        return context, truth
    span = f"all {horizon} steps" if horizon > 1 else "the one step"
    if len(unknown) < batch.is_target.sum():
        listing = _listing([repr(batch.ids[row]) for row in unknown])
        return context.noted([f"the truth of {span} is missing of {listing}"]), truth
    first = int(unknown[0])
    steps = missing_at_end(batch.values[first])
    raise InputError(
        f"series {batch.ids[first]!r} ends with {steps} missing value{'s' if steps > 1 else ''}: the truth of "
        f"{span} is missing; drop these rows, name covariates that go on with known=[…], or hold nothing out "
        "(holdout=False)"
    )


def _listing(words: list[str]) -> str:
    more = f", … ({len(words)} series)" if len(words) > _MOST_NAMES else ""
    return ", ".join(words[:_MOST_NAMES]) + more
