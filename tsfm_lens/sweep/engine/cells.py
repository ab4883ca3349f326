"""Cells of a sweep, forecast and scored.

A cell is one model, one variant, and a chunk of windows of one dataset. Read
:func:`run` first: it computes the cells of a table that a store lacks. Which cells
there are is decided in :mod:`tsfm_lens.sweep.planner`.
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
from tsfm_lens.sweep.store import SEASONAL_NAIVE, Store


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
        cells: a table as ``plan`` gives it.
        store: of the results.
        engine: "single", "processes" or "ray".
        workers: of the engine; one per device or core if None.
        devices: torch devices over which workers are distributed.
        address: of a Ray cluster.
        block: variants that are computed and kept as one.
        lenses: open models by name, for the engine "single"; other workers open their
            own.
        on_done: called with the outcome of each group of cells.

    Returns:
        The outcomes of the groups; one that failed raises no exception.

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
    # cell by cell: an earlier run may have grouped them otherwise, as before a change
    # of ``block`` or of the variants
    missing = cells[~cells["key"].isin(store.done())].drop_duplicates("key")
    tasks = []
    chunks = missing.groupby(["model", "dataset", "chunk"], sort=False)
    for (model, dataset, number), chunk_cells in chunks:
        for first in range(0, len(chunk_cells), block):
            group = chunk_cells.iloc[first : first + block]
            label = f"{model} on {dataset}, chunk {number}, {len(group)} variants"
            keys = tuple(group["key"])
            specs = tuple(group["spec"])
            # cells of one chunk share their task
            tasks.append(GroupTask(keys, specs, group["task"].iloc[0], label))
    # workers in other processes open their own models
    shared = lenses
    if lenses is None or engine != "single":
        shared = {}
    return run_groups(
        tasks,
        CellWorker,
        shared,
        store,
        engine=engine,
        workers=workers,
        devices=devices,
        address=address,
        on_done=on_done,
    )


class CellWorker:
    """Worker that runs groups of cells with the given open lenses.

    Of other lenses, the one used last stays open.
    """

    def __init__(self, common: Mapping[str, Lens], device: str | None = None) -> None:
        self._lenses = common
        # one at a time, since two models may not fit into memory; groups come model by
        # model
        self._open_model = lru_cache(maxsize=1)(
            lambda config: open_model(config, device)
        )

    def __call__(self, task: GroupTask) -> pa.Table:
        """Compute the rows of a task.

        Its payload are variants, and its data is a :class:`ChunkTask`.
        """
        model = task.data.model
        if model is None:
            return run_naive(task.data.chunk, task.cells)
        lens = self._lenses.get(model.title) or self._open_model(model)
        return run_cells(lens, task.payload, task.data, task.cells)


def run_cells(
    lens: Lens, specs: Sequence[VariantSpec], shared: ChunkTask, cells: Sequence[str]
) -> pa.Table:
    """Forecast and score variants on a chunk, together with the plain model.

    ``cells`` are the keys of the variants' cells, in the order of ``specs``.
    """
    windows = shared.chunk.load()
    model = shared.model
    assert model is not None
    horizon = windows.truth.shape[1]
    reference = None
    if hows := sorted({spec.how for spec in specs} & {"mean", "resample"}):
        # a sweep with one of them has reference windows
        assert shared.reference is not None
        reference_windows = shared.reference.load()
        reference = reference_activations(
            lens,
            hows[0],
            reference_windows.batch,
            reference_windows.truth.shape[1],
        )
    variants = [
        # first and in the same call, with the same seed: distances are from its
        # forecast
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
        # such a variant's metrics are undefined, and the others go on
        non_finite="keep",
    )
    count = len(specs)
    # all variants are scored at once: series of every variant stand one below the other
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
    """Score the seasonal naive forecast.

    The errors of all models are divided by its error.
    """
    windows = chunk.load()
    scores = window_scores(windows.truth, chunk.seasonal_naive(), LEVELS, windows.scale)
    # there is no plain forecast that it could be near to
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
    # one variant after the other, and within it one series after the other
    variant = np.repeat(np.arange(len(cells)), len(windows.batch))
    series = np.tile(np.arange(len(windows.batch)), len(cells))
    same = np.zeros_like(variant)

    def encode(values: Sequence[str], codes: np.ndarray) -> pa.DictionaryArray:
        # each text once, and a code for every row
        return pa.array(values).dictionary_encode().take(pa.array(codes))

    columns: dict[str, Any] = {
        "cell": encode(cells, variant),
        "model": encode([model], same),
        "variant": encode(variants, variant),
        "dataset": encode([windows.dataset], same),
        "item": encode(windows.items, series),
        "window": np.array(windows.windows, dtype=np.int32)[series],
        "variate": np.array(windows.variates, dtype=np.int32)[series],
    }
    for name, values in scores.items():
        columns[name] = np.asarray(values, dtype=np.float64)
    return pa.table(columns)
