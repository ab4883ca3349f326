"""Four statements on the effect of each member of a result, and their tests.

A member is what a probe measures, such as a head. The statements are: on how many
series it acts, its size, whether it is significant, and whether it is learned. Read
:func:`add_estimates` first, which makes the first three; :func:`with_twins` adds the
last, by untrained twins of the model, and :func:`corrected` corrects the tests of
several results together. The statistics themselves are in :mod:`.stats`.
"""

from __future__ import annotations

import inspect
import json
import os
import warnings
from collections.abc import (
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.extensions import extensible, public_attributes
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
"""Change of a forecast, as a share of a series' range, below which none is divided by.

Functions that form such ratios take another limit as an argument.
"""
TWIN_WORK = 10**9
"""Largest work of a result that is repeated in twins by default.

Work is in parameters × forwards of the model.
"""
OTHER_SERIES = "other series like these"
OTHER_TIMES = "other times of this series"


SELECTED = "selected"
"""Attribute of a result that has lost dimensions, by which figures restore them.

It is JSON: for each dimension that was selected by one label, the dimensions that its
variables had; for one that was averaged, nothing.
"""
_MANY = 10  # times the rows of the largest variable, above which a frame is a mistake


@extensible
class Result(xr.Dataset):
    """Dataset of a probe, which draws itself: ``result.plot()``.

    ``result.table()`` is a frame of pandas with a row a member. A result of one series,
    ``result.isel(series=0)``, is drawn as the whole is. Its arrays keep xarray's own
    ``plot``.
    """

    # xarray warns of a subclass without slots
    __slots__ = ()

    def __dir__(self) -> list[str]:
        return public_attributes(super().__dir__())

    def isel(self, *args: Any, **options: Any) -> Result:
        """Select by position, see :meth:`xarray.Dataset.isel`.

        ``sel`` and ``squeeze`` come here, too.

        Returns:
            The selection, which knows what was selected.
        """
        chosen: Result = super().isel(*args, **options)
        lost = [str(dim) for dim in self.dims if dim not in chosen.dims]
        if not lost:
            return chosen
        record = _selected(self)
        for dim in lost:
            record[dim] = {
                str(name): list(map(str, variable.dims))
                for name, variable in self.variables.items()
                if dim in variable.dims
            }
        return chosen.assign_attrs({SELECTED: json.dumps(record)})

    def reduce(self, *args: Any, **options: Any) -> Result:
        """Reduce dimensions, see :meth:`xarray.Dataset.reduce`.

        ``mean``, ``max`` and their like come here, too.

        Returns:
            The reduced result, which knows what was averaged.
        """
        reduced: Result = super().reduce(*args, **options)
        lost = [str(dim) for dim in self.dims if dim not in reduced.dims]
        if not lost or "kind" not in reduced.attrs:
            return reduced
        record = _selected(self) | {dim: {} for dim in lost}
        return reduced.assign_attrs({SELECTED: json.dumps(record)})

    def to_dataframe(self, *args: Any, **options: Any) -> pd.DataFrame:
        """Return a frame over all dimensions, see :meth:`xarray.Dataset.to_dataframe`.

        It warns where that repeats each value many times: a result has the series that
        it is of, so that figures of a saved one need no model.
        """
        rows = int(np.prod(list(self.sizes.values())))
        largest = max((int(array.size) for array in self.values()), default=0)
        if rows > _MANY * max(largest, 1):
            names = ", ".join(map(repr, list(self.data_vars)[:3]))
            warnings.warn(
                f"to_dataframe() makes {rows:,} rows of this result, whose variables"
                f" have at most {largest:,} values: it repeats each over the dimensions"
                " of all others. table() has one row a member; table(NAME) is of one"
                f" variable, such as {names}.",
                stacklevel=2,
            )
        return super().to_dataframe(*args, **options)


def _selected(data: xr.Dataset) -> dict[str, dict[str, list[str]]]:
    """Return the dimensions that a result has lost; see :data:`SELECTED`."""
    record: dict[str, dict[str, list[str]]] = json.loads(data.attrs.get(SELECTED, "{}"))
    return record


def restore_selected(data: xr.Dataset) -> xr.Dataset:
    """Give a result the dimensions back of which one label was selected.

    Each has one label then. A dimension that was averaged stays away.

    Returns:
        The result.
    """
    for dim, dims_before in reversed(_selected(data).items()):
        if dim in data.dims:
            continue
        variables = dict(data.variables)
        for name in dims_before.keys() & variables.keys():
            variable = variables[name]
            longer = variable.set_dims((dim, *variable.dims))
            # what else was lost in the meantime is not in the order
            order = [other for other in dims_before[name] if other in longer.dims]
            variables[name] = longer.transpose(*order)
        coords = {name: variables.pop(name) for name in data.coords}
        data = xr.Dataset(variables, coords, data.attrs)
    return data


@contextmanager
def name_lost_dimensions(data: xr.Dataset) -> Iterator[None]:
    """Say in the error of a figure which dimension its result has lost, and the cure.

    Raises:
        InputError: a figure could not draw a result that has lost dimensions.
    """
    try:
        yield
    # what a figure raises without one of its dimensions may be anything
    except Exception as error:
        # tables, such as those of sweeps, have no dimensions to lose
        if not isinstance(data, xr.Dataset):
            raise
        averaged = [
            dim
            for dim, before in _selected(data).items()
            if not before and dim not in data.dims
        ]
        # of a dataset that was read from a file nothing is recorded
        single = "series" in data.coords and "series" not in data.dims
        if averaged:
            raise InputError(
                f"this result was averaged over {', '.join(averaged)}, which its figure"
                " needs; plot the whole result, whose figures summarise it themselves,"
                f" or one label of it: result.isel({averaged[0]}=0).plot()"
            ) from error
        if single:
            raise InputError(
                "this result has lost its dimension 'series', which its figure needs;"
                " select one series as a list: result.isel(series=[0])"
            ) from error
        raise


def add_estimates(
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
    flat_forecasts: np.ndarray | None = None,
) -> xr.Dataset:
    """Add to an effect how often it acts, its size, and which members stand out.

    Members are the effect's entries along all dimensions but series. The unit of all
    tests is the series: its windows are averaged, and equal series count once. Where
    there is one series, its windows are the units. Covariates are left out, and so are
    series on which no member has an effect or a floor, and degenerate ones, whose
    number is kept. The coordinate ``flat`` marks these, by their contexts.

    Args:
        data: result with ``name`` over (…, series).
        name: of the effect.
        floor: the same measure on an unchanged model: (series,), one value, or labelled
            by dimensions of the effect.
        signed: whether effects below zero count by their size.
        scale: what the effect is divided by to be free of units, in the same forms as
            ``floor``.
        smallest: smallest size of interest, free of units.
        groups: members of a group are compared for which one leads; a coordinate or
            array over members' dimensions, or a label per member. None puts all into
            one group.
        values: the effect (…, series) in place of ``data[name]``, if that has another
            form.
        over: the dimension whose entries are the sample, in place of "series".
        contexts: dataset in which equal series are found by their context, if ``data``
            has none.
        flat_forecasts: (series,), true where an effect on the shape of a forecast is
            not defined, since there is none. These series are degenerate, too.

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
        ``flat_forecasts``, those among them whose context varies, ``family``, the
        number of tests, and ``needed``, the fewest units for significance.
    """
    # an xr.Variable has no labels, by which arrays would be aligned and entries dropped
    if values is None:
        effect = data.variables[name]
    else:
        effect = values.variable
    dims = [dim for dim in effect.dims if dim != over]
    effect = effect.transpose(*dims, over)
    sizes = dict(effect.sizes)
    shape = effect.shape[:-1]
    # (member, series): the test knows nothing of layers and heads
    effects = effect.values.astype(float).reshape(-1, sizes[over])
    floors = _labelled(floor, over, sizes[over])
    noise = _by_member(floors, effect)
    scales = _by_member(_labelled(scale, over, sizes[over]), effect)
    degenerate = _degenerate(data, over, sizes[over])
    n_flat_contexts = degenerate.sum()
    if flat_forecasts is not None:
        degenerate |= flat_forecasts & _targets(data, sizes[over])
    # (series,), true where any member has an effect, a floor and a scale
    measured = (np.isfinite(effects) & np.isfinite(noise) & (scales > 0)).any(0)
    if contexts is None:
        contexts = data
    units, target = _units(data, over, measured & ~degenerate, contexts)
    effects, noise, scales = (
        table[:, units >= 0] for table in (effects, noise, scales)
    )
    units = units[units >= 0]
    n_above_floor = (np.abs(effects) > noise).sum(-1)
    # (member, unit, window), and below the mean over windows, (member, unit)
    by_window = _by_unit(ratio(effects, scales), units)
    by_unit = over_windows(by_window)
    noise_floor = over_windows(_by_unit(ratio(noise, scales), units))
    # fmax and not maximum: a floor that is NaN leaves the smallest size of interest
    p = sign_test(by_unit, np.fmax(noise_floor, smallest), sides=1 + signed)
    leads = np.zeros(len(effects), dtype=bool)
    shares = np.zeros(len(effects))
    labels = _labels(data, groups, {dim: sizes[dim] for dim in dims})
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        magnitudes = np.abs(by_unit[members])
        # a member below its floor has no size to lead by
        first = leader(np.where(magnitudes > noise_floor[members], magnitudes, 0.0))
        if first is not None:
            leads[members[first]] = True
        # bootstrap samples cannot be drawn of no units
        if len(units):
            shares[members] = lead_shares(np.abs(by_window[members]))
    with np.errstate(all="ignore"):
        median, low, high = (
            _over_units(statistic, by_unit) for statistic in (np.median, np.min, np.max)
        )
    parts = {
        "acts": n_above_floor,
        "size": median,
        "low": low,
        "high": high,
        "p": p,
        "leads": leads,
        "lead_share": shares,
    }
    data = data.assign(
        {
            f"{name}_{part}": xr.Variable(dims, numbers.reshape(shape))
            for part, numbers in parts.items()
        }
    )
    # corrected() reads the groups and sides
    data[f"{name}_p"].attrs = {
        "groups": labels,
        "target": target,
        "units": by_unit.shape[1],
        "entries": effects.shape[1],
        "sides": 1 + signed,
        "flat": int(degenerate.sum()),
        "flat_forecasts": int(degenerate.sum() - n_flat_contexts),
        "smallest": smallest,
    }
    # effects judged before are corrected again, since all tests are one family
    return corrected({"": data.assign({f"{name}_floor": floors})})[""]


def corrected(results: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """Correct the p-values of several results together.

    All members are also compared with those of the twins.

    Returns:
        The results with ``NAME_significant`` and, where there are twins,
        ``NAME_learned``, all of them as one family.
    """
    results = dict(results)
    tested = [
        (key, name) for key, data in results.items() for name in estimated_effects(data)
    ]
    if not tested:
        return results
    p = [np.ravel(results[key][f"{name}_p"].values) for key, name in tested]
    # a member without a value is not tested
    family = int(sum(np.isfinite(values).sum() for values in p))
    adjusted = holm(np.concatenate(p))
    # back into one array per effect; np.split takes inner bounds, without the end
    by_effect = np.split(adjusted, np.cumsum([len(values) for values in p])[:-1])
    for (key, name), corrected_p in zip(tested, by_effect, strict=True):
        variable = results[key][f"{name}_p"]
        metadata = {
            "family": family,
            "needed": units_needed(family, int(variable.attrs["sides"])),
        }
        is_significant = (corrected_p <= LEVEL).reshape(variable.shape)
        significant = variable.copy(data=is_significant)
        results[key] = results[key].assign(
            {
                f"{name}_p": variable.assign_attrs(metadata),
                f"{name}_significant": significant.assign_attrs(
                    variable.attrs | metadata
                ),
            }
        )
    with_twin_sizes = [
        (key, name) for key, name in tested if f"{name}_twins" in results[key]
    ]
    return _mark_learned(results, with_twin_sizes)


def of_targets(data: xr.Dataset, args: Sequence[Any]) -> xr.Dataset:
    """Leave covariates of a probe's runs out of its result.

    An explanation, which has a dimension "segment", stays as it is: segments may be of
    covariates.

    Returns:
        The result.
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


def estimated_effects(data: xr.Dataset) -> list[str]:
    """Return the names of the effects that a result has estimates of."""
    names = [
        str(name).removesuffix("_p")
        for name in data.data_vars
        if str(name).endswith("_p")
    ]
    # probes have p-values of other tests, too
    return [name for name in names if f"{name}_acts" in data]


def with_twins(data: xr.Dataset, twins: Iterable[xr.Dataset]) -> xr.Dataset:
    """Add the sizes that the same members have in untrained twins of the model.

    Returns:
        The result with ``NAME_twins`` (twin, …), the absolute sizes in each twin;
        ``NAME_twin_rank``, the rank of the model's own size among them, where 1 is the
        largest; and ``NAME_learned``, true of members that act and exceed all twins by
        :func:`.stats.exceeds_controls`.
    """
    controls = list(twins)
    for name in estimated_effects(data):
        size = abs(data[f"{name}_size"])
        sizes = xr.Variable.concat(
            [np.abs(control[f"{name}_size"].variable) for control in controls], "twin"
        )
        # a twin that is as large counts against the model
        rank = 1 + (sizes >= size.variable).sum("twin")
        data = data.assign(
            {f"{name}_twins": sizes.astype("float32"), f"{name}_twin_rank": rank}
        )
    return corrected({"": data})[""]


def compare_with_twins(
    probe: Callable[..., xr.Dataset],
    result: xr.Dataset,
    count: int,
    args: Sequence[Any],
    options: Mapping[str, Any],
    work: int = 0,
) -> xr.Dataset:
    """Compute a probe's result in untrained twins of the model, and compare.

    Args:
        probe: function of the registry that gave the result.
        result: what the probe gave for the model.
        count: number of twins. Below 0 it is that of a report, if the result took at
            most :data:`TWIN_WORK`; work decides and not time, so that a page is the
            same on every machine.
        args: positional arguments of the probe, runs among them.
        options: its keyword arguments.
        work: of the result itself, in parameters × forwards.

    Returns:
        See :func:`with_twins`. Where the result has no tested effects though twins were
        asked for, is too much work, or a twin refuses, the attribute
        ``twins_refused`` says why.
    """
    if not estimated_effects(result):
        # who names a number expects them in every result
        if count > 0:
            reason = "it has no tested effects; compute it on run.twin(0) and others"
            return result.assign_attrs(twins_refused=reason)
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
    # a caller's progress counts the result alone, and not its twins
    options = {name: value for name, value in options.items() if name != "progress"}
    # draws of a twin would be compared with nothing
    if "nulls" in inspect.signature(probe).parameters:
        options = {**options, "nulls": 0}
    # one twin at a time, since each is as large as the model
    twin_args = ([_make_twin(arg, number) for arg in args] for number in range(count))
    try:
        return with_twins(result, (probe(*twin, **options) for twin in twin_args))
    # a result without twins is still one, and says why it has none
    except InputError as error:
        return result.assign_attrs(twins_refused=str(error))


def _make_twin(argument: Any, number: int) -> Any:
    """Return the twin of a run, or of each in a list; any other argument as it is."""
    if isinstance(argument, list | tuple):
        return [_make_twin(item, number) for item in argument]
    if hasattr(argument, "n_twins"):
        return argument.twin(number)
    return argument


def twins_of_reports() -> int:
    """Return how many twins a report has.

    Raises:
        InputError: ``TSFM_LENS_TWINS`` in the environment is not a whole number.
    """
    # beside 24 twins, a model is the most extreme by chance once in 25 times, which is
    # below the level of 5 %
    value = os.environ.get("TSFM_LENS_TWINS", "24")
    if not value.isdigit():
        raise InputError(
            f"TSFM_LENS_TWINS={value!r} in the environment, expected a whole number"
            " such as 24, or 0"
        )
    return int(value)


def _mark_learned(
    results: dict[str, xr.Dataset], compared: Sequence[tuple[str, str]]
) -> dict[str, xr.Dataset]:
    """Mark the members of all results that are larger than those of every twin."""
    if not compared:
        return results
    sizes = [abs(results[key][f"{name}_size"]) for key, name in compared]
    above_floor = [results[key][f"{name}_acts"].values > 0 for key, name in compared]
    by_twin = [results[key][f"{name}_twins"].values for key, name in compared]
    # (twin, member): a row is one twin over all effects, so only twins that every
    # result has are compared
    count = min(map(len, by_twin))
    in_twins = np.hstack([values[:count].reshape(count, -1) for values in by_twin])
    # a twin whose forecasts are all flat has no effects, and sets no bar
    in_twins = in_twins[np.isfinite(in_twins).any(axis=1)]
    if not len(in_twins):
        return results
    in_model = np.concatenate([np.ravel(size.values) for size in sizes])
    # groups count from 0 in every result; an offset keeps those of two results apart
    own_groups = [results[key][f"{name}_p"].attrs["groups"] for key, name in compared]
    counts = [int(np.max(labels, initial=-1)) + 1 for labels in own_groups]
    starts = np.cumsum([0, *counts[:-1]])
    groups = np.concatenate(
        [start + labels for start, labels in zip(starts, own_groups, strict=True)]
    )
    exceeds = exceeds_controls(in_model, in_twins, groups)
    by_effect = np.split(exceeds, np.cumsum([size.size for size in sizes])[:-1])
    for (key, name), size, part, acting in zip(
        compared, sizes, by_effect, above_floor, strict=True
    ):
        # what is beyond all twins can still be below the floor of the model itself
        learned = size.copy(data=part.reshape(size.shape) & acting)
        learned = learned.assign_attrs(twins=len(in_twins))
        results[key] = results[key].assign({f"{name}_learned": learned})
    return results


def _labelled(values: Any, over: str, count: int) -> xr.Variable:
    """Label values by the dimension of the sample, unless they have labels."""
    if isinstance(values, xr.DataArray):
        return xr.Variable(values.dims, values.values.astype(float))
    # a copy, since broadcast_to gives a read-only view
    return xr.Variable(
        (over,), np.broadcast_to(np.asarray(values, dtype=float), (count,)).copy()
    )


def _by_member(values: xr.Variable, effect: xr.Variable) -> np.ndarray:
    """Broadcast values to the dimensions of an effect, as (member, series)."""
    aligned = values.set_dims(dict(effect.sizes)).transpose(*effect.dims)
    result: np.ndarray = aligned.values.reshape(-1, effect.shape[-1])
    return result


def _targets(data: xr.Dataset, count: int) -> np.ndarray:
    """Mark the series that are forecast, as covariates are not."""
    if "role" in data.coords:
        return np.asarray(data["role"].values == "target")
    return np.ones(count, dtype=bool)


def _degenerate(data: xr.Dataset, over: str, count: int) -> np.ndarray:
    """Mark the targets that are flat by a coordinate of the result."""
    if over != "series" or "flat" not in data.coords:
        return np.zeros(count, dtype=bool)
    result: np.ndarray = np.asarray(data["flat"].values.astype(bool)) & _targets(
        data, count
    )
    return result


def _units(
    data: xr.Dataset, over: str, usable: np.ndarray, contexts: xr.Dataset
) -> tuple[np.ndarray, str]:
    """Return the unit of each entry, and what a test over units speaks of.

    Units are numbers, -1 for covariates and for entries that are left out.
    """
    rows = np.arange(len(usable))
    if over != "series":
        return np.where(usable, rows, -1), f"other {over}s drawn like these"
    targets = _targets(data, len(usable)) & usable
    is_of_items = "item" in data.coords
    if is_of_items:
        labels = data["item"].values
    else:
        labels = digest_series(contexts)
    # each window of the only item is a unit, and says nothing about other series
    if is_of_items and len(np.unique(labels[targets])) == 1:
        return np.where(targets, rows, -1), OTHER_TIMES
    _, units = np.unique(labels, return_inverse=True)
    return np.where(targets, units, -1), OTHER_SERIES


def digest_series(data: xr.Dataset) -> np.ndarray:
    """Return one label per series, the same for series that are equal."""
    rows = np.arange(data.sizes["series"])
    # without contexts to compare, every series counts as different
    if "context" not in data or data["context"].dims != ("series", "time"):
        return rows
    parts = [
        data[name].transpose("series", ...).values
        for name in ("context", "truth")
        if name in data
    ]
    # to compare within this process only: hashes of bytes differ between processes
    return np.array(
        [hash(tuple(part[row].tobytes() for part in parts)) for row in rows]
    )


def _by_unit(values: np.ndarray, entry_units: np.ndarray) -> np.ndarray:
    """Arrange (member, entry) as (member, unit, window).

    ``entry_units`` is the unit of each entry.

    Returns:
        The table, NaN where a unit has fewer windows than another.
    """
    units, unit_index = np.unique(entry_units, return_inverse=True)
    if not len(units):
        return np.full((len(values), 0, 1), np.nan)
    # the number of entries of the same unit that come before
    window = np.array(
        [int((unit_index[:i] == unit).sum()) for i, unit in enumerate(unit_index)]
    )
    table = np.full((len(values), len(units), int(window.max(initial=0)) + 1), np.nan)
    table[:, unit_index, window] = values
    return table


def _over_units(statistic: Any, values: np.ndarray) -> np.ndarray:
    """Apply a statistic to the finite values of each member, NaN without any."""
    # the common case in one call; rows with gaps differ in length, and take a loop
    if values.size and np.isfinite(values).all():
        return np.asarray(statistic(values, axis=-1))
    return np.array(
        [
            statistic(row[np.isfinite(row)]) if np.isfinite(row).any() else np.nan
            for row in values
        ]
    )


def _labels(data: xr.Dataset, groups: Any, sizes: dict[Hashable, int]) -> np.ndarray:
    """Return the group of each member, numbered from 0, as (member,)."""
    shape = tuple(sizes.values())
    if groups is None:
        return np.zeros(int(np.prod(shape)), dtype=int)
    if not isinstance(groups, str | xr.DataArray):
        # np.unique would sort, which labels of several types do not allow
        names = list(dict.fromkeys(groups))
        return np.array([names.index(group) for group in groups])
    if isinstance(groups, str):
        labels = data.variables[groups]
    else:
        labels = groups.variable
    _, indices = np.unique(labels.values.astype(str), return_inverse=True)
    by_label = xr.Variable(labels.dims, indices.reshape(labels.shape))
    result: np.ndarray = by_label.set_dims(sizes).transpose(*sizes).values.reshape(-1)
    return result


def check_share(value: Any, what: str) -> None:
    """Refuse a value that is not a number from 0 to 1."""
    # True is a number
    is_number = isinstance(value, int | float | np.number)
    if not is_number or isinstance(value, bool) or not 0 <= value <= 1:
        raise InputError(f"{what} is {value!r}, expected a share from 0 to 1")
