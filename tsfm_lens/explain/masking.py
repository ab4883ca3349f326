"""Masked copies of series, and the reference values that masked steps take.

:func:`masked` makes the copies of one item, :func:`reference_values` the values of
masked steps. :func:`mask_seen` tests what a model does with missing values. Forecasts
of the copies are made in :mod:`tsfm_lens.explain.values`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.core.choices import REFERENCES
from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.data import SeriesBatch
from tsfm_lens.data.batch import COLUMNS, ROLES, item_rows
from tsfm_lens.data.categories import TRUTHS
from tsfm_lens.explain.segments import Segment, check_segments
from tsfm_lens.models.lens import Lens

__all__ = ["REFERENCES", "masked", "reference_values"]

Reference = str | Mapping[str, str] | Sequence[np.ndarray]
"""The name of a reference, a name for each role, or values (time + horizon,) for each
series."""
OWN_MASK = "the model's own mask"


@dataclass(frozen=True, eq=False)
class MaskedBatch(SeriesBatch):
    """Series of a batch whose values were masked after it was checked.

    Other than in the base class, a series may have no value at all, and known futures
    may have gaps.
    """

    def __post_init__(self) -> None:
        """Skip the checks of the base class, which refuse such series."""


def reference_values(
    batch: SeriesBatch, reference: str | Mapping[str, str], horizon: int, seed: int = 0
) -> tuple[np.ndarray, ...]:
    """Return the value that replaces each step when it is masked.

    "missing" is NaN. "mean" is the mean of the context, or its most frequent category.
    "seasonal naive" is the value one season before; in the first season it is the value
    one season later, and in the future the last one of the same phase in the context.
    "shuffled" puts context and known future in a random order. "zero" is 0.

    Args:
        batch: series.
        reference: one of :data:`REFERENCES`, or a dict with one for each role:
            "target", "past" and "known".
        horizon: steps of known futures.
        seed: of the order of shuffled values.

    Returns:
        (time + horizon,) for each series.

    Raises:
        UnknownNameError: no such reference or role.
        InputError: zero is no category, or a role has no reference.

    Example:
        >>> references = explain.reference_values(driven.batch, "mean", 8)
        >>> [len(values) for values in references]
        [80, 80]
    """
    if isinstance(reference, Mapping):
        by_role = dict(reference)
    else:
        by_role = dict.fromkeys(ROLES, reference)
    for role, name in by_role.items():
        if role not in ROLES:
            raise unknown_name("role", role, ROLES)
        if name not in REFERENCES:
            raise unknown_name("reference", name, REFERENCES)
    references = []
    for row, role in enumerate(batch.roles):
        if role not in by_role:
            raise InputError(
                f"the reference has no value for {role} series, such as"
                f" {batch.ids[row]!r}; give one"
            )
        values = with_future(batch, row, horizon)
        if by_role[role] == "zero" and batch.categories[row] not in (None, TRUTHS):
            raise InputError(
                f"covariate {batch.ids[row]!r} is of categories, which have no zero;"
                " choose reference='missing', 'shuffled' or 'mean', its most"
                " frequent one"
            )
        references.append(_reference(batch, row, values, by_role[role], seed))
    return tuple(references)


def reference_rows(
    batch: SeriesBatch, reference: Reference, horizon: int, seed: int
) -> tuple[np.ndarray, ...]:
    """Return a reference, by name or as given, (time + horizon,) for each series.

    Names are those of :func:`reference_values`.
    """
    if isinstance(reference, str | Mapping):
        return reference_values(batch, reference, horizon, seed)
    if not isinstance(reference, Sequence | np.ndarray):
        raise InputError(
            f"reference={reference!r} is not known; expected one of"
            f" {', '.join(map(repr, REFERENCES))}, one of them for each role, or values"
            " for each series"
        )
    return tuple(np.asarray(values, dtype=float) for values in reference)


def category_numbers(lens: Lens, batch: SeriesBatch) -> dict[str, np.ndarray]:
    """Return the number that the model reads for each category, by id of the series.

    It is needed since libraries number categories by those in the context, from which a
    change or a mask may remove one. The result is empty where the model reads the codes
    of categories. NaN stands for a category that the series lacks.
    """
    numbered = lens.adapter.numbered(batch)
    tables: dict[str, np.ndarray] = {}
    # Adapter.numbered() returns the batch itself where the model reads codes
    if numbered is batch:
        return tables
    for row, categories in enumerate(batch.categories):
        if categories is not None:
            own_numbers = batch.level_numbers[row]
            if own_numbers is not None:
                # the last entry is the number of a missing value
                tables[batch.ids[row]] = own_numbers[:-1]
                continue
            codes = whole(batch, row)
            numbers = whole(numbered, row)
            observed = np.isfinite(codes)
            table = tables[batch.ids[row]] = np.full(len(categories), np.nan)
            table[codes[observed].astype(int)] = numbers[observed]
    return tables


def in_numbers(
    codes: np.ndarray, batch: SeriesBatch, row: int, tables: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Return series with the numbers of :func:`category_numbers` for categories.

    Gaps stay gaps.

    Raises:
        InputError: the model has no number for a category.
    """
    name = batch.ids[row]
    categories = batch.categories[row]
    if categories is None or name not in tables:
        return codes
    table = tables[name]
    observed = np.isfinite(codes)
    choices = np.flatnonzero(np.isfinite(table))
    unknown = np.setdiff1d(codes[observed], choices)
    if len(unknown):
        if unknown[0] in range(len(categories)):
            category = repr(categories[int(unknown[0])])
        else:
            category = f"{unknown[0]:g}"
        raise InputError(
            f"{name!r} is never {category} in its series, so the model has no number"
            f" for it; it can be"
            f" {', '.join(repr(categories[code]) for code in choices)}"
        )
    numbers = np.full(codes.shape, np.nan)
    numbers[observed] = table[codes[observed].astype(int)]
    return numbers


