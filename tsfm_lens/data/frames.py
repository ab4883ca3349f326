"""Conversion of long pandas frames into series.

Read :func:`from_frame` first: it finds the columns of ids, timestamps, values and
covariates, refuses tables in which that is not certain, and puts every series on a
regular grid. Reading of times is in :mod:`.times`, of covariates in :mod:`.categories`,
of frames in a list, a dict or a file in :mod:`.coerce` and :mod:`.files`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import chain, combinations
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.core.errors import InputError, UnknownNameError, unknown_name
from tsfm_lens.data.batch import (
    SeriesBatch,
    known_frequency,
    make_batch,
    note_missing_ends,
)
from tsfm_lens.data.categories import (
    alike,
    category_notes,
    declared_names,
    read_covariate,
)
from tsfm_lens.data.text import ID_COLUMNS, NUMBER, TARGET_COLUMNS, TIME_COLUMNS
from tsfm_lens.data.times import (
    Grid,
    Times,
    digit_dates,
    fitting_formats,
    holds_dates,
    is_date_name,
    make_grids,
    on_clock,
    read_times,
    resembles_dates,
    time_text,
    zones_repeating,
)
from tsfm_lens.data.values import (
    LISTS,
    id_texts,
    name_lists,
    texts,
    to_floats,
    without_arrow,
)

_MAX_NAMES = 8  # columns
_CHOICES = {
    ID_COLUMNS: "id_column=…",
    TIME_COLUMNS: "time_column=…",
    TARGET_COLUMNS: "targets=[…]",
}
"""Standard names -> the option that chooses another column."""
_SUNDAY = 6  # as pandas counts the days of a week


def from_frame(
    frame: pd.DataFrame,
    *,
    freq: str | None = None,
    targets: Sequence[str] | None = None,
    variates: Sequence[str] | None = None,
    id_column: str | Sequence[str] | None = None,
    time_column: str | None = None,
    time_format: str | None = None,
    timezone: str | None = None,
    round_time: str | None = None,
    known: Sequence[str] | None = None,
    past: Sequence[str] | None = None,
    categories: Sequence[str] | None = None,
    future: pd.DataFrame | None = None,
) -> SeriesBatch:
    """Read the series of a long frame.

    Columns and levels of the index: an id (``id``, ``item_id``, ``unique_id`` …; one
    series if there is none), a timestamp (``timestamp``, ``ds``, ``date`` …, or the
    only column of dates; optional), and the target (``target``, ``y``, ``value``, else
    every column of numbers). Each target gets a group with copies of the covariates;
    variates share one. The batch's notes record how time was read, gaps that became
    NaN, and what is not read.

    Args:
        frame: a row for each id and time; it is not changed.
        freq: pandas frequency alias, or weekdays less some dates, "Mon-Sat,2024-12-25";
            inferred if None.
        targets: columns that are series of their own; with several, ids become
            ``id/column``.
        variates: columns that are the variates of one group per id, in place of
            targets.
        id_column: column of ids; found by its name if None. Several columns, a list or
            "store,item", make ids ``store/item``.
        time_column: column of timestamps; found by its name if None.
        time_format: format of the timestamps, such as "%d.%m.%Y"; ISO 8601 if None. A
            week, of a format such as "%G%V", stands for its first day.
        timezone: of the local clock that the timestamps show, in order in autumn; steps
            below a day are in UTC then.
        round_time: interval to which timestamps are rounded, such as "5min".
        known: covariates whose future is known.
        past: covariates that are seen up to the end of the context.
        categories: covariates whose values are categories, even if they are numbers, or
            look like these. Text is categories by itself, and so are pandas categories.
        future: a frame of later rows, with the ids, timestamps and known covariates.
            The context of each id ends with its last row in ``frame``. Unless ``known``
            names some, each column that holds a value is one of them.

    Returns:
        The series as float64, with NaN in gaps, an item for each id and target.

    Raises:
        UnknownNameError: a column that is named does not exist.
        InputError: values are not numbers, timestamps repeat or are irregular, a
            covariate has gaps in its future, text that looks like ids or dates would
            not be read, ``targets`` and ``variates`` are both given, or the future
            holds targets or dates of the past.

    Example:
        >>> table = {"id": ["a", "a", "b", "b"], "target": [1.0, 2.0, 3.0, 4.0]}
        >>> data.from_frame(pd.DataFrame(table)).ids
        ('a', 'b')
    """
    if freq is not None:
        freq = known_frequency(freq)
    names = name_lists(
        {
            "targets": targets,
            "variates": variates,
            "known": known,
            "past": past,
            "categories": categories,
        }
    )
    targets, variates, known, past, categories = names.values()
    table = frame
    id_option = id_column
    # the levels of the index become columns first, so that all that follows finds ids
    # and times by the names of columns alone
    frame, id_column, time_column = flat(frame, id_column, time_column)
    frame = without_arrow(frame)
    notes = []
    key, time = key_and_time(frame.columns, id_column, time_column)
    if targets is not None and variates is not None:
        raise InputError(
            "give targets=… for columns that are series of their own or variates=…, not"
            " both"
        )
    if time is None:
        given = filter(None, (targets, variates, known, past))
        time = dated_column(frame, {key, *chain.from_iterable(given)})
        if time is not None:
            notes.append(f"column {str(time)!r} is read as the timestamps")
    requested = variates
    if variates is None:
        requested = targets
    if time is None and requested is None:
        _check_not_wide(table, frame, key, id_option)
    if time is None:
        notes += _order_notes(table.index)
    if future is not None:
        # ``id_option`` is as the caller wrote it: ``flat`` has joined the columns of
        # the data already, and those of the future are still apart
        later = _flat_future(future, table.index.names, id_option, key, time)
        known, more = _known_in_future(
            frame, later, {time, key}, requested, known, past
        )
        notes += more
    roles = covariate_roles(frame.columns, known, past, {time, key})
    # chosen before the future is appended, whose rows without targets would make
    # objects of a column of truth values, which count as numbers
    option = "targets" if variates is None else "variates"
    columns = _values(frame, requested, {time, key, *roles}, option)
    in_future = np.zeros(len(frame), dtype=bool)
    if future is not None:
        in_future = np.append(in_future, np.ones(len(later), dtype=bool))
        if time is not None:
            _check_same_dates(frame[time], later[time], str(time))
        read = [name for name in (time, *roles) if name is not None]
        frame = _continued(frame, later, key, read)
    times = None
    if time is not None:
        times = read_times(frame[time], str(time), time_format)
    ids = None
    if key is not None:
        # the rows of the future are in the frame by now, so that one call makes text of
        # all ids
        ids = id_texts(frame[key], str(key))
    unread = [
        column
        for column in frame.columns
        if column not in {key, time, *columns, *roles}
    ]
    named = targets is not None or variates is not None
    notes += _choices(frame, columns, unread, named)
    grouped = variates is not None or bool(roles)
    if ids is None:
        # with an empty name, each series is named by its column alone
        groups = [("series-0" if grouped else "", np.arange(len(frame)))]
    else:
        groups = _groups(ids)
    # messages name a table without ids by its first column
    owners = [(group or str(columns[0]), rows) for group, rows in groups]
    if timezone is not None or round_time is not None:
        times = on_clock(times, owners, timezone, round_time)
    if times is not None and future is not None:
        _check_order(times, owners, in_future, frame.index)
    # the columns that have a task for certain; of several values that nobody named, one
    # may be an id in truth
    fixed = {time, *roles, *(columns if named or len(columns) == 1 else ())}
    # a table without ids is one series, and no real column of ids has the name None
    id_series = pd.Series(0 if ids is None else ids, frame.index, name=key)
    _check_rows(frame, unread, id_series, times, fixed)
    grids: list[Grid] | None = None
    in_utc = False
    if times is not None:
        grids, more, in_utc = make_grids(times, owners, frame.index, freq)
        notes += more
        if in_utc and timezone is not None:
            notes.append(f"dates are given and shown in {timezone}")
    # of each group: its rows that are no future, and the step after the last of them
    counts = [int((~in_future[rows]).sum()) for _, rows in groups]
    if grids is None:
        # without timestamps, no step is missing, and rows count the steps
        stops = counts
    else:
        stops = [
            # ``_check_order`` has made sure that, sorted by time, the first ``count``
            # rows of a series are those of the data
            int(grid.positions[count - 1]) + 1
            for grid, count in zip(grids, counts, strict=True)
        ]
    if times is not None and grids is not None:
        notes += _late_notes(times, owners, grids, counts)
    for (group, _), count, stop in zip(owners, counts, stops, strict=True):
        if stop > count:
            gaps = stop - count
            notes.append(f"{group}: {gaps} missing timestamps were filled with NaN")
    kinds: dict[Hashable, Any] = dict(zip(frame.columns, frame.dtypes, strict=True))
    if all(
        isinstance(kinds[column], np.dtype) and kinds[column].kind == "f"
        for column in columns
    ):
        # one by one, a hundred thousand columns take a minute
        values = frame[columns].to_numpy(dtype=np.float64)
        numbers = dict(zip(columns, values.T, strict=True))
    else:
        numbers = {column: _numbers(frame[column], str(column)) for column in columns}
    declared = declared_names(
        column_names(categories or (), frame.columns), [str(name) for name in roles]
    )
    # a pandas category declares itself, even where its levels look like numbers
    declared |= {
        str(name)
        for name in roles
        if isinstance(frame[name].dtype, pd.CategoricalDtype)
    }
    coded = {
        # read over all rows at once, so that a level has the same number in all series
        # and in past and future
        name: read_covariate(frame[name], str(name), str(name) in declared)
        for name in roles
    }
    by_text = {str(name): codes for name, codes in coded.items()}
    notes += category_notes(by_text, declared)
    covariates = {name: (role, *coded[name]) for name, role in roles.items()}
    if variates is not None:
        # an item is what becomes one group: all variates together, or each target alone
        items = [tuple(columns)]
    else:
        items = [(column,) for column in columns]
    series: list[dict[str, Any]] = []
    for index, (group, rows) in enumerate(groups):
        grid = None if grids is None else grids[index]
        end = None if future is None else stops[index]
        for item in items:
            if len(items) == 1 and (grouped or group):
                name = group
            else:
                name = "/".join(filter(None, (group, str(item[0]))))
            item_targets = [(column, numbers[column]) for column in item]
            for row in _item_rows(name, rows, grid, item_targets, covariates, end):
                if not grouped:
                    row["variates"] = ""
                if not grouped or (len(items) > 1 and row["roles"] == "target"):
                    row["ids"] = name
                row["groups"] = name
                row["starts"] = None if grid is None else grid.start
                series.append(row)
    clock = ""
    if in_utc:
        clock = timezone or "UTC"
    batch = make_batch(
        series,
        # ``make_grids`` has given all series the same frequency
        freq=freq if grids is None else grids[0].freq,
        notes=tuple(notes),
        clock=clock,
    )
    return note_missing_ends(batch, _filled_ahead(frame, columns, unread))


def _check_not_wide(
    table: pd.DataFrame, frame: pd.DataFrame, key: Hashable | None, id_column: Any
) -> None:
    """Refuse a table with a column per date, and name the call that reads it.

    Read as it is, it would be transposed. Digits in names count as dates only where
    each id has one row, or where rows without ids are fewer than these columns, since a
    table with a column for each year has more columns than rows. ``frame`` is the table
    with its index as columns.
    """
    free = [name for name in frame.columns if name != key]
    dates = [name for name in free if is_date_name(name)]
    time_format = None
    if key is None:
        is_wide = len(frame) < len(free)
    else:
        is_wide = not frame[key].duplicated().any()
    if not dates and is_wide:
        # names of digits are dates only where the shape speaks for it, since a long
        # table may have columns such as 2020 too
        dates, time_format = digit_dates(free)
    numeric = [name for name in free if pd.api.types.is_numeric_dtype(frame[name])]
    if not dates and is_wide and key is not None and _are_counted(numeric):
        raise InputError(
            f"each id has one row, and the columns {_listed(numeric[:3])} … count"
            " steps: expected one row per time step; transpose the table, or name"
            " columns that are series with targets=[…]. In pandas:"
            f" as_series(frame.set_index({key!r}).loc[:,"
            f" {numeric[0]!r}:{numeric[-1]!r}].T.reset_index(drop=True))"
        )
    # where most columns of numbers have other names, these are what the table is about
    if len(dates) < 2 or len(numeric) > 2 * len(dates):
        return
    keys = id_names(id_column, [*index_names(table.index, None, None), *table.columns])
    columns = [
        name
        for name in table.columns
        if name in keys or (name in frame.columns and name not in dates)
    ]
    labels: list[Hashable] = [*index_names(table.index, None, None), *columns]
    source = "frame"
    if not labels:
        labels = [table.index.name or "index"]
    if len(labels) > len(columns):
        source = "frame.reset_index()"
    # columns that ``_without_row_numbers`` has dropped are still in the caller's table,
    # and ``melt`` would take their names for timestamps
    row_numbers = [
        name for name in table.columns if name not in columns and name not in dates
    ]
    if row_numbers:
        source += f".drop(columns={row_numbers!r})"
    if key is None:
        keys = [name for name in labels if name not in numeric] or labels[:1]
    options = ""
    if keys:
        options = f", id_column={','.join(map(str, keys))!r}"
    if time_format is not None:
        options += f", time_format={time_format!r}"
    raise InputError(
        f"the columns are named by dates ({', '.join(map(str, dates[:3]))} …): expected"
        " one row per time step; transpose the table, or name columns that are series"
        f" with targets=[…]. In pandas: as_series({source}.melt({labels!r},"
        f" var_name='timestamp', value_name='target'){options})"
    )


_COUNTED = re.compile(r"(?P<prefix>\D+)(?P<number>\d+)")


def _are_counted(names: Sequence[Hashable]) -> bool:
    """Test if names are one word and the numbers from 0 or 1, at least three.

    M5 has such columns: d_1, d_2, ….

    Returns:
        True if they are.
    """
    matches = [_COUNTED.fullmatch(str(name)) for name in names]
    found = [match for match in matches if match is not None]
    if len(found) < len(names) or len(found) < 3:
        return False
    first = int(found[0]["number"])
    expected = list(range(first, first + len(found)))
    numbers = [int(match["number"]) for match in found]
    prefixes = {match["prefix"] for match in found}
    return first in (0, 1) and numbers == expected and len(prefixes) == 1


def has_falling_numbers(index: pd.Index) -> bool:
    """Test if an index numbers at least two rows from the last to the first."""
    is_numbered = index.nlevels == 1 and pd.api.types.is_integer_dtype(index.dtype)
    return is_numbered and len(index) > 1 and index.is_monotonic_decreasing


def _order_notes(index: pd.Index) -> list[str]:
    """Note that rows whose numbers fall are read from the first row to the last.

    This concerns rows without timestamps.

    Returns:
        The note, or nothing.
    """
    if not has_falling_numbers(index):
        return []
    return [
        f"the row numbers fall from {index[0]} to {index[-1]}, and rows are read in the"
        " order in which they stand; sort_index() turns them round"
    ]


def _choices(
    frame: pd.DataFrame,
    columns: Sequence[Hashable],
    unread: Sequence[Hashable],
    named: bool,
) -> list[str]:
    """List notes on choices that a caller may not expect.

    They name columns that are not read, and several that are series of their own.

    Returns:
        Sentences.
    """
    numeric = [
        column for column in unread if pd.api.types.is_numeric_dtype(frame[column])
    ]
    cure = (
        "targets=[…] reads columns as series of their own, variates=[…] as the variates"
        " of one item"
    )
    if named:
        cure = "past=[…] or known=[…] reads columns as covariates"
    silent = unread
    if named:
        silent = numeric
    notes = []
    if silent:
        hint = f"; {cure}" if numeric else ""
        notes.append(f"not read: {_listed(silent)}{hint}")
    if len(columns) > 1 and not named:
        notes.append(
            f"series of their own: {_listed(columns)}; targets=[…] chooses, past=[…]"
            " or known=[…] reads covariates"
        )
    return notes


def _filled_ahead(
    frame: pd.DataFrame, columns: Sequence[Hashable], unread: Sequence[Hashable]
) -> list[str]:
    """List unread columns that have a value wherever no target has one.

    They may be known covariates, of which the file has the future.

    Returns:
        Names of columns.
    """
    is_empty = frame[list(columns)].isna().all(axis=1)
    if not is_empty.any():
        return []
    is_filled = frame.loc[is_empty, list(unread)].notna().all().to_dict()
    # columns of a file that are not read come as zeros here, and what is constant tells
    # a model nothing
    return [
        str(column)
        for column in unread
        if is_filled[column] and frame[column].nunique() > 1
    ]


def _listed(columns: Sequence[Hashable]) -> str:
    listing = ", ".join(repr(str(name)) for name in columns[:_MAX_NAMES])
    if len(columns) > _MAX_NAMES:
        return f"{listing}, … ({len(columns)} columns)"
    return listing


def _item_rows(
    name: str,
    rows: np.ndarray,
    grid: Grid | None,
    targets: Sequence[tuple[Hashable, np.ndarray]],
    covariates: Mapping[Hashable, tuple[str, np.ndarray, tuple[str, ...] | None]],
    end: int | None,
) -> list[dict[str, Any]]:
    """Return the series of one item as fields of a batch.

    Its targets come first, then its covariates. The context ends before the step
    ``end``. If that is None, it ends after the last target where covariates are known
    later.
    """
    # the order is that of ``ROLES``, which a batch checks: ``covariates`` has past ones
    # before known ones by :func:`covariate_roles`
    members: list[tuple[Any, ...]] = [
        (column, "target", values, None) for column, values in targets
    ]
    members += [(column, *covariate) for column, covariate in covariates.items()]
    series = [
        values[rows] if grid is None else grid.filled(values[rows])
        for _, _, values, _ in members
    ]
    if end is None and any(role == "known" for _, role, _, _ in members):
        # a step with one variate is observed, and the others are missing there
        present = np.flatnonzero(np.isfinite(series[: len(targets)]).any(axis=0))
        if not len(present):
            names = ", ".join(repr(str(column)) for column, _ in targets)
            raise InputError(f"{names} of {name!r} has no value")
        end = int(present[-1]) + 1
    elif end is None:
        end = len(series[0])

    out = []
    for (column, role, _, categories), values in zip(members, series, strict=True):
        future = None
        if role == "known":
            finite = np.flatnonzero(np.isfinite(values[end:]))
            # a gap before the missing values at the end stays, to be refused
            future = values[end:][: finite[-1] + 1 if len(finite) else 0]
        row = {
            "values": values[:end],
            "ids": f"{name}/{column}",
            "variates": str(column),
        }
        out.append(row | {"roles": role, "futures": future, "categories": categories})
    return out


def _numbers(column: pd.Series, name: str) -> np.ndarray:
    """Convert a column into the nearest float64.

    Text that reads as a number counts as one.

    Returns:
        Values, (row,).
    """
    if (
        # ``to_numpy`` of a category or of strings makes an array of objects or text, in
        # which numbers must be looked for cell by cell
        not isinstance(column.dtype, pd.CategoricalDtype | pd.StringDtype)
        and column.dtype != object
    ):
        return to_floats(column.to_numpy(), f"column {name!r}")
    # copied, because numbers are written into it and the caller's frame must stay as it
    # is
    cells = column.to_numpy(dtype=object, copy=True)
    for position, cell in enumerate(cells):
        if not isinstance(cell, str):
            continue
        if not re.fullmatch(NUMBER, cell.strip()):
            hint = ""
            if name.startswith("Unnamed: "):
                hint = "; are there rows of titles above the names? delete them"
            if re.fullmatch(NUMBER, cell.strip().replace(",", ".")):
                hint = "; replace the comma by a point"
            raise InputError(
                f"column {name!r} holds {cell!r} in row {column.index[position]},"
                f" which is not a number{hint}"
            )
        cells[position] = float(cell)
    return to_floats(cells, f"column {name!r}")


def _check_rows(
    frame: pd.DataFrame,
    unread: Sequence[Hashable],
    ids: pd.Series,
    times: Times | None,
    fixed: set[Hashable],
) -> None:
    """Refuse rows of different series that would be merged into one.

    These are rows that differ in text, or that have the same id and time. The message
    names the columns by which the rows can be told apart.
    """
    clocks = {}
    if times is not None:
        clocks = {"time": times.instants, "clock": times.clock}
    # the instants tell apart the hour that a wall clock repeats in autumn, and the
    # clock is what a message shows
    keys = pd.DataFrame({"id": ids, **clocks})
    repeats = np.flatnonzero(keys.duplicated())
    # rows of one id with distinct times fit one series, whatever their other columns
    # hold
    if times is not None and not len(repeats):
        return
    examples = []
    texts: list[Hashable] = []
    # columns do not tell apart the two rows of an hour that the clock shows twice
    by_clock = times is not None and _only_clock_repeats(keys)
    for column in () if by_clock else unread:
        # text that is the same in all rows of an id describes its series
        text = frame[column].astype(str).where(frame[column].notna())
        if (
            not pd.api.types.is_numeric_dtype(frame[column])
            and text.groupby(ids).nunique().max() > 1
        ):
            texts.append(column)
            examples.append(f"{str(column)!r} (text such as {text.dropna().iloc[0]!r})")
    id_columns = ""
    if times is not None and not by_clock:
        free = frame.drop(columns=[*fixed - {None}])
        id_columns = _find_id_columns(free, keys, ids.name)
    option = "id_column=…"
    if id_columns:
        option = f"id_column={id_columns!r}"
    if examples:
        raise InputError(
            f"rows differ in {', '.join(examples)}: without it, different series would"
            " be merged"
        ).with_cures(
            *_cures_of_text(frame[texts], times, id_columns),
            advice=(
                f". Name the columns of ids with {option}, that of dates with"
                " time_column=… and time_format=…, rename them (id, timestamp), or"
                " leave them out"
            ),
        )
    if times is not None:
        first = keys.iloc[repeats[0]]
        name, _, clock = first
        rows = frame.index[(keys == first).all(axis=1)]
        cures = ["keep one of them"]
        zones: list[str] = []
        advice = ""
        if not by_clock and (id_columns or ids.name is None):
            cures = [f"give {option} if they are of several series"]
        has_dates = isinstance(clock, pd.Timestamp)
        if times.note and has_dates:
            cures.append(f"{times.note}: round_time=… may be finer")
        if (
            times.utc is None
            and has_dates
            and not id_columns
            and (times.clock != times.clock.astype("M8[D]")).any()
        ):
            zones = zones_repeating(clock)
            cures.append("if a local clock repeats an hour in autumn")
            example = (zones or ["Europe/Berlin"])[0]
            advice = f", give timezone=…, as in timezone={example!r}"
        owner = ""
        if ids.name is not None:
            owner = f"series {name!r} has "
        raise InputError(
            f"{owner}two values at {time_text(clock)} (rows {rows[0]} and {rows[1]});"
            f" {'; '.join(cures)}"
        ).with_cures(
            {"id_column": id_columns} if id_columns else {},
            *({"timezone": zone} for zone in zones),
            advice=advice,
        )


def _cures_of_text(
    texts: pd.DataFrame, times: Times | None, id_columns: str
) -> list[dict[str, str]]:
    """Return options that read columns of text as dates or ids."""
    cures = []
    names = list(texts) if times is None else []
    for name in names:
        cells = texts[name]
        if cells.isna().any():
            continue
        if resembles_dates(cells):
            cures.append({"time_column": str(name)})
        forms = fitting_formats(list(map(str, cells)))
        cures += [{"time_column": str(name), "time_format": form} for form in forms]
    if not cures:
        joined = ",".join(map(str, texts.columns))
        cures.append({"id_column": id_columns or joined})
    return cures


def _only_clock_repeats(rows: pd.DataFrame) -> bool:
    """Test if rows of a series that share a time are those of a clock put back.

    They are two, in one hour of a Sunday a year. True too if no rows share one.

    Returns:
        True if so.
    """
    repeats = rows[rows.duplicated()]
    if repeats.empty:
        return True
    if repeats["clock"].dtype.kind != "M" or repeats.duplicated().any():
        return False
    hours = pd.DatetimeIndex(repeats["clock"].dt.floor("h").unique())
    return bool((hours.dayofweek == _SUNDAY).all() and hours.year.is_unique)


def _find_id_columns(
    frame: pd.DataFrame, keys: pd.DataFrame, key: Hashable | None
) -> str:
    """Name the fewest columns of text or whole numbers that make a panel.

    In a panel, no series has a time twice.

    Returns:
        Names of columns with commas between them, "" if none make a panel.
    """
    candidates = [
        name
        for name in frame
        if not pd.api.types.is_float_dtype(frame[name]) or (frame[name] % 1 == 0).all()
    ]
    # as codes, ids of any type compare fast, and cells that are equal as text count as
    # one id
    codes = {
        str(name): pd.factorize(frame[name].astype(str))[0]
        for name in candidates
        if name != key
    }
    # at most 41 combinations of three columns or fewer
    fewest = sorted(codes, key=lambda name: codes[name].max())[:6]
    for names in chain.from_iterable(
        combinations(fewest, count) for count in (1, 2, 3)
    ):
        parts = keys.assign(**{f"_{name}": codes[name] for name in names})
        series = parts.drop(columns=["time", "clock"]).drop_duplicates()
        # columns of values tell rows apart, too, but make series of few times
        if (
            # at least half of all pairs of series and time must occur
            len(series) * parts["time"].nunique() <= 2 * len(parts)
            and _only_clock_repeats(parts)
        ):
            chosen = [name for name in codes if name in names]
            if key is not None:
                chosen = [str(key), *chosen]
            return ",".join(chosen)
    return ""


def _values(
    frame: pd.DataFrame,
    names: Sequence[str] | None,
    other_columns: set[Hashable | None],
    option: str,
) -> list[Hashable]:
    """Return the columns of values, by name or else by their type.

    ``option`` is the one that names them.
    """
    columns = value_columns(frame.columns, names, other_columns, option)
    if columns is not None:
        return columns
    kinds = zip(frame.columns, frame.dtypes, strict=True)
    free: dict[Hashable, Any] = {
        column: kind for column, kind in kinds if column not in other_columns
    }
    numeric = [
        column for column, kind in free.items() if pd.api.types.is_numeric_dtype(kind)
    ]
    if numeric:
        return numeric
    # conversion will name the first value of a single column that is not a number
    if len(free) == 1:
        return list(free)
    raise InputError(
        f"no column holds the values: expected one of {', '.join(TARGET_COLUMNS)}, or"
        f" numeric columns; found {', '.join(map(str, frame.columns))}"
    )


def _groups(ids: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Return each id with its rows, in order of first appearance."""
    codes, names = pd.factorize(ids)
    # stable, so that rows of a series keep their order where no time sorts them
    rows = np.argsort(codes, kind="stable")
    by_id = np.split(rows, np.cumsum(np.bincount(codes))[:-1])
    return list(zip(map(str, names), by_id, strict=True))


