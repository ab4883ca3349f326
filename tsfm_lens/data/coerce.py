"""Anything a user has, as a :class:`SeriesBatch`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.data.batch import SeriesBatch, check_unique, to_floats
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
    variates: Sequence[str] | None = None,
    id_column: str | None = None,
    time_column: str | None = None,
    min_length: int = 1,
) -> SeriesBatch:
    """Make a batch of series, univariate or multivariate.

    Args:
        data: a SeriesBatch; an array or tensor (time,), (series, time) or (series, variate, time); a list of
            arrays (time,) and (variate, time) of any lengths, or a dict of them by name; a pandas Series; a long
            pandas frame (id, timestamp, target); or the path of a CSV or Parquet file. NaN is a missing value.
        ids: one name an item; the variates of an item with that axis become ``id/0``, ``id/1``, ….
        freq: pandas frequency alias; inferred from timestamps where there are any.
        start: timestamp of the first value (of all series).
        units: unit of all series, or one a series (a variate is one).
        seasonality: season length in steps; from the frequency if None.
        targets: columns of a frame to read; each becomes a series of its own.
        variates: columns of a frame to read together, as the variates of each of its items.
        id_column: column of a frame whose values tell its series apart; found by its name if None.
        time_column: column of a frame with its timestamps; found by its name if None.
        min_length: shortest series to accept.

    Raises:
        InputError: the data cannot be used; the message names the series and the position.
    """
    names = () if ids is None else tuple(map(str, ids))
    freq = None if freq is None else _known_frequency(freq)
    columns = {"targets": targets, "variates": variates, "id_column": id_column, "time_column": time_column}
    batch = _renamed(_coerced(data, names, freq, columns), names)
    changes: dict[str, Any] = {}
    if freq is not None:
        changes |= {"freq": freq, "freqs": (), "seasonality": 0, "seasonalities": ()}
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


def _coerced(data: Any, names: tuple[str, ...], freq: str | None, columns: dict[str, Any]) -> SeriesBatch:
    asked = next((option for option in ("variates", "id_column", "time_column") if columns[option] is not None), None)
    if asked and not isinstance(data, str | Path | pd.DataFrame):
        raise InputError(
            f"{asked}={columns[asked]!r} names columns of a frame or file, but the data is {type(data).__name__}"
        )
    if isinstance(data, SeriesBatch):
        return data
    if isinstance(data, str | Path):
        from tsfm_lens.data.files import read_series

        return read_series(data, freq=freq, **columns)
    if isinstance(data, pd.DataFrame):
        return from_frame(data, freq=freq, **columns)
    if isinstance(data, pd.Series):
        return _from_pandas(data, freq)
    if isinstance(data, dict):
        return _items(tuple(data.values()), tuple(map(str, data)))
    if isinstance(data, list | tuple):
        if data and all(np.isscalar(item) or item is None or item is pd.NA for item in data):
            return SeriesBatch((to_floats(data, "the series"),), names)
        return _items(data, names)
    if hasattr(data, "__array__") or hasattr(data, "detach"):
        array = to_floats(data, "the array")
        if array.ndim not in (1, 2, 3):
            raise InputError(
                f"the array has {array.ndim} axes (shape {array.shape}), expected (time,), (series, time) or "
                "(series, variate, time)"
            )
        rows = array[None] if array.ndim == 1 else array
        if not rows.size:
            raise InputError(f"the array is empty (shape {array.shape})")
        return _items(tuple(rows), names)
    raise InputError(
        f"{type(data).__name__} is no series: expected arrays, tensors, a pandas Series or long frame, or the path "
        "of a CSV or Parquet file"
    )


def _items(items: Sequence[Any], names: tuple[str, ...]) -> SeriesBatch:
    """One item an array, (time,) or (variate, time).

    Raises:
        InputError: an item has other axes or no variate, or the names do not fit the items.
    """
    names = names or tuple(f"series-{index}" for index in range(len(items)))
    if len(names) != len(items):
        raise InputError(f"{len(items)} series came with {len(names)} ids")
    check_unique(names)
    values: list[np.ndarray] = []
    groups: list[str] = []
    variates: list[str] = []
    for name, item in zip(names, items, strict=True):
        if isinstance(item, pd.DataFrame):
            # its rows are time steps, which an array's are not
            raise InputError(f"series {name!r} is a frame; give its values transposed, (variate, time)")
        array = to_floats(item, f"series {name!r}")
        if array.ndim not in (1, 2) or not len(np.atleast_2d(array)):
            raise InputError(f"series {name!r} has shape {array.shape}, expected (time,) or (variate, time)")
        labels = [""] if array.ndim == 1 else [str(index) for index in range(len(array))]
        values += list(np.atleast_2d(array))
        groups += [name] * len(labels)
        variates += labels
    return SeriesBatch(tuple(values), _ids(groups, variates), groups=tuple(groups), variates=tuple(variates))


def _ids(groups: Sequence[str], variates: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{group}/{variate}" if variate else group for group, variate in zip(groups, variates, strict=True))


def _renamed(batch: SeriesBatch, names: tuple[str, ...]) -> SeriesBatch:
    """The batch with these names of its items, with its own if there are none.

    Raises:
        InputError: the names repeat or are not as many as the items.
    """
    items = tuple(dict.fromkeys(batch.groups))
    if not names or names in (items, batch.ids):
        return batch
    if len(names) != len(items):
        raise InputError(f"{len(items)} series came with {len(names)} ids")
    check_unique(names)
    groups = tuple(names[number] for number in batch.group_index)
    return replace(batch, ids=_ids(groups, batch.variates), groups=groups)


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