def whole(batch: SeriesBatch, row: int) -> np.ndarray:
    """Copy a series with its known future, if it has one."""
    future = batch.futures[row]
    return np.concatenate(
        [batch.values[row], np.empty(0) if future is None else future]
    ).astype(float)


def with_future(batch: SeriesBatch, row: int, horizon: int) -> np.ndarray:
    """Return a series and its future, (time + horizon,), NaN where it is not known."""
    return np.concatenate([batch.values[row], batch.known_future(horizon)[row]])


def _reference(
    batch: SeriesBatch, row: int, values: np.ndarray, reference: str, seed: int
) -> np.ndarray:
    """Return the named reference of one series, (time + horizon,)."""
    length = batch.lengths[row]
    context = values[:length]
    if reference in ("missing", "zero"):
        return np.full(len(values), np.nan if reference == "missing" else 0.0)
    # a mean of the codes of categories would be another category, or no code at all
    typical = _most_frequent if batch.categories[row] else np.nanmean
    if reference == "mean":
        return np.full(len(values), typical(context))
    if reference == "shuffled":
        known = values[~np.isnan(values)]
        # seeded by row too, or all series would be shuffled in the same order
        shuffled = np.random.default_rng([seed, row]).permutation(known)
        # repeats values where gaps leave fewer of them than there are steps
        return np.resize(shuffled, len(values))
    return _season_before(
        values, length, min(batch.seasonalities[row], length), typical
    )


def _most_frequent(values: np.ndarray) -> float:
    """Return the most frequent value, which is a code of a category."""
    codes, counts = np.unique(values[~np.isnan(values)], return_counts=True)
    return float(codes[counts.argmax()])


