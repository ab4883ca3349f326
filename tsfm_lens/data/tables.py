"""Conversion of other libraries' tables into pandas objects, so that all tables are read alike."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import xarray as xr
from pyarrow import interchange

from tsfm_lens.errors import InputError

_WHOLE = {pa.bool_(): pd.BooleanDtype()} | {
    getattr(pa, name.lower())(): getattr(pd, f"{name}Dtype")()
    for name in ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")
}


def to_pandas(data: Any) -> Any:
    """Convert a table or column with a name into a pandas frame or Series; anything else stays as it is."""
    if isinstance(data, pd.DataFrame | pd.Series):
        return data
    if isinstance(data, xr.DataArray | xr.Dataset):
        return _from_xarray(data)
    name = type(data).__name__
    try:
        if hasattr(data, "collect_schema") and hasattr(data, "collect"):
            data = data.collect()  # polars' lazy frame
        if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
            return _from_capsule(data)
        if hasattr(data, "__dataframe__"):
            return from_arrow(interchange.from_dataframe(data))
    except Exception as error:
        # any library's own errors, for values that Arrow does not have
        raise InputError(f"the {name} cannot be converted to pandas: {error}; give the pandas frame itself") from error
    if hasattr(data, "columns") and hasattr(data, "__array__"):
        raise InputError(f"{name} has columns with names, which are not read as rows; give it as a pandas frame")
    return data


def from_arrow(table: pa.Table | pa.ChunkedArray) -> Any:
    """Convert an Arrow table into a pandas frame, a column into a Series, without loss."""
    return table.to_pandas(types_mapper=_kind)


def without_arrow(frame: pd.DataFrame) -> pd.DataFrame:
    """Convert the columns that pandas keeps in Arrow as :func:`from_arrow` does."""
    names = [
        name
        for name, kind in frame.dtypes.items()
        if isinstance(kind, pd.ArrowDtype) and _kind(kind.pyarrow_dtype) != kind
    ]
    if not names:
        return frame
    frame = frame.copy(deep=False)
    for name in names:
        frame[name] = from_arrow(pa.chunked_array(frame[name].array.__arrow_array__())).set_axis(frame.index)
    return frame


def _kind(kind: pa.DataType) -> Any:
    return pd.ArrowDtype(kind) if pa.types.is_decimal(kind) else _WHOLE.get(kind)


def _from_capsule(data: Any) -> pd.DataFrame | pd.Series:
    try:
        return from_arrow(pa.table(data))
    except pa.ArrowInvalid:
        # a single column is no table
        column = pa.chunked_array(data if hasattr(data, "__arrow_c_stream__") else [pa.array(data)])
    name = getattr(data, "name", None)
    return from_arrow(column).rename(name or None)


def _from_xarray(data: xr.DataArray | xr.Dataset) -> pd.DataFrame | pd.Series:
    variables = {"": data} if isinstance(data, xr.DataArray) else dict(data.data_vars)
    dimensions = {name: tuple(map(str, each.dims)) for name, each in variables.items()}
    listing = "; ".join(f"{name}: {', '.join(dims)}" if name else ", ".join(dims) for name, dims in dimensions.items())
    if len(set(map(frozenset, dimensions.values()))) != 1:
        raise InputError(
            f"the variables of the Dataset differ in their dimensions ({listing or 'it has none'}); select those of "
            "one shape, as in dataset[['load', 'price']]"
        )
    if not 1 <= len(next(iter(dimensions.values()))) <= 2:
        raise InputError(
            f"the {type(data).__name__} has the dimensions ({listing}), expected time, or time and series; select with "
            ".isel(…), or make columns of one dimension with .to_dataset(…) and name them with variates=[…]"
        )
    plain = data.reset_coords(drop=True)
    return plain.to_series() if isinstance(plain, xr.DataArray) else plain.to_dataframe()
