"""Names that a caller gives to series and columns, and units of the series."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tsfm_lens.errors import InputError

if TYPE_CHECKING:
    from tsfm_lens.data.batch import SeriesBatch


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


def in_units(batch: SeriesBatch, units: str | Sequence[str]) -> SeriesBatch:
    """Give all series that are forecast one unit, or each series its own; return the batch unchanged without units."""
    if not units:
        return batch
    if isinstance(units, str):
        # covariates are seldom measured in the same
        return replace(batch, units=tuple(units if role == "target" else "" for role in batch.roles))
    return replace(batch, units=texts(units, "units"))
