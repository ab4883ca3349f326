"""A dimension for the variates in datasets of multivariate batches.

Results of a run have one row per series; :func:`by_variate` makes one row per group,
with its series along a new dimension.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.core.errors import InputError

_LABELS = ("series", "group", "variate")


def by_variate(dataset: xr.Dataset) -> xr.Dataset:
    """Split dim ``series`` into ``series``, one entry per group, and ``variate``.

    Groups and variates are in order of first appearance. Where a group lacks a variate,
    floats and integers become NaN, times NaT and text "".

    Args:
        dataset: result over ``series`` with the coordinates ``group`` and ``variate``.

    Returns:
        The dataset over ``series``, a group each, and ``variate``.

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
    group_numbers, groups = _number_names(dataset["group"])
    variate_numbers, variates = _number_names(dataset["variate"])
    # position of each series in the dataset, (group, variate). -1 marks a pair without
    # a series; ``isel`` takes the last series there, which is masked below
    positions = np.full((len(groups), len(variates)), -1)
    pairs = zip(group_numbers, variate_numbers, strict=True)
    for position, (group_number, variate_number) in enumerate(pairs):
        if positions[group_number, variate_number] >= 0:
            group = str(groups[group_number])
            variate = str(variates[variate_number])
            raise InputError(f"group {group!r} has variate {variate!r} more than once")
        positions[group_number, variate_number] = position
    # ``isel`` would give these coordinates both dims, and two of their names are those
    # of the new dims
    split = dataset.drop_vars(_LABELS, errors="ignore").isel(
        series=xr.DataArray(positions, dims=("series", "variate"))
    )
    if (positions < 0).any():
        present = xr.DataArray(positions >= 0, dims=("series", "variate"))
        # whole numbers become floats where a group lacks a variate; variables of the
        # dataset and its coordinates alike, hence ``variables``
        keys = [
            key for key, array in split.variables.items() if "variate" in array.dims
        ]
        for key in keys:
            # ``where`` fills with NaN, for which integers become floats, but text would
            # become objects
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
    """Assign numbers to the distinct names in order of first appearance.

    Returns:
        The number of each entry's name, and the distinct names in that order.
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
