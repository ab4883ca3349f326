"""Inputs and results of the measures of the papers' numbers, and the measures by item.

A measure is a function from a :class:`Context` (seed and number of draws), or from runs
of models, to :class:`MeasuredValues` (numbers, intervals, claims); :func:`measure`
registers it under the ids of its items, :func:`from_record` what is read from records
of runs. Claims are tested in :mod:`tsfm_lens.studies.papers.verdicts`, and the paper's
numbers are joined in :mod:`tsfm_lens.studies.papers.comparing`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import xarray as xr

from tsfm_lens.studies.papers.values import MeasuredValues

F = TypeVar("F", bound=Callable[..., Any])
MEASURES: dict[str, Callable[..., MeasuredValues]] = {}
"""Measures by the item's id; those of items of models take an iterator of runs."""
DRAWS: dict[str, int] = {}
"""Numbers of draws by the item's id."""
Answer = Callable[[], MeasuredValues]
ANSWERS: dict[str, Answer] = {}
"""What answers an item from records of small models, by the item's id."""


def from_record(*ids: str, **options: Any) -> Callable[[F], F]:
    """Register a function as what answers items from records of small models."""
    return partial(_register, ANSWERS, ids, options)


def measure(*ids: str, draws: int = 1, **options: Any) -> Callable[[F], F]:
    """Register a function as the measure of items, called with these options.

    ``draws`` is the number of its draws if none is given.
    """
    DRAWS.update(dict.fromkeys(ids, draws))
    return partial(_register, MEASURES, ids, options)


def _register(
    table: dict[str, Any], ids: Sequence[str], options: dict[str, Any], function: F
) -> F:
    table.update(dict.fromkeys(ids, partial(function, **options)))
    return function


@dataclass(frozen=True)
class Context:
    """Seed and number of the draws of an experiment without a model."""

    draws: int
    seed: int

    def generators(self) -> list[np.random.Generator]:
        """Return a random generator for each draw."""
        return np.random.default_rng(self.seed).spawn(self.draws)


def describe_distance(
    context: Context, largest: float, rounding: float
) -> MeasuredValues:
    """Say how far two formulas are apart at most; 0 where it is rounding."""
    apart = largest if largest >= rounding else 0.0
    values = {"apart": apart, "the same, as it is": largest}
    return MeasuredValues(values, {"draws": context.draws})


def describe_seeds(record: xr.Dataset, counts: Any) -> str:
    """Say how many seeds a record has, and which were added after looking.

    The number is a range, fewest to most, where the arms of the record differ in it.
    """
    count = " to ".join(map(str, np.unique([np.min(counts), np.max(counts)])))
    return "; ".join(filter(None, (count, record.attrs.get("added", ""))))
