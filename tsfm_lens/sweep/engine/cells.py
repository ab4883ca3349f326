"""Cells of a sweep, forecast and scored.

A cell is one model, one variant (a set of ablated components), and a chunk of windows
of one dataset. Read :func:`run` first: it computes those cells of a table that a store
lacks. Which cells there are is decided in :mod:`tsfm_lens.sweep.planner`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.rollouts import forecast_variants
from tsfm_lens.models import Lens
from tsfm_lens.models.ablating import reference_activations
from tsfm_lens.models.noise import flat_contexts
from tsfm_lens.sweep.data.evaluation import SEASONAL_NAIVE
from tsfm_lens.sweep.engine.engines import run_groups
from tsfm_lens.sweep.engine.workers import GroupDone, GroupTask
from tsfm_lens.sweep.planner.chunks import LEVELS, Chunk, ChunkTask, Windows
from tsfm_lens.sweep.planner.models import open_model
from tsfm_lens.sweep.planner.variants import VariantSpec
from tsfm_lens.sweep.statistics.scores import (
    DISTANCES,
    forecast_distances,
    window_scores,
)
from tsfm_lens.sweep.store import Store


def run(
    cells: pd.DataFrame,
    store: Store,
    engine: str = "single",
    *,
    workers: int | None = None,
    devices: Sequence[str] = (),
    address: str | None = None,
    block: int = 64,
    lenses: Mapping[str, Lens] | None = None,
    on_done: Callable[[GroupDone], object] = lambda group: None,
) -> list[GroupDone]:
    """Compute the cells of a plan that a store lacks.

    Args:
        cells: a table returned by ``plan``, one row per cell: its ``key`` in the store,
            and what computes it, its ``spec`` (a variant) and ``task`` (a chunk).
        store: where results are written, and finished cells are found.
        engine: "single", "processes" or "ray".
        workers: number of workers of the engine; one per device or core if None.
        devices: torch devices over which workers are distributed.
        address: address of a Ray cluster.
        block: largest number of variants in a group, which is computed and stored as
            one.
        lenses: open models by name. They are used by the engine "single" alone; workers
            of the others open their own.
        on_done: called with the outcome of each group of cells.

    Returns:
        The outcomes of the groups; a failure is an outcome, not an exception.

    Raises:
        StoreError: the store cannot be written.

    Example:
        >>> nile = {"source": "bundled", "names": ["nile"], "horizon": 4, "windows": 1}
        >>> content = {"models": [{"source": "bolt-nano"}], "data": [nile]}
        >>> content["variants"] = {"layers": {"sizes": [1]}}
        >>> config = sweep.parse_config(content)
        >>> store = sweep.Store(folder / "of-cells")
        >>> {group.how for group in sweep.run(sweep.plan(config), store)}
        {'finished'}
    """
    # cells are looked up one by one, since an earlier run with another ``block`` or
    # other variants has grouped them differently
    missing = cells[~cells["key"].isin(store.done())].drop_duplicates("key")
    tasks = []
    chunks = missing.groupby(["model", "dataset", "chunk"], sort=False)
    for (model, dataset, chunk), chunk_cells in chunks:
        for first in range(0, len(chunk_cells), block):
            group = chunk_cells.iloc[first : first + block]
            label = f"{model} on {dataset}, chunk {chunk}, {len(group)} variants"
            keys = tuple(group["key"])
            specs = tuple(group["spec"])
            # cells of one chunk share their task
            chunk_task = group["task"].iloc[0]
            tasks.append(GroupTask(keys, payload=specs, data=chunk_task, label=label))
    # workers in other processes open their own models
    open_lenses = lenses
    if lenses is None or engine != "single":
        open_lenses = {}
    return run_groups(
        tasks,
        CellWorker,
        open_lenses,
        store,
        engine=engine,
        workers=workers,
        devices=devices,
        address=address,
        on_done=on_done,
    )


class CellWorker:
    """Worker that runs groups of cells.

    It uses the open lenses that it is given, by name in ``common``, and opens other
    models itself; of these the one used last stays open.
    """

    def __init__(self, common: Mapping[str, Lens], device: str | None = None) -> None:
        self._lenses = common
        # one at a time, since two models may not fit into memory; groups come model by
        # model
        self._open_model = lru_cache(maxsize=1)(
            lambda config: open_model(config, device)
        )

    def __call__(self, task: GroupTask) -> pa.Table:
        """Compute the rows of a task for the store.

        ``task.payload`` holds the variants, and ``task.data`` is a :class:`ChunkTask`.

        Returns:
            The rows.
        """
        model = task.data.model
        # the seasonal naive forecast needs none
        if model is None:
            return run_naive(task.data.chunk, task.cells)
        lens = self._lenses.get(model.title) or self._open_model(model)
        return run_cells(lens, task.payload, task.data, task.cells)


def run_cells(
    lens: Lens, specs: Sequence[VariantSpec], shared: ChunkTask, cells: Sequence[str]
) -> pa.Table:
    """Forecast and score variants on a chunk, together with the plain model.

    ``shared`` is what all variants have in common: the chunk, the model and settings.
    ``cells`` are the keys of the variants' cells, in the order of ``specs``.

    Returns:
        The rows.
    """
    windows = shared.chunk.load()
    model = shared.model
    assert model is not None
    horizon = windows.truth.shape[1]
    reference = None
    if hows := sorted({spec.how for spec in specs} & {"mean", "resample"}):
        # a plan with one of these ablations has reference windows
        assert shared.reference is not None
        reference_windows = shared.reference.load()
        reference = reference_activations(
            lens,
            # what is recorded is the same for both: the name is for error messages
            hows[0],
            reference_windows.batch,
            reference_windows.truth.shape[1],
        )
    variants = [
        # the plain model comes first, and in the same call under the same seed: the
        # variants' distances are measured from its forecast
        Variant("plain", ()),
        *(spec.to_variant(lens, reference, horizon) for spec in specs),
    ]
    forecasts = forecast_variants(
        lens,
        windows.batch,
        horizon,
        variants,
        quantiles=LEVELS,
        num_samples=model.num_samples,
        seed=shared.seed,
        # an ablated model may forecast NaN: its metrics are then undefined, and other
        # variants go on
        non_finite="keep",
    )
    count = len(specs)
    # all variants are scored at once, (variant · series, level, step)
    quantiles = _stack_variants(forecasts.quantiles[1:])
    if forecasts.samples is None:
        samples = None
    else:
        samples = _stack_variants(forecasts.samples[1:])
    scores = window_scores(
        np.tile(windows.truth, (count, 1)),
        quantiles,
        LEVELS,
        np.tile(windows.scale, count),
        samples=samples,
        mean=_stack_variants(forecasts.mean[1:]),
    )
    # (variant, series, step)
    medians = forecasts.quantiles[:, :, LEVELS.index(0.5)]
    plain = np.tile(medians[0], (count, 1))
    flat = np.tile(flat_contexts(lens, windows.batch), count)
    scores |= forecast_distances(
        _stack_variants(medians[1:]), plain, steps=shared.distance_steps, flat=flat
    )
    return _table(windows, cells, model.title, [spec.id for spec in specs], scores)


def run_naive(chunk: Chunk, cells: Sequence[str]) -> pa.Table:
    """Score the seasonal naive forecast, by which reports divide the models' errors."""
    windows = chunk.load()
    scores = window_scores(windows.truth, chunk.seasonal_naive(), LEVELS, windows.scale)
    # distances are from a plain model's forecast, which does not exist here
    scores |= {name: np.full(len(windows.batch), np.nan) for name in DISTANCES}
    return _table(windows, cells, SEASONAL_NAIVE, [SEASONAL_NAIVE], scores)


