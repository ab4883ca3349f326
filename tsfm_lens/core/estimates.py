"""Four statements on an effect: on how many series it acts, its size, whether it is
significant, whether learned.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.extensions import extensible
from tsfm_lens.core.stats import (
    LEVEL,
    SMALLEST,
    exceeds_controls,
    holm,
    lead_shares,
    leader,
    over_windows,
    ratio,
    sign_test,
    units_needed,
)

SMALLEST_SHARE = SMALLEST
"""Share of a series' range: smaller changes of a forecast are no denominator, unless a
caller allows it.
"""
TWIN_WORK = 10**9
"""Largest work of a result, in parameters × forwards of its model, that is repeated in
twins nobody asked for.
"""
OTHER_SERIES = "other series like these"
OTHER_TIMES = "other times of this series"


@extensible
class Result(xr.Dataset):
    """Dataset of a probe, which draws itself: ``result.plot()``; its arrays keep
    xarray's own ``plot``.
    """

    __slots__ = ()


def judge(
    data: xr.Dataset,
    name: str,
    *,
    floor: xr.DataArray | np.ndarray | float,
    signed: bool = False,
    scale: xr.DataArray | np.ndarray | float = 1.0,
    smallest: float = SMALLEST,
    groups: str | xr.DataArray | Sequence[Hashable] | None = None,
    values: xr.DataArray | None = None,
    over: str = "series",
    contexts: xr.Dataset | None = None,
) -> xr.Dataset:
    """Add to an effect on how many series it acts, its unit-free size, and which
    members are significant or lead.

    Members are the effect's entries along all dimensions but series; covariates are
    left out. Unit of all tests is the series, its windows averaged and equal series
    counted once; where there is one series, its windows are the units. Series that the
    coordinate ``flat`` marks as degenerate are left out, and counted, as is a series on
    which no member has an effect or a floor.

    Args:
        data: result with ``name`` over (…, series).
        name: of the effect.
        floor: (series,), one value, or labelled by dimensions of the effect: the same
            measure on an unchanged model.
        signed: whether effects below zero count by their size.
        scale: of each series, or labelled: what the effect is divided by to be free of
            units.
        smallest: smallest size of interest, free of units.
        groups: a coordinate or array over members' dimensions, or a label per member,
            among which one may lead; None puts all into one group.
        values: (…, series) the effect by series, where the result has it in some other
            form.
        over: the dimension that is a sample, if it is not "series".
        contexts: holds the series, by which equal ones are known, where the result does
            not.

    Returns:
        The result with, by member: ``NAME_acts``, on how many series (and windows) the
        effect is above its floor; ``NAME_size``, median of the unit-free effect over
        units, ``NAME_low`` and ``NAME_high``, its range; ``NAME_p``, exact sign test of
        a median beyond the floor and ``smallest``; ``NAME_significant``, after one
        correction for all tests of the result; ``NAME_leads``, larger than every other
        member of its group by sign tests; ``NAME_lead_share``, share of bootstrap
        samples in which it is largest. ``NAME_floor`` (series, or as labelled).
        Attributes of ``NAME_p``: ``target``, what the test speaks of, ``units``,
        ``entries`` (series and windows), ``flat``, those left out as degenerate,
        ``family``, the number of tests, and ``needed``, the fewest units for
        significance.
    """
    if values is None:
        effect = data.variables[name]
    else:
        effect = values.variable
    dims = [dim for dim in effect.dims if dim != over]
    effect = effect.transpose(*dims, over)
    sizes = dict(effect.sizes)
    shape = effect.shape[:-1]
    flat = effect.values.astype(float).reshape(-1, sizes[over])
    floors = _labelled(floor, over, sizes[over])
    beneath, scales = (
        item.set_dims(sizes).transpose(*dims, over).values.reshape(flat.shape)
        for item in (floors, _labelled(scale, over, sizes[over]))
    )
    degenerate = _degenerate(data, over, sizes[over])
    defined = (np.isfinite(flat) & np.isfinite(beneath) & (scales > 0)).any(0)
    rows, target = _units(
        data, over, defined & ~degenerate, data if contexts is None else contexts
    )
    flat, beneath, scales = (item[:, rows >= 0] for item in (flat, beneath, scales))
    rows = rows[rows >= 0]
    activations = (np.abs(flat) > beneath).sum(-1)
    free = ratio(flat, scales)
    least = ratio(beneath, scales)
    effects = _by_unit(free, rows)
    least = over_windows(_by_unit(least, rows))
    by_unit = over_windows(effects)
    p = sign_test(by_unit, np.fmax(least, smallest), sides=1 + signed)
    leads = np.zeros(len(flat), dtype=bool)
    shares = np.zeros(len(flat))
    labels = _labels(data, groups, {dim: sizes[dim] for dim in dims})
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        own = np.abs(by_unit[members])
        first = leader(np.where(own > least[members], own, 0.0))
        if first is not None:
            leads[members[first]] = True
        if len(rows):
            shares[members] = lead_shares(np.abs(effects[members]))
    with np.errstate(all="ignore"):
        usual, low, high = (
            _over_units(of, by_unit) for of in (np.median, np.min, np.max)
        )
    parts = {
        "acts": activations,
        "size": usual,
        "low": low,
        "high": high,
        "p": p,
        "leads": leads,
        "lead_share": shares,
    }
    data = data.assign(
        {
            f"{name}_{part}": xr.Variable(dims, item.reshape(shape))
            for part, item in parts.items()
        }
    )
    units = by_unit.shape[1]
    entries = flat.shape[1]
    data[f"{name}_p"].attrs = {
        "groups": labels,
        "target": target,
        "units": units,
        "entries": entries,
        "sides": 1 + signed,
        "flat": int(degenerate.sum()),
        "smallest": smallest,
    }
    return corrected({"": data.assign({f"{name}_floor": floors})})[""]


def corrected(results: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """Correct the p-values of several results together, and compare all members with
    those of the twins.

    Returns:
        The results with ``NAME_significant`` and, where there are twins,
        ``NAME_learned``, all of them as one family.
    """
    results = dict(results)
    tested = [
        (key, name) for key, data in results.items() for name in judged_names(data)
    ]
    if not tested:
        return results
    p = [np.ravel(results[key][f"{name}_p"].values) for key, name in tested]
    family = int(sum(np.isfinite(entry).sum() for entry in p))
    adjusted = holm(np.concatenate(p))
    for (key, name), item in zip(
        tested,
        np.split(adjusted, np.cumsum([len(entry) for entry in p])[:-1]),
        strict=True,
    ):
        variable = results[key][f"{name}_p"]
        metadata = {
            "family": family,
            "needed": units_needed(family, int(variable.attrs["sides"])),
        }
        mark = variable.copy(data=(item <= LEVEL).reshape(variable.shape))
        results[key] = results[key].assign(
            {
                f"{name}_p": variable.assign_attrs(metadata),
                f"{name}_significant": mark.assign_attrs(variable.attrs | metadata),
            }
        )
    return _marked_learned(
        results,
        [(key, name) for key, name in tested if f"{name}_twins" in results[key]],
    )


def of_targets(data: xr.Dataset, args: Sequence[Any]) -> xr.Dataset:
    """Leave covariates of a probe's runs out of its result; an explanation keeps what
    its segments are of.
    """
    runs = [arg.batch for arg in args if hasattr(arg, "batch")]
    covariates = {
        name
        for batch in runs
        for name, target in zip(batch.ids, batch.is_target, strict=True)
        if not target
    }
    if not covariates or "series" not in data.dims or "segment" in data.dims:
        return data
    data = data.isel(series=[name not in covariates for name in data["series"].values])
    return data.drop_vars(["role", "known_future"], errors="ignore")


def judged_names(data: xr.Dataset) -> list[str]:
    """Return the names of the effects that :func:`judge` has judged in a result."""
    names = [
        str(name).removesuffix("_p")
        for name in data.data_vars
        if str(name).endswith("_p")
    ]
    return [name for name in names if f"{name}_acts" in data]


def with_twins(data: xr.Dataset, twins: Iterable[xr.Dataset]) -> xr.Dataset:
    """Add to a result the sizes that the same members have in untrained twins of its
    model.

    Returns:
        The result with ``NAME_twins`` (twin, …), the absolute sizes in each;
        ``NAME_twin_rank``, the place of the model's own among them, 1 the largest;
        ``NAME_learned``, see :func:`.stats.exceeds_controls`; what does not act is not
        learned.
    """
    rest = list(twins)
    for name in judged_names(data):
        own = abs(data[f"{name}_size"])
        sizes = xr.Variable.concat(
            [np.abs(other[f"{name}_size"].variable) for other in rest], "twin"
        )
        rank = 1 + (sizes >= own.variable).sum("twin")
        data = data.assign(
            {f"{name}_twins": sizes.astype("float32"), f"{name}_twin_rank": rank}
        )
    return corrected({"": data})[""]


def beside_twins(
    probe: Callable[..., xr.Dataset],
    result: xr.Dataset,
    count: int,
    args: Sequence[Any],
    options: Mapping[str, Any],
    work: int = 0,
) -> xr.Dataset:
    """Compute a probe's result in so many untrained twins of the model as well, and add
    what they show.

    Args:
        count: of twins; below 0 as many as a report has, if the result took at most
            :data:`TWIN_WORK`. The rule knows no clock, so that a page is the same on
            every machine.
        work: of the result itself, in parameters × forwards.

    Returns:
        See :func:`with_twins`; the result unchanged if it holds no effects. Where it is
        too much work or a twin refuses, the attribute ``twins_refused`` says why.
    """
    if not judged_names(result):
        return result
    if count < 0:
        count = twins_of_reports()
        if count and work > TWIN_WORK:
            reason = (
                f"the result took {work:.2g} parameters × forwards, more than"
                f" {TWIN_WORK:.0e}"
            )
            return result.assign_attrs(twins_refused=reason)
    if not count:
        return result
    options = {name: value for name, value in options.items() if name != "progress"}
    twins = (
        [arg.twin(i) if hasattr(arg, "n_twins") else arg for arg in args]
        for i in range(count)
    )
    try:
        return with_twins(result, (probe(*item, **options) for item in twins))
    except InputError as error:
        return result.assign_attrs(twins_refused=str(error))


def twins_of_reports() -> int:
    """Return how many twins a report has; by chance a model is the most extreme beside
    24 others once in 25 times.

    Raises:
        InputError: ``TSFM_LENS_TWINS`` in the environment is not a whole number.
    """
    value = os.environ.get("TSFM_LENS_TWINS", "24")
    if not value.isdigit():
        raise InputError(
            f"TSFM_LENS_TWINS={value!r} in the environment, expected a whole number"
            " such as 24, or 0"
        )
    return int(value)


def _marked_learned(
    results: dict[str, xr.Dataset], compared: Sequence[tuple[str, str]]
) -> dict[str, xr.Dataset]:
    """Mark the members of all results that are larger than every member of every twin."""
    if not compared:
        return results
    own = [abs(results[key][f"{name}_size"]) for key, name in compared]
    activations = [results[key][f"{name}_acts"].values > 0 for key, name in compared]
    twins = [results[key][f"{name}_twins"].values for key, name in compared]
    count = min(len(item) for item in twins)
    in_twins = np.hstack([item[:count].reshape(count, -1) for item in twins])
    # a twin whose forecasts are all flat has no effects that anything could be larger
    # than
    in_twins = in_twins[np.isfinite(in_twins).any(axis=1)]
    if not len(in_twins):
        return results
    flat = np.concatenate([np.ravel(item.values) for item in own])
    # groups of one result are no groups of another
    groups = np.concatenate(
        [
            1000 * at + results[key][f"{name}_p"].attrs["groups"]
            for at, (key, name) in enumerate(compared)
        ]
    )
    separate = exceeds_controls(flat, in_twins, groups)
    parts = np.split(separate, np.cumsum([size.size for size in own])[:-1])
    for (key, name), size, part, acting in zip(
        compared, own, parts, activations, strict=True
    ):
        mark = size.copy(data=part.reshape(size.shape) & acting).assign_attrs(
            twins=len(in_twins)
        )
        results[key] = results[key].assign({f"{name}_learned": mark})
    return results


def _labelled(values: Any, over: str, count: int) -> xr.Variable:
    """Label values by the dimension that is a sample, unless they have labels."""
    if isinstance(values, xr.DataArray):
        return xr.Variable(values.dims, values.values.astype(float))
    return xr.Variable(
        (over,), np.broadcast_to(np.asarray(values, dtype=float), (count,)).copy()
    )


def _targets(data: xr.Dataset, count: int) -> np.ndarray:
    """Mark the series that are no covariates."""
    if "role" in data.coords:
        return np.asarray(data["role"].values == "target")
    return np.ones(count, dtype=bool)


def _degenerate(data: xr.Dataset, over: str, count: int) -> np.ndarray:
    """Mark the targets that a result says to be flat."""
    if over != "series" or "flat" not in data.coords:
        return np.zeros(count, dtype=bool)
    return np.asarray(data["flat"].values.astype(bool)) & _targets(data, count)


def _units(
    data: xr.Dataset, over: str, usable: np.ndarray, contexts: xr.Dataset
) -> tuple[np.ndarray, str]:
    """Return the number of each entry's unit, -1 for covariates and others, and what a
    test over units speaks of.
    """
    rows = np.arange(len(usable))
    if over != "series":
        return np.where(usable, rows, -1), f"other {over}s drawn like these"
    targets = _targets(data, len(usable)) & usable
    is_of_items = "item" in data.coords
    if is_of_items:
        labels = data["item"].values
    else:
        labels = _digests(contexts, rows)
    if is_of_items and len(np.unique(labels[targets])) == 1:
        return np.where(targets, rows, -1), OTHER_TIMES
    return (
        np.where(targets, np.unique(labels, return_inverse=True)[1], -1),
        OTHER_SERIES,
    )


def _digests(data: xr.Dataset, rows: np.ndarray) -> np.ndarray:
    """Return one label per series, the same for series that are equal."""
    if "context" not in data or data["context"].dims != ("series", "time"):
        return rows
    parts = [
        data[name].transpose("series", ...).values
        for name in ("context", "truth")
        if name in data
    ]
    return np.array(
        [hash(tuple(part[row].tobytes() for part in parts)) for row in rows]
    )


def _by_unit(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Arrange (member, entry) as (member, unit, window), NaN where a unit has fewer
    windows than another.
    """
    units, position = np.unique(rows, return_inverse=True)
    if not len(units):
        return np.full((len(values), 0, 1), np.nan)
    window = np.array(
        [int((position[:at] == unit).sum()) for at, unit in enumerate(position)]
    )
    table = np.full((len(values), len(units), int(window.max(initial=0)) + 1), np.nan)
    table[:, position, window] = values
    return table


