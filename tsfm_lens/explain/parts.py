"""Additive parts of a series' past: trend, seasons, calendar, events, and the rest.

:func:`components` splits the past into such segments, which are hidden by subtraction.
:func:`find_segments` reads the argument ``parts`` of all explanations. Stretches of
time are cut in :mod:`tsfm_lens.explain.segments`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.core.choices import ADAPTIVE, COMPONENTS, PARTS
from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.data import SeriesBatch
from tsfm_lens.data.batch import Item, item_rows
from tsfm_lens.explain.segments import Segment, find_step, refined_segments, segments
from tsfm_lens.models.arguments import is_count
from tsfm_lens.models.run import Run

__all__ = ["components"]

CALENDAR = {
    "hour of day": "hour",
    "day of week": "dayofweek",
    "day of month": "day",
    "month of year": "month",
}
"""Parts of the calendar, each with the attribute of dates that gives its class."""
Parts = Sequence[Segment] | Mapping[str, Any] | int | str | None
"""Units of an explanation; see :func:`tsfm_lens.explain.input_attribution`."""
# rounds in which the series without its events is smoothed, and filled in where they
# are from the result
_ROUNDS = 8
# share of the past that is read for each step of a trend, where there are no seasons
# (lowess)
_SPAN = 0.5


def components(
    run_or_batch: Run | SeriesBatch,
    item: Item = None,
    *,
    target: int | str = 0,
    horizon: int | None = None,
    seasons: Iterable[int] | None = None,
    calendar: Iterable[str] = (),
    events: Mapping[str, Any] | None = None,
    others: str = "past and future",
) -> tuple[Segment, ...]:
    """Split the target's past into parts that sum to it, and cut the other series.

    Hidden, the trend is its mean over the past, and every other part is 0, whatever the
    reference of other series. Gaps are filled by linear interpolation before the split,
    and stay gaps. At the steps of an event, the other parts are those of the series
    without it; the event is the rest.

    Args:
        run_or_batch: a run, or series.
        item: by position or name; the only one if None.
        target: by position among the item's targets, or by name.
        horizon: forecast steps; those of the run if None. A batch with known covariates
            needs it.
        seasons: steps of each season; the series' own if None, none if empty.
        calendar: parts of :data:`CALENDAR`, each the mean of its steps after the trend,
            before the seasons.
        events: by name a stretch (start, stop) in steps from the forecast start or
            dates, one step, or a list of these.
        others: cut other series into "past and future", leave each "whole", or cut into
            "stretches".

    Returns:
        "trend", a "season of …" each, parts of the calendar, events, "rest"; then the
        other series in their order.

    Source:
        Cleveland et al. 1990 (STL); Bandara et al. 2021, arXiv:2107.13462 (MSTL);
        Cleveland 1979 (no seasons).

    Raises:
        InputError: the past has no two seasons, there are no dates for the calendar, or
            an event lies outside.
        UnknownNameError: no such part of the calendar, item or target.

    Example:
        >>> parts = explain.components(driven, seasons=[12], events={"dip": (-9, -4)})
        >>> [part.name for part in parts][:4]
        ['target, trend', 'target, season of 12', 'target, dip', 'target, rest']
    """
    full = run_or_batch.batch if isinstance(run_or_batch, Run) else run_or_batch
    batch = full.select(item_rows(full, item))
    past, *other_segments = segments(
        run_or_batch, item, target=target, horizon=horizon, parts=1, others=others
    )
    row = past.row
    length = len(past)
    if seasons is None:
        periods = [season for season in [batch.seasonalities[row]] if season > 1]
    else:
        periods = sorted(set(seasons))
    for period in periods:
        if not is_count(period) or not 1 < period < length / 2:
            raise InputError(
                f"a season of {period!r} steps, and {batch.ids[row]!r} shows {length}:"
                " expected more than two seasons of 2 steps or more; give other"
                " seasons (none: seasons=[]), a longer past, or stretches of it"
                " (parts=6)"
            )
    # neither smoother takes gaps; in masked copies they stay gaps, since NaN less a
    # number is NaN
    filled = _interpolated(batch.values[row][-length:])
    occasions = _occasions(batch, row, length, events or {})
    prefix = f"{past.name}, " if len(batch) > 1 else ""
    result = []
    for name, values in _split(
        filled, periods, _classes(batch, row, length, calendar), occasions
    ):
        # an event is a segment from its first step to its last, 0 in between; every
        # other part covers the past
        steps = np.flatnonzero(occasions.get(name, np.ones(length)))
        first = int(steps[0])
        stop = int(steps[-1]) + 1
        result.append(
            Segment(
                prefix + name,
                row,
                first - length,
                stop - length,
                past.kind,
                values[first:stop],
            )
        )
    return (*result, *other_segments)


def find_segments(
    run: Run,
    item: Item,
    target: int | str,
    parts: Parts,
    effects: Callable[[tuple[Segment, ...], Sequence[int]], np.ndarray],
) -> tuple[Segment, ...]:
    """Return the segments that the argument ``parts`` means.

    See :func:`tsfm_lens.explain.input_attribution`. ``effects`` gives the size of the
    effect of some segments, for stretches that are short where the effects are.
    """
    if not (parts is None or isinstance(parts, int | str | Mapping)):
        return tuple(parts)
    if isinstance(parts, Mapping):
        options = dict(parts)
    else:
        options = {"parts": parts}
    if not isinstance(options.get("parts"), str):
        return segments(run, item, target=target, **options)
    split = options.pop("parts")
    if split == COMPONENTS:
        return components(run, item, target=target, **options)
    if split != ADAPTIVE:
        raise unknown_name("way to cut the past", split, PARTS)
    return refined_segments(run.item(item), effects, target=target, **options)


def _classes(
    batch: SeriesBatch, row: int, length: int, calendar: Iterable[str]
) -> dict[str, np.ndarray]:
    """Return the class (time,) of each step in each part of the calendar."""
    # hours and days are those that people live by
    stamps = batch.dates(row)
    classes = {}
    # a text is a sequence of letters to Python
    for name in [calendar] if isinstance(calendar, str) else calendar:
        if name not in CALENDAR:
            raise unknown_name("part of the calendar", name, CALENDAR)
        if stamps is None:
            raise InputError(
                f"{batch.ids[row]!r} has no dates, and so no {name}; give seasons in"
                " steps"
            )
        classes[name] = np.asarray(getattr(stamps[-length:], CALENDAR[name]))
    return classes


def _occasions(
    batch: SeriesBatch, row: int, length: int, events: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Return the steps of each event as bools (time,).

    Raises:
        InputError: an event overlaps another or lies outside of the past.
    """
    occasions = {}
    free = np.ones(length, dtype=bool)
    for name, stretches in events.items():
        inside = np.zeros(length, dtype=bool)
        # a list is of several stretches, a tuple is one with both ends
        for stretch in stretches if isinstance(stretches, list) else [stretches]:
            if isinstance(stretch, tuple):
                bounds = stretch
            else:
                bounds = (stretch,)
            first, *last = (find_step(batch, row, end) + length for end in bounds)
            steps = slice(first, *last or [first + 1])
            if not (0 <= first < steps.stop <= length and free[steps].all()):
                raise InputError(
                    f"event {name!r} at {stretch!r} overlaps another, or lies outside"
                    f" of the {length} steps"
                )
            inside[steps] = True
            free[steps] = False
        if inside.any():
            occasions[name] = inside
    return occasions


