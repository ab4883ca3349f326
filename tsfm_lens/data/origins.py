"""Windows of one series: what lies before, and on request after, chosen origins.

Read :func:`windows` first. :func:`on_grid` reads a date as the series has it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.core.errors import InputError
from tsfm_lens.data.batch import SeriesBatch, is_position
from tsfm_lens.data.bundled import bundled, bundled_names
from tsfm_lens.data.coerce import as_series


def windows(
    series: Any,
    origins: Any,
    horizon: int = 0,
    *,
    context: int | None = None,
    **columns: Any,
) -> SeriesBatch:
    """Cut windows of one series, one for each forecast origin.

    A window ends ``horizon`` steps after its origin, so that a run with
    ``holdout=True`` forecasts these steps and knows the truth. It is named by its
    series and its origin.

    Args:
        series: anything that :func:`tsfm_lens.data.as_series` takes, or the name of a
            bundled series. Covariates of the series are cut with it.
        origins: the first step to forecast, one or several. A date stands for the first
            step from then on; a position counts from the start of the series, or from
            its end if negative.
        horizon: steps that each window keeps from its origin on.
        context: steps that each window keeps before its origin; all if None.
        columns: further arguments of :func:`tsfm_lens.data.as_series`.

    Returns:
        A batch with one item for each origin, in their order, whose ``items`` are the
        ids of the series.

    Raises:
        InputError: there are several series, or no origin; an origin leaves too few
            steps before or after it; or two origins are the same.

    Example:
        >>> fridays = tsfm_lens.windows(
        ...     "pedestrians", ["2016-12-09", "2016-12-16"], 24, context=512
        ... )
        >>> fridays.ids, fridays.lengths
        (('pedestrians 2016-12-09', 'pedestrians 2016-12-16'), (536, 536))
    """
    if isinstance(series, str) and series in bundled_names():
        series = bundled(series)
    batch = as_series(series, **columns)
    items = list(batch.rows_by_group())
    if len(items) > 1:
        raise InputError(
            f"these are {len(items)} series, and windows are cut from one; choose it"
            f" with as_series(…).select({items[0]!r})"
        )
    for name, value, least in (("horizon", horizon, 0), ("context", context, 1)):
        if value is not None and not is_position(value, least, sys.maxsize):
            raise InputError(
                f"{name}={value!r}: expected a whole number of steps, {least} or more"
            )
    first, last = context or 1, batch.lengths[0] - horizon
    if first > last:
        raise InputError(
            f"series {items[0]!r} has {batch.lengths[0]} steps, and a window needs"
            f" {first + horizon}; give a shorter context or horizon"
        )
    chosen = _listed(origins)
    if not chosen:
        raise InputError("there are no origins: give a date or a position")
    parts = []
    for origin in chosen:
        position = _find_position(batch, origin)
        if not first <= position <= last:
            raise InputError(
                f"origin {origin!r} is outside of {items[0]!r}, where a window of"
                f" {first} steps before it and {horizon} after fits from"
                f" {_describe_range(batch, first, last)}"
            )
        parts.append(_cut(batch, position, horizon, context))
    return SeriesBatch.concat(parts).noted(batch.notes)


def _listed(origins: Any) -> list[Any]:
    """Return origins as a list, a single one too."""
    if isinstance(origins, Iterable) and not isinstance(origins, str):
        return list(origins)
    return [origins]


def _find_position(batch: SeriesBatch, origin: Any) -> int:
    """Return the position of the first step to forecast.

    It is beyond the end of the series for dates after it.
    """
    # a bool is an int to Python, and is refused as a date
    if isinstance(origin, int | np.integer) and not isinstance(origin, bool):
        if origin < 0:
            return int(origin) + batch.lengths[0]
        return int(origin)
    stamps = batch.timestamps(0, ahead=1)
    if stamps is None:
        raise InputError(
            f"series {batch.groups[0]!r} has no dates; give positions instead of"
            f" {origin!r}, or start=… and freq=…"
        )
    try:
        # pandas takes numbers for nanoseconds
        if not isinstance(origin, str | date | np.datetime64):
            raise TypeError(f"it is of type {type(origin).__name__}")
        stamp = pd.Timestamp(origin)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"origin {origin!r} is neither a date nor a position: {error}"
        ) from error
    return int(stamps.searchsorted(on_grid(stamp, batch, stamps)))


def _describe_range(batch: SeriesBatch, first: int, last: int) -> str:
    """Write the range of origins, with dates where the series has them."""
    positions = f"position {first} to {last}"
    if batch.dates(0, ahead=1) is None:
        return positions
    return f"{_describe(batch, first)} to {_describe(batch, last)} ({positions})"


def _describe(batch: SeriesBatch, position: int) -> str:
    """Write a step as its date, without the time at midnight, or as its position."""
    dates = batch.dates(0, ahead=1)
    if dates is None:
        return f"@ {position}"
    return str(dates[position]).removesuffix(" 00:00:00")


def _cut(
    batch: SeriesBatch, position: int, horizon: int, context: int | None
) -> SeriesBatch:
    """Cut one window, and name it by its origin."""
    later = batch.lengths[0] - position - horizon
    part = batch
    if later:
        part, _ = batch.split(later)
    if context is not None:
        part = part.tail(context + horizon)
    suffix = _describe(batch, position)
    ids, groups = (
        tuple(f"{name} {suffix}" for name in names)
        for names in (batch.ids, batch.groups)
    )
    # notes of the series are kept once, with all its windows
    return replace(part, ids=ids, groups=groups, items=batch.items, notes=())


def on_grid(
    stamp: pd.Timestamp, batch: SeriesBatch, stamps: pd.DatetimeIndex
) -> pd.Timestamp:
    """Return a date as the timestamps of the series have it, without an offset.

    Raises:
        InputError: the date needs an offset and has none, or has one although the
            timestamps have none.
    """
    if batch.clock:
        if stamp.tzinfo is None and batch.clock == "UTC":
            raise InputError(
                f"the timestamps came with offsets; write one in {str(stamp)!r} too, as"
                f" in '{stamp}+00:00'"
            )
        try:
            return (
                stamp.tz_localize(batch.clock) if stamp.tzinfo is None else stamp
            ).tz_convert(None)
        except Exception as error:
            # any exception: where pandas uses pytz, it is one of pytz
            raise InputError(
                f"{str(stamp)!r} is no one instant in {batch.clock}; write its offset"
                f" ({error})"
            ) from error
    if (
        stamp.tzinfo is not None
        and len(stamps) > 1
        and stamps[1] - stamps[0] < pd.Timedelta("1D")
    ):
        raise InputError(
            f"{str(stamp)!r} has an offset, and the timestamps have none; write it as"
            " they are written"
        )
    return stamp.tz_localize(None)
