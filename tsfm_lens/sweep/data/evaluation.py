"""Forecast tasks with their truth, on which a model is scored.

Read :class:`EvaluationSet` first: its windows, their batches for a model, the scale of
their errors and the seasonal naive forecast. Where the series come from is in the
modules beside this one, and the scores are in :mod:`tsfm_lens.sweep.statistics`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.data.batch import SeriesBatch, make_batch
from tsfm_lens.data.frequencies import read_offset
from tsfm_lens.data.seasonal import (
    filled,
    known_values,
    last_season,
    seasonal_error,
)

SEASONAL_NAIVE = "seasonal_naive"
"""Name under which the rows of the seasonal naive forecast are stored."""


@dataclass(frozen=True, eq=False)
class Window:
    """One forecast task; the variates of an item share it.

    Attributes:
        item: id of the series, unique within its set.
        index: number of the window within the item, 0 the earliest.
        context: read-only (variate, time), NaN where missing; it may be a view of a
            mapped file.
        label: read-only (variate, horizon), the steps that follow, NaN where missing.
        start: timestamp of the context's first step, None if unknown.

    Raises:
        InputError: context or label have other axes, differ in variates, or the context
            has no step.
    """

    item: str
    index: int
    context: np.ndarray
    label: np.ndarray
    start: pd.Timestamp | None = None

    def __post_init__(self) -> None:
        for name in ("context", "label"):
            array = np.asarray(getattr(self, name)).view()
            if array.ndim != 2 or not array.size or array.dtype.kind != "f":
                raise InputError(
                    f"window {self.id!r}: the {name} is {array.dtype} of shape"
                    f" {array.shape}, expected floats (variate, time) of at least one"
                    " step"
                )
            # on the view alone: the caller's array stays writable
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        if len(self.context) != len(self.label):
            raise InputError(
                f"{self.id!r}: the context has {len(self.context)} variates, the label"
                f" {len(self.label)}"
            )

    @property
    def id(self) -> str:
        """Name of the window, ``item/index``."""
        return f"{self.item}/{self.index}"

    @property
    def n_variates(self) -> int:
        """Number of variates of the item."""
        return len(self.context)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of item, index, start and the values of context and label.

        It is the same on every machine, and whichever float type holds the values.
        """
        hasher = hashlib.sha256(
            repr((self.item, int(self.index), str(self.start))).encode()
        )
        for array in (self.context, self.label):
            values = np.asarray(array, dtype="<f8") + 0.0  # -0.0 counts as 0.0
            values[np.isnan(values)] = np.nan  # one bit pattern for all NaN
            # the same values in another shape are another window
            hasher.update(repr(array.shape).encode())
            hasher.update(np.ascontiguousarray(values, dtype="<f8").data)
        return hasher.digest()


