"""Conversion of anything that a user has into a :class:`SeriesBatch`.

Read :func:`as_series` first: it finds out which form the data has. Arrays, pandas
Series and the entries of gluonts and Chronos-2 are converted in this module; frames in
:mod:`.frames`, files in :mod:`.files`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.core.errors import InputError, UnknownNameError, unknown_name
from tsfm_lens.core.foreign_words import answers_arguments
from tsfm_lens.data.batch import SeriesBatch, check_unique, known_frequency, make_batch
from tsfm_lens.data.categories import category_notes, declared_names, read_cells
from tsfm_lens.data.files import in_units, read_series, with_season
from tsfm_lens.data.frames import (
    find,
    from_frame,
    has_falling_numbers,
    holds_times,
    index_names,
)
from tsfm_lens.data.frequencies import stamp_frequency
from tsfm_lens.data.text import ID_COLUMNS, TARGET_COLUMNS, TIME_COLUMNS
from tsfm_lens.data.times import read_times
from tsfm_lens.data.values import (
    LISTS,
    check_distinct,
    id_texts,
    is_missing,
    label,
    name_lists,
    plain_array,
    texts,
    to_floats,
    to_pandas,
)

FIELDS = (
    *("target", "start", "item_id", "past_covariates", "future_covariates"),
    *(
        "feat_dynamic_real",
        "past_feat_dynamic_real",
        "feat_static_real",
        "feat_static_cat",
    ),
)
"""Fields of gluonts's data entries and of Chronos-2's inputs."""
_TEXT = ("delimiter", "decimal", "thousands", "encoding", "header")
# An array of so many times more rows than columns, and with no more columns than these,
# is rather one of times by series.
_MANY = 10
_FEW = 9
_LABELS = ("item_id", "unique_id", "series_id", "timestamp", "ds", "datetime")
"""Names of columns that no series has."""
_NO_VALUES = ("string", "date", "datetime", "datetime64", "period")
"""Kinds of cells, as pandas infers them, that are no values of a series."""
_LEVELS = ("id_column", "time_column", "time_format", "timezone", "round_time")


@answers_arguments("as_series")
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
    id_column: str | Sequence[str] | None = None,
    time_column: str | None = None,
    time_format: str | None = None,
    timezone: str | None = None,
    round_time: str | None = None,
    delimiter: str | None = None,
    decimal: str | None = None,
    thousands: str | None = None,
    encoding: str | None = None,
    header: bool | None = None,
    known: Sequence[str] | None = None,
    past: Sequence[str] | None = None,
    categories: Sequence[str] | None = None,
    future: Any = None,
) -> SeriesBatch:
    """Make a batch of series, univariate or multivariate.

    Args:
        data: a SeriesBatch; an array or tensor (time,), (series, time) or (series,
            variate, time); a list or dict of arrays (time,) and (variate, time); a
            pandas Series; a long frame or such a table of Arrow, polars or xarray;
            entries of gluonts or Chronos-2; or a path of CSV or Parquet. NaN, None and
            masked are missing. An array whose rows are rather times is warned of.
        ids: one name per item; the variates of an item with that axis become ``id/0``,
            ``id/1``, ….
        freq: pandas frequency alias; inferred from timestamps where there are any.
        start: timestamp of the first value (of all series), a date or text such as
            "2020-01-31 12:00".
        units: unit of all series but covariates, or one per series (a variate is one).
        seasonality: season length in steps; from the frequency if None.
        targets: columns of a frame that are series of their own; every column of
            numbers if None.
        variates: columns of a frame that are the variates of one group per id, in place
            of targets.
        id_column: column of the ids of a frame, or several; found by its name if None.
        time_column: column of the timestamps of a frame; found by its name if None.
        time_format: format of the timestamps, such as "%d.%m.%Y"; ISO 8601 if None.
        timezone: zone of the local clock that the timestamps show.
        round_time: interval to which timestamps are rounded, such as "5min".
        delimiter: sign between the cells of a file, or "tab" or "space"; found if None.
        decimal: "." or "," in a file; a point if None.
        thousands: sign between thousands in a file, ".", ",", "'" or "space"; none are
            read if None.
        encoding: of a file of text; UTF-8, or UTF-16 with a byte order mark, if None.
        header: whether the first line of a file has names; needed where it has numbers
            or dates.
        known: covariates of a frame whose future is known.
        past: covariates of a frame that are seen up to the end of the context.
        categories: covariates, of entries too, whose values are categories even if they
            are numbers.
        future: a frame of later rows than those of ``data``, a frame: with its ids,
            timestamps and known covariates, and no targets.

    Returns:
        The series as float64, with NaN where a value is missing, and their ids, times,
        units, groups and covariates. Its ``notes`` say how data were read.

    Raises:
        InputError: the data cannot be used; the message names the series and the
            position.

    Example:
        >>> data.as_series([[1.0, 2.0, 3.0], [4.0, 5.0]], ids=["a", "b"]).lengths
        (3, 2)
    """
    # before any other name is bound, so that it holds the arguments alone
    arguments: dict[str, Any] = dict(locals())
    if isinstance(ids, Iterable) and not isinstance(ids, str):
        # an iterator can be read only once, and ids are read twice
        ids = list(ids)
        check_distinct(ids, map(str, ids), "two ids")
    names = () if ids is None else texts(ids, "ids")
    # checked before the data is read, which may take long
    freq = None if freq is None else known_frequency(freq)
    options = {
        name: arguments[name]
        for name in (*LISTS, *_LEVELS, *_TEXT)
        if arguments[name] is not None
    }
    options = name_lists(options)
    # tables of Arrow, polars and xarray are frames from here on, so that no branch
    # below asks for them
    data = to_pandas(data)
    if future is not None:
        options["future"] = to_pandas(future)
        for name, frame in (("the data", data), ("future", options["future"])):
            if not isinstance(frame, pd.DataFrame):
                raise InputError(
                    f"{name} is {type(frame).__name__}; future=… needs both as frames"
                )
    batch = _rename(_coerce(data, freq, options), names)
    changes: dict[str, Any] = {}
    if freq is not None:
        # a frequency brings its own season
        changes |= {"freq": freq, "freqs": (), "seasonality": 0, "seasonalities": ()}
    if start is not None:
        changes["starts"] = (start_time(start),) * len(batch)
    if changes:
        batch = replace(batch, **changes)
    # after the frequency, whose own season gives way to one that is asked for
    return in_units(with_season(batch, seasonality), units)


def _coerce(data: Any, freq: str | None, options: dict[str, Any]) -> SeriesBatch:
    """Make a batch of data of any form, with the options that this form takes."""
    # a text is a path, and never values
    if isinstance(data, str | Path):
        return read_series(data, freq=freq, **options)
    entries = _list_entries(data)
    has_index = (
        bool(options)
        and entries is None
        and any(isinstance(item, pd.Series) for item in _members(data))
    )
    # an option without an effect would be lost silently, so that each must fit the form
    # of the data
    for option, value in options.items():
        if option in _TEXT:
            raise InputError(
                f"{option}={value!r} is about a file of text, but the data is"
                f" {type(data).__name__}"
            )
        is_level = has_index and option in _LEVELS
        is_covariate = entries is not None and option == "categories"
        if not isinstance(data, pd.DataFrame) and not is_level and not is_covariate:
            raise InputError(
                f"{option}={value!r} names columns of a frame or file, but the data is"
                f" {type(data).__name__}"
            )
    levels = {name: options[name] for name in _LEVELS if name in options}
    if isinstance(data, SeriesBatch):
        return data
    if isinstance(data, list | tuple) and any(
        isinstance(item, SeriesBatch) for item in data
    ):
        return _joined(data)
    if isinstance(data, pd.DataFrame):
        return from_frame(data, freq=freq, **options)
    if isinstance(data, pd.Series):
        return _from_pandas(data, freq, **levels)
    # before entries: a dict of columns with a target and ids passes for one
    if isinstance(data, Mapping):
        _check_no_columns(data)
    if entries is not None:
        return from_entries(entries, freq, options.get("categories", ()))
    if isinstance(data, dict):
        return _items(tuple(data.values()), tuple(map(str, data)), freq, levels)
    if isinstance(data, list | tuple):
        # a list of numbers is one series, whereas an array of two axes has one a row
        if data and all(np.isscalar(item) or is_missing(item) for item in data):
            return SeriesBatch((to_floats(data, "the series"),))
        return _items(data, None, freq, levels)
    # told by their methods, because this package does not import torch
    if hasattr(data, "__array__") or hasattr(data, "detach"):
        array = to_floats(data, "the array")
        if array.ndim not in (1, 2, 3):
            raise InputError(
                f"the array has {array.ndim} axes (shape {array.shape}), expected"
                " (time,), (series, time) or (series, variate, time)"
            )
        rows = array
        if array.ndim == 1:
            rows = array[None]
        if not rows.size:
            raise InputError(f"the array is empty (shape {array.shape})")
        batch = _items(tuple(rows), None, freq, levels)
        return batch.noted(_shape_notes([array.shape], "series"))
    # runs belong to a package that this one must not import
    is_run = hasattr(type(data), "encoded")
    hint = ""
    if is_run:
        hint = "; a run has its series in run.batch and its one forward in run.encoded"
    raise InputError(
        f"{type(data).__name__} is not a series: expected arrays, tensors, a Series or"
        f" table, entries, or the path of a CSV or Parquet file{hint}"
    )


def _list_entries(data: Any) -> list[Any] | None:
    """Return the entries of a list, a dataset or a single dict; None of other data."""
    if is_entry(data):
        return [data]
    if isinstance(data, list | tuple):
        # a dict inside a list can be nothing else, whatever it lacks
        is_entries = len(data) > 0 and all(isinstance(item, Mapping) for item in data)
        if is_entries:
            return list(data)
        return None
    # as gluonts' datasets, which are no lists; ``Sized`` leaves generators out, of
    # which ``next`` would take the first entry away
    is_dataset = (
        isinstance(data, Iterable)
        and isinstance(data, Sized)
        and not isinstance(data, Mapping | SeriesBatch)
    )
    is_dataset = is_dataset and not hasattr(data, "__array__")
    if is_dataset and is_entry(next(iter(data), None)):
        return list(data)
    return None


def _joined(batches: Sequence[Any]) -> SeriesBatch:
    """Put the batches of a list together."""
    for position, item in enumerate(batches):
        if not isinstance(item, SeriesBatch):
            raise InputError(
                f"item {position} is {type(item).__name__} beside a SeriesBatch; make"
                " all of them batches"
            )
    return SeriesBatch.concat(batches)


def _members(data: Any) -> list[Any]:
    """List what a container holds besides numbers, as pandas' objects.

    Returns:
        The members; of any other object, the object itself.
    """
    if isinstance(data, Mapping):
        data = list(data.values())
    if not isinstance(data, list | tuple):
        data = [data]
    return [to_pandas(item) for item in data if not isinstance(item, int | float)]


def _check_no_columns(data: Mapping[Any, Any]) -> None:
    """Refuse a dict that holds the columns of a table.

    Its ids or timestamps would become series. A dict is refused only where it can be
    nothing else.
    """
    names = {key: str(key).strip().lower() for key in data}
    keys = [
        key for key, name in names.items() if name in ID_COLUMNS or name in TIME_COLUMNS
    ]
    if not keys or len(data) < 2:
        return
    if not all(map(_is_column, data.values())) or len(set(map(len, data.values()))) > 1:
        return
    is_certain = any(name in TARGET_COLUMNS for name in names.values())
    for key in keys:
        kind = pd.api.types.infer_dtype(data[key], skipna=True)
        # a key such as "year" may name a series of numbers; with dates or text in it,
        # it cannot
        is_certain |= names[key] in _LABELS or kind in _NO_VALUES
    if is_certain:
        raise InputError(
            f"the data is a dict with columns of a table, of which {str(keys[0])!r} is"
            " no series; read it with as_series(pd.DataFrame(data))"
        )


def _is_column(values: Any) -> bool:
    """Return True for an array, Series or list of single cells."""
    if isinstance(values, np.ndarray | pd.Series | pd.Index):
        return values.ndim == 1
    return isinstance(values, list | tuple) and all(
        isinstance(cell, str) or np.ndim(cell) == 0 for cell in values
    )


def _items(
    items: Sequence[Any],
    names: tuple[str, ...] | None,
    freq: str | None,
    levels: Mapping[str, Any],
) -> SeriesBatch:
    """Make one item per array, (time,) or (variate, time), or per Series.

    A Series is read as if it were alone.

    Returns:
        The batch.
    """
    names = names or tuple(f"series-{index}" for index in range(len(items)))
    check_unique(names)
    items = [to_pandas(item) for item in items]
    # a Series with dates, ids or text must be read by its index, which only a frame's
    # reader does
    by_index = [
        isinstance(item, pd.Series) and _needs_frame(item, levels) for item in items
    ]
    if not any(by_index):
        rows = [
            row
            for name, item in zip(names, items, strict=True)
            for row in _array_rows(name, item)
        ]
        # one batch at once: a batch for each of thousands of arrays would be checked
        # one by one
        return make_batch(rows).noted(_shape_notes(_item_shapes(rows), "variates"))
    batches = []
    for name, item, is_indexed in zip(names, items, by_index, strict=True):
        try:
            if is_indexed:
                batch = _from_pandas(item.rename(name), freq, **levels)
            else:
                batch = make_batch(_array_rows(name, item))
        except (InputError, UnknownNameError) as error:
            message = str(error)
            # most messages name the series already
            if repr(name) not in message:
                message = f"series {name!r}: {message}"
            raise type(error)(message) from error
        batches.append(batch)
    dated = [
        name
        for name, batch in zip(names, batches, strict=True)
        if batch.starts[0] is not None
    ]
    undated = [name for name in names if name not in dated]
    if dated and undated:
        raise InputError(
            f"some series have timestamps and others are arrays ({dated[0]!r},"
            f" {undated[0]!r}); give all alike"
        )
    full = SeriesBatch.concat(batches)
    # the same note on reading comes with each Series, and is kept once
    return replace(full, notes=tuple(dict.fromkeys(full.notes)))


def _needs_frame(series: pd.Series, levels: Mapping[str, Any]) -> bool:
    """Return True for a Series that is more than numbers in the order of its rows."""
    # the reader of arrays refuses several levels, since they are of several series
    if series.index.nlevels > 1:
        return False
    names = index_names(
        series.index, levels.get("id_column"), levels.get("time_column")
    )
    if names or not pd.api.types.is_numeric_dtype(series):
        return True
    return has_falling_numbers(series.index)


def _item_shapes(rows: Iterable[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Return the numbers of target variates and of steps of each item."""
    counts: Counter[str] = Counter()
    steps: dict[str, int] = {}
    for row in rows:
        if row.get("roles", "target") == "target":
            counts[row["groups"]] += 1
            steps[row["groups"]] = len(row["values"])
    return [(count, steps[item]) for item, count in counts.items()]