def flat(
    frame: pd.DataFrame, id_column: Any, time_column: str | None
) -> tuple[pd.DataFrame, Any, str | None]:
    """Turn the levels of a frame's index into columns.

    Several columns of ids become one.

    Returns:
        The frame, and its columns of ids and of timestamps.
    """
    if frame.columns.nlevels > 1:
        raise InputError(
            f"the frame's columns have {frame.columns.nlevels} levels, expected one"
            " name per column"
        )
    if not len(frame):
        raise InputError(
            "the frame has no rows (columns:"
            f" {', '.join(map(str, frame.columns)) or 'none'})"
        )
    if frame.columns.has_duplicates:
        repeated = frame.columns[frame.columns.duplicated()][0]
        raise InputError(f"the frame has two columns {str(repeated)!r}")
    index = frame.index
    # a subclass, such as AutoGluon's TimeSeriesDataFrame, may override what is called
    # below; this makes a plain frame of it without a copy
    frame = pd.DataFrame(frame)
    names = index_names(index, id_column, time_column)
    both = sorted(set(names) & set(map(str, frame.columns)))
    if both:
        raise InputError(
            f"the frame has {both[0]!r} both in its index and as a column; drop one of"
            " them"
        )
    if index.nlevels > 1:
        id_column, time_column = _levels(index, names, id_column, time_column)
    elif (
        names
        and time_column is None
        and holds_times(index)
        and find(frame.columns, TIME_COLUMNS) is None
    ):
        time_column = names[0]
    if names:
        frame = frame.set_axis(index.set_names(names)).reset_index()
    keys = id_names(id_column, frame.columns)
    if len(keys) > 1:
        id_column = "/".join(keys)
    else:
        id_column = next(iter(keys), None)
    if len(keys) > 1:
        cells = [id_texts(frame[name], name) for name in keys]
        ids = pd.Series(
            map("/".join, zip(*cells, strict=True)), frame.index, dtype=object
        )
        # 'a/b' with 'c' and 'a' with 'b/c' would be one series
        if ids.nunique() < len(frame[keys].drop_duplicates()):
            raise InputError(
                f"different ids of {_listed(keys)} are alike when joined by '/'; rename"
                " some"
            )
        frame = frame.drop(columns=keys).assign(**{id_column: ids})
    return _without_row_numbers(frame, {id_column, time_column}), id_column, time_column