@dataclass(frozen=True, eq=False)
class EvaluationSet:
    """Windows of one dataset that are scored together.

    NaN and infinite values of contexts and labels count as missing.

    Attributes:
        name: unique in a sweep, as in "ett1/H/short", "bundled/co2" or "dysts/Lorenz".
        windows: at least one, no item and index twice.
        horizon: steps of every label.
        freq: pandas alias, None if unknown.
        seasonality: m of the scaled errors, in steps.
        domain: field that the series belong to, in words.
        source: where they come from, in words.
        notes: remarks from reading, e.g. what was left out.

    Raises:
        InputError: there is no window, a window occurs twice, or a label has another
            horizon.
    """

    name: str
    windows: tuple[Window, ...]
    horizon: int
    freq: str | None = None
    seasonality: int = 1
    domain: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()
    # seasonal errors of its series by window index, kept since a sweep asks for them
    # again for every variant
    _scales: dict[int, list[float]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "windows", tuple(self.windows))
        if not self.name:
            raise InputError("an evaluation set needs a name")
        if not self.windows:
            raise InputError(
                f"evaluation set {self.name!r} has no window: expected at least one"
            )
        for name in ("horizon", "seasonality"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"evaluation set {self.name!r}: {name} is {getattr(self, name)},"
                    " expected 1 or more"
                )
        ids: set[str] = set()
        for window in self.windows:
            if window.label.shape[1] != self.horizon:
                raise InputError(
                    f"evaluation set {self.name!r}: the label of window {window.id!r}"
                    f" has {window.label.shape[1]} steps, expected the horizon"
                    f" {self.horizon}"
                )
            if window.id in ids:
                raise InputError(
                    f"evaluation set {self.name!r} has window {window.id!r} more than"
                    " once"
                )
            ids.add(window.id)

    def __len__(self) -> int:
        return len(self.windows)

    def __repr__(self) -> str:
        return (
            f"EvaluationSet({self.name!r}, {len(self)} windows of {self.n_series}"
            f" series, horizon={self.horizon}, freq={self.freq!r},"
            f" seasonality={self.seasonality})"
        )

    @property
    def n_series(self) -> int:
        """Number of rows of a batch of all windows; a variate counts as one."""
        return sum(window.n_variates for window in self.windows)

    def sample(self, n: int | None, seed: int) -> EvaluationSet:
        """Draw some windows at random without replacement, in the set's own order.

        Args:
            n: how many; all of them if None, or if there are no more than that.
            seed: the same seed picks the same windows of a set.

        Returns:
            The set with these windows only.
        """
        if n is None or n >= len(self):
            return self
        rng = np.random.default_rng(seed)
        indices = np.sort(rng.choice(len(self), size=n, replace=False))
        return replace(self, windows=tuple(self.windows[i] for i in indices))

    def chunks(self, size: int) -> list[tuple[int, ...]]:
        """Split the indices of all windows into chunks of at most ``size`` series.

        The order is kept, and a window is never divided: one with more variates than
        ``size`` is a chunk by itself.

        Args:
            size: most series of a chunk.

        Returns:
            Indices of the windows of each chunk.
        """
        chunks: list[list[int]] = []
        space = 0
        for index, window in enumerate(self.windows):
            # variates of an item are forecast together, so none may fall into another
            # chunk
            if not chunks or window.n_variates > space:
                chunks.append([])
                space = size
            chunks[-1].append(index)
            space -= window.n_variates
        return [tuple(chunk) for chunk in chunks]

    def batch(
        self, indices: Sequence[int], context_length: int | None = None
    ) -> tuple[SeriesBatch, np.ndarray]:
        """Return the contexts of some windows as a batch, and their truth.

        Where a context has no value in the steps that are kept, its last step gets the
        last value before these, or 0 if there is none, and a note says so.

        Args:
            indices: of windows.
            context_length: the most recent steps to keep; all if None.

        Returns:
            The batch, whose series have ids ``item/index``, or ``item/index/variate``
            if the item has several variates; and the truth (series, horizon), NaN where
            missing.

        Raises:
            InputError: an index is out of range, there is none, or a value is beyond
                single precision.
        """
        windows = self._pick(indices)
        notes: list[str] = []
        rows: list[dict[str, Any]] = []
        for window in windows:
            length = window.context.shape[1]
            # number of earliest steps that are cut off
            skip = max(0, length - (context_length or length))
            start = self._stamp(window, skip)
            for number, context in enumerate(window.context):
                variate = ""
                name = window.id
                if window.n_variates > 1:
                    variate = str(number)
                    name = f"{window.id}/{variate}"
                values, note = _usable(context, skip, name)
                notes += note
                rows.append(
                    {
                        "values": values,
                        "ids": name,
                        "starts": start,
                        # windows of one series are items of their own: a model must not
                        # read one beside another
                        "groups": window.id,
                        "variates": variate,
                    }
                )
        batch = make_batch(
            rows, freq=self.freq, seasonality=self.seasonality, notes=tuple(notes)
        )
        return batch, known_values(np.concatenate([window.label for window in windows]))

    def scales(self, indices: Sequence[int]) -> np.ndarray:
        """Compute the seasonal error of each series.

        It is the denominator of MASE and MSIS, of the full context, whatever part of it
        a model gets.

        Args:
            indices: of windows.

        Returns:
            (series,) in data units, rows as in :meth:`batch`; NaN where it is 0, or
            where no two values lie one season apart.

        Source:
            Hyndman & Koehler 2006; ``gluonts.ev.ts_stats.seasonal_error`` under a mask
            of invalid values.
        """
        checked = [self._checked_index(index) for index in indices]
        for index in set(checked) - set(self._scales):
            self._scales[index] = [
                seasonal_error(row, self.seasonality)
                for row in self.windows[index].context
            ]
        return np.array([scale for index in checked for scale in self._scales[index]])

    def seasonal_naive(
        self, indices: Sequence[int], levels: Sequence[float]
    ) -> np.ndarray:
        """Repeat the last season, with Gaussian quantiles around it.

        Their variance is that of seasonal differences, times the seasons ahead.

        Args:
            indices: of windows.
            levels: of the quantiles, between 0 and 1.

        Returns:
            (series, quantile, step) in data units, rows as in :meth:`batch`.

        Source:
            Seasonal_Naive of the GIFT-Eval leaderboard (Aksu et al. 2024), which is
            statsforecast's SeasonalNaive.
        """
        # quantiles of the standard normal distribution, (level,)
        normal = np.array([NormalDist().inv_cdf(level) for level in levels])
        # how many seasons ahead a step lies, from 1 on, (step,): in a seasonal random
        # walk, the error there is the sum of as many independent differences
        seasons = np.floor(np.arange(self.horizon) / self.seasonality) + 1
        quantiles = []
        for window in self._pick(indices):
            for context in window.context:
                # a gap of the last season would be a gap of the forecast
                mean, deviation = last_season(
                    filled(context), self.seasonality, self.horizon
                )
                # (level, step)
                spread = normal[:, None] * deviation * np.sqrt(seasons)
                quantiles.append(mean + spread)
        return np.stack(quantiles)

    def fingerprint(self, indices: Iterable[int] | None = None) -> str:
        """Compute the SHA-256, in hex, of some windows and of how they are scored.

        It depends on :attr:`Window.digest` of each, the horizon, frequency and season,
        but not on the set's name or the order of the windows.

        Args:
            indices: of windows; all if None.

        Returns:
            64 hexadecimal digits.
        """
        checked: Iterable[int] = range(len(self))
        if indices is not None:
            # as a set without negative indices, in which each window stands once
            checked = {self._checked_index(index) for index in indices}
        # plain numbers, since those of numpy have another repr
        header = repr((int(self.horizon), self.freq, int(self.seasonality)))
        # sorted, so that the order of the windows does not count
        digests = sorted(self.windows[index].digest for index in checked)
        return hashlib.sha256(b"".join([header.encode(), *digests])).hexdigest()

    def _checked_index(self, index: int) -> int:
        if not -len(self) <= index < len(self):
            raise InputError(
                f"window {index} is out of range: {self.name!r} has {len(self)}"
            )
        return int(index) % len(self)

    def _pick(self, indices: Sequence[int]) -> list[Window]:
        windows = [self.windows[self._checked_index(index)] for index in indices]
        if not windows:
            raise InputError(
                f"no window of {self.name!r} is named: expected at least one index"
            )
        return windows

    def _stamp(self, window: Window, skip: int) -> pd.Timestamp | None:
        """Compute the timestamp of a context without its first ``skip`` steps.

        Returns:
            The timestamp; None where it is unknown, or where the window leaves the
            range of pandas' timestamps.
        """
        if window.start is None or self.freq is None:
            if not skip:
                return window.start
            return None
        offset = read_offset(self.freq)
        try:
            # in nanoseconds, as in a batch: in coarser units, timestamps that a batch
            # cannot hold would raise nothing
            first = offset.rollforward(window.start.as_unit("ns"))
            # raises if the label ends beyond the range
            _ = first + (window.context.shape[1] + self.horizon) * offset
            if skip:
                return first + skip * offset
            # as it was given: the batch itself moves it onto the grid
            return window.start
        except (pd.errors.OutOfBoundsDatetime, OverflowError):
            return None


