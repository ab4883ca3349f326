"""Chaotic series: three flows integrated by Runge-Kutta 4 and one map, many initial conditions at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Flow = Callable[[Array], Array]

WARM_UP = 500
"""Steps dropped before a flow is recorded, so that it is on its attractor."""


def lorenz(state: Array) -> Array:
    """Compute the derivative of Lorenz (1963): sigma 10, rho 28, beta 8/3. State (..., 3)."""
    x, y, z = np.moveaxis(state, -1, 0)
    return np.stack([10.0 * (y - x), x * (28.0 - z) - y, x * y - 8.0 / 3.0 * z], axis=-1)


def roessler(state: Array) -> Array:
    """Compute the derivative of Roessler (1976): a = b = 0.2, c = 5.7. State (..., 3)."""
    x, y, z = np.moveaxis(state, -1, 0)
    return np.stack([-y - z, x + 0.2 * y, 0.2 + z * (x - 5.7)], axis=-1)


def rk4(flow: Flow, state: Array, dt: float | Array, steps: int) -> Array:
    """Integrate `flow` from `state` (n, d): array (steps, n, d). `dt` may differ between trajectories, (n, 1)."""
    path = np.empty((steps, *state.shape))
    for step in range(steps):
        k1 = flow(state)
        k2 = flow(state + 0.5 * dt * k1)
        k3 = flow(state + 0.5 * dt * k2)
        k4 = flow(state + dt * k3)
        state = state + dt / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
        path[step] = state
    return path


def flow_series(rng: np.random.Generator, count: int, length: int, *, flow: Flow, steps: tuple[float, float]) -> Array:
    """Draw a random coordinate of `count` trajectories, each at its own sampling step in `steps`: (count, length)."""
    substeps = 4
    dt = np.exp(rng.uniform(np.log(steps[0]), np.log(steps[1]), size=(count, 1))) / substeps
    start = rng.normal(size=(count, 3)) + np.array([1.0, 1.0, 5.0])
    attractor = rk4(flow, start, 0.02, WARM_UP)[-1]
    path = rk4(flow, attractor, dt, length * substeps)[::substeps]
    coordinate = rng.integers(3, size=count)
    return path[:, np.arange(count), coordinate].T


def logistic_series(rng: np.random.Generator, count: int, length: int) -> Array:
    """Draw the logistic map x -> r x (1 - x), r in [3.5, 4] (periodic windows and chaos): (count, length)."""
    rate = rng.uniform(3.5, 4.0, size=count)
    x = rng.uniform(0.1, 0.9, size=count)
    series = np.empty((count, length))
    for step in range(-WARM_UP, length):
        x = rate * x * (1.0 - x)
        if step >= 0:
            series[:, step] = x
    return series


def chaotic(rng: np.random.Generator, count: int, length: int) -> Array:
    """Draw a third each of Lorenz, Roessler and logistic-map series: (count, length)."""
    parts = np.array_split(np.arange(count), 3)
    return np.concatenate(
        [
            flow_series(rng, len(parts[0]), length, flow=lorenz, steps=(0.02, 0.15)),
            flow_series(rng, len(parts[1]), length, flow=roessler, steps=(0.1, 0.8)),
            logistic_series(rng, len(parts[2]), length),
        ]
    )
