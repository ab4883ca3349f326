"""Intervals, tests, corrections for many tests, and resampling."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.special import ndtr, ndtri, stdtr, stdtrit

__all__ = [
    "CONFIDENCE",
    "CORRECTIONS",
    "FEWEST",
    "Control",
    "Sums",
    "auroc",
    "benjamini_yekutieli",
    "bootstrap_interval",
    "expanded_interval",
    "expanded_p",
    "half_width",
    "holm",
    "leader",
    "mean_interval",
    "median_interval",
    "ratio_units",
    "replicates_for",
    "sign_test",
    "significant",
    "smallest_p",
    "two_stage_bootstrap",
]

CONFIDENCE = 0.95
FEWEST = 3
"""Least number of values that count as a sample, over which a mean has an interval."""
Control = Literal["holm", "by"]
"""Correction for multiple tests. "holm" names a wrong member in at most 5 % of results (family-wise error). "by" lets
at most 5 % of the named members be wrong on average (Benjamini and Yekutieli's false-discovery rate), however members
depend on each other."""

# scipy.stats takes half a second to import: functions that need it import it themselves
_TAILS = (0.025, 0.975)
_BLOCK = 1_000_000  # numbers held at once in a block of draws, per array


# intervals


def half_width(values: np.ndarray) -> np.ndarray:
    """Compute half the 95 % t interval of the mean over the last axis; NaN values are left out, 0 below two."""
    valid = np.isfinite(values)
    count = valid.sum(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(valid, values, 0.0).sum(-1, keepdims=True) / count[..., None]
        squares = np.square(np.where(valid, values - mean, 0.0)).sum(-1)
        error = np.sqrt(squares / (count - 1) / count)
    return np.where(count > 1, stdtrit(np.maximum(count - 1, 1), 0.5 + CONFIDENCE / 2) * error, 0.0)


def mean_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean over the last axis and the ends of its 95 % t interval; NaN values are left out."""
    valid = np.isfinite(values)
    count = valid.sum(-1)
    with np.errstate(invalid="ignore"):
        mean = np.where(valid, values, 0.0).sum(-1) / count
    reach = np.where(count >= FEWEST, half_width(values), 0.0)
    return mean, mean - reach, mean + reach


def median_interval(values: np.ndarray) -> tuple[float, float, float]:
    """Return the median of (n,) and the ends of the sign test's 95 % interval, order statistics; NaN below six."""
    from scipy.stats import binom

    order = np.sort(values)
    middle = float(np.median(order)) if len(order) else math.nan
    # the values that can be cut off at either end, and one more
    trim = int(binom.ppf(_TAILS[0], len(order), 0.5)) if len(order) else 0
    return (middle, float(order[trim - 1]), float(order[-trim])) if trim else (middle, math.nan, math.nan)


def ratio_units(totals: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return units whose mean is the ratio of totals (…, unit) to counts, and whose spread is its (Cochran 1977)."""
    ratio = totals.sum(-1, keepdims=True) / counts.sum()
    return np.asarray(ratio + (totals - ratio * counts) / counts.mean())


# tests


def sign_test(values: np.ndarray) -> float:
    """Return the two-sided p-value of a median of 0 over (n,); values of 0 speak for neither side."""
    from scipy.stats import binomtest

    side = int(max((values > 0).sum(), (values < 0).sum()))
    return min(2 * float(binomtest(side, len(values), alternative="greater").pvalue), 1.0) if len(values) else 1.0


def auroc(scores: NDArray[np.float64], labels: NDArray[np.bool_]) -> float:
    """Compute the chance that a true candidate scores above another; ties count half, NaN is below all."""
    from scipy.stats import mannwhitneyu

    values = np.where(np.isnan(scores), -np.inf, scores)
    true, false = values[labels], values[~labels]
    if not (len(true) and len(false)):
        return math.nan
    return float(mannwhitneyu(true, false).statistic / (len(true) * len(false)))


def significant(
    effect: np.ndarray, floor: np.ndarray | float, *, signed: bool = False, control: Control = "holm"
) -> tuple[np.ndarray, np.ndarray]:
    """Mark members (member, series) above the floor, and the leader among them, by one-sided t tests over series."""
    # the sign of the estimate; a test of each value's size would call noise large
    side = np.where(signed & (mean_interval(effect)[0] < 0), -1.0, 1.0)[:, None]
    above = _exceeds(side * effect - floor, 2.0 if signed else 1.0, control)
    leads = np.zeros(len(effect), dtype=bool)
    first = leader(np.abs(effect) if signed else effect, floor)
    if first is not None:
        leads[first] = above[first]
    return above, leads


def leader(effect: np.ndarray, floor: np.ndarray | float = 0.0) -> int | None:
    """Return the member (member, series) whose effect is larger than every other's, None if none is."""
    mean = mean_interval(effect)[0]
    candidates = np.flatnonzero(np.isfinite(mean))
    if not len(candidates):
        return None
    first = int(candidates[np.argmax(mean[candidates])])
    others = candidates[candidates != first]
    if not len(others):
        return first
    # half a floor on either side of two effects
    floors = np.broadcast_to(np.asarray(floor, dtype=float), effect.shape) / 2
    return first if _exceeds(effect[first] - effect[others] - (floors[first] + floors[others]), 1.0).all() else None


def _exceeds(values: np.ndarray, sides: float, control: Control = "holm") -> np.ndarray:
    """Mark values (member, series) above zero, corrected for the number of members, (member,)."""
    count = np.isfinite(values).sum(-1)
    few = count < FEWEST
    above = np.where(few, np.nan_to_num(values, nan=-1.0).min(-1) > 0, False)
    members = np.flatnonzero(~few)
    if not len(members):
        return above
    mean, spread = np.nanmean(values[members], axis=-1), np.nanstd(values[members], axis=-1, ddof=1)
    # effects that are alike on every series leave no doubt
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(spread > 0, mean / (spread / np.sqrt(count[members])), np.sign(mean) * np.inf)
    p = np.minimum(sides * stdtr(count[members] - 1, -np.nan_to_num(t, nan=0.0)), 1.0)
    above[members] = CORRECTIONS[control](p) <= 1 - CONFIDENCE
    return above


# corrections for many tests


def holm(p_values: np.ndarray, families: Sequence[Any] | None = None) -> np.ndarray:
    """Correct p-values by Holm's step-down method, family by family; NaN stays NaN and counts for nothing."""
    p = np.asarray(p_values, dtype=float)
    if families is not None:
        labels = np.array([str(family) for family in families])
        corrected = np.full(p.shape, np.nan)
        for label in np.unique(labels):
            corrected[labels == label] = holm(p[labels == label])
        return corrected
    order = np.argsort(p)
    count = int(np.isfinite(p).sum())
    adjusted = np.maximum.accumulate((count - np.arange(len(p))) * p[order])
    return np.minimum(adjusted, 1.0)[np.argsort(order)]


def benjamini_yekutieli(p_values: np.ndarray) -> np.ndarray:
    """Correct p-values by Benjamini and Yekutieli (2001, Annals of Statistics 29, theorem 1.3)."""
    from scipy.stats import false_discovery_control

    return np.asarray(false_discovery_control(p_values, method="by"))


CORRECTIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {"holm": holm, "by": benjamini_yekutieli}


# resampling


def bootstrap_interval(
    values: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray], *, seed: int, replicates: int = 2000
) -> tuple[float, float]:
    """Compute the 95 % percentile interval of a statistic of (replicate, unit, …) over resampled units (unit, …)."""
    sample = np.random.default_rng(seed).integers(len(values), size=(replicates, len(values)))
    low, high = np.quantile(statistic(values[sample]), _TAILS)
    return float(low), float(high)


def expanded_interval(draws: np.ndarray, confidence: float, units: int) -> np.ndarray:
    """Return the ends (2, …) of the percentile interval over replicates, widened for few units (Hesterberg 2015)."""
    z = float(stdtrit(units - 1, (1 - confidence) / 2) * np.sqrt(units / (units - 1)))
    tail = float(ndtr(z))
    if tail * (len(draws) + 1) >= 1:
        return np.quantile(draws, [tail, 1 - tail], axis=0)
    middle, reach = draws.mean(axis=0), -z * draws.std(axis=0, ddof=1)
    return np.stack([np.minimum(draws.min(axis=0), middle - reach), np.maximum(draws.max(axis=0), middle + reach)])


def expanded_p(draws: np.ndarray, units: int) -> np.ndarray:
    """Compute p-values of "no difference" for columns of replicates, widened for few units (Cameron, Miller 2015)."""
    n = len(draws)
    beyond = np.minimum((draws <= 0).sum(axis=0), (draws >= 0).sum(axis=0))
    z = ndtri(np.minimum((1 + beyond) / (n + 1), 0.5))
    middle, spread = np.abs(draws.mean(axis=0)), draws.std(axis=0, ddof=1)
    # without spread, but for rounding, nothing is known about the tail
    use_t = (beyond == 0) & (spread > 1e-9 * middle)
    z = np.where(use_t, np.minimum(z, -middle / np.where(use_t, spread, 1.0)), z)
    p = 2 * stdtr(units - 1, z * np.sqrt((units - 1) / units))
    return np.where(np.isnan(draws).any(axis=0), np.nan, np.clip(p, smallest_p(n), 1.0))


def replicates_for(tests: int, confidence: float) -> int:
    """Return the replicates that it takes for one of so many tests to stand after Holm's correction."""
    return int(np.ceil(2 * tests / (1 - confidence)))


def smallest_p(replicates: int) -> float:
    """Return the smallest two-sided p-value that so many replicates can show: none of them on the other side of 0."""
    return 2 / (replicates + 1)


@dataclass(frozen=True, eq=False)
class Sums:
    """Columns of sums for the series of some datasets."""

    columns: tuple[np.ndarray, ...]
    starts: np.ndarray

    @property
    def n_series(self) -> int:
        return self.columns[0].shape[1]

    def by_dataset(self) -> tuple[np.ndarray, ...]:
        """Sum the columns over the series of each dataset, (variant, dataset)."""
        return tuple(np.add.reduceat(column, self.starts, axis=1) for column in self.columns)

    def datasets(self) -> Iterator[slice]:
        """Yield the series of each dataset."""
        for start, stop in zip(self.starts, [*self.starts[1:], self.n_series], strict=True):
            yield slice(int(start), int(stop))


def two_stage_bootstrap(
    variants: Sums,
    plain: Sums | None,
    measure: Callable[..., np.ndarray],
    *,
    replicates: int,
    seed: int,
    sampled: bool = True,
    sources: Sequence[int] | None = None,
) -> np.ndarray:
    """Resample sources, then their series, alike for all variants: mean measure less the plain's."""
    source = np.arange(len(variants.starts)) if sources is None else np.asarray(sources)
    n, width = int(source.max()) + 1, len(variants.columns[0])
    of_sources, *of_series = np.random.SeedSequence(seed).spawn(n + 1)
    copies = np.ones((replicates, n), dtype=np.int64)
    if sampled and n > 1:
        copies = np.random.default_rng(of_sources).multinomial(n, np.full(n, 1 / n), size=replicates)
    copies = copies[:, source]
    # one row where all variants have the same sums, as of labels, to multiply once
    columns = tuple(c[:1] if (c == c[:1]).all() else c for c in variants.columns)
    total, missing = np.zeros((replicates, width)), np.zeros((replicates, 1))
    for number, part in enumerate(variants.datasets()):
        owner = np.repeat(np.arange(replicates), copies[:, number])
        # datasets of one source that have the same series draw the same ones
        rng = np.random.default_rng(of_series[source[number]])
        for rows, weights in _weights(len(owner), part.stop - part.start, width, rng):
            with np.errstate(all="ignore"):
                values = measure(*(weights @ column[:, part].T for column in columns))
                if plain is not None:
                    values -= measure(*(weights @ column[:, part].T for column in plain.columns))
            owners = owner[rows]
            belongs = csr_matrix(
                (np.ones(len(owners)), (owners, np.arange(len(owners)))), shape=(replicates, len(owners))
            )
            if not np.isfinite(values.sum()):
                invalid = ~np.isfinite(values)
                missing = missing + belongs @ invalid.astype(float)
                values = np.where(invalid, 0.0, values)
            total += belongs @ values
    count = copies.sum(axis=1, keepdims=True) - missing
    mean = np.divide(total, count, out=np.full_like(total, np.nan), where=np.broadcast_to(count > 0, total.shape))
    # equal forecasts differ by rounding, both sides being added up in different order
    return np.where(np.abs(mean) < 1e-12, 0.0, mean)


def _weights(draws: int, series: int, width: int, rng: np.random.Generator) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield the number of times that each series is in each draw, (draw, series), in blocks of draws."""
    # numbers are drawn row by row in order, so that the size of a block changes nothing
    size = max(1, _BLOCK // max(series, width))
    for first in range(0, draws, size):
        n = min(size, draws - first)
        picks = rng.integers(series, size=(n, series)) + np.arange(n)[:, None] * series
        counts = np.bincount(picks.reshape(-1), minlength=n * series).reshape(n, series)
        yield slice(first, first + n), counts.astype(float)
