"""Inputs and results of the measures of the paper's numbers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tsfm_lens.models import Lens
from tsfm_lens.models.run import Run
from tsfm_lens.studies.papers.verdicts import Interval, Part, Verdict, interval, judged, median

_GROUP = 8  # windows that pass through a model together


@dataclass(frozen=True)
class Asked:
    """Input of a measure: the run or model, seeds, and a callback for its progress.

    Attributes:
        optional_run: the run that it is measured on; None where counts are enough.
        lens: the model; None where counts are enough.
        stand_in: whether the series are chaotic windows made here.
        n_sequences: of the repeated-random-tokens test.
        seed: of those sequences, and the first of those of forecasts.
        seeds: of forecasts, where a model draws; draws of an experiment of no model, 0 for as many as it has.
        clusters: the series that each window is from; each window its own if none.
        progress: called with a label, the number done, the total, and None for the time left.
    """

    optional_run: Run | None
    lens: Lens | None
    stand_in: bool
    n_sequences: int
    seed: int
    seeds: int = 1
    clusters: tuple[str, ...] = ()
    progress: Callable[[str, int, int, float | None], None] | None = None

    def tell(self, what: str, count: int, of: int) -> None:
        """Report how far the measure has come."""
        if self.progress is not None:
            self.progress(what, count, of, None)

    @property
    def run(self) -> Run:
        """Run of an item that needs one."""
        assert self.optional_run is not None
        return self.optional_run

    @property
    def model(self) -> Lens:
        """Lens of an item that needs one."""
        assert self.lens is not None
        return self.lens

    @property
    def draws(self) -> bool:
        """True if the model's own forecasts are drawn, so that they differ between seeds."""
        return self.model.adapter.readout != "quantile"

    def seeded(self) -> list[Run]:
        """Return the run with every seed; itself where nothing is drawn."""
        if not self.draws:
            return [self.run]
        return [self.run, *(replace(self.run, seed=self.seed + more) for more in range(1, self.seeds))]

    def in_groups(self, what: str) -> Iterator[Run]:
        """Yield the run in groups of whole items that pass through the model together, and report progress."""
        item = self.run.batch.group_index
        of = int(item.max()) + 1
        for first in range(0, of, _GROUP):
            yield self.run.select(np.flatnonzero((item >= first) & (item < first + _GROUP)).tolist())
            self.tell(what, min(first + _GROUP, of), of)

    def series_of(self, count: int) -> Sequence[Hashable]:
        """Return (window,) the series of each window, or of so many items the series of each item."""
        batch = self.run.batch
        labels = self.clusters or batch.groups
        if count == len(labels):
            return labels
        return list(dict(zip(batch.groups, labels, strict=True)).values())

    def judge(self, *parts: Part) -> Verdict:
        """Test the parts of a claim over the windows."""
        return judged(parts, self.series_of(parts[0].margins.shape[-1]))

    def over(self, values: np.ndarray) -> Interval:
        """Average (window,) or (seed, window) values, with the interval."""
        return interval(values, self.series_of(values.shape[-1]))

    def median(self, values: np.ndarray) -> Interval:
        """Compute the median of (window,) or (seed, window) values, with its interval."""
        return median(values, self.series_of(values.shape[-1]))

    def settings(self, *, over_seeds: bool = False) -> dict[str, str]:
        """Describe series and forecasts, in the words of the items' settings.

        Args:
            over_seeds: whether the measure depends on draws of the model, so that it is taken with every seed.
        """
        batch = self.run.batch
        chaotic = "windows of Lorenz and Roessler made here"
        ids = ", ".join(batch.ids[:4]) + (" …" if len(batch) > 4 else "")
        words = {
            "series": chaotic if self.stand_in else ids,
            "windows": str(len(batch)),
            "context": str(max(batch.lengths)),
            "horizon": str(self.run.horizon),
        }
        adapter = self.model.adapter
        if self.draws and (over_seeds or adapter.readout == "token"):
            default = getattr(adapter, "samples", 0) or getattr(getattr(adapter, "settings", None), "num_samples", 0)
            words["samples"] = str(self.run.num_samples or default)
        stochastic = over_seeds and self.draws
        count = len(set(self.series_of(len(batch))))
        over = f"{count} windows" if count == len(batch) else f"{count} series"
        seeds = f"{self.seeds} seeds" if self.seeds > 1 else "one seed"
        words["seeds"] = (
            f"{self.seeds}, from {self.seed} on" if stochastic else "none needed, nothing that is measured is drawn"
        )
        words["intervals over"] = f"{over} and {seeds}" if stochastic else over
        return words


@dataclass(frozen=True)
class Found:
    """Result of a measure.

    Attributes:
        values: by quantity, in the items' words; others beside them.
        settings: by name, in the items' words.
        units: of quantities that the paper does not print.
        intervals: lower and upper end, of quantities that have one.
        claims: by the items' words, whether they hold; others beside them.
        notes: remarks needed to read a difference, beside the item's own.
    """

    values: dict[str, float]
    settings: dict[str, str] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    claims: dict[str, Verdict] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass
class Sheet:
    """Values and their intervals as they are measured."""

    request: Asked
    values: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)

    def mean(self, quantity: str, values: np.ndarray) -> None:
        """Add the mean of (window,) or (seed, window) values."""
        mean = self.request.over(values)
        self.values[quantity] = mean.estimate
        if np.isfinite(mean.low):
            self.intervals[quantity] = (mean.low, mean.high)

    def means(self, what: str, values: np.ndarray) -> None:
        """Add one mean per layer, of (layer, window) or (layer, seed, window) values."""
        for layer, of_windows in enumerate(values):
            self.mean(f"{what}, layer {layer}", of_windows)
