"""Regular time grids: the frequency of times, and the place of each value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tsfm_lens.errors import InputError

SLACK, FREE = 50, 1000
"""A grid may have FREE steps and SLACK for every value; a longer one comes from a mistyped date or frequency."""
SPARSE = 0.2
"""Numbers may leave this share of a grid of steps, years or months empty; 201752 and 201801 are no such numbers."""
_SCAN_LIMIT = 200
_DAY = 86_400 * 10**9


@dataclass(frozen=True, eq=False)
class Grid:
    """Regular time grid of a series, and the place of each of its values on it.

    Attributes:
        order: rows in order of time.
        places: position of each of them on the grid.
        length: steps of the grid.
        start: first timestamp, None of step numbers.
        freq: pandas alias, None if unknown.
    """

    order: np.ndarray
    places: np.ndarray
    length: int
    start: pd.Timestamp | None
    freq: str | None

    def filled(self, values: np.ndarray) -> np.ndarray:
        """Return the values on the grid, NaN in gaps."""
        whole = np.full(self.length, np.nan)
        whole[self.places] = values[self.order]
        return whole

    @property
    def missing(self) -> int:
        """Number of steps without a value."""
        return self.length - len(self.places)


def grid_of(times: np.ndarray, rows: pd.Index, name: str, freq: str | None, doubtful: bool = False) -> Grid:
    """Find the grid of one series.

    Args:
        times: datetime64[ns], or step numbers.
        rows: name of each row in messages.
        name: of the series.
        freq: pandas alias; inferred if None.
        doubtful: true of times read from numbers that may mean something else.

    Raises:
        InputError: two values have one time, the times are irregular, or most of the grid would be empty, or a fifth
            of it where times are doubtful; the message has the times and rows.
    """
    order = np.argsort(times, kind="stable")
    in_order = times[order]
    same = np.flatnonzero(in_order[1:] == in_order[:-1])
    if len(same):
        both = " and ".join(str(rows[order[place]]) for place in (same[0], same[0] + 1))
        raise InputError(
            f"series {name!r} has two values at {_text(in_order[same[0]])} (rows {both}); if its rows are of several "
            "series, name the column of their ids with id_column=…"
        )
    if in_order.dtype.kind != "M":
        step, places = _step_places(in_order, name)
        start, alias = None, freq
    else:
        start = pd.Timestamp(in_order[0])
        index = pd.DatetimeIndex(in_order)
        alias = freq or (_frequency(index) if len(index) > 2 else None)
        if alias is None and len(index) > 2:
            raise InputError(
                f"series {name!r} has irregular timestamps ({index[0]}, {index[1]}, {index[2]}, …) and no frequency "
                "can be inferred; give freq=…, or resample it first"
            )
        step = f"frequency {alias!r}"
        places = np.arange(len(index)) if alias is None else _on_grid(index, alias, name, rows[order])
    _refuse_long(places, in_order, rows[order], name, step)
    if doubtful:
        _refuse_sparse(places, in_order, rows[order], name, step)
    return Grid(order, places, int(places[-1]) + 1, start, alias)


def _text(time: np.generic) -> str:
    return str(pd.Timestamp(time)) if isinstance(time, np.datetime64) else f"step {time}"


def _step_places(times: np.ndarray, name: str) -> tuple[str, np.ndarray]:
    """Place step numbers on the grid of their commonest distance."""
    if len(times) == 1:
        return "step 1", np.zeros(1, dtype=np.int64)
    apart = np.diff(times)
    if times.dtype.kind == "i":
        sizes, counts = np.unique(apart, return_counts=True)
        step = sizes[np.argmax(counts)]
        places, rest = np.divmod(times - times[0], step)
    else:
        # sums of a broken step are off by rounding, of the largest number
        step = np.median(apart)
        exact = (times - times[0]) / step
        places = np.round(exact)
        slack = 8 * np.finfo(float).eps * np.abs(times).max() / step + 1e-6
        rest = np.abs(exact - places) > slack
    wrong = np.flatnonzero(rest)
    if len(wrong) or (np.diff(places) < 1).any():
        at = times[wrong[0]] if len(wrong) else times[0]
        raise InputError(
            f"series {name!r} has a value at step {at}, which is off the regular steps of {step} from {times[0]}; "
            "resample it first, or write the times as dates such as 2017-12-25"
        )
    return f"step {step}", places.astype(np.int64)


def _on_grid(index: pd.DatetimeIndex, freq: str, name: str, rows: pd.Index) -> np.ndarray:
    """Place sorted timestamps on the grid of a frequency that begins with the first."""
    offset = pd.tseries.frequencies.to_offset(freq)
    first = index[0]
    if isinstance(offset, pd.offsets.Tick):
        since = index.asi8.view(np.uint64)
        places, rest = np.divmod(since - since[0], np.uint64(offset.nanos))
        off = np.flatnonzero(rest)
    else:
        # a calendar's steps are counted only once they are known to be few
        try:
            about = (index[-1] - first) / max((first + 12 * offset) - first, pd.Timedelta(1, "D")) * 12
        except (ValueError, OverflowError):
            about = 0
        if about > 2 * (FREE + SLACK * len(index)):
            _refuse_long(
                np.array([0, int(about)]), index.to_numpy()[[0, -1]], rows[[0, -1]], name, f"frequency {freq!r}"
            )
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


def _refuse_long(places: np.ndarray, times: np.ndarray, rows: pd.Index, name: str, step: str) -> None:
    if len(places) < 2 or places[-1] < FREE + SLACK * len(rows):
        return
    raise InputError(
        f"{_widest_gap(places, times, rows, name, step)}. Mend the time that is mistyped, give the true freq=…, or "
        "cut the series in two"
    )


def _refuse_sparse(places: np.ndarray, times: np.ndarray, rows: pd.Index, name: str, step: str) -> None:
    length = int(places[-1]) + 1
    if length - len(places) <= SPARSE * length:
        return
    raise InputError(
        f"{_widest_gap(places, times, rows, name, step)}. The numbers of the time column may be years with weeks, "
        "months or quarters: write them as dates such as 2017-12-25, leave the column out to read the values one after "
        "the other, or give the steps that are missing rows of their own"
    )


def _widest_gap(places: np.ndarray, times: np.ndarray, rows: pd.Index, name: str, step: str) -> str:
    """Name the grid of a series and its widest gap, for a message."""
    widest = int(np.argmax(np.diff(places)))
    return (
        f"series {name!r} has {len(rows)} values on a grid of {int(places[-1]) + 1} steps with {step}: between "
        f"{_text(times[widest])} (row {rows[widest]}) and {_text(times[widest + 1])} (row {rows[widest + 1]}) "
        f"{int(places[widest + 1] - places[widest]) - 1} are missing"
    )


def _frequency(index: pd.DatetimeIndex) -> str | None:
    """Infer the frequency of sorted timestamps, which may have gaps; None if they are irregular."""
    steps = _apart(index)
    if (steps == steps[0]).all() and steps[0] < _DAY:
        return str(pd.tseries.frequencies.to_offset(pd.Timedelta(int(steps[0]), "ns")).freqstr)
    return pd.infer_freq(index) or _calendar(index) or _with_gaps(index, steps)


def _apart(index: pd.DatetimeIndex) -> np.ndarray:
    """Compute nanoseconds from one sorted timestamp to the next, uint64, since int64 ends at 292 years."""
    return np.diff(index.asi8.view(np.uint64))


def _calendar(index: pd.DatetimeIndex) -> str | None:
    """Infer months, quarters or years with gaps: all at the first or the last of a month, at one time of day."""
    if (index.normalize() != index - (index[0] - index[0].normalize())).any() or _apart(index).min() < 28 * _DAY:
        return None
    ends = (index.is_month_end).all()
    if not ends and not (index.day == 1).all():
        return None
    months = np.diff(index.year * 12 + index.month)
    sizes, counts = np.unique(months, return_counts=True)
    apart = int(sizes[np.argmax(counts)])
    letter, month = "E" if ends else "S", index[0].strftime("%b").upper()
    if (months % apart).any():
        return None
    rule = f"{apart // 12}Y{letter}-{month}" if apart % 12 == 0 else f"{apart}M{letter}"
    # as pandas spells it without gaps, so that all series of a file agree
    return str(pd.infer_freq(pd.date_range(index[0].floor("s"), periods=5, freq=rule, unit="s")))


def _with_gaps(index: pd.DatetimeIndex, steps: np.ndarray) -> str | None:
    """Infer the frequency of the commonest step, where two in a row have it, else of the first regular stretch."""
    sizes, counts = np.unique(steps, return_counts=True)
    common = sizes[np.argmax(counts)]
    pairs = np.flatnonzero((steps[:-1] == common) & (steps[1:] == common))[:_SCAN_LIMIT]
    for first in pairs:
        regular = pd.infer_freq(index[first : first + 3])
        if regular:
            return str(regular)
    stretches = (pd.infer_freq(index[a : a + 12]) for a in range(min(len(index) - 11, _SCAN_LIMIT)))
    return next((str(regular) for regular in stretches if regular), None)
