"""Long pandas frames as series."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Sequence

import numpy as np
import pandas as pd

from tsfm_lens.data.batch import SeriesBatch, to_floats
from tsfm_lens.errors import InputError, unknown_name

ID_COLUMNS = ("id", "item_id", "unique_id", "series_id", "series")
TIME_COLUMNS = ("timestamp", "ds", "date", "datetime", "time")
TARGET_COLUMNS = ("target", "y", "value", "values")


def from_frame(
    frame: pd.DataFrame,
    *,
    freq: str | None = None,
    targets: Sequence[str] | None = None,
    variates: Sequence[str] | None = None,
    id_column: str | None = None,
    time_column: str | None = None,
) -> SeriesBatch:
    """Series of a long frame.

    Columns: an id (``id``, ``item_id``, ``unique_id`` …; one series if there is none), a timestamp
    (``timestamp``, ``ds``, ``date`` …; optional), and the target (``target``, ``y``, ``value``). A frame
    without any of these names is read as one series a numeric column. Gaps in regular timestamps become NaN,
    which the batch's notes say, as they name columns that are not read.

    Args:
        frame: it is not changed.
        freq: pandas frequency alias; inferred if None.
        targets: the columns to read; with several, ids become ``id/column``.
        variates: columns to read in place of targets, as the variates of one group an id; ids become
            ``id/column``.
        id_column: whose values tell the series apart; found by its name if None.
        time_column: of the timestamps; found by its name if None.

    Raises:
        InputError: the frame is empty, values are not numbers, timestamps repeat or are irregular, targets and
            variates are both given, or text that looks like ids or dates would not be read.
        UnknownNameError: a column that is named does not exist.
    """
    if frame.empty:
        raise InputError(f"the frame has no rows (columns: {', '.join(map(str, frame.columns)) or 'none'})")
    frame = frame if isinstance(frame.columns, pd.Index) else pd.DataFrame(frame)
    if frame.columns.has_duplicates:
        raise InputError(f"the frame has two columns {str(frame.columns[frame.columns.duplicated()][0])!r}")
    key, time = _key_and_time(frame, id_column, time_column)
    if time is None and isinstance(frame.index, pd.DatetimeIndex):
        frame = frame.rename_axis("timestamp").reset_index()
        time = "timestamp"
    if targets is not None and variates is not None:
        raise InputError("give targets=… for columns that are series of their own or variates=…, not both")
    together = variates is not None
    columns = _targets(frame, variates if together else targets, {time, key})
    stamps = None if time is None else _timestamps(frame[time], str(time))
    unread = [column for column in frame.columns if column not in {key, time, *columns}]
    _check_unread(frame, unread, key, stamps)
    only = [("series-0" if together else "", np.arange(len(frame)))]
    groups = only if key is None else _groups(frame[key], str(key))
    values: list[np.ndarray] = []
    names: list[str] = []
    starts: list[pd.Timestamp | None] = []
    # who names columns has chosen
    notes = _note_unread(frame, unread) if targets is None and variates is None else []
    found: set[str | None] = set()
    for group, rows in groups:
        for column in columns:
            name = f"{group}/{column}" if together else _name(group, column, len(columns))
            series = _numbers(frame[column].iloc[rows], name)
            if stamps is None:
                values.append(series)
                starts.append(None)
            else:
                series, start, step, note = _regular(series, stamps.iloc[rows], name, freq)
                values.append(series)
                starts.append(start)
                found.add(step)
                notes += note
            names.append(name)
    shared = found.pop() if len(found) == 1 else None
    if len(found) > 0:
        raise InputError(
            f"the series have different frequencies ({', '.join(map(str, sorted(map(str, found))))} …); "
            "read them in batches of one frequency each"
        )
    return SeriesBatch(
        tuple(values),
        tuple(names),
        shared or freq,
        tuple(starts),
        notes=tuple(notes),
        groups=tuple(group for group, _ in groups for _ in columns) if together else (),
        variates=tuple(map(str, columns)) * len(groups) if together else (),
    )


def _numbers(column: pd.Series, name: str) -> np.ndarray:
    """The column as float64; text that reads as a number counts as one."""
    if column.dtype == object:
        numeric = pd.to_numeric(column, errors="coerce")
        wrong = np.flatnonzero((numeric.isna() & column.notna()).to_numpy())
        if len(wrong):
            raise InputError(
                f"series {name!r} holds {column.iloc[wrong[0]]!r} in row {column.index[wrong[0]]} of column "
                f"{column.name!r}, which is not a number"
            )
        column = numeric
    return to_floats(column.to_numpy(), f"series {name!r}")


def _key_and_time(
    frame: pd.DataFrame, id_column: str | None, time_column: str | None
) -> tuple[Hashable | None, Hashable | None]:
    """The columns of ids and timestamps: those asked for, or those of a known name.

    Raises:
        UnknownNameError: no such column.
        InputError: they are the same.
    """
    for asked in (id_column, time_column):
        if asked is not None and asked not in frame.columns:
            raise unknown_name("column", asked, map(str, frame.columns))
    if id_column is not None and id_column == time_column:
        raise InputError(f"column {id_column!r} cannot hold both the ids and the timestamps")
    key: Hashable | None = id_column
    time: Hashable | None = time_column
    if key is None:
        key = _find([column for column in frame.columns if column != time], ID_COLUMNS)
    if time is None:
        time = _find([column for column in frame.columns if column != key], TIME_COLUMNS)
    return key, time


def _check_unread(
    frame: pd.DataFrame, unread: Sequence[Hashable], key: Hashable | None, stamps: pd.Series | None
) -> None:
    """Refuse to run series together that a column of text tells apart.

    Ids and timestamps that never repeat are enough; other text is then a label of the rows.

    Raises:
        InputError: rows of one series differ in text that is not read.
    """
    groups = np.zeros(len(frame)) if key is None else frame[key].astype(str).to_numpy()
    if stamps is not None and not pd.DataFrame({"id": groups, "time": stamps.to_numpy()}).duplicated().any():
        return
    texts = {
        column: frame[column].astype(str).where(frame[column].notna())
        for column in unread
        if not pd.api.types.is_numeric_dtype(frame[column])
    }
    differing = {column: text for column, text in texts.items() if text.groupby(groups).nunique().max() > 1}
    if not differing:
        return
    shown: list[str] = []
    options: dict[str, str] = {}
    for column, text in differing.items():
        dates = _holds_dates(text)
        shown.append(f"{str(column)!r} ({'dates' if dates else 'text'} such as {text.dropna().iloc[0]!r})")
        options.setdefault("time_column" if dates else "id_column", str(column))
    raise InputError(
        f"rows differ in {', '.join(shown)}: if that is not read, different series run together. Name the "
        f"columns with {', '.join(f'{option}={name!r}' for option, name in options.items())}, rename them (id, "
        "timestamp), or leave them out"
    )


def _holds_dates(text: pd.Series) -> bool:
    """Whether the first values are dates."""
    first = text.dropna().head(20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return bool(pd.to_datetime(first, errors="coerce").notna().all())


def _note_unread(frame: pd.DataFrame, unread: Sequence[Hashable]) -> list[str]:
    if not unread:
        return []
    note = f"not read: {'columns' if len(unread) > 1 else 'column'} {', '.join(repr(str(column)) for column in unread)}"
    if any(pd.api.types.is_numeric_dtype(frame[column]) for column in unread):
        note += "; targets=[…] reads columns as series of their own, variates=[…] as the variates of one item"
    return [note]


def _find(columns: Iterable[Hashable], names: Sequence[str]) -> Hashable | None:
    lower = {str(column).strip().lower(): column for column in columns}
    return next((lower[name] for name in names if name in lower), None)


def _targets(frame: pd.DataFrame, wanted: Sequence[str] | None, taken: set[Hashable | None]) -> list[Hashable]:
    free: list[Hashable] = [column for column in frame.columns if column not in taken]
    if wanted is not None:
        for column in wanted:
            if column not in frame.columns:
                raise unknown_name("column", column, map(str, free))
        return list(wanted)
    named = _find(free, TARGET_COLUMNS)
    if named is not None:
        return [named]
    numeric = [column for column in free if pd.api.types.is_numeric_dtype(frame[column])]
    if numeric:
        return numeric
    if len(free) == 1:
        return free  # its first value that is no number will be named
    raise InputError(
        f"no column holds the values: expected one of {', '.join(TARGET_COLUMNS)}, or numeric columns; "
        f"found {', '.join(map(str, frame.columns))}"
    )


def _groups(column: pd.Series, name: str) -> list[tuple[str, np.ndarray]]:
    if column.isna().any():
        raise InputError(f"column {name!r} has no id in row {int(np.flatnonzero(column.isna())[0])}")
    codes, names = pd.factorize(column.astype(str))
    return [(str(group), np.flatnonzero(codes == code)) for code, group in enumerate(names)]


def _name(group: str, column: Hashable, n_columns: int) -> str:
    if not group:
        return str(column)
    return f"{group}/{column}" if n_columns > 1 else group


def _timestamps(column: pd.Series, name: str) -> pd.Series:
    try:
        stamps = pd.to_datetime(column)
    except (ValueError, TypeError, pd.errors.OutOfBoundsDatetime) as error:
        raise InputError(f"column {name!r} holds no timestamps: {error}") from error
    if stamps.isna().any():
        raise InputError(f"column {name!r} has no timestamp in row {int(np.flatnonzero(stamps.isna())[0])}")
    if getattr(stamps.dt, "tz", None) is not None:
        # local clocks jump with daylight saving; UTC is regular
        stamps = stamps.dt.tz_convert("UTC").dt.tz_localize(None)
    return stamps


def _regular(
    series: np.ndarray, stamps: pd.Series, name: str, freq: str | None
) -> tuple[np.ndarray, pd.Timestamp, str | None, list[str]]:
    """Values on the regular grid of their timestamps, its start and frequency, and a note on filled gaps."""
    order = np.argsort(stamps.to_numpy(), kind="stable")
    index = pd.DatetimeIndex(stamps.to_numpy()[order])
    series = series[order]
    if index.has_duplicates:
        raise InputError(
            f"series {name!r} has two values at {index[index.duplicated()][0]}; if its rows are of several "
            "series, name the column of their ids with id_column=…"
        )
    if len(index) < 3 and freq is None:
        return series, index[0], None, []
    step = freq or pd.infer_freq(index) or _frequency_with_gaps(index)
    if step is None:
        raise InputError(
            f"series {name!r} has irregular timestamps ({index[0]}, {index[1]}, {index[2]}, …) and no frequency can "
            "be inferred; give freq=…, or resample it first"
        )
    grid = pd.date_range(index[0], index[-1], freq=step)
    if len(grid) == len(index) and (grid == index).all():
        return series, index[0], step, []
    if not index.isin(grid).all():
        off = index[~index.isin(grid)][0]
        raise InputError(f"series {name!r} has a value at {off}, which is off the regular grid of frequency {step!r}")
    filled = np.full(len(grid), np.nan)
    filled[grid.get_indexer(index)] = series
    return filled, index[0], step, [f"{name}: {len(grid) - len(index)} missing timestamps were filled with NaN"]


def _frequency_with_gaps(index: pd.DatetimeIndex) -> str | None:
    """The frequency of the commonest run of regular steps, for timestamps with gaps."""
    steps = np.diff(index.asi8)
    common = int(pd.Series(steps).mode().iloc[0])
    for first in range(len(index) - 2):
        found = pd.infer_freq(index[first : first + 3]) if (steps[first : first + 2] == common).all() else None
        if found:
            return found
    return next(
        (pd.infer_freq(index[a : a + 12]) for a in range(len(index) - 11) if pd.infer_freq(index[a : a + 12])), None
    )
