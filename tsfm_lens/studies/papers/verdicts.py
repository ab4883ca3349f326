"""Tests of claims: each part over windows, seeds or runs, with its outcome.

Parts may be at one ε, or of one data set, and the verdict may depend on either.

A claim is a list of :class:`ClaimPart` (margins by which it is true, one per window) or
of what :func:`resampled` makes of one number and its bootstrap draws. Read
:func:`judge_parts` first: it tests the parts, corrects their p-values once by Holm, and
returns a :class:`Verdict`. The measurements themselves are in
:mod:`tsfm_lens.studies.papers.measures`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
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
    """Quantity over units; both bounds are NaN without an interval."""

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
        found = {part.outcome for part in self.parts}
        if found == {HOLDS}:
            return HOLDS
        if FAILS not in found:
            return UNDECIDED
        by_group: dict[tuple[str, str], set[str]] = {}
        for part in self.parts:
            group = (part.data, f"{part.level:g}")
            by_group.setdefault(group, set()).add(part.outcome)
        if {HOLDS} not in by_group.values():
            return FAILS
        if len({data for data, _ in by_group}) > 1:
            return DEPENDS_ON_DATA
        return DEPENDS

    @property
    def why(self) -> str:
        """Reason why the claim is undecided."""
        reasons = dict.fromkeys(
            part.why for part in self.parts if part.outcome == UNDECIDED
        )
        if self.outcome == UNDECIDED:
            return "; ".join(reasons)
        return ""


def judge_parts(over: str, *parts: ClaimPart) -> Verdict:
    """Test every part of a claim on the median unit by the sign test.

    The units, of which a part has a margin each, are independent: series, runs, seeds
    or draws. Parts may have different numbers of them.
    """
    tests = [
        _uncorrected(part, median(part.margins), sign_test(_known(part.margins)))
        for part in parts
    ]
    verdict = _decide(tests, fewest(len(parts)), over)
    return replace(verdict, parts=tuple(map(_unless_equal, parts, verdict.parts)))


def _uncorrected(part: ClaimPart, span: Interval, p: Any) -> Tested:
    """Return a part with its interval and its p-value, before it is decided."""
    return Tested(
        part.words,
        part.of,
        UNDECIDED,
        span,
        float(p),
        level=part.level,
        data=part.data,
    )


def _unless_equal(part: ClaimPart, test: Tested) -> Tested:
    """Let a claimed difference fail where both are equal within the stated margin.

    They are if the 95 % interval of the mean margin lies within it (two one-sided
    tests).
    """
    mean = interval(part.margins)
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
    tests = []
    ranks = rankdata(positions)
    for part in parts:
        correlation = 0.0
        # a constant has no correlation
        if np.ptp(part.margins) > 0:
            correlation = float(np.corrcoef(rankdata(part.margins), ranks)[0, 1])
        # every order of few units, and a sample of the orders of many
        test = permutation_test(
            (rankdata(part.margins),),
            lambda shuffled, axis: (shuffled * ranks).sum(axis),
            permutation_type="pairings",
            vectorized=True,
            n_resamples=9999,
            random_state=0,
        )
        span = Interval(correlation, math.nan, math.nan, len(positions))
        tests.append(_uncorrected(part, span, test.pvalue))
    # the fewest units of which the most extreme order is significant after Holm
    minimum = next(
        n for n in range(2, 12) if 2 * len(parts) / math.factorial(n) <= LEVEL
    )
    return _decide(tests, minimum, over)


def resampled(
    words: str, of: str, margin: float, draws: np.ndarray, units: int
) -> Tested:
    """Build a part of a claim about a quantity that only all windows together have.

    Its interval and p-value, not corrected yet, are those of its bootstrap draws. Few
    draws are continued by a normal curve.
    """
    finite = draws[np.isfinite(draws)]
    known = bool(np.isfinite(margin)) and len(finite) > 0
    # percentiles of the draws that are left would be biased if many were undefined
    if units < FEWEST or not known or len(finite) < CONFIDENCE * len(draws):
        span = Interval(margin, np.nan, np.nan, units * known)
        return Tested(words, of, UNDECIDED, span, 1.0, "undefined in too many draws")
    low, high = expanded_interval(finite, CONFIDENCE, units)
    p = float(expanded_p(finite[:, None], units)[0])
    span = Interval(margin, float(low), float(high), units)
    return Tested(words, of, UNDECIDED, span, p)


def judged_together(parts: Sequence[Tested]) -> Verdict:
    """Decide the parts of a claim that are tested by a bootstrap."""
    return _decide(parts, fewest(len(parts)), resampled=True)


def _decide(
    tests: Sequence[Tested],
    minimum: int,
    over: str = WINDOW,
    *,
    resampled: bool = False,
) -> Verdict:
    """Decide every part, corrected for their number."""
    decided = []
    for test, p in zip(tests, holm(np.array([test.p for test in tests])), strict=True):
        span = test.interval
        assert span is not None
        # a sign test of too few units never is significant; a bootstrap may be
        enough = not resampled or span.count >= minimum
        outcome = _side(span) if p <= LEVEL and enough else UNDECIDED
        why = ""
        if outcome == UNDECIDED:
            few = _few(span.count, minimum, len(tests), over)
            insignificant = f"p is above {LEVEL_TEXT} after Holm"
            if _side(span) == UNDECIDED:
                insignificant = "interval contains 0"
            why = few or test.why or insignificant
        decided.append(replace(test, outcome=outcome, p=float(p), why=why))
    return Verdict(tuple(decided), over)


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
    if not count and over not in RECORDED:
        return "it is not defined here"
    if count >= minimum:
        return ""
    units = f"one {over}" if count == 1 else f"{count or 'no'} {over}s"
    need = f"{parts} parts need" if parts > 1 else "one part needs"
    text = "too few for a test"
    if over in RECORDED:
        text = "not testable with this record"
    return f"{units}, {text}: {need} {minimum} or more"


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


def fewest(parts: int = 1) -> int:
    """Count the units below which no claim of ``parts`` parts is decidable.

    With fewer, not even full agreement of all units would be significant.
    """
    # n equal signs have a two-sided p of 2^(1 − n), which Holm multiplies by the parts
    return math.ceil(math.log2(2 * max(parts, 1) / LEVEL))


def interval(values: np.ndarray, bounds: tuple[float, float] = UNBOUNDED) -> Interval:
    """Average over units, with the t interval, within the bounds of the quantity."""
    known = _known(values)
    mean = float(known.mean()) if len(known) else np.nan
    distance = float(half_width(known)) if len(known) >= FEWEST else np.nan
    return Interval(mean, *interval_within(mean, distance, bounds), len(known))


def median(values: np.ndarray) -> Interval:
    """Compute the median over units, with its interval between order statistics."""
    known = _known(values)
    return Interval(*median_interval(known), len(known))


def _known(values: np.ndarray) -> np.ndarray:
    """Return the values of the units that have one."""
    values = np.asarray(values, dtype=float)
    return values[~np.isnan(values)]
