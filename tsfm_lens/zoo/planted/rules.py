"""Rules of planted models in closed form: forecast and its Jacobian by observed values, in data units."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

__all__ = ["CovariateTimes", "Gate", "LinearTrend", "LocalMean", "Rule", "SeasonalCopy"]

Array = NDArray[np.float64]


class _Linear(BaseModel):
    """Rule that is linear in the observed values."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def inputs(self, context: Array, horizon: int) -> Array:
        """Return the change of every forecast step per unit of every observed value: (horizon, time)."""
        raise NotImplementedError

    def forecast(self, context: Array, horizon: int) -> Array:
        """Forecast (horizon,) from the observed values (time,)."""
        return np.asarray(self.inputs(context, horizon) @ context)


class SeasonalCopy(_Linear):
    """Copy of the value one period back, over and over."""

    kind: Literal["seasonal copy"] = "seasonal copy"
    period: int = Field(gt=0)

    def inputs(self, context: Array, horizon: int) -> Array:
        """Return the Jacobian; see the base class."""
        weights = np.zeros((horizon, len(context)))
        steps = np.arange(horizon)
        weights[steps, len(context) - self.period + steps % self.period] = 1.0
        return weights


class LocalMean(_Linear):
    """Mean of the last `width` values; with `recursive`, forecasts count as values of the steps after them."""

    kind: Literal["local mean"] = "local mean"
    width: int = Field(gt=0)
    recursive: bool = False

    def inputs(self, context: Array, horizon: int) -> Array:
        """Return the Jacobian; see the base class."""
        time = len(context)
        rows = np.vstack([np.eye(time), np.zeros((horizon, time))])
        for step in range(horizon):
            end = time + (step if self.recursive else 0)
            rows[time + step] = rows[end - self.width : end].mean(0)
        return rows[time:]


class LinearTrend(_Linear):
    """Line through the mean of the last `width` values and that of the `width` values `lag` steps before."""

    kind: Literal["linear trend"] = "linear trend"
    width: int = Field(gt=0)
    lag: int = Field(gt=0)

    def inputs(self, context: Array, horizon: int) -> Array:
        """Return the Jacobian; see the base class."""
        late, early = np.zeros((2, len(context)))
        late[-self.width :] = 1 / self.width
        end = len(context) - self.lag
        early[end - self.width : end] = 1 / self.width
        # the last `width` values are centred (width - 1) / 2 steps before the last one
        ahead = (np.arange(1, horizon + 1) + (self.width - 1) / 2)[:, None]
        return np.asarray(late + ahead * (late - early) / self.lag)


class Gate(_Linear):
    """Seasonal copy if the last period resembles the one before, otherwise the last value.

    Attributes:
        tolerance: largest mean absolute difference of the last two periods that counts as a season.
        unit: what the tolerance is measured in, of the whole context.
    """

    kind: Literal["gate"] = "gate"
    period: int = Field(gt=0)
    tolerance: float = Field(gt=0)
    unit: Literal["mean absolute value", "standard deviation"] = "mean absolute value"

    def margin(self, context: Array) -> float:
        """Return the tolerance left, in its unit: the copy goes through unless this is negative."""
        last, before = context[-self.period :], context[-2 * self.period : -self.period]
        unit = context.std() if self.unit == "standard deviation" else np.abs(context).mean()
        return float(self.tolerance - np.abs(last - before).mean() / unit)

    def seasonal(self, context: Array) -> bool:
        """Test if the gate lets the copy through."""
        return self.margin(context) >= 0

    def inputs(self, context: Array, horizon: int) -> Array:
        """Return the Jacobian, with the gate as it stands; see the base class."""
        if self.seasonal(context):
            return SeasonalCopy(period=self.period).inputs(context, horizon)
        weights = np.zeros((horizon, len(context)))
        weights[:, -1] = 1.0
        return weights


class CovariateTimes(BaseModel):
    """Known future covariate times a coefficient, on the level of the target.

    The covariate is measured in standard deviations of its past, from its past mean, and so is the target. Past values
    matter through these two alone, and the rule is not linear in them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["covariate"] = "covariate"
    coefficient: float

    def forecast(self, future: Array) -> Array:
        """Forecast the standardised target (horizon,) from the covariate's standardised future values (horizon,)."""
        return np.asarray(self.coefficient * future)

    def forecast_of(self, target: Array, covariate: Array, future: Array) -> Array:
        """Forecast in data units: (horizon,).

        Args:
            target, covariate: observed values, (time,) each.
            future: values of the covariate, (horizon,).
        """
        return np.asarray(target.mean() + target.std() * self.forecast((future - covariate.mean()) / covariate.std()))

    def inputs(self, target: Array, covariate: Array, horizon: int) -> Array:
        """Return the change of every forecast step per unit of every future covariate value: (horizon, horizon)."""
        return np.asarray(np.eye(horizon) * self.coefficient * target.std() / covariate.std())


Rule = Annotated[SeasonalCopy | LocalMean | LinearTrend | Gate | CovariateTimes, Field(discriminator="kind")]
