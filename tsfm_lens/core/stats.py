"""Intervals, tests, corrections for many tests, and resampling.

All functions take plain arrays and know neither models nor labels; :mod:`.estimates`
applies them to results. The unit of a test is a series, or a window where there is one
series. Sections below follow the order of this title.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc, bdtrik, expit, logit, ndtr, ndtri, stdtr, stdtrit

__all__ = [
    "CONFIDENCE",
    "CONFIDENCE_TEXT",
    "FEWEST",
    "LEVEL",
    "LEVEL_TEXT",
    "SMALLEST",
    "auroc",
    "expanded_interval",
    "expanded_p",
    "half_width",
    "holm",
    "lead_shares",
    "leader",
    "mean_interval",
    "median_interval",
    "over_windows",
    "ratio",
    "ratio_units",
    "sign_test",
    "exceeds_controls",
    "units_needed",
]

CONFIDENCE = 0.95
# rounded, since 1 - 0.95 is a little more than 0.05 in floating point
LEVEL = round(1 - CONFIDENCE, 12)
CONFIDENCE_TEXT = f"{100 * CONFIDENCE:g} %"
LEVEL_TEXT = f"{100 * LEVEL:g} %"
"""Confidence of intervals and level of tests, as every text states them."""
SMALLEST = 0.01
"""Smallest size of interest: of the range of a series, of an error, or of a whole."""
FEWEST = 3
"""Least number of values that count as a sample, over which a mean has an interval."""

# scipy.stats takes half a second to import: functions that need it import it themselves
# of log sizes: where models hardly differ, a small difference is nothing special
_MIN_SPREAD = 0.1


# intervals


def half_width(values: np.ndarray, confidence: float = CONFIDENCE) -> np.ndarray:
    """Compute half the t interval of the mean over the last axis.

    NaN values are left out; 0 where fewer than two are left.

    Returns:
        Half widths in the unit of the values; 0 where fewer than two values are left.
    """
    valid = np.isfinite(values)
    count = valid.sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(valid, values, 0.0).sum(-1, keepdims=True) / count[..., None]
        squares = np.square(np.where(valid, values - mean, 0.0)).sum(-1)
        error = np.sqrt(squares / (count - 1) / count)
    # at least one degree of freedom, for the values that `where` discards
    return np.where(
        count > 1, stdtrit(np.maximum(count - 1, 1), 0.5 + confidence / 2) * error, 0.0
    )


def mean_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean over the last axis and the bounds of its 95 % t interval.

    NaN values are left out.
    """
    valid = np.isfinite(values)
    count = valid.sum(-1)
    with np.errstate(invalid="ignore"):
        mean = np.where(valid, values, 0.0).sum(-1) / count
    distance = np.where(count >= FEWEST, half_width(values), 0.0)
    return mean, mean - distance, mean + distance


def median_interval(
    values: np.ndarray, confidence: float = CONFIDENCE
) -> tuple[float, float, float]:
    """Return the median of (n,) and the bounds of its interval.

    The bounds are order statistics, those of the sign test; NaN where there are too few
    values, at 95 % fewer than six.
    """
    ordered = np.sort(values)
    if not len(ordered):
        return (math.nan, math.nan, math.nan)
    median = float(np.median(ordered))
    # the values that can be cut off at either end, and one more
    trim = int(np.ceil(bdtrik(round(1 - confidence, 12) / 2, len(ordered), 0.5)))
    if trim:
        return (median, float(ordered[trim - 1]), float(ordered[-trim]))
    return (median, math.nan, math.nan)


def ratio(part: Any, whole: Any, otherwise: float = math.nan) -> np.ndarray:
    """Divide by what is above 0; ``otherwise`` where it is not."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(whole > 0, np.divide(part, whole), otherwise)


def ratio_units(totals: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return units whose mean is the ratio of totals (…, unit) to counts.

    Their spread is that of the ratio (Cochran 1977).
    """
    ratio = totals.sum(-1, keepdims=True) / counts.sum()
    result: np.ndarray = ratio + (totals - ratio * counts) / counts.mean()
    return result


# tests


def sign_test(
    values: np.ndarray, smallest: np.ndarray | float = 0.0, *, sides: int = 2
) -> np.ndarray:
    """Test whether the median over the last axis is beyond ``smallest``.

    Values within it speak for neither side.

    Returns:
        Exact p-values, NaN without a value; of both sides, or with ``sides=1`` of
        values above alone.

    Source:
        Dixon and Mood 1946; Conover 1999, section 3.4.
    """
    valid = np.isfinite(values)
    above = (values > smallest) & valid
    below = (values < -np.asarray(smallest)) & valid
    count = valid.sum(-1)
    n_beyond = above.sum(-1)
    if sides == 2:
        n_beyond = np.maximum(n_beyond, below.sum(-1))
    # bdtrc(k, n, p) is P(X > k), so that k - 1 gives P(X ≥ k). Units within `smallest`
    # stay in n: leaving ties out would make the test less strict
    p = np.minimum(sides * bdtrc(n_beyond - 1.0, np.maximum(count, 1), 0.5), 1.0)
    return np.where(count > 0, np.where(n_beyond > 0, p, 1.0), np.nan)


