"""Regular time grids: the frequency of times, and the place of each value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tsfm_lens.data.instants import Times
from tsfm_lens.errors import InputError

_SLACK, _FREE = 50, 1000
"""A grid may have _FREE steps and _SLACK for every value; a longer one comes from a mistyped date or frequency."""
_SPARSE = 0.2
"""Step numbers may leave this share of their grid empty; 201752 and 201801 are no such numbers."""
_SCAN_LIMIT = 200
_DAY = 86_400 * 10**9
_LOCAL = 23 * 3600 * 10**9  # from about a day on, steps follow the clock on the wall


@dataclass(frozen=True, eq=False)
class Grid:
    """Regular time grid of a series: rows in order of time, their places, first timestamp, frequency or None."""

    order: np.ndarray
    places: np.ndarray
    start: pd.Timestamp | None
    freq: str | None

    @property
    def length(self) -> int:
        """Number of steps."""
        return int(self.places[-1]) + 1

    def filled(self, values: np.ndarray) -> np.ndarray:
        """Return the values on the grid, NaN in gaps."""
        whole = np.full(self.length, np.nan)
        whole[self.places] = values[self.order]
        return whole


def grids_of(
    times: Times, groups: Sequence[tuple[str, np.ndarray]], rows: pd.Index, freq: str | None
) -> tuple[list[Grid], list[str]]:
    """Return the grid of each series, all of one frequency, and notes on how time was read."""
    notes = [times.note] if times.note else []
    clocks = {"the local clock": times.clock}
    if times.utc is not None:
        steps = np.diff(np.sort(times.utc[groups[0][1]]))
        utc = {"UTC": times.utc}
        clocks = clocks | utc if len(steps) and int(np.median(steps)) >= _LOCAL else utc | clocks
    errors: list[InputError] = []
    for clock, stamps in clocks.items():
        try:
            grids = _all_grids(stamps, groups, rows, freq)
        except InputError as error:
            errors.append(error)
            continue
        if times.utc is not None and clock != "UTC":
            _check_order(times, groups, grids, rows)
        if times.utc is not None and (times.utc != times.clock).any():
            notes.append(f"timestamps have offsets from UTC; the series stand on the grid of {clock}")
        for (group, _), grid in zip(groups, grids, strict=True):
            missing = grid.length - len(grid.places)
            notes += [f"{group}: {missing} missing timestamps were filled with NaN"] if missing else []
        return grids, notes
    raise errors[0]


def _check_order(times: Times, groups: Sequence[tuple[str, np.ndarray]], grids: Sequence[Grid], rows: pd.Index) -> None:
    """Refuse steps that are regular on the local clock and do not go forward in UTC."""
    for (group, rows_of_group), grid in zip(groups, grids, strict=True):
        in_order = rows_of_group[grid.order]
        back = np.flatnonzero(np.diff(times.instants[in_order]) <= np.timedelta64(0))
        if len(back):
            pair = in_order[back[0] : back[0] + 2]
            clock, utc = (" to ".join(map(_text, stamps[pair])) for stamps in (times.clock, times.instants))
            raise InputError(
                f"series {group!r} goes from {clock} on the local clock (rows {rows[pair[0]]} and {rows[pair[1]]}), "
                f"but from {utc} in UTC; one of the offsets is wrong"
            )


def _all_grids(
    stamps: np.ndarray, groups: Sequence[tuple[str, np.ndarray]], rows: pd.Index, freq: str | None
) -> list[Grid]:
    # the series of a panel mostly share their times
    cache: dict[tuple[bytes, str | None], Grid] = {}

    def grid(group: str, rows_of_group: np.ndarray, step: str | None) -> Grid:
        times = stamps[rows_of_group]
        key = (times.tobytes(), step)
        if key not in cache:
            cache[key] = _grid(times, rows[rows_of_group], group, step)
        return cache[key]

    grids = [grid(*group, freq) for group in groups]
    freqs = sorted({each.freq for each in grids if each.freq is not None})
    if len(freqs) > 1:
        raise InputError(
            f"the series have different frequencies ({', '.join(freqs)}); read them in batches of one frequency each"
        )
    # of fewer than three timestamps nothing can be inferred; they are to fit the others' grid
    step = freqs[0] if freqs else None
    return [each if each.freq == step else grid(*group, step) for each, group in zip(grids, groups, strict=True)]


def _grid(times: np.ndarray, rows: pd.Index, name: str, freq: str | None) -> Grid:
    """Find the grid of one series from its datetime64[ns] or step numbers; messages name its rows."""
    order = np.argsort(times, kind="stable")
    times, rows = times[order], rows[order]
    same = np.flatnonzero(times[1:] == times[:-1])
    if len(same):
        first = same[0]
        raise InputError(
            f"series {name!r} has two values at {_text(times[first])} (rows {rows[first]} and {rows[first + 1]}); if "
            "its rows are of several series, name the column of their ids with id_column=…"
        )
    start, alias = None, freq
    if times.dtype.kind != "M":
        step, places = _step_places(times, name)
    else:
        start, index = pd.Timestamp(times[0]), pd.DatetimeIndex(times)
        alias = freq or (_frequency(index) if len(index) > 2 else None)
        if alias is None and len(index) > 2:
            raise InputError(
                f"series {name!r} has irregular timestamps ({index[0]}, {index[1]}, {index[2]}, …) and no frequency "
                "can be inferred; give freq=…, or resample it first"
            )
        step = f"frequency {alias!r}"
        places = np.arange(len(index)) if alias is None else _date_places(index, alias, name, rows)
    _check_length(places, times, rows, name, step)
    return Grid(order, places, start, alias)


def _text(time: np.generic) -> str:
    return str(pd.Timestamp(time)) if isinstance(time, np.datetime64) else f"step {time}"


def _step_places(times: np.ndarray, name: str) -> tuple[str, np.ndarray]:
    """Place step numbers on the grid of their commonest distance."""
    if len(times) == 1:
        return "step 1", np.zeros(1, dtype=np.int64)
    sizes, counts = np.unique(np.diff(times), return_counts=True)
    step = sizes[np.argmax(counts)] if times.dtype.kind == "i" else np.median(np.diff(times))
    exact = (times - times[0]) / step
    places = np.round(exact)
    # sums of a broken step are off by rounding, of the largest number
    slack = 0 if times.dtype.kind == "i" else 8 * np.finfo(float).eps * np.abs(times).max() / step + 1e-6
    wrong = np.flatnonzero(np.abs(exact - places) > slack)
    if len(wrong) or (np.diff(places) < 1).any():
        at = times[wrong[0]] if len(wrong) else times[0]
        raise InputError(
            f"series {name!r} has a value at step {at}, which is off the regular steps of {step} from {times[0]}; "
            "resample it first, or write the times as dates such as 2017-12-25"
        )
    return f"step {step}", places.astype(np.int64)


def _date_places(index: pd.DatetimeIndex, freq: str, name: str, rows: pd.Index) -> np.ndarray:
    """Place sorted timestamps on the grid of a frequency that begins with the first."""
    offset = pd.tseries.frequencies.to_offset(freq)
    first = index[0]
    if isinstance(offset, pd.offsets.Tick):
        since = index.asi8.view(np.uint64)
        places, rest = np.divmod(since - since[0], np.uint64(offset.nanos))
        off = np.flatnonzero(rest)
    else:
        ends = [0, -1]
        try:
            step = max((first + 12 * offset).value - first.value, _DAY) / 12
        except (ValueError, OverflowError):
            step = np.inf  # the last date of pandas is near
        about = int((index[-1].value - first.value) / step)
        # a calendar's steps are counted only once they are known to be few
        if about > 2 * (_FREE + _SLACK * len(index)):
            _check_length(np.array([0, about]), index.to_numpy()[ends], rows[ends], name, f"frequency {freq!r}")
        try:
            grid = pd.date_range(first, index[-1], freq=freq)
        except (ValueError, OverflowError) as error:
            raise InputError(
                f"series {name!r} cannot stand on a grid of frequency {freq!r} from {first} to {index[-1]}: {error}"
            ) from error
        places = grid.get_indexer(index)
        off = np.flatnonzero(places < 0)
    if len(off):
        raise InputError(
            f"series {name!r} has a value at {index[off[0]]} (row {rows[off[0]]}), which is off the regular grid of "
            f"frequency {freq!r}"
        )
    return np.asarray(places, dtype=np.int64)


def _check_length(places: np.ndarray, times: np.ndarray, rows: pd.Index, name: str, step: str) -> None:
    """Refuse a grid that is mostly empty, naming its widest gap."""
    length, values = int(places[-1]) + 1, len(places)
    sparse = times.dtype.kind != "M" and length - values > _SPARSE * length
    if values < 2 or (length <= _FREE + _SLACK * values and not sparse):
        return
    cure = "Mend the time that is mistyped, give the true freq=…, or cut the series in two"
    if sparse:
        cure = (
            "The numbers of the time column may be years with weeks, months or quarters: write them as dates such as "
            "2017-12-25, leave the column out to read the values one after the other, or give missing steps their rows"
        )
    widest = int(np.argmax(np.diff(places)))
    before, after = (f"{_text(times[place])} (row {rows[place]})" for place in (widest, widest + 1))
    raise InputError(
        f"series {name!r} has {values} values on a grid of {length} steps with {step}: between {before} and {after} "
        f"{int(places[widest + 1] - places[widest]) - 1} are missing. {cure}"
    )


def _frequency(index: pd.DatetimeIndex) -> str | None:
    """Infer the frequency of sorted timestamps, with gaps from the first stretches without; None if irregular."""
    # int64 ends at 292 years
    steps = np.diff(index.asi8.view(np.uint64))
    if (steps == steps[0]).all() and steps[0] < _DAY:
        return str(pd.tseries.frequencies.to_offset(pd.Timedelta(int(steps[0]), "ns")).freqstr)
    sizes, counts = np.unique(steps, return_counts=True)
    pairs = np.flatnonzero((steps[:-1] == steps[1:]) & (steps[1:] == sizes[np.argmax(counts)]))
    stretches = [index, *(index[first : first + 3] for first in pairs[:_SCAN_LIMIT])]
    stretches += [index[first : first + 12] for first in range(min(len(index) - 11, _SCAN_LIMIT))]
    return next((str(freq) for stretch in stretches if (freq := pd.infer_freq(stretch))), None)
