"""What may be named in a reading: members of an effect that stand out of its noise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import xarray as xr

from tsfm_lens.catalogue.words import num
from tsfm_lens.errors import InputError
from tsfm_lens.viz.select import array

WORTH_A_WORD = 0.01
"""Of the range of a series: changes below it may stand out of rounding and matter to nobody."""


class Standing:
    """An effect with what was found of its noise, over the dimensions of its members.

    Attributes:
        estimate, low, high: mean over series and the ends of its interval.
        stands_out: which members are above the noise floor.
        leads: which is larger than every other of its group.
        series: over how many series.

    Raises:
        InputError: nobody has asked of the result what stands out.
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
        self.series = _counted(ds, name, at)

    def named(self, count: int, among: np.ndarray | None = None) -> list[int]:
        """Flat places of the members to name: those that stand out, by the size of their effect, largest first."""
        size = np.where(np.isfinite(self.estimate), np.abs(self.estimate), -1.0).ravel()
        chosen = self.stands_out if among is None else self.stands_out & among
        return [int(flat) for flat in np.argsort(-size, kind="stable") if chosen.flat[flat]][:count]

    def leader(self, among: np.ndarray | None = None) -> int | None:
        """Flat place of the member that leads, None if none does."""
        chosen = self.leads if among is None else self.leads & among
        found = np.flatnonzero(chosen)
        return int(found[0]) if len(found) else None

    def told(self, flat: int, write: Callable[[float], str] = num) -> str:
        """An effect with its interval, where there is one."""
        value, low, high = (float(each.flat[flat]) for each in (self.estimate, self.low, self.high))
        if write(low) == write(high):
            return write(value)
        return f"{write(value)}, {write(low)} to {write(high)} over {self.series} series"


def _counted(ds: xr.Dataset, name: str, at: dict[str, int]) -> int:
    """Over how many series the effect was estimated: those that are forecast, and have a value."""
    if "series" not in ds.sizes:
        return 1
    counted = np.ones(ds.sizes["series"], dtype=bool)
    if "role" in ds.coords:
        counted = ds["role"].values == "target"
    if name in ds and "series" in ds[name].dims:
        values = ds[name].isel(at, missing_dims="ignore")
        counted = counted & values.notnull().any([dim for dim in values.dims if dim != "series"]).values
    return int(counted.sum())
