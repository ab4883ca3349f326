"""Effects that a reading may name: those that stand out of their noise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.viz.select import array
from tsfm_lens.viz.words import num

WORTH_A_WORD = 0.01
"""Of the range of a series: changes below it may stand out of rounding and matter to nobody."""


class Standing:
    """Effect with its noise, over the dimensions of its members.

    Attributes:
        estimate, low, high: mean over series and the ends of its interval.
        stands_out: which members are above the noise floor.
        leads: which is larger than every other of its group.
        series: over how many series.

    Raises:
        InputError: the result does not say what stands out.
    """

    def __init__(self, ds: xr.Dataset, name: str, *dims: str, **at: int) -> None:
        if f"{name}_estimate" not in ds:
            raise InputError(
                f"the {ds.attrs.get('kind')!r} result does not say which {name} stands out of the noise; compute it "
                "anew, or add it with tsfm_lens.probes.findings.judge"
            )
        self.estimate, self.low, self.high = (
            array(ds, f"{name}_{part}", *dims, **at) for part in ("estimate", "low", "high")
        )
        self.stands_out, self.leads = (
            array(ds, f"{name}_{part}", *dims, **at).astype(bool) for part in ("stands_out", "leads")
        )
        self.series = _count_series(ds, name, at)

    def named(self, count: int, among: np.ndarray | None = None) -> list[int]:
        """Return flat places of the members to name: those that stand out, the largest effect first."""
        size = np.where(np.isfinite(self.estimate), np.abs(self.estimate), -1.0).ravel()
        mask = self.stands_out if among is None else self.stands_out & among
        return [int(flat) for flat in np.argsort(-size, kind="stable") if mask.flat[flat]][:count]

    def leader(self, among: np.ndarray | None = None) -> int | None:
        """Return the flat place of the member that leads, None if none does."""
        mask = self.leads if among is None else self.leads & among
        places = np.flatnonzero(mask)
        return int(places[0]) if len(places) else None

    def told(self, flat: int, write: Callable[[float], str] = num) -> str:
        """Write an effect with its interval, where there is one."""
        value, low, high = (float(each.flat[flat]) for each in (self.estimate, self.low, self.high))
        if write(low) == write(high):
            return write(value)
        return f"{write(value)}, {write(low)} to {write(high)} over {self.series} series"


def _count_series(ds: xr.Dataset, name: str, at: dict[str, int]) -> int:
    """Count the series over which the effect was estimated: those that are forecast, and have a value."""
    if "series" not in ds.sizes:
        return 1
    mask = np.ones(ds.sizes["series"], dtype=bool)
    if "role" in ds.coords:
        mask = ds["role"].values == "target"
    if name in ds and "series" in ds[name].dims:
        values = ds[name].isel(at, missing_dims="ignore")
        mask = mask & values.notnull().any([dim for dim in values.dims if dim != "series"]).values
    return int(mask.sum())
