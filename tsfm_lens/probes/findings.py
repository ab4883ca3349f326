"""Uncertainty of effects, and components that stand out: intervals over series, noise floors, tests."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import xarray as xr
from scipy.special import stdtr, stdtrit

from tsfm_lens.errors import InputError, unknown_name

Control = Literal["holm", "by"]
"""Correction for multiple tests. "holm" names a wrong member in at most 5 % of results (family-wise error). "by" lets
at most 5 % of the named members be wrong on average (Benjamini and Yekutieli's false-discovery rate), however members
depend on each other."""

CONFIDENCE = 0.95
SMALLEST_SHARE = 0.01
"""Share of a series' range: smaller changes of a forecast are no denominator, unless a caller allows it."""
FEWEST = 3
"""Least number of series that count as a sample, over which an effect has an interval."""


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

    Covariates are left out. Three or more series are a sample, and the effect's estimate is the mean over them, so that
    results hold for other series like them; fewer series are no sample. Members are the effect's entries along all
    other dimensions: components, or components at positions. A member stands out if its effect is above the noise
    floor. It leads its group if its effect is also larger than that of every other member. Both are one-sided t tests
    over series, paired between members. They are corrected over the members of a group after Holm, or as ``control``
    says; a leader's always after Holm. With fewer than three series the effect, or the difference, must exceed the
    floor in each. An effect that stands out is more than rounding or draws, but need not be large: where every head
    writes a little, every head stands out.

    Args:
        data: result with ``name`` over (…, series).
        name: of the effect.
        floor: (series,), one value, or labelled by some of the effect's dimensions: the same measure on an unchanged
            model.
        signed: whether effects below zero count by their size.
        groups: a coordinate or array over some of the members' dimensions, or one label per member; each group has its
            own leader. None puts all into one.
        values: (…, series) the effect by series, where the result has it in some other form.
        over: the dimension that is a sample, if it is not "series".
        control: see :data:`Control`; "by" for lists in which a few wrong members among many do no harm.

    Returns:
        The result with ``NAME_estimate``, ``NAME_low``, ``NAME_high`` (…), the ends of the 95 % interval over series
        (the estimate itself where there are fewer than three), ``NAME_floor`` (series, or as labelled), and the
        booleans ``NAME_stands_out`` and ``NAME_leads`` (…). The attribute ``test`` names the test, and ``below_noise``
        says of which effects no member stands out.

    Raises:
        UnknownNameError: no such control.
    """
    if control not in _ADJUST:
        raise unknown_name("control", control, list(_ADJUST))
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
    estimate, low, high = interval_over_series(flat)
    stands_out, leads = np.zeros(len(flat), dtype=bool), np.zeros(len(flat), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        stands_out[members], leads[members] = standing(flat[members], beneath[members], signed=signed, control=control)
    results = {"estimate": estimate, "low": low, "high": high, "stands_out": stands_out, "leads": leads}
    shape = effect.shape[:-1]
    variables = {f"{name}_{part}": xr.Variable(dims, each.reshape(shape)) for part, each in results.items()}
    data = data.assign({**variables, f"{name}_floor": floors})
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
    """Refuse a value that is no number from 0 to 1.

    Raises:
        InputError: the value is none.
    """
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(f"{what} is {value!r}, expected a share from 0 to 1")


def standing(
    effect: np.ndarray, floor: np.ndarray | float, *, signed: bool = False, control: Control = "holm"
) -> tuple[np.ndarray, np.ndarray]:
    """Mark members (member, series) that stand out of their own or shared floors, and the leader, (member,).

    See :func:`judge`.
    """
    # the sign of the estimate; a test of each value's size would call noise large
    side = np.where(signed & (interval_over_series(effect)[0] < 0), -1.0, 1.0)[:, None]
    stands_out = _exceeds(side * effect - floor, 2.0 if signed else 1.0, control)
    leads = np.zeros(len(effect), dtype=bool)
    first = leader(np.abs(effect) if signed else effect, floor)
    if first is not None:
        leads[first] = stands_out[first]
    return stands_out, leads


def interval_over_series(effect: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the mean over the last axis, series, and the ends of its 95 % t interval.

    With fewer than three series all three are the mean.
    """
    valid = np.isfinite(effect)
    count = valid.sum(-1)
    # a component may be defined for no series
    with np.errstate(invalid="ignore"):
        mean = np.where(valid, effect, 0.0).sum(-1) / count
    if (count < FEWEST).all():
        return mean, mean, mean
    with np.errstate(invalid="ignore", divide="ignore"):
        squares = np.square(np.where(valid, effect - mean[..., None], 0.0)).sum(-1)
        error = np.sqrt(squares / (count - 1) / count)
    reach = np.where(count >= FEWEST, stdtrit(np.maximum(count - 1, 1), 0.5 + CONFIDENCE / 2) * error, 0.0)
    return mean, mean - reach, mean + reach


def by_unit(totals: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return units of a sample whose mean is the ratio of totals to counts, and whose spread is that ratio's.

    Args:
        totals: (…, unit) sums over the counted items of each.
        counts: (unit,).

    Source:
        Cochran 1977, Sampling Techniques, section 6.4: the ratio estimator, linearised.
    """
    ratio = totals.sum(-1, keepdims=True) / counts.sum()
    return np.asarray(ratio + (totals - ratio * counts) / counts.mean())


def leader(effect: np.ndarray, floor: np.ndarray | float = 0.0) -> int | None:
    """Return the member whose effect is larger than every other's, None if none is.

    Args:
        effect: (member, series).
        floor: (member, series), (series,) or one value: differences up to it are none.
    """
    mean = interval_over_series(effect)[0]
    candidates = np.flatnonzero(np.isfinite(mean))
    if not len(candidates):
        return None
    first = int(candidates[np.argmax(mean[candidates])])
    others = candidates[candidates != first]
    if not len(others):
        return first
    # half a floor on either side of two effects
    floors = np.broadcast_to(np.asarray(floor, dtype=float), effect.shape) / 2
    return first if _exceeds(effect[first] - effect[others] - (floors[first] + floors[others]), 1.0).all() else None


def _exceeds(values: np.ndarray, sides: float, control: Control = "holm") -> np.ndarray:
    """Mark values (member, series) above zero, corrected for the number of members, (member,)."""
    count = np.isfinite(values).sum(-1)
    few = count < FEWEST
    above = np.where(few, np.nan_to_num(values, nan=-1.0).min(-1) > 0, False)
    members = np.flatnonzero(~few)
    if not len(members):
        return above
    mean, spread = np.nanmean(values[members], axis=-1), np.nanstd(values[members], axis=-1, ddof=1)
    # effects that are alike on every series leave no doubt
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(spread > 0, mean / (spread / np.sqrt(count[members])), np.sign(mean) * np.inf)
    p = np.minimum(sides * stdtr(count[members] - 1, -np.nan_to_num(t, nan=0.0)), 1.0)
    above[members] = _ADJUST[control](p) <= 1 - CONFIDENCE
    return above


def _holm(p: np.ndarray) -> np.ndarray:
    """Adjust p-values after Holm.

    The library's function collects garbage at each call, which takes half a second beside torch.
    """
    order = np.argsort(p)
    adjusted = np.maximum.accumulate((len(p) - np.arange(len(p))) * p[order])
    return np.minimum(adjusted, 1.0)[np.argsort(order)]


def _by(p: np.ndarray) -> np.ndarray:
    """Adjust p-values after Benjamini and Yekutieli (2001, Annals of Statistics 29, theorem 1.3)."""
    count = len(p)
    ranks = np.arange(1, count + 1)
    order = np.argsort(p)
    raised = p[order] * count * (1 / ranks).sum() / ranks
    adjusted = np.minimum.accumulate(raised[::-1])[::-1]
    return np.minimum(adjusted, 1.0)[np.argsort(order)]


_ADJUST: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {"holm": _holm, "by": _by}
_NAMES = {"holm": "Holm", "by": "Benjamini and Yekutieli"}