def _shape_notes(shapes: Iterable[tuple[int, ...]], axis: str) -> list[str]:
    """Note the first array of two axes whose rows are rather times; warn of it, too."""
    for shape in shapes:
        if len(shape) != 2 or shape[1] > _FEW or shape[0] <= _MANY * shape[1]:
            continue
        note = (
            f"an array of shape {shape} is read as {shape[0]} {axis} of {shape[1]}"
            " steps; if its rows are times, give its transpose, array.T"
        )
        warnings.warn(note, stacklevel=2)
        return [note]
    return []


def _array_rows(name: str, item: Any) -> list[dict[str, Any]]:
    """Return an array (time,) or (variate, time) as fields of a batch."""
    if isinstance(item, Mapping | SeriesBatch):
        raise InputError(
            f"series {name!r} is a {type(item).__name__}, expected an array; a list"
            " holds either arrays, or dicts with a 'target', or batches"
        )
    array = to_floats(item, f"series {name!r}")
    if array.ndim not in (1, 2) or not len(np.atleast_2d(array)):
        raise InputError(
            f"series {name!r} has shape {array.shape}, expected (time,) or (variate,"
            " time)"
        )
    rows = []
    for index, values in enumerate(np.atleast_2d(array)):
        if array.ndim == 1:
            variate = ""
        else:
            variate = str(index)
        rows.append(
            {
                "values": values,
                "ids": _id(name, variate),
                "groups": name,
                "variates": variate,
            }
        )
    return rows