def _usable(row: np.ndarray, skip: int, name: str) -> tuple[np.ndarray, list[str]]:
    """Return the context without its first ``skip`` steps, with at least one value.

    The list has a note if that value was filled in, else it is empty.
    """
    context = known_values(row[skip:])
    if not np.isnan(context).all():
        return context, []
    # a model needs one value at least: the last one of the steps that were cut off
    finite = row[np.isfinite(row)]
    value = 0.0
    origin = "0, as the series has no value"
    if len(finite):
        value = finite[-1]
        origin = "the last value before them"
    context[-1] = value
    return context, [
        f"{name}: the {len(context)} steps of context are all missing; the last was"
        f" given {origin}"
    ]


def rolling_windows(
    item: str,
    values: np.ndarray,
    horizon: int,
    windows: int = 1,
    stride: int | None = None,
    start: pd.Timestamp | None = None,
) -> Iterator[Window]:
    """Cut the last windows of one item, in time order.

    The context of each is the whole history before its label.

    Yields:
        The windows.
    """
    if stride is None:
        stride = horizon
    for name, number in (
        ("horizon", horizon),
        ("windows", windows),
        ("stride", stride),
    ):
        if number < 1:
            raise InputError(f"{name} is {number}, expected 1 or more")
    length = values.shape[-1]
    min_length = steps_needed(horizon, windows, stride)
    if length < min_length:
        raise InputError(
            f"series {item!r} has {length} steps: {windows} windows of horizon"
            f" {horizon}, {stride} steps apart, need at least {min_length}"
        )
    for index in range(windows):
        # the last label ends with the series, and earlier ones lie before it by whole
        # strides
        origin = length - horizon - stride * (windows - 1 - index)
        context = values[:, :origin]
        label = values[:, origin : origin + horizon]
        yield Window(item, index, context, label, start)