def units_needed(tests: int, sides: int = 2, level: float = LEVEL) -> int:
    """Return the fewest units with which one of several tests can be significant.

    The tests are sign tests in which all units agree.
    """
    # n units that agree have p = sides / 2**n, which Holm multiplies by the tests
    return int(np.ceil(np.log2(sides * max(tests, 1) / level)))


def auroc(scores: NDArray[np.float64], labels: NDArray[np.bool_]) -> float:
    """Compute the chance that a true candidate scores above another.

    Ties count half, and NaN is below all.

    Returns:
        A probability; NaN without a true candidate or without another.
    """
    from scipy.stats import mannwhitneyu

    values = np.where(np.isnan(scores), -np.inf, scores)
    true = values[labels]
    false = values[~labels]
    if not (len(true) and len(false)):
        return math.nan
    return float(mannwhitneyu(true, false).statistic / (len(true) * len(false)))


def leader(
    sizes: np.ndarray, level: float = LEVEL, *, smallest: float = 0.0
) -> int | None:
    """Return the member whose sizes (member, unit) exceed those of every other.

    None if there is no such member. Each other member is tested by a two-sided sign
    test at the full level: all of these tests must succeed (Berger 1982). Differences
    within ``smallest`` speak for neither of the two.
    """
    median = np.array(
        [
            np.median(row[np.isfinite(row)]) if np.isfinite(row).any() else np.nan
            for row in sizes
        ]
    )
    candidates = np.flatnonzero(np.isfinite(median))
    if len(candidates) < 2:
        return None
    first = candidates[np.argmax(median[candidates])]
    difference = sizes[first] - sizes[candidates[candidates != first]]
    is_larger = (difference > smallest).sum(-1) > (difference < -smallest).sum(-1)
    # the two-sided test does not tell which of the two is larger
    if (is_larger & (sign_test(difference, smallest) <= level)).all():
        return int(first)
    return None


def over_windows(values: np.ndarray) -> np.ndarray:
    """Average over the last axis.

    NaN is left out, and stays where there is nothing else.

    Returns:
        Means.
    """
    # np.nanmean would warn of rows without a value
    count = np.isfinite(values).sum(-1)
    return np.where(
        count > 0, np.nansum(values, axis=-1) / np.maximum(count, 1), np.nan
    )


def lead_shares(
    sizes: np.ndarray, *, replicates: int = 200, most: int = 20
) -> np.ndarray:
    """Compute how often each member is largest in bootstrap samples of units.

    ``sizes`` is (member, unit[, window]). Windows are drawn within their units and
    averaged. Of more than ``most`` members, only the largest are drawn.

    Returns:
        Shares, (member,).
    """
    table = sizes
    if sizes.ndim == 2:
        table = sizes[..., None]
    # sizes are 0 or more, so that -1 is never the largest
    means = np.nan_to_num(over_windows(table), nan=-1.0)
    members = np.argsort(-np.median(means, axis=-1), kind="stable")[:most]
    # the order in which units come must not matter
    columns = np.lexsort(np.sort(means[members], axis=0))
    # a missing window counts as the mean of its unit's others, so that all have as many
    table = np.where(np.isfinite(table), table, means[..., None])[members][:, columns]
    # the same shares at every call
    rng = np.random.default_rng(0)
    # one set of draws for all members, whose sizes on a unit belong together
    shape = (replicates, table.shape[1])
    units = rng.integers(table.shape[1], size=shape)
    windows = rng.integers(table.shape[2], size=(*shape, table.shape[2]))
    medians = np.array(
        [np.median(row[units[..., None], windows].mean(-1), axis=-1) for row in table]
    )
    largest = medians == medians.max(0)
    shares = np.zeros(len(sizes))
    shares[members] = (largest / largest.sum(0)).mean(-1)
    return shares