def _id(group: str, variate: str) -> str:
    if variate:
        return f"{group}/{variate}"
    return group


def _rename(batch: SeriesBatch, names: tuple[str, ...]) -> SeriesBatch:
    """Give the items of a batch these names; leave its own if there are none."""
    items = tuple(dict.fromkeys(batch.groups))
    if not names or names in (items, batch.ids):
        return batch
    if len(names) != len(items):
        raise InputError(f"{len(items)} series came with {len(names)} ids")
    check_unique(names)
    groups = tuple(names[number] for number in batch.group_index)
    return replace(batch, ids=tuple(map(_id, groups, batch.variates)), groups=groups)


def _from_pandas(series: pd.Series, freq: str | None, **columns: Any) -> SeriesBatch:
    """Read a Series by its index, as a frame with one column of values."""
    if series.name is None:
        name = "series-0"
    else:
        name = str(series.name)
    # a column of values must not have the name of ids or timestamps
    column = name
    if (
        name in map(str, series.index.names)
        or find([name], (*ID_COLUMNS, *TIME_COLUMNS)) is not None
    ):
        column = "target"
    batch = from_frame(
        series.rename(column).to_frame(), freq=freq, targets=[column], **columns
    )
    if batch.ids == (column,) and series.index.nlevels == 1:
        return replace(batch, ids=(name,), groups=())
    return batch


