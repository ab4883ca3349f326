"""Two-stage resampling of a benchmark: sources first, then the series of each, the same draw for all variants.

What is resampled are sums per series, so that each replicate pools the metric anew, as the benchmark would on that
choice of datasets and series.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix
from scipy.stats import norm, t

# numbers held at once in a block of draws, per array
_BLOCK = 1_000_000


@dataclass(frozen=True, eq=False)
class Sums:
    """Columns of sums for the series of some datasets.

    Attributes:
        columns: each (variant, series); a plain model has one variant.
        starts: number of the first series of each dataset; series of a dataset stand together.
    """

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


def replicates_of(
    variants: Sums,
    plain: Sums | None,
    measure: Callable[..., np.ndarray],
    *,
    replicates: int,
    seed: int,
    sampled: bool = True,
    sources: Sequence[int] | None = None,
) -> np.ndarray:
    """Resample the mean over datasets of a measure, or of its difference to the plain model, once per replicate.

    Args:
        variants, plain: their sums over the same series; plain has one variant, or is None.
        measure: makes the measure (logarithm of a metric, or a mean distance) from arrays of the columns.
        replicates: how many.
        seed: of the draws, which depend on nothing else but the number of sources and of the datasets' series.
        sampled: draw the sources too; otherwise each is in each replicate once.
        sources: number of the source of each dataset, from 0; datasets of one source, such as other horizons on the
            same series, are drawn together, and so are their series. Each dataset is its own source if None.

    Returns:
        (replicate, variant). A dataset whose drawn series leave the measure undefined is left out of that
        replicate's mean; NaN if that holds of all.
    """
    source = np.arange(len(variants.starts)) if sources is None else np.asarray(sources)
    n, width = int(source.max()) + 1, len(variants.columns[0])
    of_sources, *of_series = np.random.SeedSequence(seed).spawn(n + 1)
    copies = np.ones((replicates, n), dtype=np.int64)
    if sampled and n > 1:
        copies = np.random.default_rng(of_sources).multinomial(n, np.full(n, 1 / n), size=replicates)
    copies = copies[:, source]
    variants = Sums(tuple(_collapse(column) for column in variants.columns), variants.starts)
    total, missing = np.zeros((replicates, width)), np.zeros((replicates, 1))
    for number, part in enumerate(variants.datasets()):
        owner = np.repeat(np.arange(replicates), copies[:, number])
        # datasets of one source that have the same series draw the same ones
        rng = np.random.default_rng(of_series[source[number]])
        for rows, weights in _weights(len(owner), part.stop - part.start, width, rng):
            values = _evaluate(variants, measure, part, weights)
            if plain is not None:
                values -= _evaluate(plain, measure, part, weights)
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


def _collapse(column: np.ndarray) -> np.ndarray:
    """Return one row where all variants have the same sums, as of labels, to multiply once."""
    return column[:1] if (column == column[:1]).all() else column


def _weights(draws: int, series: int, width: int, rng: np.random.Generator) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield the number of times that each series is in each draw, (draw, series), in blocks of draws."""
    # numbers are drawn row by row in order, so that the size of a block changes nothing
    size = max(1, _BLOCK // max(series, width))
    for first in range(0, draws, size):
        n = min(size, draws - first)
        picks = rng.integers(series, size=(n, series)) + np.arange(n)[:, None] * series
        counts = np.bincount(picks.reshape(-1), minlength=n * series).reshape(n, series)
        yield slice(first, first + n), counts.astype(float)


def _evaluate(sums: Sums, measure: Callable[..., np.ndarray], part: slice, weights: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return measure(*(weights @ column[:, part].T for column in sums.columns))


def widened(share: float, units: int) -> float:
    """Return the standard deviations out at which the tail of this share begins, for few units; negative.

    A bootstrap of n units divides their variance by n, not n - 1, and has percentiles of a normal distribution, not of
    Student's t. Ends that lie further out correct both.

    Source:
        Hesterberg 2015, What teachers should know about the bootstrap, section on expanded percentile intervals.
    """
    return float(t.ppf(share, units - 1) * np.sqrt(units / (units - 1)))


def replicates_for(tests: int, confidence: float) -> int:
    """Return the replicates that it takes for one of so many tests to stand after Holm's correction."""
    return int(np.ceil(2 * tests / (1 - confidence)))


def smallest_p(replicates: int) -> float:
    """Return the smallest two-sided p-value that so many replicates can show: none of them on the other side of 0."""
    return 2 / (replicates + 1)


def two_sided(distribution: np.ndarray, units: int) -> np.ndarray:
    """Compute p-values of "no difference" for each column of replicates.

    Twice the share of replicates on the other side of 0, one more counted, and widened for few units as the interval
    is. Without a replicate there, the widened tail would depend on the number of units alone. The tail is then
    Student's, with mean and standard deviation of the replicates, if that is smaller. Never below `smallest_p`, at
    most 1.

    Source:
        Davison & Hinkley 1997, section 4.2 (one more counted); Cameron & Miller 2015, A practitioner's guide to
        cluster-robust inference, section VI (Student's t with one degree of freedom less than clusters).
    """
    n = len(distribution)
    beyond = np.minimum((distribution <= 0).sum(axis=0), (distribution >= 0).sum(axis=0))
    z = norm.ppf(np.minimum((1 + beyond) / (n + 1), 0.5))
    middle, spread = np.abs(distribution.mean(axis=0)), distribution.std(axis=0, ddof=1)
    # without spread, but for rounding, nothing is known about the tail
    use_t = (beyond == 0) & (spread > 1e-9 * middle)
    z = np.where(use_t, np.minimum(z, -middle / np.where(use_t, spread, 1.0)), z)
    # the inverse of `widened`
    p = 2 * t.cdf(z * np.sqrt((units - 1) / units), units - 1)
    return np.where(np.isnan(distribution).any(axis=0), np.nan, np.clip(p, smallest_p(n), 1.0))


def interval(distribution: np.ndarray, confidence: float, units: int) -> np.ndarray:
    """Return the lower and upper end, (2, variant), of the widened percentile interval.

    With few units the ends may lie beyond the outermost replicates. They are then these replicates, or the ends of
    Student's t with mean and standard deviation of the replicates, if those are further out.
    """
    z = widened((1 - confidence) / 2, units)
    tail = float(norm.cdf(z))
    if tail * (len(distribution) + 1) >= 1:
        return np.quantile(distribution, [tail, 1 - tail], axis=0)
    middle, reach = distribution.mean(axis=0), -z * distribution.std(axis=0, ddof=1)
    return np.stack(
        [np.minimum(distribution.min(axis=0), middle - reach), np.maximum(distribution.max(axis=0), middle + reach)]
    )