def scored_windows(
    item: str, values: np.ndarray, **options: Any
) -> tuple[list[Window], list[str]]:
    """Cut the last windows of one item whose labels have a value.

    Steps at the end at which no variate has a value are left out first, as if the
    series ended before them; then windows whose whole label falls into a gap.

    Args:
        item: name of the item.
        values: (time,) or (variate, time).
        options: further arguments of :func:`rolling_windows`.

    Returns:
        The windows, and notes on what was left out.

    Raises:
        InputError: the series up to its last value is too short for the windows.
    """
    present = np.isfinite(values).any(0)
    length = 0
    if present.any():
        length = int(np.flatnonzero(present)[-1]) + 1
    notes = []
    if length < values.shape[-1]:
        notes.append(
            f"{item!r}: the last {values.shape[-1] - length} steps have no value; its"
            " windows end before them"
        )
    windows = list(rolling_windows(item, values[:, :length], **options))
    retained = [window for window in windows if np.isfinite(window.label).any()]
    # the last window ends with a value, so that one is always kept
    if lost := len(windows) - len(retained):
        notes.append(
            f"{item!r}: {lost} of {len(windows)} windows have no value to score and are"
            " left out"
        )
    return retained, notes


def matching(
    what: str, patterns: str | Sequence[str], names: Sequence[str], hint: str
) -> list[str]:
    """Select names by patterns, in the order of the names.

    A pattern may leave out what follows a slash.

    Returns:
        The names that match.
    """
    matches: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        selected = {
            name
            for name in names
            # fnmatch would ignore case on Windows, and only there
            if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}/*")
        }
        if not selected:
            raise unknown_name(what, pattern, names, hint=hint)
        matches |= selected
    return [name for name in names if name in matches]


def steps_needed(horizon: int, windows: int, stride: int) -> int:
    """Return the length of the shortest series that these windows fit.

    The first window has one step of context.
    """
    return horizon + stride * (windows - 1) + 1