def is_entry(data: Any) -> bool:
    """Return True for a dict with a target and at least one more of the fields."""
    return (
        isinstance(data, Mapping)
        and "target" in data
        and len(data) > 1
        # a dict with a target and unknown names may be series by name, one of which is
        # called "target"
        and set(data) & set(FIELDS) != {"target"}
    )


def from_entries(
    entries: Sequence[Mapping[str, Any]],
    freq: str | None,
    categories: Sequence[str] = (),
) -> SeriesBatch:
    """Make a batch of entries of gluonts or Chronos-2, with their covariates.

    Covariates named in ``categories`` are categories, whatever they look like.

    Returns:
        The batch, with an item for each entry.
    """
    rows: list[dict[str, Any]] = []
    names = []
    for number, entry in enumerate(entries):
        for field in entry:
            if field not in FIELDS:
                raise unknown_name("field of an entry", field, FIELDS)
        if "target" not in entry:
            raise InputError(
                f"entry {number} has no 'target', only {', '.join(entry) or 'nothing'}"
            )
        item = entry.get("item_id")
        if item is None:
            name = f"series-{number}"
        else:
            name = label(item, f"item_id of entry {number}")
        # kept for the entries without an id, too, so that positions agree with those of
        # ``entries``
        names.append(name)
        rows += _list_rows(entry, name)
    named = [
        index for index, entry in enumerate(entries) if entry.get("item_id") is not None
    ]
    check_distinct(
        [entries[index]["item_id"] for index in named],
        [names[index] for index in named],
        "two item_ids",
    )
    starts = [entry.get("start") for entry in entries]
    freqs = {start.freqstr if isinstance(start, pd.Period) else "" for start in starts}
    # gluonts has the frequency in its starts, which are periods
    if freq is None and len(freqs) == 1 and "" not in freqs:
        freq = stamp_frequency(freqs.pop())
    notes = _number(rows, categories)
    notes += _shape_notes(_item_shapes(rows), "variates")
    return make_batch(rows, freq=freq, notes=tuple(notes))


