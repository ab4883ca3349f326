"""Anything a user has, as a :class:`SeriesBatch`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.data.batch import SeriesBatch, to_floats
from tsfm_lens.data.frames import from_frame
from tsfm_lens.errors import InputError


def as_series(
    data: Any,
    *,
    ids: Sequence[str] | None = None,
    freq: str | None = None,
    start: Any = None,
    units: str | Sequence[str] = "",
    seasonality: int | None = None,
    targets: Sequence[str] | None = None,
    min_length: int = 1,
) -> SeriesBatch:
    """Make a batch of univariate series.

    Args:
        data: a SeriesBatch; a 1-D array or tensor (one series) or a 2-D one (series, time); a list of 1-D
            arrays of any lengths; a pandas Series; a long pandas frame (id, timestamp, target); or the path of
            a CSV or Parquet file. NaN is a missing value.
        ids: names of the series.
        freq: pandas frequency alias; inferred from timestamps where there are any.
        start: timestamp of the first value (of all series).
        units: unit of all series, or one a series.
        seasonality: season length in steps; from the frequency if None.
        targets: columns of a frame to read; each becomes a series of its own.
        min_length: shortest series to accept.

    Raises:
        InputError: the data cannot be used; the message names the series and the position.
    """
    batch = _coerced(data, ids, freq, targets)
    changes: dict[str, Any] = {}
    if ids is not None and tuple(ids) != batch.ids:
        changes["ids"] = tuple(ids)
    if freq is not None:
        changes |= {"freq": _known_frequency(freq), "freqs": (), "seasonality": 0, "seasonalities": ()}
    if start is not None:
        changes["starts"] = (_timestamp(start),) * len(batch)
    if units:
        changes["units"] = (units,) * len(batch) if isinstance(units, str) else tuple(units)
    if seasonality is not None:
        if seasonality < 1:
            raise InputError(f"seasonality is {seasonality}, expected a number of steps from 1 on")
        changes |= {"seasonality": int(seasonality), "seasonalities": ()}
    batch = replace(batch, **changes) if changes else batch
    for name, length in zip(batch.ids, batch.lengths, strict=True):
        if length < min_length:
            raise InputError(f"series {name!r} has {length} steps, expected at least {min_length}")
    return batch


def _coerced(data: Any, ids: Sequence[str] | None, freq: str | None, targets: Sequence[str] | None) -> SeriesBatch:
    if isinstance(data, SeriesBatch):
        return data
    if isinstance(data, str | Path):
        from tsfm_lens.data.files import read_series

        return read_series(data, freq=freq, targets=targets)
    if isinstance(data, pd.DataFrame):
        return from_frame(data, freq=freq, targets=targets)
    if isinstance(data, pd.Series):
        return _from_pandas(data, freq)
    if isinstance(data, dict):
        return SeriesBatch(tuple(data.values()), tuple(map(str, data)))
    names = tuple(ids or ())
    if isinstance(data, list | tuple):
        if data and all(np.isscalar(item) or item is None for item in data):
            return SeriesBatch((to_floats(data, "the series"),), names)
        return SeriesBatch(tuple(data), names)
    if hasattr(data, "__array__") or hasattr(data, "detach"):
        array = to_floats(data, "the array")
        if array.ndim not in (1, 2):
            raise InputError(
                f"the array has {array.ndim} axes (shape {array.shape}), expected (time,) or (series, time)"
            )
        rows = array[None] if array.ndim == 1 else array
        if not rows.size:
            raise InputError(f"the array is empty (shape {array.shape})")
        return SeriesBatch(tuple(rows), names)
    raise InputError(
        f"{type(data).__name__} is no series: expected arrays, tensors, a pandas Series or long frame, or the path "
        "of a CSV or Parquet file"
    )


def _from_pandas(series: pd.Series, freq: str | None) -> SeriesBatch:
    name = str(series.name) if series.name is not None else "series-0"
    if isinstance(series.index, pd.DatetimeIndex | pd.PeriodIndex):
        index = series.index.to_timestamp() if isinstance(series.index, pd.PeriodIndex) else series.index
        frame = pd.DataFrame({"id": name, "timestamp": index, "target": series.to_numpy()})
        return from_frame(frame, freq=freq)
    return SeriesBatch((to_floats(series.to_numpy(), f"series {name!r}"),), (name,))


def _known_frequency(freq: str) -> str:
    try:
        pd.tseries.frequencies.to_offset(freq)
    except ValueError as error:
        raise InputError(f"freq={freq!r} is no pandas frequency; examples: 'h', 'D', 'W', 'MS', 'YS'") from error
    return freq


def _timestamp(value: Any) -> pd.Timestamp:
    try:
        return pd.Timestamp(value)
    except (ValueError, TypeError) as error:
        raise InputError(f"start={value!r} is no timestamp") from error
