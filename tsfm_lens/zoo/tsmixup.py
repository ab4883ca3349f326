"""TSMixup: convex combinations of scaled slices of several series.

Ansari et al., "Chronos: Learning the Language of Time Series" (2024), algorithm 1: up to three slices, each divided
by its mean absolute value, weighted by a symmetric Dirichlet draw.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MAX_SERIES = 3
CONCENTRATION = 1.5


def mean_scaled(series: Array) -> Array:
    """Divide each row by its mean absolute value; an all-zero row stays as it is."""
    scale = np.abs(series).mean(axis=-1, keepdims=True)
    return series / np.where(scale > 0, scale, 1.0)


def draw_weights(rng: np.random.Generator, count: int) -> Array:
    """Dirichlet(1.5) weights over the first k of three slots, k uniform in 1..3: array (count, 3)."""
    # normalised gamma draws are a Dirichlet draw, and dropping slots first gives one of lower dimension
    gamma = rng.gamma(CONCENTRATION, size=(count, MAX_SERIES))
    gamma *= np.arange(MAX_SERIES)[None] < rng.integers(1, MAX_SERIES + 1, size=count)[:, None]
    return gamma / gamma.sum(axis=1, keepdims=True)


def tsmixup(rng: np.random.Generator, slices: Array) -> Array:
    """Mix `slices` (count, 3, length) to series (count, length)."""
    weights = draw_weights(rng, len(slices))
    return (weights[:, :, None] * mean_scaled(slices)).sum(axis=1)