def _number(rows: Sequence[dict[str, Any]], categories: Sequence[str]) -> list[str]:
    """Replace the cells of covariates by numbers.

    A covariate has the same levels in all entries.

    Returns:
        Notes on covariates that are categories.
    """
    members: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["roles"] != "target":
            members.setdefault(row["variates"], []).append(row)
    declared = declared_names(categories, members)
    coded = {}
    for name, owners in members.items():
        pieces = [
            row[field]
            for row in owners
            for field in ("values", "futures")
            if row[field] is not None
        ]
        # arrays of numbers are in their final form
        if name not in declared and all(piece.dtype.kind in "iuf" for piece in pieces):
            continue
        if any(row["is_category"] for row in owners):
            declared.add(name)
        # as objects, since numpy would make text of numbers beside text
        cells = np.concatenate([piece.astype(object) for piece in pieces])
        coded[name] = read_cells(cells, name, name in declared)
        numbers, levels = coded[name]
        bounds = np.cumsum([len(piece) for piece in pieces])[:-1]
        # in the order of ``pieces``: of each owner its values, then its future if it
        # has one
        parts = iter(np.split(numbers, bounds))
        for row in owners:
            row["values"] = next(parts)
            row["categories"] = levels
            if row["futures"] is not None:
                row["futures"] = next(parts)
    for row in rows:
        # a batch has no such field
        del row["is_category"]
    return category_notes(coded, declared)


