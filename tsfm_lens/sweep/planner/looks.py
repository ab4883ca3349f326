"""Statistics of a sequential test of a change of the mean error.

A look is an interim analysis: the test is computed on a growing random part of the
series, and stops early where the change is beyond a bound. Read
:func:`schedule_analyses` first, then :func:`log_change` and :func:`spending_bounds`.
The search that uses them is in ``search.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.special import ndtr, stdtrit

from tsfm_lens.core.errors import InputError

SHARES = (0.25, 0.5, 0.75, 1.0)
# the first look has at least this many units of each dataset, if there are as many, so
# that a variance can be estimated
_MIN_UNITS = 4
# points at which the density between two looks is computed
_GRID = 801


@dataclass(frozen=True, eq=False)
class InterimAnalyses:
    """Units that each look adds; a unit is a series with all its windows.

    ``added`` has an array of indices of units for each look, and ``groups`` (unit,) the
    number of each unit's dataset.
    """

    added: tuple[np.ndarray, ...]
    groups: np.ndarray

    @property
    def total(self) -> int:
        """Number of units."""
        return sum(len(units) for units in self.added)

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of the units that are known after each look; the last is 1."""
        return tuple(np.cumsum([len(units) for units in self.added]) / self.total)


def schedule_analyses(
    sets: Sequence[object], shares: Sequence[float] = SHARES, *, seed: int = 0
) -> InterimAnalyses:
    """Divide units among looks at random, given the dataset of each.

    The units up to every look are a random sample of each dataset.

    Returns:
        The units that each look adds.
    """
    groups = pd.factorize(pd.Series(list(sets), dtype=object))[0]
    rng = np.random.default_rng(seed)
    units_by_look: list[list[int]] = [[] for _ in shares]
    for group in range(groups.max() + 1):
        shuffled = rng.permutation(np.flatnonzero(groups == group))
        count = len(shuffled)
        # number of units up to each look; a small dataset may be seen whole in an early
        # look, and adds nothing to later ones
        stops = [max(round(share * count), min(_MIN_UNITS, count)) for share in shares]
        for look, (start, stop) in enumerate(zip([0, *stops], stops, strict=False)):
            units_by_look[look] += shuffled[start:stop].tolist()
    # a look that adds no unit would repeat the test before it
    added = tuple(
        np.array(sorted(units), dtype=int) for units in units_by_look if units
    )
    return InterimAnalyses(added, groups)


def log_change(
    ablated: np.ndarray,
    plain: np.ndarray,
    groups: np.ndarray,
    visible: np.ndarray,
) -> tuple[float, float, float]:
    """Estimate the log change of the mean error.

    Args:
        ablated: errors of the ablated model's forecasts, (unit,).
        plain: errors of the plain model's, (unit,).
        groups: number of each unit's dataset.
        visible: flags of the units that a look has added so far.

    Returns:
        The estimate, its standard error, and the degrees of freedom of that.

    Source:
        Cochran 1977, chapters 5 and 6.
    """
    if not (np.isfinite(plain[visible]).all() and not np.isnan(ablated[visible]).any()):
        raise InputError(
            "an error is not a number; leave out the series whose error is not defined"
        )
    values = []
    variances = []
    freedoms = []
    for group in np.unique(groups):
        in_group = groups == group
        errors = ablated[in_group & visible]
        plain_errors = plain[in_group & visible]
        if not plain_errors.sum() > 0:
            # no change is defined on such a data set, which the mean over data sets
            # leaves out
            continue
        with np.errstate(divide="ignore", invalid="ignore"):
            values.append(np.log(errors.sum()) - np.log(plain_errors.sum()))
            # what each unit contributes to this logarithm, to first order
            by_unit = errors / errors.mean() - plain_errors / plain_errors.mean()
            variance = 0.0
            if len(by_unit) > 1:
                variance = by_unit.var(ddof=1)
        # the units are drawn from a finite set: once all are seen, nothing is uncertain
        unseen = 1 - len(by_unit) / in_group.sum()
        variances.append(variance / len(by_unit) * unseen)
        freedoms.append(max(len(by_unit) - 1, 1))
    if not values:
        raise InputError(
            "the plain model has an error of zero on every data set, or none that is"
            " defined"
        )
    estimate = float(np.mean(values))
    by_group = np.array(variances)
    if not by_group.any():
        return estimate, 0.0, np.inf
    # Satterthwaite's approximation for a sum of variances of different freedoms
    freedom = by_group.sum() ** 2 / (by_group**2 / np.array(freedoms)).sum()
    error = np.sqrt(by_group.sum()) / len(by_group)
    return estimate, float(error), float(freedom)


@cache
def spending_bounds(shares: tuple[float, ...], alpha: float) -> tuple[float, ...]:
    """Compute Pocock's one-sided bounds of all looks but the last.

    Returns:
        A bound for each look but the last, in standard errors.

    Source:
        Lan and DeMets 1983; Armitage et al. 1969.
    """
    if not 0 < alpha < 0.5:
        raise InputError(f"alpha is {alpha}, expected a chance between 0 and 0.5")
    early = np.array(shares[:-1])
    # Lan and DeMets' spending function of Pocock's type, all of alpha spent by the last
    # early look: at the end nothing is uncertain, and no bound is needed; a slice,
    # since there may be no early look
    costs = alpha * np.log1p((np.e - 1) * (early / early[-1:]))
    # up to a constant factor, one over the variance of the estimate: if a share f of a
    # finite set is seen, the variance is proportional to (1 - f) / f
    information = early / (1 - early)
    bounds: list[float] = []
    # density of the running sum of information-weighted estimates that no bound has
    # stopped
    grid = np.zeros(1)
    weight = np.ones(1)
    before = 0.0
    for now, cost in zip(information, np.diff(costs, prepend=0.0), strict=True):
        step = np.sqrt(now - before)
        arguments = (now, step, grid, weight, cost)
        # the bound lies between these: nearly every search would stop at -2, and nearly
        # none at 40
        bounds.append(float(brentq(_excess, -2.0, 40.0, args=arguments)))
        top = bounds[-1] * np.sqrt(now)
        # from ten standard deviations below, where the density is under 1e-22, to the
        # bound, above which the search has stopped
        new_grid = np.linspace(-10 * np.sqrt(now), top, _GRID)
        # the convolution with the normal increment between two looks, (new grid, old
        # grid) summed over the old one
        increments = (new_grid[:, None] - grid) / step
        normal = np.exp(-(increments**2) / 2) / np.sqrt(2 * np.pi)
        density = (weight * normal / step).sum(axis=1)
        # the trapezoidal rule
        width = np.full(_GRID, new_grid[1] - new_grid[0])
        width[[0, -1]] /= 2
        grid = new_grid
        weight = density * width
        before = now
    return tuple(bounds)


def _excess(
    bound: float,
    now: float,
    step: float,
    grid: np.ndarray,
    weight: np.ndarray,
    cost: float,
) -> float:
    """Compute the chance to stop first at this look, less its permitted cost.

    It stops where its estimate is beyond the bound, and no earlier one was.

    Returns:
        The difference of two probabilities.
    """
    beyond = ndtr((grid - bound * np.sqrt(now)) / step)
    return float((weight * beyond).sum() - cost)


def student_bound(bound: float, freedom: float) -> float:
    """Return the bound of the same tail probability with an estimated variance.

    ``freedom`` is the number of degrees of freedom of that estimate.
    """
    if np.isinf(freedom):
        return bound
    return float(-stdtrit(freedom, ndtr(-bound)))
