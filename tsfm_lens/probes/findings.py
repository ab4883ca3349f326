"""What an effect is uncertain by, and which components stand out: intervals over series, noise floors, tests."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence

import numpy as np
import xarray as xr
from scipy import stats

CONFIDENCE = 0.95
FEWEST = 3
"""Series from which on they are taken for a sample, over which an effect has an interval."""


def judge(
    data: xr.Dataset,
    name: str,
    *,
    floor: np.ndarray | float,
    signed: bool = False,
    groups: Sequence[Hashable] | None = None,
) -> xr.Dataset:
    """Add to an effect of components what is needed to know whether it is one.

    Of at least three series the effect is estimated by its mean over them; they are a sample, so that what is found
    would be found on others like them. Fewer are spoken of as they are. A component stands out if its effect is
    above the noise floor, and leads its group if it is also larger than that of every other member: one-sided t
    tests over series (paired between members), after Holm over the members; of fewer than three series the effect, or
    the difference, must exceed the floor in each.

    Args:
        data: result with ``name`` over (component, series).
        name: of the effect.
        floor: (series,) or one value: what the same measure gives where nothing was changed.
        signed: whether effects below zero count by their size.
        groups: one label per component; leaders are found within each. None puts all into one.

    Returns:
        The result with ``NAME_estimate``, ``NAME_low``, ``NAME_high`` (component), the ends of the 95 % interval over
        series (the estimate itself where there are fewer than three), ``NAME_floor`` (series), and the booleans
        ``NAME_stands_out`` and ``NAME_leads`` (component).
    """
    effect = data[name].transpose("component", "series").values.astype(float)
    floors = np.broadcast_to(np.asarray(floor, dtype=float), effect.shape[1:])
    estimate, low, high = interval_over_series(effect)
    labels = list(groups) if groups is not None else [""] * len(effect)
    stands_out, leads = np.zeros(len(effect), dtype=bool), np.zeros(len(effect), dtype=bool)
    for label in dict.fromkeys(labels):
        members = np.array([index for index, each in enumerate(labels) if each == label])
        stands_out[members], leads[members] = standing(effect[members], floors, signed=signed)
    found = {"estimate": estimate, "low": low, "high": high, "stands_out": stands_out, "leads": leads}
    data = data.assign({f"{name}_{part}": ("component", values) for part, values in found.items()})
    data[f"{name}_floor"] = ("series", floors.copy())
    data.attrs["test"] = (
        f"t tests over series after Holm, {100 * CONFIDENCE:g} % intervals" if effect.shape[1] >= FEWEST else "none"
    )
    return data


def standing(effect: np.ndarray, floor: np.ndarray | float, *, signed: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Which members (member, series) stand out, and which one leads, each (member,); see :func:`judge`."""
    # the side that the estimate is on; testing the size of each value would find noise large
    side = np.where(signed & (interval_over_series(effect)[0] < 0), -1.0, 1.0)[:, None]
    stands_out = _exceeds(side * effect - floor, 2.0 if signed else 1.0)
    leads = np.zeros(len(effect), dtype=bool)
    first = leader(np.abs(effect) if signed else effect, floor)
    if first is not None:
        leads[first] = stands_out[first]
    return stands_out, leads


def interval_over_series(effect: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean over the last axis, series, and the ends of its 95 % t interval; the mean itself of fewer than three."""
    known = np.isfinite(effect)
    count = known.sum(-1)
    with warnings.catch_warnings():
        # of a component that is defined for no series
        warnings.simplefilter("ignore", RuntimeWarning)
        mean = np.nanmean(np.where(known, effect, np.nan), axis=-1)
        error = np.nanstd(np.where(known, effect, np.nan), axis=-1, ddof=1) / np.sqrt(count)
    enough = count >= FEWEST
    reach = np.where(enough, stats.t.ppf(0.5 + CONFIDENCE / 2, np.maximum(count - 1, 1)) * error, 0.0)
    return mean, mean - reach, mean + reach


def leader(effect: np.ndarray, floor: np.ndarray | float = 0.0) -> int | None:
    """The one of several members whose effect is larger than every other's, None if none is.

    Args:
        effect: (member, series).
        floor: (series,) or one value: differences up to it are none.
    """
    mean = interval_over_series(effect)[0]
    known = np.flatnonzero(np.isfinite(mean))
    if not len(known):
        return None
    first = int(known[np.argmax(mean[known])])
    others = known[known != first]
    if not len(others):
        return first
    # half a floor on either side of two effects
    return first if _exceeds(effect[first] - effect[others] - floor, 1.0).all() else None


def _exceeds(values: np.ndarray, sides: float) -> np.ndarray:
    """(member,): whether values (member, series) are above zero, after Holm over the members."""
    count = np.isfinite(values).sum(-1)
    few = count < FEWEST
    above = np.where(few, np.nan_to_num(values, nan=-1.0).min(-1) > 0, False)
    tested = np.flatnonzero(~few)
    if not len(tested):
        return above
    mean, spread = np.nanmean(values[tested], axis=-1), np.nanstd(values[tested], axis=-1, ddof=1)
    # effects that are alike on every series leave no doubt
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(spread > 0, mean / (spread / np.sqrt(count[tested])), np.sign(mean) * np.inf)
    p = np.minimum(sides * stats.t.sf(np.nan_to_num(t, nan=0.0), count[tested] - 1), 1.0)
    above[tested] = _holm(p) <= 1 - CONFIDENCE
    return above


def _holm(p: np.ndarray) -> np.ndarray:
    """Holm's adjusted p-values. The library's function collects garbage at each call, half a second beside torch."""
    order = np.argsort(p)
    adjusted = np.maximum.accumulate((len(p) - np.arange(len(p))) * p[order])
    return np.minimum(adjusted, 1.0)[np.argsort(order)]
