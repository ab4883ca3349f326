"""What a measure of a paper's numbers returns: numbers, intervals, verdicts, settings.

:class:`MeasuredValues` is filled by the measures and joined with the printed numbers in
:mod:`tsfm_lens.studies.papers.comparing`. Nothing here needs torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field, replace
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.studies.papers.verdicts import (
    NO_LEVEL,
    UNBOUNDED,
    ClaimPart,
    Verdict,
    interval,
    judge_parts,
)


@dataclass
class MeasuredValues:
    """Result of a measure, by key of the item's values or by quantity.

    Settings may be given as numbers or lists, which become texts joined by commas.
    """

    values: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    claims: dict[str, Verdict] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    over: InitVar[str] = "seed"
    """Unit of the tests of claims that are added here."""

    def __post_init__(self, over: str) -> None:
        """Make numbers of all values, and texts of all settings."""
        self._over = over
        self._parts: defaultdict[str, list[ClaimPart]] = defaultdict(list)
        self.values = {name: float(value) for name, value in self.values.items()}
        self.settings = {
            name: ", ".join(map(str, np.atleast_1d(value)))
            for name, value in self.settings.items()
        }

    def add(
        self,
        quantity: str,
        value: Any,
        low: Any = np.nan,
        high: Any = np.nan,
        *,
        unit: str = "",
    ) -> None:
        """Add one number, with its interval where both ends are finite."""
        self.values[quantity] = float(value)
        if np.isfinite([low, high]).all():
            self.intervals[quantity] = (float(low), float(high))
        if unit:
            self.units[quantity] = unit

    def add_each(self, quantity: str, values: Mapping[Any, Any]) -> None:
        """Add each number, whose name takes the place of ``{}``."""
        for name, value in values.items():
            self.add(quantity.format(name), value)

    def mean(
        self,
        quantity: str,
        values: np.ndarray,
        bounds: tuple[float, float] = UNBOUNDED,
    ) -> None:
        """Add the mean of values, with its interval within the quantity's bounds."""
        mean = interval(values, bounds)
        self.add(quantity, mean.estimate, mean.low, mean.high)

    def means(
        self,
        quantity: str,
        values: Mapping[Any, np.ndarray],
        bounds: tuple[float, float] = UNBOUNDED,
    ) -> None:
        """Add the mean of each entry, whose name takes the place of ``{}``."""
        for name, of_name in values.items():
            self.mean(quantity.format(name), of_name, bounds)

    def judge(
        self,
        claim: str,
        margins: np.ndarray,
        of: str,
        words: str = "",
        level: float = NO_LEVEL,
    ) -> None:
        """Add one part to a claim, given its margins."""
        self.claim(claim, ClaimPart(words, margins, of, level))

    def claim(self, claim: str, *parts: ClaimPart) -> None:
        """Add parts to a claim, and decide it by all that it has so far."""
        self._parts[claim] += parts
        self.claims[claim] = judge_parts(self._over, *self._parts[claim])

    def by_key(self, words: dict[str, str]) -> MeasuredValues:
        """Name everything by quantity instead of by key."""
        tables: dict[str, Any] = {
            name: {words.get(key, key): value for key, value in table.items()}
            for name, table in vars(self).items()
            if name in ("values", "units", "intervals", "claims")
        }
        return replace(self, **tables)


def by_name(values: xr.DataArray, dim: str = "arm") -> dict[Any, np.ndarray]:
    """Split values by one dimension."""
    names = values[dim].values.tolist()
    return dict(zip(names, values.transpose(dim, ...).values, strict=True))