def index_names(index: pd.Index, id_column: Any, time_column: str | None) -> list[str]:
    """Name the levels of an index that are to be columns.

    An index that only numbers the rows has none.

    Returns:
        Names of levels.
    """
    if index.nlevels > 1:
        return [
            f"level_{position}" if name is None else str(name)
            for position, name in enumerate(index.names)
        ]
    if index.name is None:
        if isinstance(index, pd.RangeIndex) or pd.api.types.is_integer_dtype(
            index.dtype
        ):
            return []
        # "timestamp" is one of ``TIME_COLUMNS``, by which the column is found again;
        # "index" is what pandas calls a level without a name
        return ["timestamp" if holds_times(index) else "index"]
    is_row_number = (
        pd.api.types.is_integer_dtype(index.dtype)
        and find([index.name], (*ID_COLUMNS, *TIME_COLUMNS)) is None
    )
    if is_row_number and index.name not in (id_column, time_column):
        return []
    return [str(index.name)]


def holds_times(index: pd.Index) -> bool:
    """Test if an index holds dates.

    Text counts where the index has no name and looks like dates.

    Returns:
        True if it does.
    """
    return holds_dates(index.dtype) or (
        index.name is None and resembles_dates(pd.Series(index.array))
    )


def _levels(
    index: Any, names: list[str], id_column: Any, time_column: str | None
) -> tuple[Any, str]:
    """Return the levels of ids and timestamps of an index."""
    dated = [
        name
        for name, level in zip(names, index.levels, strict=True)
        if holds_dates(level.dtype)
    ]
    time_column = (
        time_column
        or find(names, TIME_COLUMNS)
        or (dated[0] if len(dated) == 1 else None)
    )
    id_levels = [name for name in names if name != time_column]
    if id_column is None:
        if len(id_levels) == 1:
            id_column = id_levels[0]
        else:
            id_column = find(id_levels, ID_COLUMNS)
    if time_column is None or id_column is None:
        raise InputError(
            f"the frame's index has the levels {', '.join(names)}: expected ids and"
            " timestamps, as in (item_id, timestamp). Name them with id_column=… and"
            f" time_column=…; id_column={','.join(id_levels)!r} joins levels"
        )
    return id_column, time_column


