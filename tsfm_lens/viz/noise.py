"""Judged effects of a result: intervals, noise floors, and which members stand out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.stats import mean_interval
from tsfm_lens.viz.select import array
from tsfm_lens.viz.theme import number
from tsfm_lens.viz.words import num

NOT_ABOVE = "does not stand out of the noise"
WORTH_A_WORD = 0.01
"""Of the range of a series: changes below it may stand out of rounding and matter to nobody."""


@dataclass(frozen=True)
class Finding:
    """Effect over its members; ``low`` and ``high`` are the estimate where it has no interval."""

    estimate: np.ndarray
    low: np.ndarray
    high: np.ndarray
    stands: np.ndarray
    floor: float
    lowest: float
    unit: str = ""
    leads: Any = None
    series: int = 1

    @property
    def floor_words(self) -> str:
        """Noise floor as a subtitle says it."""
        several = "up to " * (self.lowest < 0.99 * self.floor)
        return f"{several}{number(self.floor)} {self.unit}".strip()

    def at(self, which: Any) -> Finding:
        """Return the members at some places, in their order."""
        parts = {name: getattr(self, name)[which] for name in ("estimate", "low", "high", "stands")}
        return replace(self, leads=None, **parts)

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
        parts: dict[str, Any] = {name: np.append(getattr(self, name), value) for name in ("estimate", "low", "high")}
        return replace(self, leads=None, stands=np.append(self.stands, True), **parts)

    def hover(self, i: int | tuple[int, ...]) -> str:
        """Describe one member for a hover box."""
        words = "stands out of the noise" if self.stands[i] else NOT_ABOVE
        ends = f"mean {number(self.estimate[i])}, interval {number(self.low[i])} to {number(self.high[i])}"
        return f"{ends}<br>{words}" if self.high[i] > self.low[i] else words

    def named(self, count: int, among: np.ndarray | None = None) -> list[int]:
        """Return flat places of the members to name: those that stand out, the largest effect first."""
        size = np.where(np.isfinite(self.estimate), np.abs(self.estimate), -1.0).ravel()
        mask = self.stands if among is None else self.stands & among
        return [int(flat) for flat in np.argsort(-size, kind="stable") if mask.flat[flat]][:count]

    def leader(self, among: np.ndarray | None = None) -> int | None:
        """Return the flat place of the member that leads, None if none does."""
        places = np.flatnonzero(self.leads if among is None else self.leads & among)
        return int(places[0]) if len(places) else None

    def told(self, flat: int, write: Callable[[float], str] = num) -> str:
        """Write an effect with its interval, where there is one."""
        value, low, high = (write(float(each.flat[flat])) for each in (self.estimate, self.low, self.high))
        return value if low == high else f"{value}, {low} to {high} over {self.series} series"


def mean_of_seeds(values: np.ndarray) -> Finding:
    """Average (seed,) values, with the 95 % interval by t where there are three or more."""
    mean, low, high = (each[None] for each in mean_interval(values))
    return Finding(mean, low, high, np.array([True]), 0.0, 0.0)


def finding(ds: xr.Dataset, name: str, *dims: str, unit: str = "", **at: int) -> Finding | None:
    """Read a judged effect over ``dims``, at positions along others; None where the result says nothing of it."""
    variables = [f"{name}_{part}" for part in ("estimate", "low", "high", "stands_out")]
    if any(variable not in ds or set(ds[variable].dims) - set(at) != set(dims) for variable in variables):
        return None
    estimate, low, high, stands = (array(ds, variable, *dims, **at) for variable in variables)
    leads = array(ds, f"{name}_leads", *dims, **at) > 0 if f"{name}_leads" in ds else None
    floors = np.zeros(1)
    if f"{name}_floor" in ds:
        floors = np.asarray(ds[f"{name}_floor"].isel(at, missing_dims="ignore").values, dtype=float).ravel()
        floors = floors[np.isfinite(floors)] if np.isfinite(floors).any() else np.zeros(1)
    ends = float(floors.max()), float(floors.min())
    return Finding(estimate, low, high, stands > 0, *ends, unit, leads, _count_series(ds, name, at))


def judged(ds: xr.Dataset, name: str, *dims: str, **at: Any) -> Finding:
    """Read a judged effect, of which a sentence may name what stands out; refuse a result that does not judge it."""
    effect = finding(ds, name, *dims, **at)
    if effect is None:
        raise InputError(
            f"the {ds.attrs.get('kind')!r} result does not say which {name} stands out of the noise; compute it "
            "anew, or add it with tsfm_lens.probes.findings.judge"
        )
    return effect


def _count_series(ds: xr.Dataset, name: str, at: dict[str, int]) -> int:
    """Count the series over which the effect was estimated: those that are forecast, and have a value."""
    if "series" not in ds.sizes:
        return 1
    mask = ds["role"].values == "target" if "role" in ds.coords else np.ones(ds.sizes["series"], dtype=bool)
    if name in ds and "series" in ds[name].dims:
        values = ds[name].isel(at, missing_dims="ignore")
        mask = mask & values.notnull().any([dim for dim in values.dims if dim != "series"]).values
    return int(mask.sum())