def _list_rows(entry: Mapping[str, Any], group: str) -> list[dict[str, Any]]:
    """Return the series of an entry as fields of a batch.

    Targets come first, then past covariates, then known ones.
    """
    description = f"the target of {group!r}"
    values = _forward(entry["target"], description)
    targets = np.atleast_2d(to_floats(values, description))
    if targets.ndim != 2:
        raise InputError(
            f"the target of {group!r} has shape {targets.shape}, expected (time,) or"
            " (variate, time)"
        )
    covariates = [
        *_features(entry, group, targets.shape[1]),
        *_named(entry, group, targets.shape[1]),
    ]
    names = tuple(map(str, range(len(targets))))
    if len(targets) == 1:
        names = ("target" if covariates else "",)
    rows = [
        _row(name, values) | {"roles": "target"}
        for name, values in zip(names, targets, strict=True)
    ]
    # False sorts before True, and sorting is stable, so that each role keeps the order
    # of the entry
    rows += sorted(covariates, key=lambda row: row["roles"] == "known")
    start = entry.get("start")
    static = {
        name: entry[name]
        for name in ("feat_static_real", "feat_static_cat")
        if name in entry
    }
    common = {
        "groups": group,
        "static": static,
        "starts": None if start is None else start_time(start, f" of {group!r}"),
    }
    return [row | common | {"ids": _id(group, row["variates"])} for row in rows]


def _forward(values: Any, label: str) -> Any:
    """Return values of an entry, which are read by position.

    Raises:
        InputError: they are a Series whose dates go back.
    """
    for item in _members(values):
        is_dated = (
            isinstance(item, pd.Series)
            and item.index.nlevels == 1
            and holds_times(item.index)
        )
        if is_dated and not item.index.is_monotonic_increasing:
            raise InputError(
                f"{label} is a Series whose dates go back; sort it with .sort_index()"
            )
    return values


def _row(
    name: str,
    values: np.ndarray,
    future: np.ndarray | None = None,
    is_category: bool = False,
) -> dict[str, Any]:
    """Return a series as fields of a batch, a known covariate if it has a future."""
    role = "known"
    if future is None:
        role = "past"
    return {
        "variates": name,
        "roles": role,
        "values": values,
        "futures": future,
        "categories": None,
        "is_category": is_category,
    }


