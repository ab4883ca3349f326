"""Tests of claims: each part over windows, seeds or runs, with its outcome.

Parts may be at one ε, or of one data set, and the verdict may depend on either.

A claim is a list of :class:`ClaimPart` (margins by which it is true, one per window) or
:class:`Resampled` (one number with bootstrap draws). Read :func:`combine_tests` first:
it tests the parts, corrects their p-values once by Holm, and returns a
:class:`Verdict`. The measurements themselves are in
:mod:`tsfm_lens.studies.papers.measures`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.stats import permutation_test, rankdata

from tsfm_lens.core.stats import (
    CONFIDENCE,
    FEWEST,
    LEVEL,
    LEVEL_TEXT,
    expanded_interval,
    expanded_p,
    half_width,
    holm,
    interval_within,
    median_interval,
    sign_test,
)

HOLDS = "holds"
FAILS = "does not hold"
UNDECIDED = "undecided"
DEPENDS = "depends on ε"
DEPENDS_ON_DATA = "depends on the data"
NOT_RUN = "not run"
AS_NUMBER = {HOLDS: 1.0, FAILS: 0.0}
NO_LEVEL = math.nan
WINDOW = "series or window"
UNBOUNDED = (-math.inf, math.inf)
POSITIVE = (0.0, math.inf)
SPEARMAN_BOUNDS = (0.0, 2.0)
"""Of a distance that is 1 less a rank correlation."""
RECORDED = ("run", "seed")
"""Units of records, of which there are no more until more is trained."""


@dataclass(frozen=True)
class Interval:
    """Quantity over windows and seeds; both bounds are NaN without an interval."""

    estimate: float
    low: float
    high: float
    count: int = 0


@dataclass(frozen=True)
class ClaimPart:
    """One part of a claim, as margins by which it is true, at one ε or at none.

    ``data`` is the data set that the part is about, if it is about one. A claim of a
    difference fails where the mean margin is within ``equal_within`` of 0.
    """

    words: str
    margins: np.ndarray
    of: str
    level: float = NO_LEVEL
    data: str = ""
    equal_within: float = 0.0


@dataclass(frozen=True)
class Resampled:
    """Part of a claim about a quantity that only all windows together have."""

    words: str
    of: str
    margin: float
    draws: np.ndarray
    units: int
    level: float = NO_LEVEL
    data: str = ""


@dataclass(frozen=True)
class Tested:
    """One part of a claim, tested."""

    words: str
    of: str
    outcome: str
    interval: Interval | None = None
    p: float = float("nan")
    why: str = ""
    level: float = NO_LEVEL
    data: str = ""

    @property
    def name(self) -> str:
        """Text of the part, with its data set and its ε."""
        level = ""
        if not math.isnan(self.level):
            level = f"ε = {self.level:g}"
        return ", ".join(filter(None, (self.words, self.data, level)))


@dataclass(frozen=True)
class Verdict:
    """Verdict on a claim: it holds if all parts do, and does not if one does not.

    If it holds at one ε and fails at another, it depends on ε; if it holds on one data
    set and fails on another, it depends on the data.
    """

    parts: tuple[Tested, ...]
    over: str = WINDOW

    @property
    def outcome(self) -> str:
        """Outcome of all parts: holds, does not hold, undecided, or on what it depends.

        A claim depends on ε, or on the data, if all parts hold at one ε, or on one data
        set, and parts at another fail.
        """
        by_group: dict[tuple[str, str], set[str]] = {}
        for part in self.parts:
            group = (part.data, f"{part.level:g}")
            by_group.setdefault(group, set()).add(part.outcome)
        outcomes = list(by_group.values())
        held = [found == {HOLDS} for found in outcomes]
        failed = [FAILS in found for found in outcomes]
        if any(held) and any(failed):
            of_data = len({data for data, _ in by_group}) > 1
            return DEPENDS_ON_DATA if of_data else DEPENDS
        if any(failed):
            return FAILS
        if held and all(held):
            return HOLDS
        return UNDECIDED

    @property
    def why(self) -> str:
        """Reason why the claim is undecided."""
        reasons = dict.fromkeys(
            part.why for part in self.parts if part.outcome == UNDECIDED
        )
        if self.outcome == UNDECIDED:
            return "; ".join(reasons)
        return ""


def combine_tests(
    parts: Sequence[ClaimPart], clusters: Sequence[Hashable], over: str = WINDOW
) -> Verdict:
    """Test every part of a claim on the median window by the sign test."""
    tables = [_by_cluster(part.margins, clusters, "median") for part in parts]
    # seeds of one window are no further windows: their mean is the unit of the test
    p_values = [float(sign_test(table.mean(0))) for table in tables]
    verdict = _decide(
        parts,
        [median(part.margins, clusters) for part in parts],
        p_values,
        fewest(len(parts)),
        over,
    )
    tests = [
        _unless_equal(part, test, clusters)
        for part, test in zip(parts, verdict.parts, strict=True)
    ]
    return replace(verdict, parts=tuple(tests))


def _unless_equal(
    part: ClaimPart, test: Tested, clusters: Sequence[Hashable]
) -> Tested:
    """Let a claimed difference fail where both are equal within the stated margin.

    They are if the 95 % interval of the mean margin lies within it (two one-sided
    tests).
    """
    mean = interval(part.margins, clusters)
    if not -part.equal_within < mean.low <= mean.high < part.equal_within:
        return test
    why = f"equal within {part.equal_within:.0%}: {mean.low:.4f} to {mean.high:.4f}"
    return replace(test, outcome=FAILS, interval=mean, p=math.nan, why=why)


def judged_trends(
    parts: Sequence[ClaimPart], positions: Sequence[float], over: str
) -> Verdict:
    """Test that margins rise with the positions of their few units.

    The statistic is Spearman's correlation; its p-value is over orders of the units,
    all of them where they are few.
    """
    intervals = []
    p_values = []
    ranks = rankdata(positions)
    for part in parts:
        correlation = 0.0
        # a constant has no correlation
        if np.ptp(part.margins) > 0:
            correlation = float(np.corrcoef(rankdata(part.margins), ranks)[0, 1])
        intervals.append(Interval(correlation, math.nan, math.nan, len(positions)))
        # every order of few units, and a sample of the orders of many
        test = permutation_test(
            (rankdata(part.margins),),
            lambda shuffled, axis: (shuffled * ranks).sum(axis),
            permutation_type="pairings",
            vectorized=True,
            n_resamples=9999,
            random_state=0,
        )
        p_values.append(float(test.pvalue))
    # the fewest units of which the most extreme order is significant after Holm
    minimum = next(
        n for n in range(2, 12) if 2 * len(parts) / math.factorial(n) <= LEVEL
    )
    return _decide(parts, intervals, p_values, minimum, over)


def judged_together(parts: Sequence[Resampled]) -> Verdict:
    """Test every part of a claim by a bootstrap."""
    tests = [percentiles(part) for part in parts]
    return _decide(
        parts,
        [interval for interval, _ in tests],
        [p for _, p in tests],
        fewest(len(parts)),
    )


def percentiles(
    part: Resampled, bounds: tuple[float, float] = UNBOUNDED
) -> tuple[Interval, float]:
    """Compute the interval of a quantity over draws, and the p-value of 0.

    :func:`judged_together` uses both. Few draws are continued by a normal curve, which
    ends at the bounds of the quantity.
    """
    units = part.units
    finite = part.draws[np.isfinite(part.draws)]
    known = bool(np.isfinite(part.margin)) and len(finite) > 0
    # percentiles of the draws that are left would be biased if many were undefined
    if units < FEWEST or not known or len(finite) < CONFIDENCE * len(part.draws):
        return Interval(part.margin, np.nan, np.nan, units * known), 1.0
    low, high = np.clip(expanded_interval(finite, CONFIDENCE, units), *bounds)
    return Interval(part.margin, float(low), float(high), units), float(
        expanded_p(finite[:, None], units)[0]
    )


def _decide(
    parts: Sequence[ClaimPart | Resampled],
    intervals: Sequence[Interval],
    p_values: Sequence[float],
    minimum: int,
    over: str = WINDOW,
) -> Verdict:
    """Decide every part, corrected for their number."""
    tests = []
    for part, span, p in zip(parts, intervals, holm(np.array(p_values)), strict=True):
        # a sign test of too few units never is significant; a bootstrap may be
        enough = isinstance(part, ClaimPart) or span.count >= minimum
        outcome = _side(span) if p <= LEVEL and enough else UNDECIDED
        why = ""
        if outcome == UNDECIDED:
            few = _few(span.count, minimum, len(parts), over)
            unknown = ""
            if isinstance(part, Resampled) and math.isnan(span.low):
                unknown = "undefined in too many draws"
            insignificant = f"p is above {LEVEL_TEXT} after Holm"
            if _side(span) == UNDECIDED:
                insignificant = "interval contains 0"
            why = few or unknown or insignificant
        tests.append(
            Tested(
                part.words, part.of, outcome, span, float(p), why, part.level, part.data
            )
        )
    return Verdict(tuple(tests), over)


def _side(interval: Interval) -> str:
    """Return the outcome by the side of 0 that both bounds of the interval lie on.

    Where there are no bounds, the estimate takes their place.
    """
    low, high = (
        interval.estimate if math.isnan(end) else end
        for end in (interval.low, interval.high)
    )
    if low > 0:
        return HOLDS
    if high < 0:
        return FAILS
    return UNDECIDED


def _few(count: int, minimum: int, parts: int, over: str) -> str:
    """Say that there are too few units for any outcome, if there are."""
    recorded = over in RECORDED
    if not count and not recorded:
        return "it is not defined here"
    if count == 1:
        units = f"one {over}"
    else:
        units = f"{count or 'no'} {over}s"
    if parts > 1:
        need = f"{parts} parts need {minimum} or more"
    else:
        need = f"one part needs {minimum} or more"
    text = "too few for a test"
    if recorded:
        text = "not testable with this record"
    if count < minimum:
        return f"{units}, {text}: {need}"
    return ""


def undecided(why: str, of: str) -> Verdict:
    """Build the verdict on a claim that nothing here can measure, and say why."""
    return Verdict((Tested("", of, UNDECIDED, why=why),))


def exactly(
    words: str,
    true: bool | np.bool_,
    of: str,
    level: float = NO_LEVEL,
) -> Tested:
    """Build a part of a claim that follows from weights or counts.

    Nothing is drawn, so that its outcome needs no test.
    """
    return Tested(
        words, of, HOLDS if true else FAILS, why="exact, nothing is drawn", level=level
    )


def larger(more: Interval, less: Interval, of: str, words: str = "") -> Verdict:
    """Test that one of two quantities is larger, by an interval of their difference."""
    difference = more.estimate - less.estimate
    # each side adds the half of its interval that faces the other, so that intervals
    # may be asymmetric (MOVER, Zou and Donner 2008)
    low = difference - math.hypot(more.estimate - more.low, less.high - less.estimate)
    high = difference + math.hypot(more.high - more.estimate, less.estimate - less.low)
    found = Interval(difference, low, high)
    finite = math.isfinite(low) and math.isfinite(high)
    outcome = UNDECIDED
    if finite:
        outcome = _side(found)
    if outcome != UNDECIDED:
        why = ""
    elif finite:
        why = "interval contains 0"
    else:
        why = "too few series for an interval"
    return Verdict((Tested(words, of, outcome, found, why=why),))


def fewest(parts: int = 1) -> int:
    """Count the clusters below which no claim of ``parts`` parts is decidable.

    With fewer, not even full agreement of all clusters would be significant.
    """
    # n equal signs have a two-sided p of 2^(1 − n), which Holm multiplies by the parts
    return math.ceil(math.log2(2 * max(parts, 1) / LEVEL))


def interval(
    values: np.ndarray,
    clusters: Sequence[Hashable],
    bounds: tuple[float, float] = UNBOUNDED,
) -> Interval:
    """Average over windows and seeds, with the t interval over clusters.

    The interval is widened by the deviation of the seeds from each other, and stays
    within the bounds of the quantity.
    """
    table = _by_cluster(values, clusters, "mean")
    count = table.shape[1]
    if count:
        mean = float(table.mean())
    else:
        mean = np.nan
    if count >= FEWEST:
        distance = math.hypot(half_width(table.mean(0)), half_width(table.mean(1)))
    else:
        distance = np.nan
    return Interval(mean, *interval_within(mean, distance, bounds), count)


def median(values: np.ndarray, clusters: Sequence[Hashable]) -> Interval:
    """Compute the median over clusters, after the mean over seeds, with its interval.

    The interval lies between order statistics, widened by the deviation of the seeds.
    """
    table = _by_cluster(values, clusters, "median")
    middle, low, high = median_interval(table.mean(0))
    seeds = half_width(np.median(table, axis=1)) if table.size else 0.0
    ends = (
        middle - math.hypot(middle - low, seeds),
        middle + math.hypot(high - middle, seeds),
    )
    return Interval(middle, *ends, table.shape[1])


def _by_cluster(
    values: np.ndarray, clusters: Sequence[Hashable], middle: str
) -> np.ndarray:
    """Return (seed, cluster) the mean or median of each cluster that has any value."""
    table = np.atleast_2d(np.asarray(values, dtype=float))
    full = pd.DataFrame(
        table.T, index=pd.factorize(pd.Series(list(clusters), dtype=object))[0]
    ).dropna()
    return full.groupby(level=0, sort=False).agg(middle).to_numpy().T