def _without_row_numbers(
    frame: pd.DataFrame, keys: Collection[Hashable | None]
) -> pd.DataFrame:
    """Drop columns without a name that are empty or number the rows.

    ``to_csv`` makes such a column of an index.

    Returns:
        The frame.
    """
    for name in frame.columns:
        # ``read_csv`` writes "Unnamed: 0" over a column without a name, other readers
        # leave it empty
        if name in keys or not re.fullmatch(r"(Unnamed: \d+)?", str(name)):
            continue
        column = frame[name]
        is_first = name == frame.columns[0]
        numeric = pd.api.types.is_numeric_dtype(column)
        is_row_number = (
            is_first
            and numeric
            and (column % 1 == 0).all()
            and column.is_monotonic_increasing
        )
        if is_row_number or column.isna().all():
            frame = frame.drop(columns=name)
        elif numeric or not is_first:
            raise InputError(
                f"a column has no name ({name}) and holds {column.dropna().iloc[0]!r};"
                " give it one, or delete rows of titles above the names"
            )
    return frame


def key_and_time(
    columns: Collection[Hashable], id_column: Any, time_column: str | None
) -> tuple[Hashable | None, Hashable | None]:
    """Return the columns of ids and of timestamps.

    They are those that are asked for, else those with a standard name.
    """
    if time_column is not None and time_column not in columns:
        raise _no_column(time_column, columns, "time_column")
    if id_column is not None and id_column == time_column:
        raise InputError(
            f"column {id_column!r} cannot hold both the ids and the timestamps"
        )
    key: Hashable | None = id_column
    if key is None:
        key = find([column for column in columns if column != time_column], ID_COLUMNS)
    # a column cannot be both, and ids were asked for or found first
    free = [column for column in columns if column != key]
    return key, time_column or find(free, TIME_COLUMNS)


