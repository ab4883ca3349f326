"""KernelSynth: Gaussian-process draws under randomly composed kernels.

The kernel bank and the composition rule follow Ansari et al., "Chronos: Learning the Language of Time
Series" (2024), appendix A: between one and five kernels of a bank of 33, joined left to right by + or x.
Periods of the bank are in steps, so a shorter series sees the same cycles, only fewer of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky

Array = NDArray[np.float64]
Kernel = Callable[[Array, Array], Array]

PERIODS: tuple[int, ...] = (
    *(24, 48, 96, 168, 336, 672, 7, 14, 30, 60, 365),
    *(730, 4, 26, 52, 4, 6, 12, 4, 40, 10),
)
"""Periods of the bank in steps; 4 stands three times because three sampling rates share it."""

MAX_KERNELS = 5
JITTER = 1e-6


def _periodic(period: float) -> Kernel:
    """exp(-2 sin²(pi |x - y| / p)), length scale 1; `period` in units of x."""
    return lambda x, y: np.exp(-2.0 * np.sin(np.pi * np.abs(x - y) / period) ** 2)


def _linear(sigma0: float) -> Kernel:
    return lambda x, y: sigma0**2 + x * y


def _rbf(scale: float) -> Kernel:
    return lambda x, y: np.exp(-0.5 * ((x - y) / scale) ** 2)


def _rational_quadratic(alpha: float) -> Kernel:
    return lambda x, y: (1.0 + (x - y) ** 2 / (2.0 * alpha)) ** (-alpha)


def _white(level: float) -> Kernel:
    return lambda x, y: np.where(x == y, level, 0.0)


def _constant() -> Kernel:
    return lambda x, y: np.ones(np.broadcast_shapes(x.shape, y.shape))


def kernel_bank(length: int) -> tuple[Kernel, ...]:
    """The 33 kernels for a series of `length` steps on [0, 1]."""
    return (
        *(_periodic(period / length) for period in PERIODS),
        *(_linear(sigma0) for sigma0 in (0.0, 1.0, 10.0)),
        *(_rbf(scale) for scale in (0.1, 1.0, 10.0)),
        *(_rational_quadratic(alpha) for alpha in (0.1, 1.0, 10.0)),
        *(_white(level) for level in (0.1, 1.0)),
        _constant(),
    )


def draw_covariance(rng: np.random.Generator, length: int) -> Array:
    """Covariance (length, length) of one random composition of one to five kernels."""
    bank = kernel_bank(length)
    grid = np.linspace(0.0, 1.0, length)
    rows, columns = grid[:, None], grid[None, :]
    chosen = rng.integers(len(bank), size=rng.integers(1, MAX_KERNELS + 1))
    covariance = bank[chosen[0]](rows, columns)
    for index in chosen[1:]:
        other = bank[index](rows, columns)
        covariance = covariance + other if rng.random() < 0.5 else covariance * other
    return covariance


def kernelsynth(rng: np.random.Generator, count: int, length: int) -> Array:
    """Draw `count` series of `length` steps: array (count, length)."""
    series = np.empty((count, length))
    done = 0
    while done < count:
        covariance = draw_covariance(rng, length)
        # jitter relative to the variance: a product of linear kernels reaches 1e8
        covariance[np.diag_indices(length)] += JITTER * max(np.trace(covariance) / length, 1e-12)
        try:
            factor = cholesky(covariance, lower=True, check_finite=False)
        except LinAlgError:
            continue
        series[done] = factor @ rng.standard_normal(length)
        done += 1
    return series
