"""Trajectories of chaotic systems, integrated with the package dysts.

Read :func:`dysts_sets` first. The same seed gives the same trajectories; numpy's global
random state, which dysts uses, is restored after each of them.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from tsfm_lens.core.errors import (
    InputError,
    MissingExtraError,
    install_command,
    unknown_name,
)
from tsfm_lens.sweep.data.evaluation import (
    EvaluationSet,
    Window,
    matching,
    rolling_windows,
)

TOLERANCES = {"LSODA": 1e-8, "DOP853": 1e-9}
"""Tolerance of each integrator, both the relative and the absolute one."""
_HINT = "dysts_systems() lists all; no delay equations, no maps."
REFERENCE_POINTS = 1000
"""Points of the path that initial conditions are drawn from."""
REFERENCE_PERIODS = 10
"""Periods that this path spans."""
TRANSIENT = 200
"""First points of this path that are left out, as they may be off the attractor."""


def dysts_systems() -> tuple[str, ...]:
    """List the ordinary differential equations of dysts.

    Its delay equations and maps are left out.

    Returns:
        Names of systems.

    Raises:
        MissingExtraError: dysts is not installed.

    Example:
        >>> "Lorenz" in sweep.dysts_systems()
        True
    """
    return tuple(
        _dysts("dysts.systems").get_attractor_list(sys_class="continuous_no_delay")
    )


def dysts_sets(
    systems: str | Sequence[str] = ("*",),
    horizon: int = 512,
    windows: int = 1,
    stride: int | None = None,
    *,
    points: int = 4096,
    periods: float = 40,
    instances: int = 1,
    seed: int = 0,
    integrator: str = "LSODA",
    multivariate: bool = False,
) -> list[EvaluationSet]:
    """Cut rolling windows at the end of trajectories of chaotic systems.

    There is one set ``dysts/System`` per system.

    Args:
        systems: names or patterns, as in "Lorenz" or "Lorenz*".
        horizon: steps of each label, the values that a forecast is scored against.
        windows: number of windows of each trajectory.
        stride: steps from one label to the next; the horizon if None, so that labels do
            not overlap.
        points: steps of a trajectory.
        periods: number of periods of the system's dominant oscillation that these steps
            span.
        instances: trajectories per system: from its published initial condition, then
            from points of its attractor.
        seed: draws these points.
        integrator: "LSODA" (tolerance 1e-8), or "DOP853" (1e-9), which takes several
            times as long.
        multivariate: whether the coordinates are variates of one item; by default each
            is a series of its own.

    Returns:
        One set for each system.

    Raises:
        MissingExtraError: dysts is not installed.
        UnknownNameError: a pattern fits no system, or there is no such integrator.
        InputError: a trajectory is too short for the windows, or could not be
            integrated.

    Source:
        Gilpin 2021, "Chaos as an interpretable benchmark for forecasting and
        data-driven modelling".

    Example:
        >>> len(sweep.dysts_sets("Lorenz", horizon=64, points=512))  # doctest: +SKIP
        1
    """
    if integrator not in TOLERANCES:
        raise unknown_name("integrator", integrator, TOLERANCES)
    source = f"dysts, {integrator}, {points} steps in {periods:g} periods"
    sets = []
    for system in matching("dysts system", systems, dysts_systems(), _HINT):
        all_windows: list[Window] = []
        for number, values in enumerate(
            _trajectories(system, points, periods, instances, seed, integrator)
        ):
            if not np.isfinite(values).all():
                raise InputError(f"trajectory {number} of {system!r} is not finite")
            if multivariate:
                items = [(f"ic{number}", values)]
            else:
                items = [
                    # a slice, to keep the axis of variates
                    (f"ic{number}.{row}", values[row : row + 1])
                    for row in range(len(values))
                ]
            for item, rows in items:
                all_windows += rolling_windows(item, rows, horizon, windows, stride)
        sets.append(
            EvaluationSet(
                f"dysts/{system}",
                tuple(all_windows),
                horizon,
                domain="chaos",
                source=source,
            )
        )
    return sets


def _trajectories(
    system: str, points: int, periods: float, instances: int, seed: int, integrator: str
) -> Iterator[np.ndarray]:
    """Integrate one trajectory (coordinate, time) per instance."""
    flow = getattr(_dysts("dysts.flows"), system)()
    yield _integrate(flow, None, points, periods, integrator)
    if instances > 1:
        # raw, since dysts transforms the paths of some systems, and initial conditions
        # must be states
        path = _integrate(
            flow, None, REFERENCE_POINTS, REFERENCE_PERIODS, integrator, raw=True
        )[:, TRANSIENT:]
        if instances - 1 > path.shape[1]:
            raise InputError(
                f"instances is {instances}, expected at most {path.shape[1] + 1}"
            )
        # the name makes the draws of one system independent of those of others
        rng = np.random.default_rng([seed, zlib.crc32(system.encode())])
        steps = rng.choice(path.shape[1], size=instances - 1, replace=False)
        # (coordinate, time) becomes (time, coordinate): a state each
        for start in path.T[steps]:
            yield _integrate(flow, start, points, periods, integrator)


def _integrate(
    flow: Any,
    start: np.ndarray | None,
    points: int,
    periods: float,
    integrator: str,
    raw: bool = False,
) -> np.ndarray:
    """Integrate a trajectory (coordinate, time) from a state.

    The state is the system's published initial condition if None. If ``raw``, the
    trajectory is left as states, without dysts' transformation.

    Returns:
        The trajectory.
    """
    tolerance = TOLERANCES[integrator]
    # dysts seeds numpy's global generator
    state = np.random.get_state()  # noqa: NPY002
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = flow.make_trajectory(
                points,
                init_cond=start,
                pts_per_period=points / periods,
                method=integrator,
                rtol=tolerance,
                atol=tolerance,
                postprocess=not raw,
            )
    finally:
        np.random.set_state(state)  # noqa: NPY002
    if path is None:
        raise InputError(
            f"the integration of {flow.name!r} with {integrator} did not finish; try"
            f" the other one of {', '.join(TOLERANCES)}"
        )
    # (time, coordinate) becomes (coordinate, time)
    return np.asarray(path, dtype=np.float64).T


def _dysts(module: str) -> ModuleType:
    with warnings.catch_warnings():
        # dysts warns on import that numba is missing
        warnings.simplefilter("ignore")
        try:
            return import_module(module)
        except ImportError as error:
            raise MissingExtraError(
                f"chaotic systems need the package dysts ({error}). Install it:"
                f" {install_command('dysts')}"
            ) from error
