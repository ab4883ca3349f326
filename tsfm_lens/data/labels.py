"""The names that a caller gives to series and columns, and the units that the series are measured in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tsfm_lens.data.batch import SeriesBatch
from tsfm_lens.errors import InputError


def texts(values: Any, what: str) -> tuple[str, ...]:
    """Names as text; one name is one, not its letters.

    Raises:
        InputError: they are no names.
    """
    if isinstance(values, str):
        return (values,)
    if not isinstance(values, Iterable):
        raise InputError(f"{what}={values!r} is no text and no list of texts")
    return tuple(map(str, values))


def in_units(batch: SeriesBatch, units: str | Sequence[str]) -> SeriesBatch:
    """The batch with one unit for all series that are forecast, or one per series; as it is if there is none."""
    if not units:
        return batch
    if isinstance(units, str):
        # covariates are seldom measured in the same
        return replace(batch, units=tuple(units if role == "target" else "" for role in batch.roles))
    return replace(batch, units=texts(units, "units"))
