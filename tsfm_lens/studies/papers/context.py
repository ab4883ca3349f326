"""Inputs and results of the measures of the papers' numbers, and the measures by item.

A measure is a function from a :class:`Context` (run, model, seeds) to
:class:`MeasuredValues` (numbers, intervals, claims); :func:`measure` registers it under
the ids of its items. Claims are tested in :mod:`tsfm_lens.studies.papers.verdicts`, and
the paper's numbers are joined in :mod:`tsfm_lens.studies.papers.reproduce`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import xarray as xr

from tsfm_lens.models import Lens
from tsfm_lens.models.run import Run
from tsfm_lens.studies.papers.values import MeasuredValues
from tsfm_lens.studies.papers.verdicts import (
    UNBOUNDED,
    ClaimPart,
    Interval,
    Verdict,
    combine_tests,
    interval,
    median,
)

F = TypeVar("F", bound=Callable[..., Any])
MEASURES: dict[str, Callable[..., MeasuredValues]] = {}
"""Measures by the item's id; those of items of several models take an iterator of
contexts.
"""
_GROUP = 8  # windows that pass through a model together


Answer = Callable[[], MeasuredValues]
ANSWERS: dict[str, Answer] = {}
"""What answers an item from records of small models, by the item's id."""


def from_record(*ids: str, **options: Any) -> Callable[[F], F]:
    """Register a function as what answers items from records of small models."""
    return partial(_register, ANSWERS, ids, options)


def measure(*ids: str, **options: Any) -> Callable[[F], F]:
    """Register a function as the measure of items, called with these options."""
    return partial(_register, MEASURES, ids, options)


def _register(
    table: dict[str, Any], ids: Sequence[str], options: dict[str, Any], function: F
) -> F:
    table.update(dict.fromkeys(ids, partial(function, **options)))
    return function


@dataclass(frozen=True)
class Context:
    """Input of a measure: the run or model, seeds, and a callback for its progress."""

    optional_run: Run | None = None
    stand_in: bool = False
    n_sequences: int = 0
    seed: int = 0
    seeds: int = 0
    clusters: tuple[str, ...] = ()
    progress: Callable[[str, int, int, float | None], None] | None = None

    def report(self, label: str, count: int, of: int) -> None:
        """Report how far the measure has come."""
        if self.progress is not None:
            self.progress(label, count, of, None)

    @property
    def run(self) -> Run:
        """Run of an item that needs one."""
        assert self.optional_run is not None
        return self.optional_run

    @property
    def model(self) -> Lens:
        """Lens of an item that needs one."""
        return self.run.lens

    @property
    def stochastic(self) -> bool:
        """True if the model's forecasts are drawn and so differ between seeds."""
        return self.model.adapter.readout != "quantile"

    def runs_by_seed(self) -> list[Run]:
        """Return the run with every seed; itself where nothing is drawn."""
        more = range(1, self.seeds) if self.stochastic else ()
        return [self.run, *(replace(self.run, seed=self.seed + step) for step in more)]

    def in_groups(self, label: str) -> Iterator[Run]:
        """Yield the run in groups of whole items, and report progress.

        The windows of a group pass through the model together.
        """
        # by items, not by rows: a model may read the variates of an item together
        group_index = self.run.batch.group_index
        n_items = int(group_index.max()) + 1
        for first in range(0, n_items, _GROUP):
            yield self.run.select(
                np.flatnonzero(
                    (group_index >= first) & (group_index < first + _GROUP)
                ).tolist()
            )
            self.report(label, min(first + _GROUP, n_items), n_items)

    def select_series(self, count: int) -> Sequence[Hashable]:
        """Return (window,) the series of each window.

        If ``count`` is the number of items instead, return (item,) the series of each
        item.
        """
        batch = self.run.batch
        labels = self.clusters or batch.groups
        if count == len(labels):
            return labels
        return list(dict(zip(batch.groups, labels, strict=True)).values())

    def verdict(self, *parts: ClaimPart) -> Verdict:
        """Test the parts of a claim over the windows."""
        return combine_tests(parts, self.select_series(parts[0].margins.shape[-1]))

    def mean(
        self, values: np.ndarray, bounds: tuple[float, float] = UNBOUNDED
    ) -> Interval:
        """Average (window,) or (seed, window) values, with the interval."""
        return interval(values, self.select_series(values.shape[-1]), bounds)

    def median(self, values: np.ndarray) -> Interval:
        """Compute the median of (window,) or (seed, window) values and its interval."""
        return median(values, self.select_series(values.shape[-1]))

    def settings(self, *, over_seeds: bool = False) -> dict[str, str]:
        """Describe series and forecasts by the keys of the items' settings."""
        batch = self.run.batch
        adapter = self.model.adapter
        ids = ", ".join(batch.ids[:4]) + (" …" if len(batch) > 4 else "")
        settings = {
            "series": (
                "windows of Lorenz and Roessler made here" if self.stand_in else ids
            ),
            "windows": str(len(batch)),
            "context": str(max(batch.lengths)),
            "horizon": str(self.run.horizon),
        }
        if self.stochastic and (over_seeds or adapter.readout == "token"):
            default = getattr(adapter, "samples", 0) or getattr(
                getattr(adapter, "settings", None), "num_samples", 0
            )
            settings["samples"] = str(self.run.num_samples or default)
        count = len(set(self.select_series(len(batch))))
        if count == len(batch):
            over = f"{count} windows"
        else:
            over = f"{count} series"
        if over_seeds and self.stochastic:
            seeds = f"{self.seeds} seeds" if self.seeds > 1 else "one seed"
            settings["seeds"] = f"{self.seeds}, from {self.seed} on"
            settings["intervals over"] = f"{over} and {seeds}"
        else:
            settings["seeds"] = "none needed, nothing that is measured is drawn"
            settings["intervals over"] = over
        return settings

    def draws(self, default: int) -> int:
        """Return the number of draws of an experiment of no model."""
        return self.seeds or default

    def generators(self, default: int) -> list[np.random.Generator]:
        """Return a random generator for each draw."""
        seeds = np.random.SeedSequence(self.seed).spawn(self.draws(default))
        return [np.random.default_rng(child) for child in seeds]


def describe_seeds(record: xr.Dataset, *counts: int) -> str:
    """Say how many seeds a record has, and which were added after looking.

    The number is a range, fewest to most, where the arms of the record differ in it.
    """
    count = " to ".join(map(str, sorted({min(counts), max(counts)})))
    return "; ".join(filter(None, (count, record.attrs.get("added", ""))))


def judge_parts(unit: str, *parts: ClaimPart) -> Verdict:
    """Test the parts of a claim over runs, seeds or draws, each an independent unit.

    Parts may have different numbers of units.
    """
    count = max(part.margins.shape[-1] for part in parts)
    padded = []
    for part in parts:
        lacking = (0, count - len(part.margins))
        margins = np.pad(
            np.asarray(part.margins, dtype=float), lacking, constant_values=np.nan
        )
        padded.append(replace(part, margins=margins))
    return combine_tests(padded, range(count), unit)
