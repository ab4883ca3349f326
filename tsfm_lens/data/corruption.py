"""Corruptions of series for causal tracing.

Each removes one property of a series, and keeps ids, lengths and times:
:func:`remove_motif` a stretch, :func:`shift_phase` the phase of the season,
:func:`swap_season` its period. Covariates stay as they are: their future is known, and
some are categories.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from tsfm_lens.core.errors import InputError
from tsfm_lens.data.batch import SeriesBatch
from tsfm_lens.data.coerce import as_series


def remove_motif(
    series: Any,
    start: int,
    stop: int,
    *,
    every: int | None = None,
    keep_scale: bool = False,
) -> SeriesBatch:
    """Replace a stretch by the straight line between its neighbours.

    Missing values inside the stretch are filled, too.

    Args:
        series: anything that :func:`tsfm_lens.data.as_series` takes.
        start: first step of the stretch; a negative one counts from the end.
        stop: step after the stretch; a negative one counts from the end, and 0 is the
            end.
        every: remove it again every so many steps before and after, e.g. in every
            season.
        keep_scale: restore mean and standard deviation.

    Returns:
        The changed series, in the same units.

    Raises:
        InputError: the stretch is empty, outside the series, or has no neighbour on
            either side; ``every`` is shorter than the stretch.

    Example:
        >>> data.remove_motif([0.0, 1.0, 9.0, 3.0, 4.0], 2, 3).values[0].tolist()
        [0.0, 1.0, 2.0, 3.0, 4.0]
    """

    def remove(values: np.ndarray, name: str) -> np.ndarray:
        length = len(values)
        first = start + length if start < 0 else start
        # 0 counts from the end, too, since a stretch that ends there could not be named
        # otherwise
        end = stop + length if stop <= 0 else stop
        if not 0 <= first < end <= length or end - first == length:
            fault = f"is empty, all of it, or outside its {length} steps"
            raise InputError(f"the motif [{start}, {stop}) of series {name!r} {fault}")
        if every is not None and every <= end - first:
            raise InputError(
                f"every {every} steps leaves nothing between motifs of {end - first}"
                " steps"
            )
        mask = np.zeros(length, dtype=bool)
        shifts: Iterable[int] = [0]
        if every is not None:
            # one repeat before the series begins may reach into it
            shifts = range(-(first // every) * every - every, length, every)
        for shift in shifts:
            # negative bounds would count from the end of the array
            mask[max(first + shift, 0) : max(end + shift, 0)] = True
        out = values.copy()
        known = np.flatnonzero(~mask & np.isfinite(values))
        if not len(known):
            raise InputError(
                f"series {name!r} has no value beside the motif to draw the line from"
            )
        # beyond the first and the last value, ``interp`` goes on level
        out[mask] = np.interp(np.flatnonzero(mask), known, values[known])
        return out

    return _corrupt(series, remove, keep_scale)


def shift_phase(
    series: Any, shift: int, *, period: int | None = None, keep_scale: bool = False
) -> SeriesBatch:
    """Move the season by some steps and leave trend and remainder where they are.

    Args:
        series: anything that ``as_series`` takes.
        shift: steps; positive moves the season later.
        period: of the season; that of each series if None.
        keep_scale: restore mean and standard deviation, by which models normalise a
            series.

    Returns:
        The changed series, in the same units.

    Raises:
        InputError: the season is unknown, or a series is shorter than two of them.

    Example:
        >>> wave = np.sin(np.arange(48) * 2 * np.pi / 12)
        >>> batch = data.as_series(wave, seasonality=12)
        >>> np.allclose(data.shift_phase(batch, 6).values[0], -wave)
        True
    """

    def move(values: np.ndarray, name: str, length: int) -> np.ndarray:
        season = seasonal_part(values, length, name)
        source = np.arange(len(values)) - shift
        # beyond the ends the season of the nearest whole period
        source = np.where(source < 0, source % length, source)
        source = np.where(
            source >= len(values),
            len(values) - length + (source - len(values)) % length,
            source,
        )
        return values - season + season[source]

    return _seasonal(series, move, period, keep_scale)


def swap_season(
    series: Any, new_period: int, *, period: int | None = None, keep_scale: bool = False
) -> SeriesBatch:
    """Replace the season by its own mean profile stretched to another period.

    Args:
        series: anything that ``as_series`` takes.
        new_period: steps of the new season.
        period: of the present season; that of each series if None.
        keep_scale: restore mean and standard deviation, by which models normalise a
            series.

    Returns:
        The changed series, in the same units.

    Raises:
        InputError: a period below 2, the season is unknown, or a series is shorter than
            two of them.

    Example:
        >>> wave = np.sin(np.arange(48) * 2 * np.pi / 12)
        >>> data.swap_season(wave, 8, period=12).lengths
        (48,)
    """
    if new_period < 2:
        raise InputError(f"new_period is {new_period}, expected 2 or more steps")

    def swap(values: np.ndarray, name: str, length: int) -> np.ndarray:
        season = seasonal_part(values, length, name)
        # phases counted from the end, so that the forecast starts at the same phase as
        # before
        phase = (np.arange(len(values)) - len(values)) % length
        profile = np.array([season[phase == step].mean() for step in range(length)])
        new_phase = (np.arange(len(values)) - len(values)) % new_period
        # phases of the new season, in steps of the old one
        position = new_phase * (length / new_period)
        # the profile is closed: its last step goes over into its first
        closed = np.append(profile, profile[0])
        return values - season + np.interp(position, np.arange(length + 1), closed)

    return _seasonal(series, swap, period, keep_scale)


def seasonal_part(values: np.ndarray, period: int, name: str = "series") -> np.ndarray:
    """Compute the season (time,) by a robust STL decomposition.

    Gaps are filled by straight lines before it (Cleveland et al. 1990).

    Returns:
        The season, (time,), in data units.
    """
    if period < 2:
        raise InputError(
            f"series {name!r} has no known season; give period=…, in steps"
        )
    if len(values) < 2 * period:
        raise InputError(
            f"series {name!r} has {len(values)} steps, a season of {period} needs"
            f" {2 * period} or more"
        )
    # STL takes no missing value; those of the result come back with ``values - season``
    present = np.flatnonzero(np.isfinite(values))
    filled = np.interp(np.arange(len(values)), present, values[present])
    from statsmodels.tsa.seasonal import STL  # slow to import, and seldom needed

    # robust, so that single outliers do not become part of the season
    return np.asarray(STL(filled, period=period, robust=True).fit().seasonal)


def _seasonal(
    series: Any,
    change: Callable[[np.ndarray, str, int], np.ndarray],
    period: int | None,
    keep_scale: bool,
) -> SeriesBatch:
    batch = as_series(series)
    periods = {
        name: period or season
        for name, season in zip(batch.ids, batch.seasonalities, strict=True)
    }
    return _corrupt(
        batch, lambda values, name: change(values, name, periods[name]), keep_scale
    )


def _corrupt(
    series: Any, change: Callable[[np.ndarray, str], np.ndarray], keep_scale: bool
) -> SeriesBatch:
    """Change each target, by values and id, and restore its scale if asked to."""
    batch = as_series(series)
    arrays = list(batch.values)
    for index, name in enumerate(batch.ids):
        if batch.roles[index] != "target":
            continue
        old = batch.values[index]
        new = change(old, name)
        arrays[index] = new
        if not keep_scale:
            continue
        spread = np.nanstd(new)
        # rounding gives a constant a small spread
        if spread <= 1e-12 * np.nanmax(np.abs(new)):
            raise InputError(
                f"nothing but a constant is left of series {name!r}, so its spread"
                " cannot be restored; leave keep_scale out"
            )
        factor = np.nanstd(old) / spread
        # the moments are those of present values, since missing ones stay missing
        arrays[index] = (new - np.nanmean(new)) * factor + np.nanmean(old)
    return replace(batch, values=tuple(arrays))
