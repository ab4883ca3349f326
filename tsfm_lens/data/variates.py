"""Datasets of multivariate batches with an axis for the variates.

Results of a run have one row per series; :func:`by_variate` lays the series of a group
side by side.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.core.errors import InputError

_LABELS = ("series", "group", "variate")


def by_variate(dataset: xr.Dataset) -> xr.Dataset:
    """Split dim ``series`` into ``series``, one entry per group, and ``variate``.

    Both are in order of appearance.

    Where a group lacks a variate, floats and integers are NaN, times NaT and text "".

    Raises:
        InputError: coordinates ``group`` and ``variate`` are missing or incomplete, or
            a group has a variate twice.

    Example:
        >>> group = ("series", ["a", "a"])
        >>> variate = ("series", ["0", "1"])
        >>> coords = {"series": ["a/0", "a/1"], "group": group, "variate": variate}
        >>> pair = xr.Dataset({"load": ("series", [1.0, 2.0])}, coords)
        >>> dict(data.by_variate(pair).sizes)
        {'series': 1, 'variate': 2}
    """
    for name in ("group", "variate"):
        if name not in dataset.coords or dataset[name].dims != ("series",):
            raise InputError(
                f"the dataset has no coordinate {name!r} on dim 'series', so there are"
                " no variates to part; results of multivariate input have one"
            )
    row, groups = _number_names(dataset["group"])
    column, variates = _number_names(dataset["variate"])
    # -1 marks a pair without a series; ``isel`` takes the last series there, which is
    # masked below
    rows = np.full((len(groups), len(variates)), -1)
    for position, index in enumerate(zip(row, column, strict=True)):
        if rows[index] >= 0:
            group = str(groups[index[0]])
            variate = str(variates[index[1]])
            raise InputError(f"group {group!r} has variate {variate!r} more than once")
        rows[index] = position
    # the labels along ``series`` would get both dims, and their names are wanted for
    # the new ones
    split = dataset.drop_vars(_LABELS, errors="ignore").isel(
        series=xr.DataArray(rows, dims=("series", "variate"))
    )
    if (rows < 0).any():
        present = xr.DataArray(rows >= 0, dims=("series", "variate"))
        # whole numbers become floats where a group lacks a variate; variables of the
        # dataset and its coordinates alike, hence ``variables``
        keys = [
            key for key, array in split.variables.items() if "variate" in array.dims
        ]
        for key in keys:
            # ``where`` without a value would make objects of text
            if split[key].dtype.kind == "U":
                split[key] = split[key].where(present, "")
            else:
                split[key] = split[key].where(present)
    labels = {
        name: (name, names, dataset[name].attrs)
        for name, names in (("series", groups), ("variate", variates))
    }
    return split.assign_coords(labels)


def _number_names(names: xr.DataArray) -> tuple[np.ndarray, np.ndarray]:
    """Index each name in order of first appearance.

    Return the indices, and the names in that order.
    """
    # not ``np.unique``, which sorts
    numbers, unique = pd.factorize(names.values)
    if (numbers < 0).any():
        position = int(np.flatnonzero(numbers < 0)[0])
        raise InputError(
            f"coordinate {names.name!r} has no value at position {position} of dim"
            " 'series'"
        )
    return numbers, np.asarray(unique, dtype=names.dtype)