def dated_column(
    frame: pd.DataFrame, other_columns: Collection[Hashable | None]
) -> Hashable | None:
    """Return the one column that holds timestamps, whatever its name.

    None if there is none, or more than one.
    """
    candidates = [
        column
        for column, kind in zip(frame.columns, frame.dtypes, strict=True)
        if column not in other_columns
        and (
            holds_dates(kind)
            or (getattr(kind, "kind", "") == "O" and resembles_dates(frame[column]))
        )
        and not isinstance(kind, pd.CategoricalDtype)
    ]
    if len(candidates) == 1:
        return candidates[0]
    return None


def find(columns: Iterable[Any], names: Sequence[str]) -> Any:
    """Find the column with the first of some names.

    A name that is spelled exactly so comes before one with other case or blanks.

    Returns:
        The column's name in the frame, None if there is none.

    Raises:
        InputError: no column has a name exactly, and several are alike.
    """
    exact: dict[str, Any] = {}
    folded: dict[str, list[Any]] = {}
    for column in columns:
        exact[str(column)] = column
        folded.setdefault(str(column).strip().lower(), []).append(column)
    for name in names:
        if name in exact:
            return exact[name]
        if len(folded.get(name, ())) > 1:
            option = _CHOICES.get(tuple(names), "its own option")
            keyword = option.partition("=")[0]
            raise InputError(
                f"any of the columns {_listed(folded[name])} may be {name!r}; name one"
                f" with {option}"
            ).with_cures(*(_named(keyword, str(column)) for column in folded[name]))
        if name in folded:
            return folded[name][0]
    return None


