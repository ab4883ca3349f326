"""Missing values at the ends of series: forecasts begin after them, and they are no truth."""

from __future__ import annotations

import numpy as np

from tsfm_lens.data.batch import SeriesBatch
from tsfm_lens.errors import InputError


def missing_at_end(values: np.ndarray) -> int:
    """Count the missing values at the end of a series (time,)."""
    finite = np.flatnonzero(np.isfinite(values))
    return len(values) - 1 - int(finite[-1]) if len(finite) else len(values)


def noted_ends(batch: SeriesBatch) -> SeriesBatch:
    """Return the batch with a note where targets end with missing values."""
    ends = {name: missing_at_end(batch.values[row]) for row, name in enumerate(batch.ids) if batch.is_target[row]}
    words = [f"{name!r} with {steps}" for name, steps in ends.items() if steps]
    cure = "drop these rows, or name covariates that go on with known=[…]"
    note = f"missing values at the end, after which forecasts begin: {_listing(words)}; {cure}"
    return batch.noted([note] if words else [])


def held_out(batch: SeriesBatch, horizon: int) -> tuple[SeriesBatch, np.ndarray]:
    """Return the context and the held-out truth (series, horizon), as :meth:`SeriesBatch.split` does."""
    context, truth = batch.split(horizon)
    unknown = np.flatnonzero(~np.isfinite(truth).any(-1) & batch.is_target)
    if not len(unknown):
        return context, truth
    span = f"all {horizon} steps" if horizon > 1 else "the one step"
    if len(unknown) < batch.is_target.sum():
        listing = _listing([repr(batch.ids[row]) for row in unknown])
        return context.noted([f"the truth of {span} is missing of {listing}"]), truth
    steps = missing_at_end(batch.values[unknown[0]])
    raise InputError(
        f"series {batch.ids[unknown[0]]!r} ends with {steps} missing value{'s' if steps > 1 else ''}: the truth of "
        f"{span} is missing; drop these rows, name covariates that go on with known=[…], or hold nothing out "
        "(holdout=False)"
    )


def _listing(words: list[str], most: int = 3) -> str:
    return ", ".join(words[:most]) + (f", … ({len(words)} series)" if len(words) > most else "")