def _split(
    filled: np.ndarray,
    periods: Sequence[int],
    classes: Mapping[str, np.ndarray],
    occasions: Mapping[str, np.ndarray],
) -> list[tuple[str, np.ndarray]]:
    """Return values (time,) as named parts that sum to them.

    Parts sum to the distance of the values from the mean of the trend.
    """
    # the array of zeros is for no events at all, of which np.any could not tell the
    # length
    named = np.any([*occasions.values(), np.zeros(len(filled), dtype=bool)], axis=0)
    series = _interpolated(np.where(named, np.nan, filled))
    # what stands under an event depends on the other parts, which are smoothed from it
    # again
    for _ in range(_ROUNDS if named.any() else 1):
        trend, seasonal = _smoothed(series, periods)
        profiles = []
        detrended = series - trend
        for labels in classes.values():
            mean = pd.Series(detrended).groupby(labels).transform("mean").to_numpy()
            # centred, so that the level of the series stays in the trend
            profiles.append(mean - mean.mean())
            detrended = detrended - profiles[-1]
        if profiles:
            # once more, since the first trend and seasons took up some of the calendar
            trend, seasonal = _smoothed(series - np.sum(profiles, axis=0), periods)
        cyclic = np.sum([*seasonal, *profiles, np.zeros(len(filled))], axis=0)
        # without the seasons a line leads across an event
        series = np.where(
            named,
            _interpolated(np.where(named, np.nan, filled - cyclic)) + cyclic,
            filled,
        )
    expected = trend + cyclic
    return [
        # hiding takes away the distance from the mean, so that a hidden trend is its
        # mean and not 0
        ("trend", trend - trend.mean()),
        *(
            (f"season of {period}", season)
            for period, season in zip(periods, seasonal, strict=True)
        ),
        *zip(classes, profiles, strict=True),
        *(
            (name, np.where(inside, filled - expected, 0.0))
            for name, inside in occasions.items()
        ),
        ("rest", np.where(named, 0.0, filled - expected)),
    ]


def _smoothed(
    series: np.ndarray, periods: Sequence[int]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the trend and each season of (time,)."""
    # slow to import, and seldom needed
    if not periods:
        from statsmodels.nonparametric.smoothers_lowess import lowess

        steps = np.arange(len(series))
        trend = lowess(series, steps, _SPAN, it=0, return_sorted=False)
        return np.asarray(trend), []
    from statsmodels.tsa.seasonal import MSTL

    split = MSTL(series, periods=tuple(periods)).fit()
    # of one period, statsmodels gives no axis of seasons
    seasonal = np.asarray(split.seasonal).reshape(len(series), -1)
    return np.asarray(split.trend), list(seasonal.T)


def _interpolated(values: np.ndarray) -> np.ndarray:
    """Fill gaps by linear interpolation, and both ends by the nearest value."""
    steps = np.arange(len(values))
    finite = np.isfinite(values)
    if not finite.any():
        raise InputError(
            "gaps or events take all of the past; nothing is left to tell parts from"
        )
    return np.interp(steps, steps[finite], values[finite])
