"""Reading of a labelled result: its arrays, labels, units and names.

:func:`array` returns a variable in a chosen order of dimensions, :func:`position` the
index of a label. An unknown label raises, with the nearest existing ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import index as as_index
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.core.axes import short_ids
from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.core.registry import check


def names(ds: xr.Dataset, dim: str) -> list[str]:
    """Return the labels along ``dim`` as strings; positions where it has no labels."""
    if dim not in ds.dims:
        return []
    # xarray numbers the places along a dimension without labels
    return [str(label) for label in ds[dim].values]


def position(ds: xr.Dataset, dim: str, value: str | int) -> int:
    """Return the position of a label along ``dim``, or of the name beside it.

    A negative integer counts from the end, if it is not a label itself.
    """
    labels = names(ds, dim)
    if str(value) in labels:
        return labels.index(str(value))
    named = f"{dim}_label"
    if named in ds.coords and value in ds[named].values:
        return int(np.flatnonzero(ds[named].values == value)[0])
    if not isinstance(value, str) and -len(labels) <= as_index(value) < 0:
        return as_index(value) % len(labels)
    raise unknown_name(dim, value, labels, hint=f"There are {len(labels)}.")


def series_position(ds: xr.Dataset, series: str | int) -> int:
    """Return the position of a series, by its index (integer) or its id (string)."""
    labels = names(ds, "series")
    if isinstance(series, str):
        return position(ds, "series", series)
    if -len(labels) <= as_index(series) < len(labels):
        return as_index(series) % len(labels)
    raise unknown_name(
        "series", series, labels, hint=f"There are {len(labels)}, counted from 0."
    )


MAX_DRAWN = 8
"""Most series that have figures of their own in a chapter of a report."""


def forecast_series(ds: xr.Dataset, most: int | None = None) -> list[int]:
    """Return the positions of the series that are forecast, the first ``most``.

    Covariates are not forecast.
    """
    if "role" in ds.coords:
        roles = list(ds["role"].values)
    else:
        roles = ["target"] * ds.sizes.get("series", 1)
    return [index for index, role in enumerate(roles) if role == "target"][:most]


def positions(
    ds: xr.Dataset, dim: str, values: Sequence[str | int] | None
) -> list[int]:
    """Return several positions along ``dim``, all of them for None.

    Errors are those of :func:`position`.
    """
    if values is None:
        return list(range(ds.sizes[dim]))
    return [position(ds, dim, value) for value in values]


def median_position(quantiles: np.ndarray) -> int:
    """Return the position of the quantile next to 0.5."""
    return int(np.argmin(np.abs(np.asarray(quantiles, dtype=float) - 0.5)))


def name_statistic(ds: xr.Dataset) -> str:
    """Return the name of the central statistic of a forecast.

    It is "median", "mean", or "expected value" over tokens.
    """
    statistic = str(ds.attrs.get("statistic", ""))
    if statistic in ("mean", "expected value"):
        return statistic
    return "median"


def find_unit(ds: xr.Dataset, series: int | None = None) -> str:
    """Return the unit of the data, "" if it is not known.

    It is that of ``series`` where each series has a unit.
    """
    series_unit = ""
    if "units" in ds.coords and series is not None and ds["units"].dims == ("series",):
        series_unit = str(ds["units"].values[series])
        if not series_unit and any(map(str, ds["units"].values)):
            # a covariate is not in the unit of its target
            return ""
    unit = series_unit or str(ds.attrs.get("units", "") or "")
    if unit == "data units":
        return ""
    return unit


def category_names(ds: xr.Dataset, series: int) -> list[str]:
    """Return the words of a covariate's categories, whose values are their positions.

    There are none for a series of numbers.
    """
    if "role" not in ds.coords:
        return []
    levels = json.loads(ds["role"].attrs.get("categories", "{}"))
    result: list[str] = levels.get(names(ds, "series")[series], [])
    return result


def value_title(ds: xr.Dataset, series: int | None = None) -> str:
    """Return the title of an axis in data units."""
    return f"value ({find_unit(ds, series) or 'data units'})"


def name_model(ds: xr.Dataset) -> str:
    """Return the model's name for titles."""
    return str(ds.attrs.get("model", "") or "unnamed model")


def kind_word(kind: str) -> str:
    """Write a kind of component in words."""
    labels = {"mlp": "MLP", "embed": "embedding", "bias": "output biases"}
    return labels.get(kind) or kind.replace("_", "-").replace("attn", "attention")


def head_word(kind: str, head: int) -> str:
    """Name a head within its layer: "cross-attention head 3", or "head 3"."""
    word = kind_word(kind)
    if word == "attention":
        return f"head {head}"
    return f"{word} head {head}"


def array(ds: xr.Dataset, variable: str, *dims: str, **at: Any) -> np.ndarray:
    """Return a variable as float64, with dimensions in the order of ``dims``.

    ``at`` has positions along the other dimensions.
    """
    if variable not in ds:
        # raises, and says what the result lacks
        check(ds, str(ds.attrs.get("kind")), variable)
    selected = ds[variable].isel(at, missing_dims="ignore")
    if set(selected.dims) != set(dims):
        raise InputError(
            f"variable {variable!r} has dimensions {tuple(ds[variable].dims)}, expected"
            f" {(*at, *dims)} in any order."
        )
    return np.asarray(selected.transpose(*dims).values, dtype=float)


def shown(ids: Sequence[str], limit: int = 3) -> str:
    """List series ids for a subtitle: all when few, else how many."""
    if len(ids) <= limit:
        return ", ".join(short_ids(ids))
    return f"{len(ids)} series"


def flat_series(ds: xr.Dataset) -> np.ndarray:
    """Return the series whose context is flat, (series,).

    None is marked where the result does not say so.
    """
    if "flat" not in ds.coords:
        return np.zeros(ds.sizes["series"], dtype=bool)
    return np.asarray(ds["flat"].values).astype(bool)


def varying(ds: xr.Dataset) -> np.ndarray:
    """Return the positions of the series that a summary is over.

    These are the series that are not flat, or all if all are.
    """
    flat = flat_series(ds)
    return np.flatnonzero(~flat | flat.all())


def means(values: np.ndarray, middle: Any = np.nanmean) -> np.ndarray:
    """Average over series, the last axis, where any value is finite; NaN elsewhere."""
    valid = np.isfinite(values).any(axis=-1)
    out = np.full(values.shape[:-1], np.nan)
    out[valid] = middle(values[valid], axis=-1)
    return out


def medians(values: np.ndarray) -> np.ndarray:
    """Take the median over series, the last axis; NaN where no value is finite."""
    return means(values, np.nanmedian)
