"""Uncertainty of effects, and components that stand out: intervals over series, noise floors, tests."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.stats import CONFIDENCE, CORRECTIONS, FEWEST, Control, mean_interval, significant

SMALLEST_SHARE = 0.01
"""Share of a series' range: smaller changes of a forecast are no denominator, unless a caller allows it."""

_NAMES = {"holm": "Holm", "by": "Benjamini and Yekutieli"}


def judge(
    data: xr.Dataset,
    name: str,
    *,
    floor: xr.DataArray | np.ndarray | float,
    signed: bool = False,
    groups: str | xr.DataArray | Sequence[Hashable] | None = None,
    values: xr.DataArray | None = None,
    over: str = "series",
    control: Control = "holm",
) -> xr.Dataset:
    """Add to an effect its interval, its noise floor, and the members that stand out or lead.

    Members are the effect's entries along all dimensions but series; covariates are left out. A member stands out if
    its effect is above the noise floor, and leads its group if it is also larger than every other member's. Both are
    one-sided t tests over series, paired between members and corrected over a group; with fewer than three series the
    effect, or the difference, must exceed the floor in each.

    Args:
        data: result with ``name`` over (…, series).
        name: of the effect.
        floor: (series,), one value, or labelled by dimensions of the effect: the same measure on an unchanged model.
        signed: whether effects below zero count by their size.
        groups: a coordinate or array over members' dimensions, or a label per member; None puts all into one group.
        values: (…, series) the effect by series, where the result has it in some other form.
        over: the dimension that is a sample, if it is not "series".
        control: see :data:`tsfm_lens.stats.Control`; a leader's is always Holm's.

    Returns:
        The result with ``NAME_estimate``, ``NAME_low``, ``NAME_high`` (…), mean and 95 % interval over series (the mean
        alone below three), ``NAME_floor`` (series, or as labelled), and the booleans ``NAME_stands_out`` and
        ``NAME_leads`` (…). The attribute ``test`` names the test, ``below_noise`` the effects of which none stands out.

    Raises:
        UnknownNameError: no such control.
    """
    if control not in CORRECTIONS:
        raise unknown_name("control", control, list(CORRECTIONS))
    effect = data.variables[name] if values is None else values.variable
    dims = [dim for dim in effect.dims if dim != over]
    effect = effect.transpose(*dims, over)
    if isinstance(floor, xr.DataArray):
        floors = xr.Variable(floor.dims, floor.values.astype(float))
    else:
        floors = xr.Variable((over,), np.broadcast_to(np.asarray(floor, dtype=float), effect.shape[-1:]).copy())
    sizes = dict(effect.sizes)
    flat = effect.values.astype(float).reshape(-1, sizes[over])
    beneath = floors.set_dims(sizes).transpose(*dims, over).values.reshape(flat.shape)
    labels = _labels(data, groups, {dim: sizes[dim] for dim in dims})
    if over == "series" and "role" in data.coords:
        # what a model emits for a covariate is no forecast
        forecast = data["role"].values == "target"
        flat, beneath = flat[:, forecast], beneath[:, forecast]
    estimate, low, high = mean_interval(flat)
    stands_out, leads = np.zeros(len(flat), dtype=bool), np.zeros(len(flat), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        own, floor_of = flat[members], beneath[members]
        stands_out[members], leads[members] = significant(own, floor_of, signed=signed, control=control)
    results = {"estimate": estimate, "low": low, "high": high, "stands_out": stands_out, "leads": leads}
    parts = {f"{name}_{part}": xr.Variable(dims, each.reshape(effect.shape[:-1])) for part, each in results.items()}
    data = data.assign({**parts, f"{name}_floor": floors})
    plural = over if over == "series" else f"{over}s"
    data.attrs["test"] = (
        f"t tests over {plural} after {_NAMES[control]}, {100 * CONFIDENCE:g} % intervals"
        if flat.shape[1] >= FEWEST
        else "none"
    )
    if not stands_out.any():
        above = np.nan_to_num(np.abs(estimate), nan=0.0) <= beneath.mean(-1)
        words = "the noise floor is above every effect" if above.all() else "no effect stands out of the noise floor"
        data.attrs["below_noise"] = "; ".join([*filter(None, [data.attrs.get("below_noise")]), f"{name}: {words}"])
    return data


def _labels(data: xr.Dataset, groups: Any, sizes: dict[Hashable, int]) -> np.ndarray:
    """Return one label per member, as an index of groups, (member,)."""
    shape = tuple(sizes.values())
    if groups is None:
        return np.zeros(int(np.prod(shape)), dtype=int)
    if not isinstance(groups, str | xr.DataArray):
        names = list(dict.fromkeys(groups))
        return np.array([names.index(each) for each in groups])
    labels = data.variables[groups] if isinstance(groups, str) else groups.variable
    indices = np.unique(labels.values.astype(str), return_inverse=True)[1].reshape(labels.shape)
    return xr.Variable(labels.dims, indices).set_dims(sizes).transpose(*sizes).values.reshape(-1)


def refuse_no_share(value: object, what: str) -> None:
    """Refuse a value that is no number from 0 to 1."""
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(f"{what} is {value!r}, expected a share from 0 to 1")
