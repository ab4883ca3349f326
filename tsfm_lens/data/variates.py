"""Datasets of multivariate batches with an axis for the variates."""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.errors import InputError

_LABELS = ("series", "group", "variate")


def by_variate(dataset: xr.Dataset) -> xr.Dataset:
    """Split dim ``series`` of a dataset into ``series``, one entry per group, and ``variate``, in order of appearance.

    Where a group lacks a variate, floats and integers are NaN, times NaT and text "".

    Raises:
        InputError: coordinates ``group`` and ``variate`` are missing or incomplete, or a group has a variate twice.

    Example:
        >>> pair = xr.Dataset({"load": ("series", [1.0, 2.0])}, coords={"series": ["a/0", "a/1"]})
        >>> pair = pair.assign_coords(group=("series", ["a", "a"]), variate=("series", ["0", "1"]))
        >>> dict(data.by_variate(pair).sizes)
        {'series': 1, 'variate': 2}
    """
    for name in ("group", "variate"):
        if name not in dataset.coords or dataset[name].dims != ("series",):
            raise InputError(
                f"the dataset has no coordinate {name!r} on dim 'series', so there are no variates to part; results "
                "of multivariate input have one"
            )
    row, groups = _number_names(dataset["group"])
    column, variates = _number_names(dataset["variate"])
    rows = np.full((len(groups), len(variates)), -1)
    for position, place in enumerate(zip(row, column, strict=True)):
        if rows[place] >= 0:
            group, variate = str(groups[place[0]]), str(variates[place[1]])
            raise InputError(f"group {group!r} has variate {variate!r} more than once")
        rows[place] = position
    variables = {name: _split_series(array.variable, rows) for name, array in dataset.data_vars.items()}
    coords = {name: array.variable for name, array in dataset.coords.items() if "series" in array.dims}
    coords = {name: _split_series(each, rows) for name, each in coords.items() if name not in _LABELS}
    labels = {name: (name, each, dataset[name].attrs) for name, each in (("series", groups), ("variate", variates))}
    # these coordinates bring their indexes along
    others = dataset.drop_dims("series").coords
    return xr.Dataset(variables, coords=others, attrs=dataset.attrs).assign_coords({**labels, **coords})


def _number_names(names: xr.DataArray) -> tuple[np.ndarray, np.ndarray]:
    """Index each name in order of first appearance, and return the names in that order."""
    numbers, unique = pd.factorize(names.values)
    if (numbers < 0).any():
        where = int(np.flatnonzero(numbers < 0)[0])
        raise InputError(f"coordinate {names.name!r} has no value at position {where} of dim 'series'")
    return numbers, np.asarray(unique, dtype=names.dtype)


def _split_series(variable: xr.Variable, rows: np.ndarray) -> xr.Variable:
    """Split ``series`` of a variable into (series, variate); ``rows`` has -1 where there is none."""
    if "series" not in variable.dims:
        return variable
    axis = variable.get_axis_num("series")
    dims = (*variable.dims[: axis + 1], "variate", *variable.dims[axis + 1 :])
    whole = xr.Variable(dims, np.take(variable.values, rows, axis=axis), variable.attrs)
    if (rows >= 0).all():
        return whole
    present = xr.Variable(("series", "variate"), rows >= 0)
    sparse = whole.where(present, "") if whole.dtype.kind == "U" else whole.where(present)
    return xr.Variable(dims, sparse.transpose(*dims).values, variable.attrs)