def _season_before(
    values: np.ndarray, length: int, season: int, typical: Callable[[np.ndarray], float]
) -> np.ndarray:
    """Return the value one season before each step, from the context alone.

    ``length`` is that of the context. Where the value is missing, the typical value of
    the same phase is returned.
    """
    steps = np.arange(len(values))
    # a future step goes back by several seasons, until it is in the context
    seasons_back = np.where(steps < length, 1, 1 + (steps - length) // season)
    before = steps - season * seasons_back
    # only the first season has nothing before it; it takes the step one season later,
    # at most the last of the context
    source = np.where(before >= 0, before, np.minimum(steps + season, length - 1))
    result = values[source]
    for gap in np.flatnonzero(np.isnan(result)):
        # the context values of this phase; future ones are unknown when it is forecast
        phase = values[np.arange(source[gap] % season, length, season)]
        result[gap] = typical(values[:length] if np.isnan(phase).all() else phase)
    return result


def in_random_order(batch: SeriesBatch, seed: Sequence[int]) -> SeriesBatch:
    """Return the values of each series in random order; gaps stay where they are.

    The series of an item share one order, so that values of the same step still meet.
    """
    values = list(batch.values)
    futures = list(batch.futures)
    # the series of an item have one length, as they share a time axis
    for number, rows in enumerate(batch.rows_by_group().values()):
        rng = np.random.default_rng([*seed, number])
        order = rng.permutation(batch.lengths[rows[0]])
        future_lengths = [
            len(future) for row in rows if (future := batch.futures[row]) is not None
        ]
        # one order for futures of all lengths: a shorter one skips steps it lacks
        future_order = rng.permutation(max(future_lengths, default=0))
        for row in rows:
            shuffled = batch.values[row][order]
            gaps = np.isnan(batch.values[row])
            # shuffling moved the gaps too; they are put back where they were
            result = np.full(len(shuffled), np.nan)
            result[~gaps] = shuffled[~np.isnan(shuffled)]
            values[row] = result
            future = batch.futures[row]
            futures[row] = (
                None
                if future is None
                else future[future_order[future_order < len(future)]]
            )
    return replace(batch, values=tuple(values), futures=tuple(futures))


def mask_seen(lens: Lens, batch: SeriesBatch) -> str:
    """Test whether a model sees gaps, or its library fills them first.

    The model's inputs for a series with a gap are compared with those for the same
    series with the gap filled in one of several ways.

    Returns:
        :data:`OWN_MASK`, or the name of the way of filling that gives equal inputs.
    """
    first = batch.select(item_rows(batch))
    # gaps of the series itself are filled, so that the gap of the test is the only one
    values = np.nan_to_num(first.values[0].astype(float))
    length = len(values)
    # in the middle: at the end, interpolation and the last value would be the same
    gap = slice(max(1, length // 3), max(2, 2 * length // 3))
    if gap.stop >= length or values[gap.start - 1] == values[-1]:
        # a trend, so that all ways of filling differ
        values = values + np.arange(length)
    steps = np.arange(length)
    inside = np.zeros(length, bool)
    inside[gap] = True
    fills = {
        "linear interpolation": np.interp(steps[gap], steps[~inside], values[~inside]),
        "the last value": values[gap.start - 1],
        "the mean so far": values[: gap.start].mean(),
        "zero": 0.0,
    }
    with_gap = _inputs(lens, first, np.where(inside, np.nan, values))
    for name, fill in fills.items():
        filled = values.copy()
        filled[gap] = fill
        if all(
            torch.equal(a, b)
            for a, b in zip(with_gap, _inputs(lens, first, filled), strict=True)
        ):
            return name
    return OWN_MASK


def _inputs(lens: Lens, batch: SeriesBatch, values: np.ndarray) -> list[Tensor]:
    """Return the model's inputs when the first series has other values.

    Each tensor is returned as a mask of NaN and as numbers, since NaN differs from
    itself.
    """
    inputs = lens.encode(replace(batch, values=(values, *batch.values[1:]))).inputs
    tensors = [value for value in inputs.values() if isinstance(value, Tensor)]
    return [
        part
        for value in tensors
        for part in (torch.isnan(value), torch.nan_to_num(value))
    ]


def masked(
    batch: SeriesBatch,
    segments: Sequence[Segment],
    keep: Any,
    reference: Reference = "mean",
    *,
    horizon: int = 0,
    seed: int = 0,
) -> MaskedBatch:
    """Copy one item, with some of its segments masked in each copy.

    A masked stretch is replaced by the reference, a masked additive part is subtracted.

    Args:
        batch: the series of one item.
        segments: of that item; steps that belong to no segment are never masked.
        keep: (mask, segment) whether a copy shows a segment.
        reference: values of masked steps: one of :data:`REFERENCES`, a dict with one
            for each role ("target", "past", "known"), or (time + horizon,) for each
            series.
        horizon: steps of known futures.
        seed: of a shuffled reference.

    Returns:
        Copies, mask by mask, each a group of its own.

    Raises:
        InputError: the batch has several items, segments overlap or lie outside, or
            keep has another shape.
        UnknownNameError: no such reference.

    Example:
        >>> parts = explain.segments(driven, parts=1)
        >>> copies = explain.masked(
        ...     driven.batch, parts, [[True, True, False]], "missing", horizon=8
        ... )
        >>> copies.futures[1].tolist()[:2]
        [nan, nan]
    """
    if len(set(batch.groups)) > 1:
        raise InputError(
            f"masks are of one item, and this batch has {len(set(batch.groups))}; use"
            " run.select(…)"
        )
    check_segments(segments, batch, horizon)
    visible = checked_keep(keep, len(segments))
    replacements = reference_rows(batch, reference, horizon, seed)
    rows = []
    for row in range(len(batch)):
        values = with_future(batch, row, horizon)
        if replacements[row].shape != values.shape:
            raise InputError(
                f"the reference of {batch.ids[row]!r} has shape"
                f" {replacements[row].shape}, expected {values.shape}: its context and"
                " the horizon"
            )
        copies = np.tile(values, (len(visible), 1))
        for column, part in enumerate(segments):
            if part.row == row:
                steps = slice(
                    part.start + batch.lengths[row], part.stop + batch.lengths[row]
                )
                hidden = ~visible[:, column]
                if part.values is None:
                    copies[hidden, steps] = replacements[row][steps]
                else:
                    copies[hidden, steps] -= part.values
        # the series of the new batch are views of this array
        copies.flags.writeable = False
        rows.append(copies)
    masks = range(len(visible))
    # copies (mask, step), length of the context, and whether there is a future
    series = list(
        zip(
            rows,
            batch.lengths,
            [future is not None for future in batch.futures],
            strict=True,
        )
    )
    # columns are tuples with an entry for each series; they are repeated mask by mask,
    # as the values below are
    columns = {name: getattr(batch, name) * len(masks) for name in COLUMNS}
    # copies must not share a group, or a multivariate model would read them together
    columns |= {
        name: tuple(
            f"{mask}/{label}" for mask in masks for label in getattr(batch, name)
        )
        for name in ("ids", "groups")
    }
    columns["values"] = tuple(
        copies[mask, :length] for mask in masks for copies, length, _ in series
    )
    columns["futures"] = tuple(
        copies[mask, length:] if has_future else None
        for mask in masks
        for copies, length, has_future in series
    )
    return MaskedBatch(
        freq=batch.freq, seasonality=batch.seasonality, notes=batch.notes, **columns
    )


def checked_keep(keep: Any, count: int) -> np.ndarray:
    """Return ``keep`` as bools, (mask, segment), for ``count`` segments."""
    visible = np.atleast_2d(np.asarray(keep))
    if (
        visible.ndim != 2
        or visible.shape[1] != count
        or not len(visible)
        or not np.isin(visible, (0, 1)).all()
    ):
        raise InputError(
            f"keep has shape {np.shape(keep)}, expected bools (mask, segment) with"
            f" {count} segments"
        )
    return visible.astype(bool)


def reference_label(reference: Reference) -> str:
    """Return the name of a reference for a result's attributes."""
    if isinstance(reference, Mapping):
        return ", ".join(f"{name} ({role})" for role, name in reference.items())
    if isinstance(reference, str):
        return reference
    return "given"
