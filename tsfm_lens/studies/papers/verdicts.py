"""Tests of claims: each part over windows and seeds, with an interval and three outcomes."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from tsfm_lens.errors import InputError
from tsfm_lens.stats import (
    CONFIDENCE,
    FEWEST,
    expanded_interval,
    expanded_p,
    half_width,
    holm,
    median_interval,
    sign_test,
)

LEVEL = 1 - CONFIDENCE
HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"
AS_NUMBER = {HOLDS: 1.0, FAILS: 0.0}
WINDOW = "series or window"

Estimated = tuple[float, float, float]


@dataclass(frozen=True)
class Interval:
    """Quantity over windows and seeds."""

    estimate: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class ClaimPart:
    """One part of a claim, as margins by which it is true."""

    words: str
    margins: np.ndarray
    of: str


@dataclass(frozen=True)
class Resampled:
    """ClaimPart about a quantity of all windows together, which no window has by itself."""

    words: str
    of: str
    margin: float
    draws: np.ndarray
    units: int


@dataclass(frozen=True)
class Tested:
    """One part of a claim, tested."""

    words: str
    of: str
    outcome: str
    interval: Interval | None = None
    p: float = float("nan")
    why: str = ""


@dataclass(frozen=True)
class Verdict:
    """Verdict on a claim: it holds if all parts do, does not if one does not, and is undecided otherwise."""

    parts: tuple[Tested, ...]
    over: str = WINDOW

    @property
    def outcome(self) -> str:
        """Outcome of all parts: "holds", "does not hold" or "undecided"."""
        outcomes = [part.outcome for part in self.parts]
        if FAILS in outcomes:
            return FAILS
        return HOLDS if outcomes and set(outcomes) == {HOLDS} else UNDECIDED

    @property
    def why(self) -> str:
        """Reason why the claim is undecided."""
        reasons = dict.fromkeys(part.why for part in self.parts if part.outcome == UNDECIDED)
        return "; ".join(reasons) if self.outcome == UNDECIDED else ""


def judged(parts: Sequence[ClaimPart], clusters: Sequence[Hashable], over: str = WINDOW) -> Verdict:
    """Test every part of a claim on the median window."""
    if not parts:
        raise InputError("a claim has no part to test: expected at least one")
    tables = [_by_cluster(part.margins, clusters, np.median) for part in parts]
    medians = [_median(table) for table in tables]
    return _decide(parts, medians, [float(sign_test(table.mean(0))) for table in tables], over)


def judged_together(parts: Sequence[Resampled]) -> Verdict:
    """Test every part of a claim by a bootstrap."""
    if not parts:
        raise InputError("a claim has no part to test: expected at least one")
    tests = [percentiles(part) for part in parts]
    return _decide(parts, [interval for interval, _ in tests], [p for _, p in tests])


def percentiles(part: Resampled) -> tuple[Interval, float]:
    """Compute the interval of a quantity over draws, and the p-value of 0; see :func:`judged_together`."""
    units, finite = part.units, part.draws[np.isfinite(part.draws)]
    if units < FEWEST or not np.isfinite(part.margin) or len(finite) < CONFIDENCE * len(part.draws):
        count = units if np.isfinite(part.margin) and len(finite) else 0
        return Interval(part.margin, np.nan, np.nan, count), 1.0
    low, high = expanded_interval(finite, CONFIDENCE, units)
    return Interval(part.margin, float(low), float(high), units), float(expanded_p(finite[:, None], units)[0])


def _decide(
    parts: Sequence[ClaimPart | Resampled], intervals: Sequence[Interval], p_values: Sequence[float], over: str = WINDOW
) -> Verdict:
    p_adjusted = holm(np.array(p_values))
    minimum = fewest(len(parts))
    tests = []
    for part, each, p in zip(parts, intervals, p_adjusted, strict=True):
        side = 1 if each.low > 0 else -1 if each.high < 0 else 0
        outcome = {1: HOLDS, -1: FAILS}.get(side, UNDECIDED) if p <= LEVEL and each.count >= minimum else UNDECIDED
        why = "" if outcome != UNDECIDED else _why(each, minimum, len(parts), over)
        tests.append(Tested(part.words, part.of, outcome, each, float(p), why))
    return Verdict(tuple(tests), over)


def undecided(why: str, of: str) -> Verdict:
    """Build the verdict on a claim of which nothing here can be measured, and say why."""
    return Verdict((Tested("", of, UNDECIDED, why=why),))


def exactly(words: str, true: bool | np.bool_, of: str) -> Tested:
    """Build a part of a claim that follows from weights or counts, without anything to draw."""
    return Tested(words, of, HOLDS if true else FAILS, why="exact, nothing is drawn")


def larger(more: Estimated, less: Estimated, of: str, words: str = "") -> Verdict:
    """Test that one of two quantities is larger, both given as (estimate, low, high)."""
    difference = more[0] - less[0]
    low = difference - math.hypot(more[0] - more[1], less[2] - less[0])
    high = difference + math.hypot(more[2] - more[0], less[0] - less[1])
    finite = math.isfinite(low) and math.isfinite(high)
    outcome = HOLDS if low > 0 else FAILS if high < 0 else UNDECIDED
    why = "" if outcome != UNDECIDED else "the interval holds 0" if finite else "too few series for an interval"
    return Verdict((Tested(words, of, outcome, Interval(difference, low, high, 0), why=why),))


def fewest(parts: int = 1) -> int:
    """Count the clusters below which not even full agreement decides a claim of so many parts."""
    return math.ceil(math.log2(2 * parts / LEVEL))


def interval(values: np.ndarray, clusters: Sequence[Hashable]) -> Interval:
    """Average over windows and seeds, with the t interval over clusters, widened by what seeds differ by."""
    table = _by_cluster(values, clusters, np.mean)
    count = table.shape[1]
    mean = float(table.mean()) if count else np.nan
    if count < FEWEST:
        return Interval(mean, np.nan, np.nan, count)
    reach = math.hypot(half_width(table.mean(0)), half_width(table.mean(1)))
    return Interval(mean, mean - reach, mean + reach, count)


def median(values: np.ndarray, clusters: Sequence[Hashable]) -> Interval:
    """Compute the median over windows, after the mean over seeds, with the sign-test interval widened by seeds."""
    return _median(_by_cluster(values, clusters, np.median))


def _by_cluster(values: np.ndarray, clusters: Sequence[Hashable], middle: Callable[..., np.ndarray]) -> np.ndarray:
    """Return (seed, cluster) one value of each cluster that has any."""
    table = np.atleast_2d(np.asarray(values, dtype=float))
    if table.ndim != 2 or table.shape[1] != len(clusters):
        raise InputError(f"values have shape {table.shape}, expected (seed, window) with {len(clusters)} windows")
    finite = np.isfinite(table).all(axis=0)
    members = [
        np.flatnonzero([cluster == label and here for cluster, here in zip(clusters, finite, strict=True)])
        for label in dict.fromkeys(clusters)
    ]
    columns = [middle(table[:, rows], axis=1) for rows in members if len(rows)]
    return np.stack(columns, axis=1) if columns else np.empty((len(table), 0))


def _median(table: np.ndarray) -> Interval:
    """Compute the median of (seed, cluster) over clusters; the ends are order statistics, set apart by seeds."""
    middle, low, high = median_interval(table.mean(0))
    seeds = half_width(np.median(table, axis=1)) if table.size else 0.0
    ends = middle - math.hypot(middle - low, seeds), middle + math.hypot(high - middle, seeds)
    return Interval(middle, *ends, table.shape[1])


def _why(interval: Interval, minimum: int, parts: int, over: str) -> str:
    of = f"{parts} parts" if parts > 1 else "one part"
    if interval.count == 0:
        return "it is not defined here"
    if interval.count < minimum:
        count = f"one {over}" if interval.count == 1 else f"{interval.count} {over}s"
        return f"{count}, too few for a test: {of} need {minimum} or more"
    if not math.isfinite(interval.low):
        return "undefined in too many draws"
    if interval.low <= 0 <= interval.high:
        return "the interval holds 0"
    return f"p does not stand after Holm over {of}"