def value_columns(
    columns: Collection[Hashable],
    requested: Sequence[str] | None,
    other_columns: Collection[Hashable | None],
    option: str = "targets",
) -> list[Hashable] | None:
    """Return the columns of values, by request or by their standard name.

    None if the content of the columns must decide. ``option`` is the one that requests
    them.
    """
    free = [column for column in columns if column not in other_columns]
    if requested is None:
        target = find(free, TARGET_COLUMNS)
        if target is None:
            return None
        return [target]
    available = set(columns)
    requested = column_names(requested, available)
    for column in requested:
        if column not in available:
            raise _no_column(column, free, option, requested)
        if column in other_columns:
            raise InputError(
                f"column {column!r} is named as ids, timestamps or covariate, too, and"
                " cannot be a target"
            )
    if not requested:
        raise InputError("no column of values is named")
    return list(requested)


def covariate_roles(
    columns: Collection[Hashable],
    known: Sequence[str] | None,
    past: Sequence[str] | None,
    other_columns: Collection[Hashable | None],
) -> dict[Hashable, str]:
    """Return the columns of covariates and the role of each, past ones first."""
    available = set(columns)
    roles: dict[Hashable, str] = {}
    for role, names in (("past", past), ("known", known)):
        for name in column_names(names or (), available):
            if name not in available:
                free = [column for column in columns if column not in other_columns]
                raise _no_column(name, free, role, names)
            if name in other_columns:
                raise InputError(
                    f"column {name!r} holds the ids or timestamps and cannot be a"
                    " covariate"
                )
            if name in roles:
                raise InputError(
                    f"covariate {name!r} is named twice, as {roles[name]} and as"
                    f" {role}; choose one"
                )
            roles[name] = role
    return roles


