"""Chunks of windows, on which all variants of a model are forecast, and the looks of a
sequential test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tsfm_lens.data import SeriesBatch
from tsfm_lens.sweep.data.evaluation import EvaluationSet
from tsfm_lens.sweep.planner.config import ModelConfig
from tsfm_lens.sweep.planner.looks import Looks, plan_looks

LEVELS = tuple(level / 10 for level in range(1, 10))


class Windows(NamedTuple):
    """Loaded windows of a chunk, a series a row."""

    dataset: str
    batch: SeriesBatch
    truth: np.ndarray
    scale: np.ndarray
    items: tuple[str, ...]
    windows: tuple[int, ...]
    variates: tuple[int, ...]


class Chunk:
    """Windows of one dataset that are forecast together; loaded when needed, or before
    going to another process.
    """

    def __init__(
        self,
        dataset: EvaluationSet,
        indices: Sequence[int],
        context_length: int | None,
        univariate: bool = False,
    ) -> None:
        self._set = dataset
        self._indices = tuple(indices)
        self._context = context_length
        self._univariate = univariate
        self.dataset = dataset.name
        self.fingerprint = dataset.fingerprint(self._indices)
        self.series = sum(len(dataset.windows[index].label) for index in self._indices)
        self._loaded: Windows | None = None
        self._naive: np.ndarray | None = None

    def load(self) -> Windows:
        """Load the windows, where they were not sent."""
        if self._loaded is not None:
            return self._loaded
        batch, truth = self._set.batch(self._indices, self._context)
        if self._univariate:
            batch = replace(batch, groups=batch.ids, variates=("",) * len(batch))
        windows = [self._set.windows[i] for i in self._indices]
        positions = [
            (window.item, window.index, v)
            for window in windows
            for v in range(window.n_variates)
        ]
        return Windows(
            self.dataset,
            batch,
            truth,
            self._set.scales(self._indices),
            *zip(*positions, strict=True),
        )

    def seasonal_naive(self) -> np.ndarray:
        """Forecast the whole contexts by the seasonal naive method, (series, quantile,
        step).
        """
        if self._naive is not None:
            return self._naive
        return self._set.seasonal_naive(self._indices, LEVELS)

    def __getstate__(self) -> dict[str, Any]:
        # of whole contexts, as no model is shown them, the naive forecast is all that
        # is asked for
        naive = self.seasonal_naive() if self._context is None else None
        return {"_loaded": self.load(), "_naive": naive}


@dataclass(frozen=True, eq=False)
class ChunkTask:
    """What all variants on a chunk share: the model (None for the seasonal naive
    forecast), and how it is run.

    Attributes:
        number: of the chunk.
        look: of a sequential test that adds its windows; 0 for others.
        reference: windows on which the values of "mean" and "resample" are recorded.
    """

    number: int
    look: int
    chunk: Chunk
    reference: Chunk | None = None
    model: ModelConfig | None = None
    seed: int = 0
    distance_steps: int = 2


@dataclass(frozen=True, eq=False)
class Schedule:
    """Looks of a sequential test, and the series that they are about: (set, item) each."""

    looks: Looks
    series: list[tuple[str, str]]

    @classmethod
    def plan(cls, sets: Sequence[EvaluationSet], seed: int) -> Schedule:
        """Deal the series of all sets out to looks."""
        series = list(
            dict.fromkeys(
                (dataset.name, window.item)
                for dataset in sets
                for window in dataset.windows
            )
        )
        return cls(plan_looks([name for name, _ in series], seed=seed), series)

    def parts(
        self, dataset: EvaluationSet, size: int
    ) -> list[tuple[int, tuple[int, ...]]]:
        """Split the windows of a set into chunks within looks: the look, and the
        indices of its windows.
        """
        look_of = {
            self.series[unit]: look
            for look, units in enumerate(self.looks.added)
            for unit in units
        }
        parts = []
        for look in range(len(self.looks.added)):
            indices = [
                index
                for index, window in enumerate(dataset.windows)
                if look_of[dataset.name, window.item] == look
            ]
            if indices:
                windows = tuple(dataset.windows[index] for index in indices)
                chunks = replace(dataset, windows=windows).chunks(size)
                parts += [
                    (look, tuple(indices[index] for index in chunk)) for chunk in chunks
                ]
        return parts
