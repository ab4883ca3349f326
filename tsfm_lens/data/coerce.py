"""Conversion of anything that a user has into a :class:`SeriesBatch`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.data.batch import SeriesBatch, check_unique, known_frequency
from tsfm_lens.data.entries import from_entries, is_entry, start_time
from tsfm_lens.data.files import read_series
from tsfm_lens.data.floats import is_missing, to_floats
from tsfm_lens.data.frames import from_frame
from tsfm_lens.data.labels import in_units, texts
from tsfm_lens.data.tables import to_pandas
from tsfm_lens.errors import InputError

_TEXT_ONLY = ("delimiter", "decimal", "encoding", "header")
_LEVELS = ("id_column", "time_column", "time_format")


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
    time_format: str | None = None,
    delimiter: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    header: bool | None = None,
    known: Sequence[str] | None = None,
    past: Sequence[str] | None = None,
    future: Any = None,
    min_length: int = 1,
) -> SeriesBatch:
    """Make a batch of series, univariate or multivariate.

    Args:
        data: a SeriesBatch; an array or tensor (time,), (series, time) or (series, variate, time); a list of
            arrays (time,) and (variate, time) of any lengths, or a dict of them by name; a pandas Series; a long
            pandas frame (id, timestamp, target), or such a table of Arrow, polars, xarray or another library that
            hands out Arrow streams or dataframes; entries as gluonts and Chronos-2 write them, dicts with a
            ``target``; or the path of a CSV or Parquet file. NaN, None and masked values are missing.
        ids: one name per item; the variates of an item with that axis become ``id/0``, ``id/1``, ….
        freq: pandas frequency alias; inferred from timestamps where there are any.
        start: timestamp of the first value (of all series), a date or text such as "2020-01-31 12:00".
        units: unit of all series but covariates, or one per series (a variate is one).
        seasonality: season length in steps; from the frequency if None.
        targets, variates, id_column, time_column, time_format, known, past: columns of a frame or levels of its index;
            see :func:`tsfm_lens.data.from_frame`.
        delimiter, decimal, encoding, header: how a file of text is written; see :func:`tsfm_lens.data.read_series`.
        future: a frame with the same columns but the targets, which goes on where ``data``, a frame, ends.
        min_length: shortest series to accept.

    Raises:
        InputError: the data cannot be used; the message names the series and the position.

    Example:
        >>> data.as_series([[1.0, 2.0, 3.0], [4.0, 5.0]], ids=["a", "b"]).lengths
        (3, 2)
    """
    names = () if ids is None else texts(ids, "ids")
    freq = None if freq is None else known_frequency(freq)
    lists = {"targets": targets, "variates": variates, "known": known, "past": past}
    options: dict[str, Any] = {name: texts(each, name) for name, each in lists.items() if each is not None}
    others: dict[str, Any] = {"id_column": id_column, "time_column": time_column, "time_format": time_format}
    others |= {"delimiter": delimiter, "decimal": decimal, "encoding": encoding, "header": header}
    options |= {name: value for name, value in others.items() if value is not None}
    data = to_pandas(data) if future is None else _continued(data, future)
    batch = _rename(_coerce(data, freq, options), names)
    changes: dict[str, Any] = {}
    if freq is not None:
        changes |= {"freq": freq, "freqs": (), "seasonality": 0, "seasonalities": ()}
    if start is not None:
        changes["starts"] = (start_time(start),) * len(batch)
    if seasonality is not None:
        if isinstance(seasonality, bool) or not isinstance(seasonality, int | np.integer) or seasonality < 1:
            raise InputError(f"seasonality is {seasonality!r}, expected a whole number of steps from 1 on")
        changes |= {"seasonality": int(seasonality), "seasonalities": ()}
    batch = in_units(replace(batch, **changes) if changes else batch, units)
    for name, length in zip(batch.ids, batch.lengths, strict=True):
        if length < min_length:
            raise InputError(f"series {name!r} has {length} steps, expected at least {min_length}")
    return batch


def _coerce(data: Any, freq: str | None, options: dict[str, Any]) -> SeriesBatch:
    if isinstance(data, str | Path):
        return read_series(data, freq=freq, **options)
    for option, value in options.items():
        if option in _TEXT_ONLY:
            raise InputError(f"{option}={value!r} is about a file of text, but the data is {type(data).__name__}")
        is_level = isinstance(data, pd.Series) and option in _LEVELS
        if not isinstance(data, pd.DataFrame) and not is_level and option != "targets":
            raise InputError(
                f"{option}={value!r} names columns of a frame or file, but the data is {type(data).__name__}"
            )
    if isinstance(data, SeriesBatch):
        return data
    if isinstance(data, pd.DataFrame):
        return from_frame(data, freq=freq, **options)
    if isinstance(data, pd.Series):
        return _from_pandas(data, freq, **{name: options[name] for name in _LEVELS if name in options})
    if is_entry(data):
        return from_entries([data], freq)
    if isinstance(data, list | tuple) and data and all(map(is_entry, data)):
        return from_entries(data, freq)
    if isinstance(data, dict):
        return _items(tuple(data.values()), tuple(map(str, data)), freq)
    if isinstance(data, list | tuple):
        if data and all(np.isscalar(item) or is_missing(item) for item in data):
            return SeriesBatch((to_floats(data, "the series"),))
        return _items(data, None, freq)
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
        return _items(tuple(rows), None, freq)
    # as gluonts' datasets, which are no lists
    if isinstance(data, Iterable) and isinstance(data, Sized) and is_entry(next(iter(data), None)):
        return from_entries(list(data), freq)
    # runs belong to a package that this one must not import
    is_run = hasattr(type(data), "encoded")
    hint = "; a run has its series in run.batch and its one forward in run.encoded" if is_run else ""
    raise InputError(
        f"{type(data).__name__} is no series: expected arrays, tensors, a Series or table, entries, or the path "
        f"of a CSV or Parquet file{hint}"
    )


def _continued(data: Any, future: Any) -> pd.DataFrame:
    """Append to a frame the frame that goes on where it ends."""
    data, future = to_pandas(data), to_pandas(future)
    for frame, name in ((data, "the data"), (future, "future")):
        if not isinstance(frame, pd.DataFrame):
            raise InputError(f"{name} is {type(frame).__name__}; future=… goes on with a frame, in a frame")
    return pd.concat([data, future]) if data.index.nlevels > 1 else pd.concat([data, future], ignore_index=True)


def _items(items: Sequence[Any], names: tuple[str, ...] | None, freq: str | None) -> SeriesBatch:
    """Make one item per array, (time,) or (variate, time), or per Series with timestamps."""
    names = names or tuple(f"series-{index}" for index in range(len(items)))
    check_unique(names)
    items = [to_pandas(item) for item in items]
    dated = (pd.DatetimeIndex, pd.PeriodIndex)
    with_times = [
        item.rename(name)
        for name, item in zip(names, items, strict=True)
        if isinstance(item, pd.Series) and isinstance(item.index, dated)
    ]
    if with_times:
        if len(with_times) < len(items):
            raise InputError("some series have timestamps and others are arrays; give all alike")
        return SeriesBatch.concat([_from_pandas(item, freq) for item in with_times])
    values: list[np.ndarray] = []
    groups: list[str] = []
    variates: list[str] = []
    for name, item in zip(names, items, strict=True):
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


def _rename(batch: SeriesBatch, names: tuple[str, ...]) -> SeriesBatch:
    """Give the items of a batch these names; leave its own if there are none."""
    items = tuple(dict.fromkeys(batch.groups))
    if not names or names in (items, batch.ids):
        return batch
    if len(names) != len(items):
        raise InputError(f"{len(items)} series came with {len(names)} ids")
    check_unique(names)
    groups = tuple(names[number] for number in batch.group_index)
    return replace(batch, ids=_ids(groups, batch.variates), groups=groups)


def _from_pandas(series: pd.Series, freq: str | None, **columns: Any) -> SeriesBatch:
    name = "series-0" if series.name is None else str(series.name)
    batch = from_frame(series.rename("target").to_frame(), freq=freq, targets=["target"], **columns)
    return replace(batch, ids=(name,), groups=()) if batch.ids == ("target",) and series.index.nlevels == 1 else batch
