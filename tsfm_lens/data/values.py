"""Conversion of tables and cells of any kind into pandas objects, float64 and text.

:func:`to_floats` converts values, :func:`id_texts` ids, and :func:`to_pandas` whole
tables. Nothing is guessed: a cell that is no number is refused by its position.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import xarray as xr

from tsfm_lens.core.errors import InputError

LISTS = ("targets", "variates", "known", "past", "categories")
"""Options of reading that name columns."""
# pandas' own types for whole numbers with missing values, which floats would round
_NULLABLE = {pa.bool_(): pd.BooleanDtype()} | {
    getattr(pa, name.lower())(): getattr(pd, f"{name}Dtype")()
    for name in (
        "Int8",
        "Int16",
        "Int32",
        "Int64",
        "UInt8",
        "UInt16",
        "UInt32",
        "UInt64",
    )
}
_MAX_SIGNS = 60  # of a value in a message
_NO_NUMBERS = "cmMSV"
"""Kinds of arrays without real numbers: complex, durations, dates, bytes, records."""


def to_floats(values: Any, what: str) -> np.ndarray:
    """Convert anything numeric into a fresh float64 array.

    Masked values and None become NaN.

    Returns:
        The array.
    """
    array = plain_array(values, what)
    if array.dtype.kind in "OUS":
        floats = [
            _number(item, position, what)
            for position, item in enumerate(array.reshape(-1))
        ]
        array = np.array(floats).reshape(array.shape)
    # ``np.array`` copies also what is float64 already, so that a batch never shares
    # memory with its caller
    return np.array(array, dtype=np.float64)


def plain_array(values: Any, what: str) -> np.ndarray:
    """Convert any container into an array of real numbers, or of objects.

    Text stays text, and masked values become NaN.

    Returns:
        The array.
    """
    # told by a method, because this package does not import torch
    if hasattr(values, "detach"):
        values = _from_tensor(values, what)
    values = to_pandas(values)
    if isinstance(values, pd.DataFrame):
        raise InputError(
            f"{what} is a frame; give its values transposed, (variate, time)"
        )
    if isinstance(values, pd.Series) and values.index.nlevels > 1:
        levels = ", ".join(map(str, values.index.names))
        raise InputError(
            f"{what} has the dimensions {levels}; give its plain values, (variate,"
            " time)"
        )
    if isinstance(values, list | tuple) and any(_is_nested(item) for item in values):
        # numpy would drop the masks
        values = [_plain_item(item, what) for item in values]
    missing = None
    if isinstance(values, np.ma.MaskedArray):
        missing = np.ma.getmaskarray(values)
    try:
        array = np.asarray(values)
        if array.dtype.kind in "US" and isinstance(values, list | tuple):
            # else numbers beside text become text
            array = np.array(values, dtype=object)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(
            f"{what} is not a regular array of numbers: {error}"
        ) from error
    # numpy converts durations and dates to float64 without a word, as counts of their
    # unit
    if array.dtype.kind in _NO_NUMBERS:
        raise InputError(f"{what} holds {array.dtype}, expected real numbers")
    if missing is not None:
        if array.dtype.kind in "US":
            array = array.astype(object)
        # with NaN, whole numbers and truth values become floats, and objects stay
        # objects
        array = np.where(missing, np.nan, array)
    return array


def is_missing(item: object) -> bool:
    """Test if an item of a container of objects is a missing value."""
    return (
        item is None
        or item is pd.NA
        or item is np.ma.masked
        # NaN is the only float that differs from itself; ``pd.isna`` is slow for single
        # cells
        or (isinstance(item, float) and item != item)
    )


def _is_nested(item: Any) -> bool:
    return isinstance(item, list | tuple) or hasattr(item, "__array__")


def _plain_item(item: Any, what: str) -> Any:
    if item is np.ma.masked:
        return None
    # arrays without axes are numbers, which stay as they are
    if _is_nested(item) and getattr(item, "ndim", None) != 0:
        return plain_array(item, what)
    return item


def _from_tensor(tensor: Any, what: str) -> np.ndarray:
    """Convert a dense tensor with values of its own."""
    try:
        plain = tensor.detach().cpu()
        # numpy has not all of torch's floats
        return (plain.double() if plain.is_floating_point() else plain).numpy()
    except (AttributeError, TypeError, RuntimeError) as error:
        raise InputError(f"{what} is not a dense tensor of numbers: {error}") from error


def _number(item: object, position: int, what: str) -> float:
    """Convert one cell of an array of objects; text is refused."""
    # most cells are floats, for which this is all
    if type(item) is float:
        return item
    if is_missing(item):
        return np.nan
    try:
        if isinstance(
            item, int | float | np.integer | np.floating | np.bool_ | Decimal
        ):
            return float(item)
    except (OverflowError, ValueError) as error:
        raise InputError(
            f"{what} holds a number beyond double precision at position {position}"
        ) from error
    visible = repr(item)
    if len(visible) > _MAX_SIGNS:
        visible = f"{visible[:_MAX_SIGNS]}…"
    raise InputError(
        f"{what} holds {visible} at position {position}, which is not a number"
    )


def texts(values: Any, what: str) -> tuple[str, ...]:
    """Convert names to text; a text is one name, not its letters."""
    if isinstance(values, str):
        return (values,)
    if not isinstance(values, Iterable):
        raise InputError(f"{what}={values!r} is neither a text nor a list of texts")
    return tuple(map(str, values))


def name_lists(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of reading, with each list of columns as a tuple.

    A single name is one column.
    """
    lists = {
        name: texts(options[name], name)
        for name in LISTS
        if options.get(name) is not None
    }
    return {**options, **lists}