def exceeds_controls(
    own: np.ndarray, others: np.ndarray, groups: np.ndarray, smallest: float = SMALLEST
) -> np.ndarray:
    """Mark members (member,) that are larger than those of all other models.

    ``others`` is (model, member), and a member is compared within its group. Sizes are
    compared on a log scale, by the median and spread that the largest of a group has
    over all models, this one among them. The largest score of any group of any other
    model is the bar: a model that is like the others passes it by chance once in so
    many models (Westfall and Young 1993, maximum of a statistic).

    Returns:
        True for members that exceed them, (member,).
    """
    # a size below the smallest of interest, or NaN, counts as that
    models = np.log(np.fmax(np.vstack([own[None], others]), smallest))
    score = np.empty_like(models)
    for group in np.unique(groups):
        members = groups == group
        largest = models[:, members].max(1)
        median = np.median(largest)
        spread = np.median(np.abs(largest - median)) + _MIN_SPREAD
        score[:, members] = (models[:, members] - median) / spread
    # with 0 among them, a member must at least exceed the median of the models
    result: np.ndarray = score[0] > score[1:].max(initial=0.0)
    return result


# correction for many tests


def holm(p_values: np.ndarray) -> np.ndarray:
    """Correct p-values by Holm's step-down method.

    NaN stays NaN and is not counted as a test.

    Returns:
        Corrected p-values, of the same shape.
    """
    p = np.asarray(p_values, dtype=float)
    # NaN is sorted to the end, where it shifts no rank and spoils no maximum before it
    order = np.argsort(p)
    count = int(np.isfinite(p).sum())
    adjusted = np.maximum.accumulate((count - np.arange(len(p))) * p[order])
    # the argsort of a permutation is its inverse
    return np.minimum(adjusted, 1.0)[np.argsort(order)]


# resampling


def interval_within(
    estimate: float, distance: float, bounds: tuple[float, float]
) -> tuple[float, float]:
    """Return the interval of a quantity that cannot leave a range.

    The half width is carried to a scale without bounds, and back: to the logarithm of
    the distance from a bound, or to the logit between two.

    Args:
        estimate: of the quantity.
        distance: half the width of its interval where it has no bounds.
        bounds: of the quantity; infinite where it has none. The first is finite if
            the second is.

    Returns:
        Lower and upper end.

    Source:
        Delta method; Agresti 2013, sections 3.1.5 and 16.1.
    """
    lowest, highest = bounds
    low, high = estimate - distance, estimate + distance
    # at a bound, or with an unknown width, there is no slope to carry it by
    if math.isinf(lowest) or not lowest < estimate < highest or math.isnan(distance):
        return max(low, lowest), min(high, highest)
    above = estimate - lowest
    if math.isinf(highest):
        # infinite where the width is hundreds of times the quantity
        with np.errstate(over="ignore"):
            factor = float(np.exp(distance / above))
        return lowest + above / factor, lowest + above * factor
    width = highest - lowest
    share = above / width
    reach = distance / (width * share * (1 - share))
    ends = expit(logit(share) + np.array([-reach, reach]))
    low, high = lowest + width * ends
    return float(low), float(high)


def expanded_interval(draws: np.ndarray, confidence: float, units: int) -> np.ndarray:
    """Return the bounds (2, …) of the percentile interval over replicates.

    It is widened for few units (Hesterberg 2015).
    """
    # the percentile of a normal curve that is as far out as the t quantile, for a
    # spread that resampling underestimates by the root of (n - 1)/n
    z = float(stdtrit(units - 1, (1 - confidence) / 2) * np.sqrt(units / (units - 1)))
    tail = float(ndtr(z))
    if tail * (len(draws) + 1) >= 1:
        result: np.ndarray = np.quantile(draws, [tail, 1 - tail], axis=0)
        return result
    # the replicates do not reach so far into the tail: a normal curve goes on from them
    mean = draws.mean(axis=0)
    distance = -z * draws.std(axis=0, ddof=1)
    return np.stack(
        [
            np.minimum(draws.min(axis=0), mean - distance),
            np.maximum(draws.max(axis=0), mean + distance),
        ]
    )


def expanded_p(draws: np.ndarray, units: int) -> np.ndarray:
    """Compute p-values of "no difference" for columns of replicates.

    They are widened for few units (Cameron, Miller 2015).

    Returns:
        A p-value for each column.
    """
    n = len(draws)
    beyond = np.minimum((draws <= 0).sum(axis=0), (draws >= 0).sum(axis=0))
    # the data themselves count as one more replicate, so that no p-value is 0
    z = ndtri(np.minimum((1 + beyond) / (n + 1), 0.5))
    mean = np.abs(draws.mean(axis=0))
    spread = draws.std(axis=0, ddof=1)
    # without spread, but for rounding, nothing is known about the tail
    use_t = (beyond == 0) & (spread > 1e-9 * mean)
    z = np.where(use_t, np.minimum(z, -mean / np.where(use_t, spread, 1.0)), z)
    p = 2 * stdtr(units - 1, z * np.sqrt((units - 1) / units))
    return np.where(np.isnan(draws).any(axis=0), np.nan, np.clip(p, 2 / (n + 1), 1.0))
