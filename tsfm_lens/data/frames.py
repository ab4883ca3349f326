"""Conversion of long pandas frames into series."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.data.batch import SeriesBatch, known_frequency
from tsfm_lens.data.floats import to_floats
from tsfm_lens.data.formulas import NUMBER
from tsfm_lens.data.frame_covariates import chosen_covariates, columns_of_covariates, with_covariates
from tsfm_lens.data.grid import Grid, grid_of
from tsfm_lens.data.headers import TARGET_COLUMNS, kind_of
from tsfm_lens.data.instants import Times, looks_like_dates, times_of
from tsfm_lens.data.labels import id_texts
from tsfm_lens.data.layout import dated_column, flat, key_and_time, value_columns
from tsfm_lens.data.tables import without_arrow
from tsfm_lens.errors import InputError

_NUMBER = re.compile(NUMBER)
_LOCAL = 23 * 3600 * 10**9  # from about a day on, steps follow the clock on the wall


def from_frame(
    frame: pd.DataFrame,
    *,
    freq: str | None = None,
    targets: Sequence[str] | None = None,
    variates: Sequence[str] | None = None,
    id_column: str | None = None,
    time_column: str | None = None,
    known: Sequence[str] | None = None,
    past: Sequence[str] | None = None,
) -> SeriesBatch:
    """Read the series of a long frame.

    Columns: an id (``id``, ``item_id``, ``unique_id`` …; one series if there is none), a timestamp
    (``timestamp``, ``ds``, ``date`` …, or the only column of dates; optional), and the target (``target``, ``y``,
    ``value``). An index of ids and timestamps, as AutoGluon's TimeSeriesDataFrame has, counts as such columns. A frame
    without any of these names is read as one series per numeric column. Ids become text. Timestamps are read by
    :func:`tsfm_lens.data.instants.times_of`. Timestamps with zones use the grid of UTC, or of the local clock if steps
    are of a day or longer; if only the other grid is regular, they use that one. Gaps in regular timestamps become NaN.
    The batch's notes record these choices and the columns that are not read.

    Covariates are columns of numbers or text. Each target gets its own group with copies of them; all variates of an
    item form one group. With known covariates the context ends at the last value of the targets. Later values of the
    known covariates are their future.

    Args:
        frame: it is not changed.
        freq: pandas frequency alias; inferred if None.
        targets: the columns to read; with several, ids become ``id/column``.
        variates: columns to read in place of targets, as the variates of one group per id; ids become
            ``id/column``.
        id_column: whose values tell the series apart; found by its name if None.
        time_column: of the timestamps; found by its name if None.
        known: columns of covariates whose future is known.
        past: columns of covariates that are seen up to the end of the context.

    Raises:
        InputError: the frame is empty, values are not numbers, timestamps repeat or are irregular, targets and
            variates are both given, a covariate is a target too or has gaps in its future, or text that looks like
            ids or dates would not be read.
        UnknownNameError: a column that is named does not exist.

    Example:
        >>> frame = pd.DataFrame({"id": ["a", "a", "b", "b"], "target": [1.0, 2.0, 3.0, 4.0]})
        >>> data.from_frame(frame).ids
        ('a', 'b')
    """
    freq = None if freq is None else known_frequency(freq)
    frame, id_column, time_column, notes = flat(frame, id_column, time_column)
    frame = without_arrow(frame)
    key, time = key_and_time(frame.columns, id_column, time_column)
    if targets is not None and variates is not None:
        raise InputError("give targets=… for columns that are series of their own or variates=…, not both")
    multivariate = variates is not None
    if time is None:
        time = dated_column(frame, {key, *chain.from_iterable(filter(None, (targets, variates, known, past)))})
        notes += [] if time is None else [f"column {str(time)!r} is read as the timestamps"]
    roles = chosen_covariates(frame.columns, known, past, {time, key})
    columns = _values(frame, variates if multivariate else targets, {time, key, *roles})
    times = None if time is None else times_of(_digits(frame[time]), str(time))
    ids = None if key is None else id_texts(frame[key], str(key))
    in_use = {key, time, *columns, *roles}
    unread = [column for column in frame.columns if column not in in_use]
    _check_unread(frame, unread, ids, times)
    # a caller who names columns has chosen them
    notes += _note_unread(frame, unread) if targets is None and variates is None else []
    groups = [("series-0" if multivariate or roles else "", np.arange(len(frame)))] if ids is None else _groups(ids)
    grids: list[Grid] | None = None
    if times is not None:
        groups_by_name = [(group or str(columns[0]), rows) for group, rows in groups]
        grids, more = _on_grids(times, groups_by_name, frame.index, freq)
        notes += more
    numbers = _all_numbers(frame, columns)
    if roles:
        targets_of = [tuple(columns)] if multivariate else [(column,) for column in columns]
        covariates = columns_of_covariates(frame, roles, _numbers)
        return with_covariates(groups, grids, targets_of, numbers, covariates, notes, frame.index)
    values: list[np.ndarray] = []
    names: list[str] = []
    for place, (group, rows) in enumerate(groups):
        for column in columns:
            names.append(f"{group}/{column}" if multivariate else _name(group, column, len(columns)))
            series = numbers[column][rows]
            values.append(series if grids is None else grids[place].filled(series))
    return SeriesBatch(
        tuple(values),
        tuple(names),
        freq if grids is None else grids[0].freq,
        () if grids is None else tuple(grid.start for grid in grids for _ in columns),
        notes=tuple(notes),
        groups=tuple(group for group, _ in groups for _ in columns) if multivariate else (),
        variates=tuple(map(str, columns)) * len(groups) if multivariate else (),
    )


def _on_grids(
    times: Times, groups: Sequence[tuple[str, np.ndarray]], rows: pd.Index, freq: str | None
) -> tuple[list[Grid], list[str]]:
    """Return the grid of each series, all of one frequency, and notes on how time was read.

    Raises:
        InputError: a series has no regular grid, or their frequencies differ.
    """
    notes = [times.note] if times.note else []
    clocks = {"the local clock": times.clock}
    if times.utc is not None:
        steps = np.diff(np.sort(times.utc[groups[0][1]]))
        local = len(steps) > 0 and int(np.median(steps)) >= _LOCAL
        clocks = {"UTC": times.utc, **clocks}
        clocks = dict(sorted(clocks.items(), key=lambda item: (item[0] == "UTC") == local))
    first_error: InputError | None = None
    for clock, stamps in clocks.items():
        try:
            grids = _all_grids(stamps, groups, rows, freq, times.doubtful)
        except InputError as error:
            first_error = first_error or error
            continue
        if times.utc is not None and clock != "UTC":
            _check_order(times, groups, grids, rows)
        if times.utc is not None and (times.utc != times.clock).any():
            notes.append(f"timestamps have offsets from UTC; the series stand on the grid of {clock}")
        for (group, _), grid in zip(groups, grids, strict=True):
            if grid.missing:
                notes.append(f"{group}: {grid.missing} missing timestamps were filled with NaN")
        return grids, notes
    assert first_error is not None
    raise first_error


def _check_order(times: Times, groups: Sequence[tuple[str, np.ndarray]], grids: Sequence[Grid], rows: pd.Index) -> None:
    """Refuse steps on a local clock that are regular there and do not go forward in UTC.

    Raises:
        InputError: an offset is wrong.
    """
    assert times.utc is not None
    for (group, rows_of_group), grid in zip(groups, grids, strict=True):
        in_order = rows_of_group[grid.order]
        back = np.flatnonzero(np.diff(times.utc[in_order]) <= np.timedelta64(0))
        if len(back):
            pair = in_order[back[0] : back[0] + 2]
            clock, utc = ([str(pd.Timestamp(time)) for time in stamps[pair]] for stamps in (times.clock, times.utc))
            raise InputError(
                f"series {group!r} goes from {clock[0]} to {clock[1]} on the local clock (rows {rows[pair[0]]} and "
                f"{rows[pair[1]]}), but from {utc[0]} to {utc[1]} in UTC; one of the offsets is wrong"
            )


def _all_grids(
    stamps: np.ndarray, groups: Sequence[tuple[str, np.ndarray]], rows: pd.Index, freq: str | None, doubtful: bool
) -> list[Grid]:
    # the series of a panel mostly share their times
    cache: dict[bytes, Grid] = {}

    def grid(group: str, rows_of_group: np.ndarray, step: str | None) -> Grid:
        times = stamps[rows_of_group]
        entry = cache.get(times.tobytes())
        if entry is None or (step is not None and entry.freq != step):
            entry = cache[times.tobytes()] = grid_of(times, rows[rows_of_group], group, step, doubtful)
        return entry

    grids = [grid(group, rows_of_group, freq) for group, rows_of_group in groups]
    freqs = sorted({each.freq for each in grids if each.freq is not None})
    if len(freqs) > 1:
        raise InputError(
            f"the series have different frequencies ({', '.join(freqs)}); read them in batches of one frequency each"
        )
    if freqs and freq is None:
        # of fewer than three timestamps nothing can be inferred; they are to fit the others' grid
        grids = [
            each if each.freq is not None else grid(group, rows_of_group, freqs[0])
            for each, (group, rows_of_group) in zip(grids, groups, strict=True)
        ]
    return grids


def _digits(column: pd.Series) -> pd.Series:
    """Return the column that times are read from, with decimals as text."""
    return column.map(str, na_action="ignore") if isinstance(column.dtype, pd.ArrowDtype) else column


def _all_numbers(frame: pd.DataFrame, columns: Sequence[Hashable]) -> dict[Hashable, np.ndarray]:
    kinds: dict[Hashable, Any] = dict(zip(frame.columns, frame.dtypes, strict=True))
    if all(isinstance(kinds[column], np.dtype) and kinds[column].kind == "f" for column in columns):
        # one by one, a hundred thousand columns take a minute
        return dict(zip(columns, frame[list(columns)].to_numpy(dtype=np.float64).T, strict=True))
    return {column: _numbers(frame[column], str(column)) for column in columns}


def _numbers(column: pd.Series, name: str) -> np.ndarray:
    """Convert the column into the nearest float64; text that reads as a number counts as one."""
    if isinstance(column.dtype, pd.CategoricalDtype | pd.StringDtype) or column.dtype == object:
        cells = column.to_numpy(dtype=object, copy=True)
        texts = {place: cell for place, cell in enumerate(cells) if isinstance(cell, str)}
        odd = next((place for place, text in texts.items() if not _NUMBER.fullmatch(text.strip())), None)
        if odd is not None:
            raise InputError(f"column {name!r} holds {texts[odd]!r} in row {column.index[odd]}, which is not a number")
        cells[list(texts)] = list(map(float, texts.values()))
        return to_floats(cells, f"column {name!r}")
    return to_floats(column.to_numpy(), f"column {name!r}")


def _check_unread(frame: pd.DataFrame, unread: Sequence[Hashable], ids: np.ndarray | None, times: Times | None) -> None:
    """Refuse to merge series that differ in a column of text.

    Ids and timestamps that never repeat are enough; other text is then a label of the rows.

    Raises:
        InputError: rows of one series differ in text that is not read.
    """
    groups = np.zeros(len(frame)) if ids is None else ids
    if times is not None and not pd.DataFrame({"id": groups, "time": times.instants}).duplicated().any():
        return
    texts = {
        column: frame[column].astype(str).where(frame[column].notna())
        for column in unread
        if not pd.api.types.is_numeric_dtype(frame[column])
    }
    conflicts = {column: text for column, text in texts.items() if text.groupby(groups).nunique().max() > 1}
    if not conflicts:
        return
    descriptions: list[str] = []
    options: dict[str, str] = {}
    for column, text in conflicts.items():
        dates = looks_like_dates(text)
        descriptions.append(f"{str(column)!r} ({'dates' if dates else 'text'} such as {text.dropna().iloc[0]!r})")
        options.setdefault("time_column" if dates else "id_column", str(column))
    raise InputError(
        f"rows differ in {', '.join(descriptions)}: if that is not read, different series run together. Name the "
        f"columns with {', '.join(f'{option}={name!r}' for option, name in options.items())}, rename them (id, "
        "timestamp), or leave them out"
    )


def _note_unread(frame: pd.DataFrame, unread: Sequence[Hashable]) -> list[str]:
    if not unread:
        return []
    descriptions = []
    for column in unread:
        # what keeps a column from being one of numbers; it may be a damaged cell
        text = next((cell for cell in frame[column] if isinstance(cell, str) and kind_of(cell) == "text"), None)
        descriptions.append(f"{str(column)!r}" + ("" if text is None else f" (text such as {text[:60]!r})"))
    note = f"not read: {'columns' if len(unread) > 1 else 'column'} {', '.join(descriptions)}"
    if any(pd.api.types.is_numeric_dtype(frame[column]) for column in unread):
        note += "; targets=[…] reads columns as series of their own, variates=[…] as the variates of one item"
    return [note]


def _values(frame: pd.DataFrame, names: Sequence[str] | None, others: set[Hashable | None]) -> list[Hashable]:
    columns = value_columns(frame.columns, names, others)
    if columns is not None:
        return columns
    free: list[Hashable] = [column for column in frame.columns if column not in others]
    kinds: dict[Hashable, Any] = dict(zip(frame.columns, frame.dtypes, strict=True))
    numeric = [column for column in free if pd.api.types.is_numeric_dtype(kinds[column])]
    if numeric:
        return numeric
    if len(free) == 1:
        return free  # its first value that is no number will be named
    raise InputError(
        f"no column holds the values: expected one of {', '.join(TARGET_COLUMNS)}, or numeric columns; "
        f"found {', '.join(map(str, frame.columns))}"
    )


def _groups(ids: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Return each id with its rows, in order of first appearance."""
    codes, names = pd.factorize(ids)
    rows = np.argsort(codes, kind="stable")
    return list(zip(map(str, names), np.split(rows, np.cumsum(np.bincount(codes))[:-1]), strict=True))


def _name(group: str, column: Hashable, n_columns: int) -> str:
    if not group:
        return str(column)
    return f"{group}/{column}" if n_columns > 1 else group
