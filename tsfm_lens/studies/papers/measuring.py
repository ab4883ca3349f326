"""What the measures of the paper's numbers are given, and what they hand back."""

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
    """What a measure is given: the run or model, seeds, and whom to tell how far it is.

    Attributes:
        found_on: the run that it is measured on; None where counts are enough.
        lens: the model; None where counts are enough.
        stand_in: whether the series are chaotic windows made here.
        n_sequences: of the repeated-random-tokens test.
        seed: of those sequences, and the first of those of forecasts.
        seeds: of forecasts, where a model draws; draws of an experiment of no model, 0 for as many as it has.
        clusters: the series that each window is from; each window its own if none.
        progress: called with what is done, how much of it, of how much, and None for the time left.
    """

    found_on: Run | None
    lens: Lens | None
    stand_in: bool
    n_sequences: int
    seed: int
    seeds: int = 1
    clusters: tuple[str, ...] = ()
    progress: Callable[[str, int, int, float | None], None] | None = None

    def tell(self, what: str, done: int, of: int) -> None:
        """Report how far the measure has come."""
        if self.progress is not None:
            self.progress(what, done, of, None)

    @property
    def run(self) -> Run:
        """The run of an item that needs one."""
        assert self.found_on is not None
        return self.found_on

    @property
    def model(self) -> Lens:
        """The lens of an item that needs one."""
        assert self.lens is not None
        return self.lens

    @property
    def draws(self) -> bool:
        """Whether the model's own forecasts are drawn, so that they differ between seeds."""
        return self.model.adapter.readout != "quantile"

    def seeded(self) -> list[Run]:
        """The run with every seed; itself where nothing is drawn."""
        if not self.draws:
            return [self.run]
        return [self.run, *(replace(self.run, seed=self.seed + more) for more in range(1, self.seeds))]

    def in_groups(self, what: str) -> Iterator[Run]:
        """The run in groups of whole items that pass through the model together, telling how far it is."""
        item = self.run.batch.group_index
        of = int(item.max()) + 1
        for first in range(0, of, _GROUP):
            yield self.run.select(np.flatnonzero((item >= first) & (item < first + _GROUP)).tolist())
            self.tell(what, min(first + _GROUP, of), of)

    def series_of(self, count: int) -> Sequence[Hashable]:
        """(window,) the series that each window is from, or of so many items the series of each item."""
        batch = self.run.batch
        labels = self.clusters or batch.groups
        if count == len(labels):
            return labels
        return list(dict(zip(batch.groups, labels, strict=True)).values())

    def judge(self, *parts: Part) -> Verdict:
        """The parts of a claim, tested over the windows."""
        return judged(parts, self.series_of(parts[0].margins.shape[-1]))

    def over(self, values: np.ndarray) -> Interval:
        """The mean of (window,) or (seed, window) values, with its interval."""
        return interval(values, self.series_of(values.shape[-1]))

    def median(self, values: np.ndarray) -> Interval:
        """The median of (window,) or (seed, window) values, with its interval."""
        return median(values, self.series_of(values.shape[-1]))

    def settings(self, *, seeded: bool = False) -> dict[str, str]:
        """The series and forecasts, in the words of the items' settings.

        Args:
            seeded: whether what is measured depends on draws of the model, so that it is measured with every seed.
        """
        batch = self.run.batch
        made = "windows of Lorenz and Roessler made here"
        given = ", ".join(batch.ids[:4]) + (" …" if len(batch) > 4 else "")
        words = {
            "series": made if self.stand_in else given,
            "windows": str(len(batch)),
            "context": str(max(batch.lengths)),
            "horizon": str(self.run.horizon),
        }
        adapter = self.model.adapter
        if self.draws and (seeded or adapter.readout == "token"):
            default = getattr(adapter, "samples", 0) or getattr(getattr(adapter, "settings", None), "num_samples", 0)
            words["samples"] = str(self.run.num_samples or default)
        drawn = seeded and self.draws
        count = len(set(self.series_of(len(batch))))
        over = f"{count} windows" if count == len(batch) else f"{count} series"
        seeds = f"{self.seeds} seeds" if self.seeds > 1 else "one seed"
        words["seeds"] = (
            f"{self.seeds}, from {self.seed} on" if drawn else "none needed, nothing that is measured is drawn"
        )
        words["intervals over"] = f"{over} and {seeds}" if drawn else over
        return words


@dataclass(frozen=True)
class Found:
    """What was measured.

    Attributes:
        values: by quantity, in the items' words; others beside them.
        settings: by name, in the items' words.
        units: of quantities that the paper does not print.
        intervals: lower and upper end, of quantities that have one.
        claims: by the items' words, whether they hold; others beside them.
        notes: what must be known to read a difference, beside what the item says.
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

    asked: Asked
    values: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)

    def mean(self, quantity: str, values: np.ndarray) -> None:
        """The mean of (window,) or (seed, window) values."""
        estimated = self.asked.over(values)
        self.values[quantity] = estimated.estimate
        if np.isfinite(estimated.low):
            self.intervals[quantity] = (estimated.low, estimated.high)

    def means(self, what: str, values: np.ndarray) -> None:
        """One mean per layer, of (layer, window) or (layer, seed, window) values."""
        for layer, of_windows in enumerate(values):
            self.mean(f"{what}, layer {layer}", of_windows)
