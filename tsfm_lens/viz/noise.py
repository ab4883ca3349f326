"""Noise of a result, for figures: intervals, floors, and which effects stand out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.stats import mean_interval
from tsfm_lens.viz.select import array
from tsfm_lens.viz.theme import number, percent

NOT_ABOVE = "does not stand out of the noise"
_SMALL = 1e-3  # of the largest effect: a floor so far below it is no number that says anything


@dataclass(frozen=True)
class Finding:
    """Effect over the members that it was judged for.

    Attributes:
        estimate, low, high: the effect and the ends of its interval; they coincide where there is no interval.
        stands: True for each member that stands out of the noise.
        floor, lowest: the largest and the smallest noise floor over series and members; unit: of them and the effect.
    """

    estimate: np.ndarray
    low: np.ndarray
    high: np.ndarray
    stands: np.ndarray
    floor: float
    lowest: float
    unit: str = ""

    @property
    def floor_is_tiny(self) -> bool:
        """True where the noise floor is too small, beside the largest effect, to be seen in a figure."""
        largest = float(np.abs(self.estimate[np.isfinite(self.estimate)]).max(initial=0.0))
        return self.floor < _SMALL * largest

    @property
    def floor_words(self) -> str:
        """Noise floor as a subtitle says it."""
        if self.floor_is_tiny:
            return f"below {percent(_SMALL)} of the largest effect"
        several = "up to " * (self.lowest < 0.99 * self.floor)
        return f"{several}{number(self.floor)} {self.unit}".strip()

    def at(self, which: Any) -> Finding:
        """Return the members at some places, in their order."""
        estimate, low, high, stands = (part[which] for part in (self.estimate, self.low, self.high, self.stands))
        return replace(self, estimate=estimate, low=low, high=high, stands=stands)

    @property
    def pale(self) -> np.ndarray:
        """Members that do not stand out of the noise."""
        return ~self.stands

    @property
    def spread(self) -> bool:
        """True where any member has an interval."""
        return bool((self.high > self.low).any())

    @property
    def without_interval(self) -> Finding:
        """Finding without interval, for marks that stand elsewhere than at the estimate."""
        return replace(self, low=self.estimate, high=self.estimate)

    def with_another(self, value: float) -> Finding:
        """Add one more member at the end, of which nothing is known and which is drawn as it is."""
        estimate, low, high = (np.append(part, value) for part in (self.estimate, self.low, self.high))
        return replace(self, estimate=estimate, low=low, high=high, stands=np.append(self.stands, True))

    def told(self, i: int | tuple[int, ...]) -> str:
        """Describe one member for a hover box."""
        words = "stands out of the noise" if self.stands[i] else NOT_ABOVE
        ends = f"mean {number(self.estimate[i])}, interval {number(self.low[i])} to {number(self.high[i])}"
        return f"{ends}<br>{words}" if self.high[i] > self.low[i] else words


def mean_of_seeds(values: np.ndarray) -> Finding:
    """Average (seed,) values, with the 95 % interval by t where there are three or more."""
    mean, low, high = (each[None] for each in mean_interval(values))
    return Finding(mean, low, high, np.array([True]), 0.0, 0.0)


def finding(ds: xr.Dataset, name: str, *dims: str, unit: str = "", **at: int) -> Finding | None:
    """Read the noise of the effect ``name`` over ``dims`` from a result, None where it says nothing.

    Args:
        unit: of the effect.
        at: positions along other dimensions.
    """
    variables = [f"{name}_{part}" for part in ("estimate", "low", "high", "stands_out")]
    if any(variable not in ds or set(ds[variable].dims) - set(at) != set(dims) for variable in variables):
        return None
    estimate, low, high, stands = (array(ds, variable, *dims, **at) for variable in variables)
    floors = np.empty(0)
    if f"{name}_floor" in ds:
        floors = np.asarray(ds[f"{name}_floor"].isel(at, missing_dims="ignore").values, dtype=float).ravel()
        floors = floors[np.isfinite(floors)]
    ends = (float(floors.max()), float(floors.min())) if len(floors) else (0.0, 0.0)
    return Finding(estimate, low, high, stands > 0, *ends, unit)
