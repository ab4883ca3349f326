"""Random series on which a rule can be told from others, to try a planted model on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tsfm_lens.zoo.planted.rules import Gate, LinearTrend, LocalMean, Rule, SeasonalCopy

__all__ = ["draw_contexts"]

Array = NDArray[np.float64]


def draw_contexts(
    rule: Rule, count: int, length: tuple[int, int], *, seed: int = 0, noise: float = 0.0
) -> tuple[Array, ...]:
    """Random contexts, each of a random length, amplitude and phase.

    Seasonal rules get a random shape repeated (for a gate every second series is a random walk, which has no season),
    means and trends a level or line under independent values.

    Args:
        rule: of a planted model.
        count: series.
        length: shortest and longest context.
        seed: of everything drawn.
        noise: standard deviation of independent observation noise, in mean absolute values of the series.

    Returns:
        A (time,) array a series.
    """
    rng = np.random.default_rng(seed)
    contexts = []
    for number in range(count):
        time = int(rng.integers(length[0], length[1] + 1))
        series = _series(rule, number, time, rng)
        series *= rng.uniform(0.2, 20.0) / np.abs(series).mean()
        contexts.append(series + noise * np.abs(series).mean() * rng.standard_normal(time))
    return tuple(contexts)


def _series(rule: Rule, number: int, time: int, rng: np.random.Generator) -> Array:
    if isinstance(rule, Gate) and number % 2:
        return np.asarray(rng.standard_normal() + rng.standard_normal(time).cumsum())
    if isinstance(rule, SeasonalCopy | Gate):
        return np.resize(rng.standard_normal(rule.period).clip(-2.5, 2.5), time)
    steps = np.arange(time) / time
    slope = rng.standard_normal() if isinstance(rule, LinearTrend) else 0.0
    if isinstance(rule, LinearTrend | LocalMean):
        return np.asarray(rng.standard_normal() + slope * steps + 0.5 * rng.standard_normal(time))
    raise TypeError(f"no series are drawn for a rule of kind {rule.kind!r}")