def label(value: Any, what: str) -> str:
    """Convert one id or name to text.

    Decimals become their digits, other values what Python writes; containers are
    refused.

    Returns:
        The text.
    """
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Decimal):
        # ``str`` would write 1E+3 for some decimals
        return format(value, "f")
    # ``str`` of bytes is "b'…'", which nobody meant
    if isinstance(value, bytes) or not isinstance(value, Hashable):
        raise InputError(
            f"{what} is {type(value).__name__} ({str(value)[:60]}), expected text or a"
            " number"
        )
    return str(value)


def check_distinct(values: Iterable[Any], names: Iterable[str], what: str) -> None:
    """Refuse names of values that are equal and read differently, such as 1 and 1.0."""
    seen: dict[Any, str] = {}
    for value, name in zip(values, names, strict=True):
        first = name
        if isinstance(value, Hashable):
            # 1, 1.0 and True are equal and hash alike, and only their texts differ
            first = seen.setdefault(value, name)
        if first != name:
            raise InputError(
                f"{what} are {first} and {name}, which are equal; write them as text to"
                " keep both"
            )


def id_texts(column: pd.Series, name: str) -> np.ndarray:
    """Convert the ids of a column, or its names of categories, to text.

    Returns:
        Texts, (row,).

    Raises:
        InputError: a value is missing, or two of them are easily confused: 1 beside 1.0
            or "1".
    """
    missing = column.isna().to_numpy()
    if missing.any():
        raise InputError(
            f"column {name!r} has no id in row"
            f" {column.index[np.flatnonzero(missing)[0]]}"
        )
    what = f"a value of column {name!r}"
    if (
        pd.api.types.is_float_dtype(column)
        # up to 2**53, a float holds each whole number exactly
        and ((column % 1 == 0) & (column.abs() < 2**53)).all()
    ):
        # pandas makes decimals of whole numbers that stand beside missing ones
        column = column.astype(np.int64)
    # equal texts read alike, so that each is converted once; 1 and 1.0 do not
    is_text = pd.api.types.infer_dtype(column, skipna=False) == "string"
    if column.dtype == object and not is_text:
        ids = np.array([label(cell, what) for cell in column], dtype=object)
        codes, _ = pd.factorize(column.to_numpy())
    else:
        codes, values = pd.factorize(column)
        ids = np.array([label(value, what) for value in values], dtype=object)[codes]
    # both codes go by first appearance
    text_codes, _ = pd.factorize(ids)
    confused = np.flatnonzero(codes != text_codes)
    if len(confused):
        raise InputError(
            f"column {name!r} holds a value like {ids[confused[0]]!r} that reads alike"
            " and differs, or is equal and reads differently, such as 1 and '1', or 1"
            " and 1.0; write all of them as text"
        )
    return ids


def to_pandas(data: Any) -> Any:
    """Convert a table, or a column with a name, into a pandas frame or Series.

    Anything else is returned as it is.

    Returns:
        The frame or Series, or the data as they are.
    """
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
    except Exception as error:
        # any library's own errors, for values that Arrow does not have
        raise InputError(
            f"the {name} cannot be converted to pandas: {error}; give the pandas frame"
            " itself"
        ) from error
    # numpy would make an array of its rows, in which the columns have lost their names
    if hasattr(data, "columns") and hasattr(data, "__array__"):
        raise InputError(
            f"{name} has columns with names, which are not read as rows; give it as a"
            " pandas frame"
        )
    return data


def from_arrow(table: pa.Table | pa.ChunkedArray) -> Any:
    """Convert an Arrow table into a pandas frame without loss.

    A column becomes a Series.

    Returns:
        The frame or Series.
    """
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
        frame[name] = from_arrow(
            pa.chunked_array(frame[name].array.__arrow_array__())
        ).set_axis(frame.index)
    return frame


def _kind(kind: pa.DataType) -> Any:
    # pandas would make Python objects of decimals, and float64 would round them
    if pa.types.is_decimal(kind):
        return pd.ArrowDtype(kind)
    return _NULLABLE.get(kind)


def _from_capsule(data: Any) -> pd.DataFrame | pd.Series:
    try:
        return from_arrow(pa.table(data))
    except pa.ArrowInvalid:
        # a single column is no table
        column = pa.chunked_array(
            data if hasattr(data, "__arrow_c_stream__") else [pa.array(data)]
        )
    # polars calls a Series without a name ""
    return from_arrow(column).rename(getattr(data, "name", None) or None)


def _from_xarray(data: xr.DataArray | xr.Dataset) -> pd.DataFrame | pd.Series:
    """Convert an xarray object of one dimension or two, which become the index."""
    if isinstance(data, xr.DataArray):
        variables = [data]
    else:
        variables = list(data.data_vars.values())
    if not 1 <= len(data.dims) <= 2 or any(
        set(variable.dims) != set(data.dims) for variable in variables
    ):
        raise InputError(
            f"the {type(data).__name__} has the dimensions"
            f" ({', '.join(map(str, data.dims))}), expected time, or time and series,"
            " of all variables alike; select with .isel(…), or make columns of one"
            " dimension with .to_dataset(…) and name them with variates=[…]"
        )
    # coordinates that are no index would become columns
    plain = data.reset_coords(drop=True)
    if isinstance(plain, xr.DataArray):
        return plain.to_series()
    return plain.to_dataframe()