def _stack_variants(values: np.ndarray) -> np.ndarray:
    """Reshape (variant, series, …) to (variant × series, …)."""
    return values.reshape(-1, *values.shape[2:])


def _table(
    windows: Windows,
    cells: Sequence[str],
    model: str,
    variants: Sequence[str],
    scores: Mapping[str, np.ndarray],
) -> pa.Table:
    """Make the stored rows, one for each variant and series, in the scores' order."""
    # indices by row: one variant after the other, and within it one series after the
    # other
    variant_index = np.repeat(np.arange(len(cells)), len(windows.batch))
    series_index = np.tile(np.arange(len(windows.batch)), len(cells))
    always_first = np.zeros_like(variant_index)

    def encode(values: Sequence[str], codes: np.ndarray) -> pa.DictionaryArray:
        # each text is stored once, and every row has its code
        return pa.array(values).dictionary_encode().take(pa.array(codes))

    columns: dict[str, Any] = {
        "cell": encode(cells, variant_index),
        "model": encode([model], always_first),
        "variant": encode(variants, variant_index),
        "dataset": encode([windows.dataset], always_first),
        "item": encode(windows.items, series_index),
        "window": np.array(windows.windows, dtype=np.int32)[series_index],
        "variate": np.array(windows.variates, dtype=np.int32)[series_index],
    }
    for name, values in scores.items():
        columns[name] = np.asarray(values, dtype=np.float64)
    return pa.table(columns)
