"""Conversion of cells of any kind: values into float64, names into text."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.data.tables import to_pandas
from tsfm_lens.errors import InputError

_CURES: tuple[tuple[str, tuple[type, ...], str], ...] = (
    ("c", (complex, np.complexfloating), "give its .real, .imag or absolute value"),
    ("m", (timedelta, np.timedelta64), "divide by a unit, as in values / np.timedelta64(1, 'h')"),
    ("M", (date, np.datetime64, pd.Period), "make numbers or categories of dates, such as the weekday"),
    ("S", (bytes,), "decode bytes to text, as with values.astype(str)"),
    ("", (list, tuple, np.ndarray), "rows that hold a whole series each are entries: frame.to_dict('records')"),
    ("V", (np.void,), "a structured array is a table, which pd.DataFrame(array) reads"),
)
"""Kinds of arrays and types of objects that are no real numbers, and how to make some of them."""


def to_floats(values: Any, what: str) -> np.ndarray:
    """Convert anything numeric into a fresh float64 array; masked values and None become NaN."""
    array = plain_array(values, what)
    if array.dtype.kind in "OUS":
        floats = [_number(item, position, what) for position, item in enumerate(array.reshape(-1))]
        array = np.array(floats).reshape(array.shape)
    return np.array(array, dtype=np.float64)


def plain_array(values: Any, what: str) -> np.ndarray:
    """Convert any container into an array of real numbers, or of objects and text; masked values become NaN."""
    if hasattr(values, "detach"):
        values = _from_tensor(values, what)
    values = to_pandas(values)
    if isinstance(values, pd.DataFrame):
        raise InputError(f"{what} is a frame; give its values transposed, (variate, time)")
    if isinstance(values, pd.Series) and values.index.nlevels > 1:
        levels = ", ".join(map(str, values.index.names))
        raise InputError(f"{what} has the dimensions {levels}; give its plain values, (variate, time)")
    if isinstance(values, list | tuple) and any(_is_nested(item) for item in values):
        # numpy would drop the masks
        values = [_plain_item(item, what) for item in values]
    missing = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
    try:
        array = np.asarray(values)
        if array.dtype.kind in "US" and isinstance(values, list | tuple):
            array = np.array(values, dtype=object)  # else numbers beside text become text
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{what} is not a regular array of numbers: {error}") from error
    for kind, _, cure in _CURES:
        if array.dtype.kind == kind:
            raise InputError(f"{what} holds {array.dtype}, expected real numbers; {cure}")
    if missing is not None:
        array = np.where(missing, np.nan, array.astype(object) if array.dtype.kind in "OUS" else array)
    return array


def numbers_or_categories(values: np.ndarray, name: str) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Read a covariate (step,): numbers as float64, text as numbers of its categories in alphabetical order."""
    cells = values.tolist() if values.dtype.kind in "OUS" else []
    texts = [cell for cell in cells if isinstance(cell, str)]
    if not texts:
        return to_floats(values, f"covariate {name!r}"), None
    odd = next((cell for cell in cells if not isinstance(cell, str) and not is_missing(cell)), None)
    if odd is not None:
        raise InputError(
            f"covariate {name!r} holds text ({texts[0]!r}) beside {odd!r}; make numbers of all values, or text of all, "
            "which is categories"
        )
    missing = np.array([is_missing(value) for value in values])
    names, numbers = np.unique(values[~missing].astype(str), return_inverse=True)
    out = np.full(len(values), np.nan)
    out[~missing] = numbers
    return out, tuple(map(str, names))


def is_missing(item: object) -> bool:
    """Return True for a missing value of a container of objects, False for a value that is no number."""
    return item is None or item is pd.NA or item is np.ma.masked or (isinstance(item, float) and item != item)


def _is_nested(item: Any) -> bool:
    return isinstance(item, list | tuple) or hasattr(item, "__array__")


def _plain_item(item: Any, what: str) -> Any:
    if item is np.ma.masked:
        return None
    return plain_array(item, what) if _is_nested(item) and getattr(item, "ndim", None) != 0 else item


def _from_tensor(tensor: Any, what: str) -> np.ndarray:
    """Convert a dense tensor with values of its own."""
    try:
        plain = tensor.detach().cpu()
        # numpy has not all of torch's floats
        return (plain.double() if plain.is_floating_point() else plain).numpy()
    except (AttributeError, TypeError, RuntimeError) as error:
        raise InputError(f"{what} is not a dense tensor of numbers: {error}") from error


def _number(item: object, position: int, what: str) -> float:
    if type(item) is float:
        return item
    if is_missing(item):
        return np.nan
    try:
        if isinstance(item, int | float | np.integer | np.floating | np.bool_ | Decimal):
            return float(item)
    except (OverflowError, ValueError) as error:
        raise InputError(f"{what} holds a number beyond double precision at position {position}") from error
    cure = next((f"; {cure}" for _, types, cure in _CURES if isinstance(item, types)), "")
    raise InputError(f"{what} holds {item!r} at position {position}, which is not a number{cure}")


def texts(values: Any, what: str) -> tuple[str, ...]:
    """Convert names to text; a text is one name, not its letters."""
    if isinstance(values, str):
        return (values,)
    if not isinstance(values, Iterable):
        raise InputError(f"{what}={values!r} is no text and no list of texts")
    return tuple(map(str, values))


def label(value: Any, what: str) -> str:
    """Convert one id or name to text: decimals to their digits, others as Python writes them, but no containers."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        raise InputError(f"{what} is {value[:60]!r}, bytes and no text; decode it, as with .decode('utf-8')")
    try:
        hash(value)
    except TypeError:
        raise InputError(
            f"{what} is {type(value).__name__} ({str(value)[:60]}), expected text or a number; make one text of it"
        ) from None
    return str(value)


def id_texts(column: pd.Series, name: str) -> np.ndarray:
    """Convert the ids, or names of categories, of a column to text; refuse 1 beside 1.0 or "1", which read alike."""
    missing = column.isna().to_numpy()
    if missing.any():
        raise InputError(f"column {name!r} has no id in row {column.index[np.flatnonzero(missing)[0]]}")
    what = f"a value of column {name!r}"
    if column.dtype == object:
        ids = np.array([cell if type(cell) is str else label(cell, what) for cell in column], dtype=object)
        codes, _ = pd.factorize(column.to_numpy())
    else:
        codes, values = pd.factorize(column)
        ids = np.array([label(value, what) for value in values], dtype=object)[codes]
    # both codes go by first appearance
    text_codes, _ = pd.factorize(ids)
    odd = np.flatnonzero(codes != text_codes)
    if len(odd):
        row = odd[0]
        first = np.flatnonzero((codes == codes[row]) | (text_codes == text_codes[row]))[0]
        why = (
            f"that differ but read alike: {ids[row]!r}, as text and as a number"
            if ids[first] == ids[row]
            else f"that are equal but read differently: {ids[first]!r} and {ids[row]!r}"
        )
        raise InputError(f"column {name!r} holds values {why}; write all of them as text")
    return ids