def _flat_future(
    future: pd.DataFrame,
    level_names: Sequence[Hashable],
    id_column: Any,
    key: Hashable | None,
    time: Any,
) -> pd.DataFrame:
    """Turn the index of a future into columns named as in the data.

    Returns:
        The future.

    Raises:
        InputError: the future lacks the column of ids or of timestamps.
    """
    unnamed = all(
        name is None for name in future.index.names
    ) and future.index.nlevels == len(level_names)
    # levels without names are those of the data, in their order
    if unnamed and not set(level_names) & set(future.columns):
        future = future.set_axis(future.index.set_names(level_names))
    try:
        later, *_ = flat(future, id_column, time)
    except (InputError, UnknownNameError) as error:
        # of the same class, since callers catch a name that does not exist apart
        raise type(error)(f"future: {error}") from error
    for name, content in ((key, "ids"), (time, "timestamps")):
        if name is not None and name not in later.columns:
            raise InputError(
                f"future has no column {str(name)!r}, which holds the {content} of the"
                f" data; it has {_listed(list(later.columns))}"
            )
    return without_arrow(later)


def _known_in_future(
    frame: pd.DataFrame,
    later: pd.DataFrame,
    keys: Collection[Hashable | None],
    requested: Sequence[str] | None,
    known: Sequence[str] | None,
    past: Sequence[str] | None,
) -> tuple[Sequence[str], list[str]]:
    """Return the columns of covariates that a future makes known.

    Also return notes on columns of the future that are not read.

    Raises:
        InputError: the future holds targets or a covariate without a past, or the data
            do not tell their target.
    """
    # a future may keep an empty column of the target, which holds no value of it
    filled = [
        name for name in later.columns if name not in keys and later[name].notna().any()
    ]
    past_names = column_names(past or (), frame.columns)
    if known is None:
        covariates = [name for name in filled if name not in past_names]
    else:
        covariates = column_names(known, frame.columns)
    for name in _find_targets(
        frame, keys, requested, covariates, past_names, known is not None
    ):
        if name in filled:
            row = later.index[int(later[name].notna().argmax())]
            raise InputError(
                f"future holds values of the target {str(name)!r}, first in row {row};"
                " leave that column out of it. To compare a forecast with them, give"
                " all rows as data and hold the last ones out (holdout=True)"
            )
    for name in covariates:
        if name in filled and name not in frame.columns:
            raise InputError(
                f"future has a column {str(name)!r}, whose past the data do not have;"
                " leave it out, or add it"
            )
    unread = [name for name in filled if name not in covariates]
    notes = []
    if unread:
        notes.append(
            f"not read of future: {_listed(unread)}; known=[…] reads columns as"
            " covariates"
        )
    if len(unread) == len(filled):
        notes.append("future brings no known covariate; only its dates are checked")
    return covariates, notes


def _find_targets(
    frame: pd.DataFrame,
    keys: Collection[Hashable | None],
    requested: Sequence[str] | None,
    covariates: Collection[Hashable],
    past: Collection[Hashable],
    is_known: bool,
) -> Sequence[Hashable]:
    """Return the targets of data that a future continues.

    ``is_known`` says that the user named the covariates; else they are all columns of
    the future that hold values.

    Raises:
        InputError: several columns may be the target, and no name says which.
    """
    if requested is not None:
        return column_names(requested, frame.columns)
    excluded = {*keys, *past}
    if is_known:
        excluded |= set(covariates)
    targets = value_columns(frame.columns, None, excluded)
    if targets is not None:
        return targets
    numeric = [
        name
        for name in frame
        if name not in excluded and pd.api.types.is_numeric_dtype(frame[name])
    ]
    targets = [name for name in numeric if name not in covariates]
    # one column of numbers that the future lacks can only be the target
    if len(targets) > 1:
        raise InputError(
            f"any of the columns {_listed(targets)} may be the target, and future has"
            " none of them; name it with targets=[…], and covariates of the past with"
            " past=[…]"
        )
    # where the future fills all of them, it fills the target
    return targets or numeric


