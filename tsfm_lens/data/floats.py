"""Numbers of any kind as float64."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.errors import InputError


def to_floats(values: Any, what: str) -> np.ndarray:
    """A fresh float64 array of anything numeric; masked values become NaN.

    Raises:
        InputError: a value is no real number; the message has its position.
    """
    if hasattr(values, "detach"):
        values = _from_tensor(values, what)
    missing = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InputError(f"{what} is not a regular array of numbers: {error}") from error
    if np.iscomplexobj(array) or array.dtype.kind in "mMV":
        raise InputError(f"{what} holds {array.dtype}, expected real numbers")
    if missing is not None:
        array = np.where(missing, np.nan, array.astype(object) if array.dtype.kind in "OUS" else array)
    if array.dtype.kind in "OUS":
        floats = [_number(item, position, what) for position, item in enumerate(array.reshape(-1))]
        array = np.array(floats).reshape(array.shape)
    return np.array(array, dtype=np.float64)


def _from_tensor(tensor: Any, what: str) -> np.ndarray:
    """A tensor's values.

    Raises:
        InputError: it is no dense tensor with values of its own.
    """
    try:
        plain = tensor.detach().cpu()
        # numpy has not all of torch's floats
        return (plain.double() if plain.is_floating_point() else plain).numpy()
    except (AttributeError, TypeError, RuntimeError) as error:
        raise InputError(f"{what} is not a dense tensor of numbers: {error}") from error


def _number(item: object, position: int, what: str) -> float:
    if item is None or item is pd.NA:
        return np.nan
    try:
        if isinstance(item, int | float | np.integer | np.floating | Decimal):
            return float(item)
    except OverflowError as error:
        raise InputError(f"{what} holds a number beyond double precision at position {position}") from error
    raise InputError(f"{what} holds {item!r} at position {position}, which is not a number")
