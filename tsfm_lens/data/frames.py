"""Long pandas frames as series."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

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
) -> SeriesBatch:
    """Series of a long frame.

    Columns: an id (``id``, ``item_id``, ``unique_id`` …; one series if there is none), a timestamp
    (``timestamp``, ``ds``, ``date`` …; optional), and the target (``target``, ``y``, ``value``). A frame
    without any of these names is read as one series a numeric column. Gaps in regular timestamps become NaN,
    which the batch's notes say.

    Args:
        frame: it is not changed.
        freq: pandas frequency alias; inferred if None.
        targets: the columns to read; with several, ids become ``id/column``.
        variates: columns to read in place of targets, as the variates of one group an id; ids become
            ``id/column``.

    Raises:
        InputError: the frame is empty, values are not numbers, timestamps repeat or are irregular, or targets
            and variates are both given.
        UnknownNameError: a target column does not exist.
    """
    if frame.empty:
        raise InputError(f"the frame has no rows (columns: {', '.join(map(str, frame.columns)) or 'none'})")
    frame = frame if isinstance(frame.columns, pd.Index) else pd.DataFrame(frame)
    time = _find(frame, TIME_COLUMNS)
    if time is None and isinstance(frame.index, pd.DatetimeIndex):
        frame = frame.rename_axis("timestamp").reset_index()
        time = "timestamp"
    key = _find(frame, ID_COLUMNS)
    if targets is not None and variates is not None:
        raise InputError("give targets=… for columns that are series of their own or variates=…, not both")
    together = variates is not None
    columns = _targets(frame, variates if together else targets, {time, key})
    stamps = None if time is None else _timestamps(frame[time], str(time))
    only = [("series-0" if together else "", np.arange(len(frame)))]
    groups = only if key is None else _groups(frame[key], str(key))
    values: list[np.ndarray] = []
    names: list[str] = []
    starts: list[pd.Timestamp | None] = []
    notes: list[str] = []
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


def _find(frame: pd.DataFrame, names: Sequence[str]) -> Hashable | None:
    lower = {str(column).strip().lower(): column for column in frame.columns}
    return next((lower[name] for name in names if name in lower), None)


def _targets(frame: pd.DataFrame, wanted: Sequence[str] | None, taken: set[Hashable | None]) -> list[Hashable]:
    free: list[Hashable] = [column for column in frame.columns if column not in taken]
    if wanted is not None:
        for column in wanted:
            if column not in frame.columns:
                raise unknown_name("column", column, map(str, free))
        return list(wanted)
    named = _find(frame, TARGET_COLUMNS)
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
        raise InputError(f"series {name!r} has two values at {index[index.duplicated()][0]}")
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