def _over_units(of: Any, values: np.ndarray) -> np.ndarray:
    """Apply a statistic to the finite values of each member, NaN without any."""
    if values.size and np.isfinite(values).all():
        return np.asarray(of(values, axis=-1))
    return np.array(
        [
            of(row[np.isfinite(row)]) if np.isfinite(row).any() else np.nan
            for row in values
        ]
    )


def _labels(data: xr.Dataset, groups: Any, sizes: dict[Hashable, int]) -> np.ndarray:
    """Return one label per member, as an index of groups, (member,)."""
    shape = tuple(sizes.values())
    if groups is None:
        return np.zeros(int(np.prod(shape)), dtype=int)
    if not isinstance(groups, str | xr.DataArray):
        names = list(dict.fromkeys(groups))
        return np.array([names.index(group) for group in groups])
    if isinstance(groups, str):
        labels = data.variables[groups]
    else:
        labels = groups.variable
    indices = np.unique(labels.values.astype(str), return_inverse=True)[1].reshape(
        labels.shape
    )
    return (
        xr.Variable(labels.dims, indices)
        .set_dims(sizes)
        .transpose(*sizes)
        .values.reshape(-1)
    )


def refuse_no_share(value: object, what: str) -> None:
    """Refuse a value that is not a number from 0 to 1."""
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise InputError(f"{what} is {value!r}, expected a share from 0 to 1")
