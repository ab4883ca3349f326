"""Chunks of windows, on which all variants of a model are forecast together.

Read :class:`Chunk` first, then :class:`ChunkTask`, which is what a worker gets.
:class:`Schedule` divides the series among the looks, the interim analyses of a
sequential test; their statistics are in ``looks.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from tsfm_lens.data import SeriesBatch
from tsfm_lens.sweep.data.evaluation import EvaluationSet
from tsfm_lens.sweep.planner.config import ModelConfig
from tsfm_lens.sweep.planner.looks import InterimAnalyses, schedule_analyses

# of the quantiles that are forecast
LEVELS = tuple(level / 10 for level in range(1, 10))


class Windows(NamedTuple):
    """Loaded windows of a chunk, one row per series.

    ``truth`` is (series, horizon) and ``scale`` (series,), the seasonal errors. A row
    is identified by its item, the number of its window, and its variate.
    """

    dataset: str
    batch: SeriesBatch
    truth: np.ndarray
    scale: np.ndarray
    items: tuple[str, ...]
    windows: tuple[int, ...]
    variates: tuple[int, ...]


class Chunk:
    """Windows of one dataset that are forecast together.

    They are loaded when they are needed, or before they go to another process.
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
        # number of series: each window has one per variate
        self.series = sum(len(dataset.windows[index].label) for index in self._indices)
        self._loaded: Windows | None = None
        self._naive: np.ndarray | None = None

    def load(self) -> Windows:
        """Return the windows, and load them unless they came with the chunk."""
        if self._loaded is not None:
            return self._loaded
        batch, truth = self._set.batch(self._indices, self._context)
        if self._univariate:
            # every variate becomes an item of its own, which is forecast without the
            # others
            batch = replace(batch, groups=batch.ids, variates=("",) * len(batch))
        windows = [self._set.windows[i] for i in self._indices]
        rows = [
            (window.item, window.index, variate)
            for window in windows
            for variate in range(window.n_variates)
        ]
        # in the order of the batch's rows: window by window, and variate by variate
        items, numbers, variates = zip(*rows, strict=True)
        scale = self._set.scales(self._indices)
        return Windows(self.dataset, batch, truth, scale, items, numbers, variates)

    def seasonal_naive(self) -> np.ndarray:
        """Forecast the full contexts by the seasonal naive method.

        Returns:
            Quantiles in data units, (series, quantile, step).
        """
        if self._naive is not None:
            return self._naive
        return self._set.seasonal_naive(self._indices, LEVELS)

    def __getstate__(self) -> dict[str, Any]:
        # only chunks of the naive forecast have full contexts, without a length; others
        # need no naive forecast
        naive = self.seasonal_naive() if self._context is None else None
        return {"_loaded": self.load(), "_naive": naive}


@dataclass(frozen=True, eq=False)
class ChunkTask:
    """Chunk with the model and settings that all variants on it share.

    The model is None for the seasonal naive forecast.

    Attributes:
        number: of the chunk.
        look: of a sequential test, the one that adds these windows; 0 without looks.
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
    """Looks (interim analyses) of a sequential test, and the series that they divide.

    Each series is a pair (set, item).
    """

    looks: InterimAnalyses
    series: list[tuple[str, str]]

    @classmethod
    def plan(cls, sets: Sequence[EvaluationSet], seed: int) -> Schedule:
        """Divide the series of all sets among the looks at random."""
        items = [
            (dataset.name, window.item)
            for dataset in sets
            for window in dataset.windows
        ]
        # each series once, since its windows depend on one another and belong to one
        # look
        series = list(dict.fromkeys(items))
        return cls(schedule_analyses([name for name, _ in series], seed=seed), series)

    def parts(
        self, dataset: EvaluationSet, size: int
    ) -> list[tuple[int, tuple[int, ...]]]:
        """Split the windows of a set into chunks, each within one look.

        Returns:
            The look of each chunk, and the indices of its windows.
        """
        look_by_series = {
            self.series[unit]: look
            for look, units in enumerate(self.looks.added)
            for unit in units
        }
        parts = []
        for look in range(len(self.looks.added)):
            indices = [
                index
                for index, window in enumerate(dataset.windows)
                if look_by_series[dataset.name, window.item] == look
            ]
            if indices:
                windows = tuple(dataset.windows[index] for index in indices)
                # indices of these chunks are positions within the look
                chunks = replace(dataset, windows=windows).chunks(size)
                parts += [
                    (look, tuple(indices[index] for index in chunk)) for chunk in chunks
                ]
        return parts
