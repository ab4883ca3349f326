"""Random series that tell a rule from others, to try a planted model on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tsfm_lens.errors import InputError
from tsfm_lens.zoo.planted.rules import Gate, LinearTrend, LocalMean, Rule, SeasonalCopy

__all__ = ["draw_contexts"]

Array = NDArray[np.float64]

LEVELS = 6
MOST = 100
"""Draws for a series, at most on average."""


def draw_contexts(
    rule: Rule, count: int, length: tuple[int, int], *, seed: int = 0, noise: float = 0.0
) -> tuple[Array, ...]:
    """Draw random contexts, each of a random length, amplitude and phase.

    Seasonal rules get a random shape repeated, on a few levels that come back in other orders, so that no value but
    every two in a row tell the phase; for a gate every second series is a random walk, which has no season, and none is
    close to the edge. Means and trends get a level or line under independent values.

    Args:
        rule: of a planted model.
        count: series.
        length: shortest and longest context.
        seed: of everything drawn.
        noise: standard deviation of independent observation noise, in mean absolute values of the series.

    Returns:
        A (time,) array a series.

    Raises:
        InputError: with so much noise, series are not clearly on either side of a gate.
    """
    rng = np.random.default_rng(seed)
    contexts: list[Array] = []
    for _ in range(MOST * count + 1):
        if len(contexts) == count:
            return tuple(contexts)
        time = int(rng.integers(length[0], length[1] + 1))
        series = _series(rule, len(contexts), time, rng)
        series *= rng.uniform(0.2, 20.0) / np.abs(series).mean()
        series += noise * np.abs(series).mean() * rng.standard_normal(time)
        if not isinstance(rule, Gate) or _is_clear(rule, series, seasonal=len(contexts) % 2 == 0):
            contexts.append(series)
    raise InputError(f"noise {noise:g} hides the seasons of {rule!r}: hardly any series is clearly on the right side")


def shape(period: int, rng: np.random.Generator) -> Array:
    """Draw a shape (period,) of few levels, in which no pair of neighbours occurs twice, last and first included."""
    count = max(LEVELS, int(np.ceil((1.5 * period) ** 0.5)))
    levels = np.linspace(-2.0, 2.0, count) + rng.uniform(-0.1, 0.1, count)
    while True:
        path = [int(rng.integers(count))]
        pairs: set[tuple[int, int]] = set()
        while len(path) <= period:
            free = [after for after in range(count) if (path[-1], after) not in pairs]
            if not free:
                break
            # the shape is closed by its first level
            after = path[0] if len(path) == period else int(rng.choice(free))
            if after not in free:
                break
            pairs.add((path[-1], after))
            path.append(after)
        if len(path) > period:
            return levels[path[:period]]


def _is_clear(rule: Gate, series: Array, *, seasonal: bool) -> bool:
    """Test if a series is on the given side of the gate, and not close to its edge."""
    tolerances = 0.8 * rule.tolerance, 1.25 * rule.tolerance
    return all(rule.model_copy(update={"tolerance": one}).seasonal(series) == seasonal for one in tolerances)


def _series(rule: Rule, number: int, time: int, rng: np.random.Generator) -> Array:
    if isinstance(rule, Gate) and number % 2:
        return np.asarray(rng.standard_normal() + rng.standard_normal(time).cumsum())
    if isinstance(rule, SeasonalCopy | Gate):
        return np.resize(shape(rule.period, rng), time)
    steps = np.arange(time) / time
    slope = rng.standard_normal() if isinstance(rule, LinearTrend) else 0.0
    if isinstance(rule, LinearTrend | LocalMean):
        return np.asarray(rng.standard_normal() + slope * steps + 0.5 * rng.standard_normal(time))
    raise TypeError(f"no series are drawn for a rule of kind {rule.kind!r}")
