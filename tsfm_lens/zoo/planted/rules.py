"""Rules of planted models in closed form, and random series to tell them apart.

Each rule forecasts in data units, and its method ``inputs`` returns the Jacobian of the
forecast by the values that it reads. :func:`draw_contexts` draws series on which a rule
differs from others. No model is used here.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt

from tsfm_lens.core.errors import InputError
from tsfm_lens.data.checked import Strict

__all__ = [
    "CovariateTimes",
    "Gate",
    "LinearTrend",
    "LocalMean",
    "Routes",
    "SeasonalCopy",
    "Staircase",
    "draw_contexts",
]

Array = NDArray[np.float64]
Reads = Literal["recent", "old", "middle", "spread"]
"""Part of the context that a mechanism reads."""


Unit = Literal["mean absolute value", "standard deviation"]
"""How a model scales its context; by the second, its mean is subtracted, too."""


def _standardise(context: Array, unit: Unit) -> tuple[float, float]:
    """Return the offset and the scale that a model takes from a context."""
    if unit == "standard deviation":
        return float(context.mean()), float(context.std())
    return 0.0, float(np.abs(context).mean())


class _Linear(Strict):
    """Rule that is linear in the context without its last `ago` steps.

    With several values of `ago`, the forecast is the mean of those of each.
    """

    ago: tuple[NonNegativeInt, ...] = (0,)

    def steps(self, back: Collection[int]) -> tuple[int, ...]:
        """Convert steps before the end of what is read to steps before the context's.

        There is one for each value of `ago` and each given step.

        Returns:
            The steps.
        """
        return tuple(ago + steps for ago in self.ago for steps in back)

    def inputs(self, context: Array, horizon: int) -> Array:
        """Return the change of each forecast step per unit of each observed value.

        Returns:
            (horizon, time).
        """
        max_ago = max(self.ago)
        time = len(context)
        # the same weights for each value of ago, moved back by so many steps
        part = self._weights(time - max_ago, horizon) / len(self.ago)
        weights = np.zeros((horizon, time))
        for ago in self.ago:
            # ``part`` is as long as the context without the largest ago, so that each
            # shifted copy fits
            weights[:, max_ago - ago : time - ago] += part
        return weights

    def _weights(self, time: int, horizon: int) -> Array:
        """Return the Jacobian (horizon, time) for a context that is read to its end."""
        raise NotImplementedError

    def forecast(self, context: Array, horizon: int) -> Array:
        """Forecast (horizon,) from the observed values (time,)."""
        return self.inputs(context, horizon) @ context


class SeasonalCopy(_Linear):
    """Copy of the value one period back, over and over."""

    kind: Literal["seasonal copy"] = "seasonal copy"
    period: int = Field(gt=0)

    def _weights(self, time: int, horizon: int) -> Array:
        weights = np.zeros((horizon, time))
        steps = np.arange(horizon)
        # beyond one period, the copy copies itself, which is the last period of the
        # context again
        weights[steps, time - self.period + steps % self.period] = 1.0
        return weights


class LocalMean(_Linear):
    """Mean of the last `width` values."""

    kind: Literal["local mean"] = "local mean"
    width: int = Field(gt=0)

    def _weights(self, time: int, horizon: int) -> Array:
        weights = np.zeros((horizon, time))
        weights[:, -self.width :] = 1 / self.width
        return weights


class LinearTrend(_Linear):
    """Line through the mean of the last `width` values and an earlier mean.

    The earlier one is that of the `width` values `lag` steps before.
    """

    kind: Literal["linear trend"] = "linear trend"
    width: int = Field(gt=0)
    lag: int = Field(gt=0)

    def _weights(self, time: int, horizon: int) -> Array:
        late, early = np.zeros((2, time))
        late[-self.width :] = 1 / self.width
        end = time - self.lag
        early[end - self.width : end] = 1 / self.width
        # the late mean stands at the middle of its values, (width - 1) / 2 steps before
        # the last one
        steps_from_mean = np.arange(1, horizon + 1) + (self.width - 1) / 2
        slope = (late - early) / self.lag
        return late + steps_from_mean[:, None] * slope


class Gate(_Linear):
    """Seasonal copy if the last two periods agree; otherwise the last value.

    They agree if their mean absolute difference is at most `tolerance` times the `unit`
    of the context.
    """

    kind: Literal["gate"] = "gate"
    period: int = Field(gt=0)
    tolerance: float = Field(gt=0)
    unit: Unit = "mean absolute value"

    def margin(self, context: Array) -> float:
        """Return the tolerance less the difference of the last two periods.

        It is in multiples of `unit`; the gate is open unless it is negative.
        """
        # one period of a seasonal copy is the last period of what it reads
        copies = (
            SeasonalCopy(period=self.period, ago=self.steps([back]))
            for back in (0, self.period)
        )
        last, before = (copy.forecast(context, self.period) for copy in copies)
        _, unit = _standardise(context, self.unit)
        return float(self.tolerance - np.abs(last - before).mean() / unit)

    def seasonal(self, context: Array) -> bool:
        """Return True if the gate is open, so that the forecast is a seasonal copy."""
        return self.margin(context) >= 0

    def inputs(self, context: Array, horizon: int) -> Array:
        """Return the Jacobian (horizon, time), the gate as this context sets it."""
        # the last value, over and over, is a copy of period 1
        period = self.period if self.seasonal(context) else 1
        return SeasonalCopy(period=period, ago=self.ago).inputs(context, horizon)


class Routes(_Linear):
    """One of two linear rules, by the level of the last `width` values.

    The level is measured in the `unit` of the context. Above 0 the rule `high` holds,
    otherwise `low`. `ago` lists what either of them leaves out.
    """

    kind: Literal["routes"] = "routes"
    width: int = Field(gt=0)
    high: SeasonalCopy | LocalMean = Field(discriminator="kind")
    low: SeasonalCopy | LocalMean = Field(discriminator="kind")
    unit: Unit = "mean absolute value"

    def margin(self, context: Array) -> float:
        """Return the level of the last values, in multiples of `unit`."""
        offset, scale = _standardise(context, self.unit)
        return float((context[-self.width :].mean() - offset) / scale)

    def inputs(self, context: Array, horizon: int) -> Array:
        """Return the Jacobian (horizon, time) of the route that this context takes."""
        route = self.high if self.margin(context) > 0 else self.low
        return route.inputs(context, horizon)


class Staircase(Strict):
    """Forecast of a height that depends on the stair to which a local mean belongs.

    Stairs are parted by `edges`, and `heights` are the forecasts of the first step on
    them, all in the `unit` of the context. Each step after it adds `slope` times that.
    """

    kind: Literal["staircase"] = "staircase"
    width: int = Field(gt=0)
    edges: tuple[float, ...]
    heights: tuple[float, ...]
    slope: float = 0.0
    ago: tuple[NonNegativeInt, ...] = (0,)
    unit: Unit = "mean absolute value"

    def forecast(self, context: Array, horizon: int) -> Array:
        """Forecast (horizon,) from the observed values (time,)."""
        offset, scale = _standardise(context, self.unit)
        stair = np.searchsorted(self.edges, self._level(context))
        steps = 1.0 + self.slope * np.arange(horizon)
        return np.asarray(self.heights[stair] * scale * steps + offset)

    def margin(self, context: Array) -> float:
        """Return the distance of the local mean from the nearest edge, in `unit`."""
        return float(np.abs(np.array(self.edges) - self._level(context)).min())

    def inputs(self, context: Array, horizon: int) -> Array:
        """Return the weight of each observed value in the local mean.

        The forecast does not change within a stair, so its Jacobian says nothing.

        Returns:
            (horizon, time).
        """
        return self._mean.inputs(context, horizon)

    @property
    def _mean(self) -> LocalMean:
        return LocalMean(width=self.width, ago=self.ago)

    def _level(self, context: Array) -> float:
        offset, scale = _standardise(context, self.unit)
        return float((self._mean.forecast(context, 1)[0] - offset) / scale)


class CovariateTimes(Strict):
    """Covariate of known future, `ago` steps before, times a coefficient.

    With several values of `ago` the mean of the covariate at each is read. Target and
    covariate are standardised by the mean and standard deviation of their past.
    """

    kind: Literal["covariate"] = "covariate"
    coefficient: float
    ago: tuple[NonNegativeInt, ...] = (0,)

    def compute_forecast(self, target: Array, covariate: Array, future: Array) -> Array:
        """Forecast from observed values of the target and the covariate.

        Target and covariate are observed values (time,), ``future`` the covariate's
        values (horizon,) at the forecast steps.

        Returns:
            The forecast in data units, (horizon,).
        """
        full_covariate = np.concatenate([covariate, future])
        jacobian = self.inputs(target, covariate, len(future))
        return jacobian @ (full_covariate - covariate.mean()) + target.mean()

    def inputs(self, target: Array, covariate: Array, horizon: int) -> Array:
        """Return the change of each forecast step per unit of each covariate value.

        The scales of target and covariate count as constants.

        Returns:
            (horizon, time + horizon).
        """
        time = len(covariate)
        weights = np.zeros((horizon, time + horizon))
        for ago in self.ago:
            # step i reads the covariate at time + i - ago
            weights += np.eye(*weights.shape, k=time - ago) / len(self.ago)
        return self.coefficient * weights * target.std() / covariate.std()


Rule = Annotated[
    SeasonalCopy | LocalMean | LinearTrend | Gate | Routes | Staircase | CovariateTimes,
    Field(discriminator="kind"),
]

CLEAR = 0.03
"""Least distance of a level from where a rule changes, in drawn series."""
LEVELS = 6
"""Smallest number of different values in a seasonal shape."""
MOST = 100
"""Series drawn for each one that is asked for, before drawing is given up."""


def draw_contexts(
    rule: Rule,
    count: int,
    length: tuple[int, int],
    *,
    seed: int = 0,
    noise: float = 0.0,
) -> tuple[Array, ...]:
    """Draw random contexts, each of a random length, amplitude and phase.

    For a seasonal copy, a random shape is repeated, in which two values in a row tell
    the phase and a single one does not. For a gate every second series is a random walk
    instead, and no margin is close to 0, nor is one of routes or of a staircase. For
    means and trends, independent values are
    added to a level or a line.

    Args:
        rule: rule of a planted model.
        count: number of contexts.
        length: shortest and longest context, in steps.
        seed: of the random numbers.
        noise: standard deviation of independent observation noise, in mean absolute
            values of the series.

    Returns:
        One array (time,) for each context.

    Raises:
        InputError: with so much noise, series are not clearly on either side of a gate.
    """
    rng = np.random.default_rng(seed)
    contexts: list[Array] = []
    # one more round than tries, to return what the last one found
    for _ in range(MOST * count + 1):
        if len(contexts) == count:
            return tuple(contexts)
        time = int(rng.integers(length[0], length[1] + 1))
        series = _series(rule, len(contexts), time, rng)
        # models normalise, so that a forecast must follow any scale
        series *= rng.uniform(0.2, 20.0) / np.abs(series).mean()
        series += noise * np.abs(series).mean() * rng.standard_normal(time)
        if _is_clear(rule, series, should_open=len(contexts) % 2 == 0):
            contexts.append(series)
    raise InputError(
        f"noise {noise:g} hides the seasons of {rule!r}: hardly any series is clearly"
        " on the right side"
    )


def _is_clear(rule: Rule, series: Array, *, should_open: bool) -> bool:
    """Return whether a series is clearly on one side of where the rule changes.

    Of a gate it is the side that is asked for.
    """
    if isinstance(rule, Routes | Staircase):
        return abs(rule.margin(series)) >= CLEAR
    if not isinstance(rule, Gate):
        return True
    # with a tolerance of 80 % as well as with one of 125 %
    margin = rule.margin(series) / rule.tolerance
    return margin >= 0.2 if should_open else margin < -0.25


def shape(period: int, rng: np.random.Generator) -> Array:
    """Draw a shape (period,) of few levels, in which no pair of neighbours repeats.

    The last level and the first are a pair, too, since the shape will be repeated.

    Returns:
        The levels, (period,).
    """
    # count² pairs must leave some choice in drawing `period` different ones
    count = max(LEVELS, int(np.ceil((1.5 * period) ** 0.5)))
    # the shift is smaller than half the distance of two levels, which stay in order
    levels = np.linspace(-2.0, 2.0, count) + rng.uniform(-0.1, 0.1, count)
    # draw level after level, and start again where no new pair is left
    while True:
        path = [int(rng.integers(count))]
        pairs = set()
        while len(path) <= period:
            free = [
                following
                for following in range(count)
                if (path[-1], following) not in pairs
            ]
            if not free:
                break
            # the last pair leads back to the first level
            if len(path) == period:
                following = path[0]
            else:
                following = int(rng.choice(free))
            if following not in free:
                break
            pairs.add((path[-1], following))
            path.append(following)
        if len(path) > period:
            return levels[path[:period]]


def _series(rule: Rule, number: int, time: int, rng: np.random.Generator) -> Array:
    """Draw the series ``number`` (time,) for a rule, before it is scaled."""
    if isinstance(rule, Gate) and number % 2:
        # periods of a walk differ, which shuts a gate
        return rng.standard_normal() + rng.standard_normal(time).cumsum()
    if isinstance(rule, SeasonalCopy | Gate):
        return np.resize(shape(rule.period, rng), time)
    steps = np.arange(time) / time
    slope = 0.0
    if isinstance(rule, LinearTrend):
        slope = rng.standard_normal()
    if isinstance(rule, LinearTrend | LocalMean | Routes | Staircase):
        return rng.standard_normal() + slope * steps + 0.5 * rng.standard_normal(time)
    raise TypeError(f"no series are drawn for a rule of kind {rule.kind!r}")
