"""Notes on what a model does not read of its series.

These are steps before its context, and variation below the step of its numbers.
:func:`unread_notes` writes them; they go with a forecast and refuse nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tsfm_lens.core.axes import short_ids
from tsfm_lens.data import SeriesBatch
from tsfm_lens.models.adapter import Adapter

_MAX_NAMES = 3  # series that a note lists


def unread_notes(adapter: Adapter, batch: SeriesBatch) -> list[str]:
    """Write notes on what a model does not read of a batch.

    Returns:
        Sentences on histories longer than the model's context, and on series whose
        variation is too small for the model's numbers.
    """
    limit = adapter.context_length
    trimmed = []
    hidden = []
    for name, values, levels in zip(
        short_ids(batch.ids), batch.values, batch.categories, strict=True
    ):
        if len(values) > limit:
            trimmed.append(f"{limit} of {len(values)} of {name!r}")
        if levels is not None:
            continue
        read = values[-limit:]
        # missing values count for nothing in these
        low = float(np.fmin.reduce(read))
        high = float(np.fmax.reduce(read))
        # NaN if all values are missing, which fails the comparison, too
        if not low < high:
            continue
        step = adapter.number_step(read)
        # n values within a range have a standard deviation of at least the range over
        # √(2 n)
        if high - low >= step * np.sqrt(2 * len(read)):
            continue
        spread = float(np.nanstd(read))
        if spread < step:
            hidden.append(f"{name!r} by {spread:.3g} in steps of {step:.3g}")
    notes = []
    if trimmed:
        notes.append(
            f"{adapter.architecture} reads the last steps of a longer history:"
            f" {_list_first(trimmed)}"
        )
    if hidden:
        notes.append(
            f"the level hides how series vary from {adapter.architecture}:"
            f" {_list_first(hidden)}; subtract the level"
        )
    return notes


def short_notes(batch: SeriesBatch, horizon: int) -> list[str]:
    """Write a note on series shorter than their forecast."""
    shortest = min(batch.lengths)
    if horizon <= shortest:
        return []
    name = short_ids(batch.ids)[batch.lengths.index(shortest)]
    return [
        f"of {name} only {shortest} steps come before the {horizon} that are forecast"
    ]


def _list_first(series: Sequence[str]) -> str:
    more = ""
    if len(series) > _MAX_NAMES:
        more = f", … ({len(series)} series)"
    return ", ".join(series[:_MAX_NAMES]) + more