def _check_same_dates(past: pd.Series, ahead: pd.Series, name: str) -> None:
    """Refuse times that are text in one frame alone."""
    frames = {"data": past, "future": ahead}
    are_text = {
        # as objects, since of categories only their type would be told
        frame: pd.api.types.infer_dtype(column.astype(object), skipna=True) == "string"
        for frame, column in frames.items()
    }
    if are_text["data"] == are_text["future"]:
        return
    # the frame of text comes first
    text, other = sorted(frames, key=lambda frame: not are_text[frame])
    column = f"{text}[{name!r}]"
    dtype = frames[other].dtype
    convert = f"pandas.to_datetime({column})"
    if pd.api.types.is_numeric_dtype(dtype):
        convert = f"{column}.astype('{dtype}')"
    raise InputError(
        f"column {name!r} holds text in {text} and {dtype} in {other}; make them the"
        f" same: {column} = {convert}"
    )


def _continued(
    frame: pd.DataFrame,
    later: pd.DataFrame,
    key: Hashable | None,
    names: Sequence[Hashable],
) -> pd.DataFrame:
    """Append the rows of a future, in the columns of ``names`` that it fills.

    Ids become text.

    Returns:
        The rows of data, then those of the future.

    Raises:
        InputError: the future has ids that the data lack.
    """
    columns = [
        name for name in names if name in later.columns and later[name].notna().any()
    ]
    # targets stay out: their rows of the future become NaN in ``concat``
    later = later[columns if key is None else [key, *columns]]
    if key is not None:
        ids = id_texts(frame[key], str(key))
        later_ids = id_texts(later[key], f"{key} of future")
        unknown = sorted(set(later_ids) - set(ids))
        if unknown:
            raise InputError(
                f"future has rows of {_listed(unknown)}, and the data have none; leave"
                f" them out. The data are of {_listed(list(dict.fromkeys(ids)))}"
            )
        # the caller's frame keeps its ids
        frame = frame.copy(deep=False)
        later = later.copy(deep=False)
        frame[key] = ids
        later[key] = later_ids
    # messages name rows by this index
    later = later.set_axis([f"{row} of future" for row in later.index])
    return pd.concat(alike(frame, later))


def _check_order(
    times: Times,
    groups: Sequence[tuple[str, np.ndarray]],
    in_future: np.ndarray,
    index: pd.Index,
) -> None:
    """Refuse rows of a future up to the last time of the data of their series."""
    for name, rows in groups:
        data_rows = rows[~in_future[rows]]
        later_rows = rows[in_future[rows]]
        last = data_rows[times.instants[data_rows].argmax()]
        early = later_rows[times.instants[later_rows] <= times.instants[last]]
        if len(early):
            raise InputError(
                f"future has {time_text(times.clock[early[0]])} of {name!r} (row"
                f" {index[early[0]]}), whose data end at"
                f" {time_text(times.clock[last])}; leave the rows up to there out of"
                " future"
            )


def _late_notes(
    times: Times,
    groups: Sequence[tuple[str, np.ndarray]],
    grids: Sequence[Grid],
    counts: Sequence[int],
) -> list[str]:
    """Note futures that begin later than one step after their data.

    ``counts`` has the number of rows of data of each series. Covariates with such a gap
    are refused elsewhere, by their first step without a number.

    Returns:
        Sentences.
    """
    notes = []
    for (name, rows), grid, count in zip(groups, grids, counts, strict=True):
        if count == len(rows):
            continue
        # the row ``count`` of the sorted ones is the first of the future, see
        # ``_check_order``
        missing = int(grid.positions[count] - grid.positions[count - 1]) - 1
        if missing:
            first = time_text(times.clock[rows[grid.order[count]]])
            noun = "steps"
            if missing == 1:
                noun = "step"
            notes.append(
                f"future of {name!r} begins at {first}, {missing} {noun} later than its"
                " data go on; a forecast begins right after the data"
            )
    return notes


def _named(option: str, *names: str) -> dict[str, Any]:
    """Return an option that names columns, as a reader takes it."""
    if option in LISTS:
        return {option: names}
    return {option: ",".join(names)}


def _no_column(
    name: object,
    columns: Iterable[Hashable],
    option: str,
    requested: Sequence[Hashable] | None = None,
) -> UnknownNameError:
    """Build the error for a column that does not exist, with the nearest as its cure.

    ``requested`` are all names that the option has.

    Returns:
        The error to raise.
    """
    available = [str(column) for column in columns]
    folded = {column.lower(): column for column in available}
    cures = []
    for match in get_close_matches(str(name).lower(), folded, n=3):
        names = [
            folded[match] if item == name else str(item) for item in requested or [name]
        ]
        cures.append(_named(option, *names))
    rest = [str(item) for item in requested or () if item != name]
    if rest:
        cures.append(_named(option, *rest))
    else:
        cures.append({option: None})
    return unknown_name("column", name, available).with_cures(*cures)


def column_names(texts: Sequence[str], columns: Collection[Hashable]) -> list[str]:
    """Split texts into names of columns at commas.

    A text that is itself the name of a column is not split.

    Returns:
        Names of columns.
    """
    # a whole name goes first, since commas occur in names of columns such as "Load, MW"
    name_lists = [[text] if text in columns else text.split(",") for text in texts]
    return [
        name if name in columns else name.strip()
        for names in name_lists
        for name in names
        if name.strip()
    ]


def id_names(id_column: Any, columns: Collection[Hashable]) -> list[Any]:
    """Return the columns of ids, split at commas as :func:`column_names` does.

    Raises:
        UnknownNameError: a column does not exist.
    """
    if id_column is None:
        return []
    # a column may be named by a number or a tuple, which is no list of names
    if isinstance(id_column, Hashable) and id_column in {*columns}:
        return [id_column]
    names = column_names(texts(id_column, "id_column"), columns)
    for name in names:
        if name not in columns:
            raise _no_column(name, columns, "id_column", names)
    return names