def _features(
    entry: Mapping[str, Any], group: str, steps: int
) -> Iterator[dict[str, Any]]:
    """Yield gluonts's covariates, which have no names."""
    for field in ("past_feat_dynamic_real", "feat_dynamic_real"):
        if entry.get(field) is None:
            continue
        description = f"{field} of {group!r}"
        features = _forward(entry[field], description)
        rows = np.atleast_2d(to_floats(features, description))
        if rows.ndim != 2:
            raise InputError(
                f"{field} of {group!r} has shape {rows.shape}, expected (feature, time)"
            )
        has_future = field == "feat_dynamic_real"
        # gluonts lets a dynamic feature go on into the horizon
        if rows.shape[1] < steps or (not has_future and rows.shape[1] > steps):
            raise InputError(
                f"{field} of {group!r} has {rows.shape[1]} steps and its target {steps}"
            )
        for index, values in enumerate(rows):
            future = values[steps:] if has_future else None
            yield _row(f"{field}/{index}", values[:steps], future)


def _named(
    entry: Mapping[str, Any], group: str, steps: int
) -> Iterator[dict[str, Any]]:
    """Yield Chronos-2's covariates."""
    pasts, futures = (
        _by_name(entry, field, group)
        for field in ("past_covariates", "future_covariates")
    )
    for name in futures:
        if name not in pasts:
            raise InputError(
                f"covariate {name!r} of {group!r} has a future and no past_covariates"
            )
    for name, values in pasts.items():
        description = f"covariate {name!r} of {group!r}"
        past, is_category = _cells(_forward(values, description), description)
        if past.ndim != 1 or len(past) != steps:
            raise InputError(
                f"{description} has shape {past.shape} and its target {steps} steps"
            )
        if futures.get(name) is None:
            later = []
        else:
            later = _forward(futures[name], f"the future of {description}")
        future, _ = _cells(later, f"the future of {description}")
        if future.ndim != 1:
            raise InputError(
                f"the future of {description} has shape {future.shape}, expected one"
                " axis: time"
            )
        yield _row(name, past, future if name in futures else None, is_category)


def _cells(values: Any, what: str) -> tuple[np.ndarray, bool]:
    """Return the cells of a covariate, and whether its type is one of categories."""
    column = to_pandas(values)
    if isinstance(column, pd.Categorical):
        column = pd.Series(column)
    if not isinstance(column, pd.Series) or not isinstance(
        column.dtype, pd.CategoricalDtype
    ):
        return plain_array(column, what), False
    # the code of a missing value is -1, which takes the last entry
    names = np.append(id_texts(column.cat.categories.to_series(), what), [None])
    return names[column.cat.codes], True


def _by_name(entry: Mapping[str, Any], field: str, group: str) -> dict[str, Any]:
    """Return the covariates of one field of an entry by their names as text.

    Raises:
        InputError: the field is no dict, or two names are the same text.
    """
    covariates = entry.get(field)
    if covariates is None:
        return {}
    if not isinstance(covariates, Mapping):
        raise InputError(
            f"{field} of {group!r} is {type(covariates).__name__}, expected a dict of"
            " values by name"
        )
    names = [label(name, f"a name in {field} of {group!r}") for name in covariates]
    check_unique(names, f"names in {field} of {group!r}")
    return dict(zip(names, covariates.values(), strict=True))


def start_time(value: Any, owner: str = "") -> pd.Timestamp:
    """Read the time of a first value, as a clock on the wall shows it."""
    try:
        if not isinstance(value, str | date | np.datetime64 | pd.Period):
            raise InputError(f"expected a date, not {type(value).__name__}")
        # ``NaT`` is a ``date`` to ``isinstance``, and that of numpy differs from itself
        if value is pd.NaT or value != value:
            raise InputError("leave it out where it is unknown")
        # alone, four digits may be a number of a step
        is_year = isinstance(value, str) and len(value) == 4 and value.isdecimal()
        cell = f"{value}-01" if is_year else value
        # as objects, so that pandas converts nothing before the reader of columns sees
        # it
        times = read_times(pd.Series([cell], dtype=object), "start")
        if times.clock.dtype.kind != "M":
            raise InputError("it counts steps")
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"start={value!r}{owner} is not a timestamp such as '2020-01-31 12:00':"
            f" {error}"
        ) from error
    return pd.Timestamp(times.clock[0])
