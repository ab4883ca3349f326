"""Series with some of their segments masked: copies side by side, each with other
segments visible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.data import SeriesBatch
from tsfm_lens.data.batch import COLUMNS, ROLES, item_rows
from tsfm_lens.data.categories import TRUTHS
from tsfm_lens.explain.segments import Segment, refuse_overlap
from tsfm_lens.models.lens import Lens

__all__ = ["REFERENCES", "masked", "reference_values"]

REFERENCES = ("missing", "seasonal naive", "mean", "shuffled", "zero")
"""Names of the values of masked steps; see :func:`reference_values`."""
Reference = str | Mapping[str, str] | Sequence[np.ndarray]
"""A reference by name, one for each role, or the values themselves, (time + horizon,)
for each series.
"""
OWN_MASK = "the model's own mask"


@dataclass(frozen=True, eq=False)
class MaskedBatch(SeriesBatch):
    """Series of a checked batch with other values: some may be all missing values, and
    known futures have gaps.
    """

    def __post_init__(self) -> None:
        """Skip the checks of the base class."""


def reference_values(
    batch: SeriesBatch, reference: str | Mapping[str, str], horizon: int, seed: int = 0
) -> tuple[np.ndarray, ...]:
    """Return the value that replaces each step when it is masked.

    "missing" is NaN. "mean" is that of the context; of categories, the most frequent
    one. "seasonal naive" is the value one season before (in the first season, one
    season later; in the future, the last known of that phase). "shuffled" is another
    order of context and known future. "zero" is 0.

    Args:
        batch: series.
        reference: one of :data:`REFERENCES`, or one for each role: "target", "past" and
            "known".
        horizon: steps of known futures.
        seed: of the order of shuffled values.

    Returns:
        (time + horizon,) for each series.

    Raises:
        UnknownNameError: no such reference or role.
        InputError: zero is no category, or a role has no reference.

    Example:
        >>> [len(values) for values in explain.reference_values(driven.batch, "mean", 8)]
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
    """Return a reference by name or as it is, (time + horizon,) for each series; see
    :func:`reference_values`.
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
    """Return the number that the model reads for each category, by series; empty where
    it reads their codes.

    NaN stands for a category that the series lacks. Libraries number a category by the
    context, in which a change or a mask may leave it out.
    """
    numbered = lens.adapter.numbered(batch)
    tables = {}
    for row, categories in enumerate(batch.categories if numbered is not batch else ()):
        if categories is not None:
            retained = batch.level_numbers[row]
            if retained is not None:
                tables[batch.ids[row]] = retained[:-1]
                continue
            codes = whole(batch, row)
            numbers = whole(numbered, row)
            is_there = np.isfinite(codes)
            table = tables[batch.ids[row]] = np.full(len(categories), np.nan)
            table[codes[is_there].astype(int)] = numbers[is_there]
    return tables


def in_numbers(
    codes: np.ndarray, batch: SeriesBatch, row: int, tables: Mapping[str, np.ndarray]
) -> np.ndarray:
    """Replace codes of categories by the numbers of :func:`category_numbers`; gaps stay
    gaps.
    """
    name = batch.ids[row]
    categories = batch.categories[row]
    if categories is None or name not in tables:
        return codes
    table = tables[name]
    is_there = np.isfinite(codes)
    choices = np.flatnonzero(np.isfinite(table))
    rest = np.setdiff1d(codes[is_there], choices)
    if len(rest):
        if rest[0] in range(len(categories)):
            word = repr(categories[int(rest[0])])
        else:
            word = f"{rest[0]:g}"
        raise InputError(
            f"{name!r} is never {word} in its series, so the model has no number for"
            f" it; it can be {', '.join(repr(categories[code]) for code in choices)}"
        )
    numbers = np.full(codes.shape, np.nan)
    numbers[is_there] = table[codes[is_there].astype(int)]
    return numbers


def whole(batch: SeriesBatch, row: int) -> np.ndarray:
    """Copy a series with its known future, if it has one."""
    future = batch.futures[row]
    return np.concatenate(
        [batch.values[row], np.empty(0) if future is None else future]
    ).astype(float)


def with_future(batch: SeriesBatch, row: int, horizon: int) -> np.ndarray:
    """Append its known future to a series, (time + horizon,), NaN where nothing is
    known.
    """
    return np.concatenate([batch.values[row], batch.known_future(horizon)[row]])


def _reference(
    batch: SeriesBatch, row: int, values: np.ndarray, reference: str, seed: int
) -> np.ndarray:
    length = batch.lengths[row]
    context = values[:length]
    if reference in ("missing", "zero"):
        return np.full(len(values), np.nan if reference == "missing" else 0.0)
    typical = _most_frequent if batch.categories[row] else np.nanmean
    if reference == "mean":
        return np.full(len(values), typical(context))
    if reference == "shuffled":
        pool = values[~np.isnan(values)]
        return np.resize(
            np.random.default_rng([seed, row]).permutation(pool), len(values)
        )
    return _season_before(
        values, length, min(batch.seasonalities[row], length), typical
    )


def _most_frequent(values: np.ndarray) -> float:
    kinds, times = np.unique(values[~np.isnan(values)], return_counts=True)
    return float(kinds[times.argmax()])


def _season_before(
    values: np.ndarray, length: int, season: int, typical: Callable[[np.ndarray], float]
) -> np.ndarray:
    """Return the value one season before each step, as of the forecast start; gaps come
    from nearby seasons.
    """
    steps = np.arange(len(values))
    before = steps - np.where(
        steps < length, season, season * (1 + (steps - length) // season)
    )
    source = np.where(before >= 0, before, np.minimum(steps + season, length - 1))
    result = values[source]
    for gap in np.flatnonzero(np.isnan(result)):
        phase = values[np.arange(source[gap] % season, length, season)]
        result[gap] = typical(values[:length] if np.isnan(phase).all() else phase)
    return result


def in_random_order(batch: SeriesBatch, seed: Sequence[int]) -> SeriesBatch:
    """Put values in random order, gaps where they were; the series of an item share one
    order, so they still agree.
    """
    values = list(batch.values)
    futures = list(batch.futures)
    for number, rows in enumerate(batch.rows_by_group().values()):
        rng = np.random.default_rng([*seed, number])
        order = rng.permutation(batch.lengths[rows[0]])
        ahead = rng.permutation(
            max(
                (len(f) for row in rows if (f := batch.futures[row]) is not None),
                default=0,
            )
        )
        for row in rows:
            series = batch.values[row][order]
            gaps = np.isnan(batch.values[row])
            # observed values go where observed values were
            result = np.full(len(series), np.nan)
            result[~gaps] = series[~np.isnan(series)]
            values[row] = result
            future = batch.futures[row]
            futures[row] = (
                None if future is None else future[ahead[ahead < len(future)]]
            )
    return replace(batch, values=tuple(values), futures=tuple(futures))


def mask_seen(lens: Lens, batch: SeriesBatch) -> str:
    """Test by its inputs whether a model sees that values are missing, or its library
    fills them first.
    """
    first = batch.select(item_rows(batch))
    values = np.nan_to_num(first.values[0].astype(float))
    length = len(values)
    gap = slice(max(1, length // 3), max(2, 2 * length // 3))
    if gap.stop >= length or values[gap.start - 1] == values[-1]:
        # values that no two fills agree on
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
        whole = values.copy()
        whole[gap] = fill
        if all(
            torch.equal(a, b)
            for a, b in zip(with_gap, _inputs(lens, first, whole), strict=True)
        ):
            return name
    return OWN_MASK


def _inputs(lens: Lens, batch: SeriesBatch, values: np.ndarray) -> list[Tensor]:
    """Return the model's inputs when the first series has other values; NaN as numbers,
    so that they compare.
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
    """Copy one item, with some of its segments masked in each copy: stretches replaced,
    additive parts taken away.

    Args:
        batch: the series of one item.
        segments: of that item; steps of none are shown in every copy.
        keep: (mask, segment) whether a copy shows a segment.
        reference: by name (:func:`reference_values`), or (time + horizon,) for each
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
        >>> explain.masked(driven.batch, parts, [[True, True, False]], "missing", horizon=8).futures[1].tolist()[:2]
        [nan, nan]
    """
    if len(set(batch.groups)) > 1:
        raise InputError(
            f"masks are of one item, and this batch has {len(set(batch.groups))}; use"
            " run.select(…)"
        )
    refuse_overlap(segments, batch, horizon)
    visible = checked_keep(keep, len(segments))
    stands = reference_rows(batch, reference, horizon, seed)
    rows = []
    for row in range(len(batch)):
        values = with_future(batch, row, horizon)
        if stands[row].shape != values.shape:
            raise InputError(
                f"the reference of {batch.ids[row]!r} has shape {stands[row].shape},"
                f" expected {values.shape}: its context and the horizon"
            )
        copies = np.tile(values, (len(visible), 1))
        for column, part in enumerate(segments):
            if part.row == row:
                position = slice(
                    part.start + batch.lengths[row], part.stop + batch.lengths[row]
                )
                hidden = ~visible[:, column]
                if part.values is None:
                    copies[hidden, position] = stands[row][position]
                else:
                    copies[hidden, position] -= part.values
        copies.flags.writeable = False
        rows.append(copies)
    masks = range(len(visible))
    series = list(
        zip(
            rows,
            batch.lengths,
            [future is not None for future in batch.futures],
            strict=True,
        )
    )
    columns = {name: getattr(batch, name) * len(masks) for name in COLUMNS}
    columns |= {
        name: tuple(f"{mask}/{item}" for mask in masks for item in getattr(batch, name))
        for name in ("ids", "groups")
    }
    columns["values"] = tuple(
        copies[mask, :length] for mask in masks for copies, length, _ in series
    )
    columns["futures"] = tuple(
        copies[mask, length:] if ahead else None
        for mask in masks
        for copies, length, ahead in series
    )
    return MaskedBatch(
        freq=batch.freq, seasonality=batch.seasonality, notes=batch.notes, **columns
    )


def checked_keep(keep: Any, count: int) -> np.ndarray:
    """Return ``keep`` as bools, (mask, segment)."""
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


def reference_words(reference: Reference) -> str:
    """Return a reference in the words of a result's attributes."""
    if isinstance(reference, Mapping):
        return ", ".join(f"{name} ({role})" for role, name in reference.items())
    if isinstance(reference, str):
        return reference
    return "given"
