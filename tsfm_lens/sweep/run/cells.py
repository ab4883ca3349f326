"""Cells: one model, one variant, and a chunk of windows of one dataset, forecast and scored."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.ablation.rollouts import forecast_variants
from tsfm_lens.data import SeriesBatch
from tsfm_lens.errors import InputError, StoreError, unknown_name
from tsfm_lens.models import Lens, load
from tsfm_lens.models.ablating import reference_activations
from tsfm_lens.models.noise import flat_contexts
from tsfm_lens.sweep.data.evaluation import EvaluationSet
from tsfm_lens.sweep.plan.config import ModelConfig, SweepConfig
from tsfm_lens.sweep.plan.stages import parts_of
from tsfm_lens.sweep.plan.variants import PlanEntry, VariantSpec, plan_frame
from tsfm_lens.sweep.run.tasks import GroupTask
from tsfm_lens.sweep.statistics.scores import (
    DISTANCES,
    SEASONAL_NAIVE,
    forecast_distances,
    window_scores,
)
from tsfm_lens.sweep.store.files import cell_key
from tsfm_lens.sweep.store.folder import Store

LEVELS = tuple(level / 10 for level in range(1, 10))
# raised whenever the same cell would be given other numbers
NUMERICS = 2


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
    """Windows of one dataset that are forecast together; loaded when needed, or before going to another process."""

    def __init__(
        self,
        dataset: EvaluationSet,
        indices: Sequence[int],
        context_length: int | None,
        univariate: bool = False,
    ) -> None:
        self._set, self._indices = dataset, tuple(indices)
        self._context, self._univariate = context_length, univariate
        self.dataset = dataset.name
        self.fingerprint = dataset.fingerprint(self._indices)
        self.series = sum(len(dataset.windows[index].label) for index in self._indices)
        self._loaded: Windows | None = None

    def load(self) -> Windows:
        """Load the windows, where they were not sent."""
        if self._loaded is not None:
            return self._loaded
        batch, truth = self._set.batch(self._indices, self._context)
        if self._univariate:
            batch = replace(batch, groups=batch.ids, variates=("",) * len(batch))
        windows = [self._set.windows[i] for i in self._indices]
        places = [
            (window.item, window.index, v)
            for window in windows
            for v in range(window.n_variates)
        ]
        return Windows(
            self.dataset,
            batch,
            truth,
            self._set.scales(self._indices),
            *zip(*places, strict=True),
        )

    def seasonal_naive(self) -> np.ndarray:
        """Forecast the whole contexts by the seasonal naive method, (series, quantile, step)."""
        return self._set.seasonal_naive(self._indices, LEVELS)

    def __getstate__(self) -> dict[str, Any]:
        return {"_loaded": self.load()}


@dataclass(frozen=True, eq=False)
class ChunkPlace:
    """Chunk where all variants of a model run, and the windows on which "mean" and "resample" are recorded."""

    number: int
    look: int
    chunk: Chunk
    reference: Chunk | None
    model: ModelConfig
    seed: int
    distance_steps: int
    memory: int | None


def model_fingerprint(lens: Lens, config: ModelConfig) -> dict[str, Any]:
    """Identify a model's forecasts: weights, settings, architecture, library versions, precision and context."""
    digest = hashlib.sha256()
    for name, tensor in sorted(lens.adapter.model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(
            tensor.detach()
            .cpu()
            .contiguous()
            .reshape(-1)
            .view(torch.uint8)
            .numpy()
            .data
        )
    return {
        "weights": digest.hexdigest(),
        "settings": _settings(lens),
        "architecture": lens.wiring.architecture,
        "versions": {
            name: version(name)
            for name in sorted({lens.adapter.package, "torch", "transformers"})
        },
        "numerics": NUMERICS,
        "dtype": config.dtype,
        "context_length": shown_steps(lens, config),
        "univariate": config.univariate or not lens.adapter.multivariate,
    }


# settings of a model's origin, without effect on its forecasts
_PROVENANCE = ("name_or_path", "_name_or_path", "_commit_hash", "transformers_version")


def _settings(lens: Lens) -> str:
    """Hash a model's configuration: its network, its sampling and its pipeline."""
    adapter = lens.adapter
    holders = [adapter.model, adapter.native, adapter]
    settings = {
        f"{index}.{name}": _values(getattr(holder, name, None))
        for index, holder in enumerate(holders)
        for name in ("config", "generation_config", "settings", "forecast_config")
    }
    settings["levels"] = list(getattr(adapter, "levels", ()))
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _values(setting: Any) -> Any:
    """Return the plain values of a configuration, however a library keeps it."""
    if isinstance(setting, str | int | float | bool | None):
        return setting
    if isinstance(setting, list | tuple):
        return [_values(item) for item in setting]
    if hasattr(setting, "to_dict"):
        setting = setting.to_dict()
    elif not isinstance(setting, dict):
        holds_settings = type(setting).__name__.lower().endswith(("config", "settings"))
        setting = getattr(setting, "__dict__", {}) if holds_settings else {}
    return {
        str(key): _values(value)
        for key, value in setting.items()
        if key not in _PROVENANCE
    }


def shown_steps(lens: Lens, config: ModelConfig) -> int:
    """Return the steps of context that a model is shown."""
    longest = int(lens.adapter.context_length)
    return (
        longest
        if config.context_length is None
        else min(longest, config.context_length)
    )


def run_cells(
    lens: Lens, specs: Sequence[VariantSpec], shared: ChunkPlace, cells: Sequence[str]
) -> pa.Table:
    """Forecast and score variants on a chunk, ``cells`` by key, together with the plain model."""
    windows = shared.chunk.load()
    horizon, reference = windows.truth.shape[1], None
    if hows := sorted({spec.how for spec in specs} & {"mean", "resample"}):
        # a sweep with one of them has reference windows
        assert shared.reference is not None
        recorded = shared.reference.load()
        reference = reference_activations(
            lens, hows[0], recorded.batch, recorded.truth.shape[1]
        )
    variants = [
        Variant("plain", ()),
        *(spec.to_variant(lens, reference, horizon) for spec in specs),
    ]
    forecasts = forecast_variants(
        lens,
        windows.batch,
        horizon,
        variants,
        quantiles=LEVELS,
        num_samples=shared.model.num_samples,
        seed=shared.seed,
        memory=shared.memory,
        # such a variant's metrics are undefined, and the others go on
        non_finite="keep",
    )
    count = len(specs)
    # all variants are scored at once: series of every variant stand one below the other
    quantiles = _stack_variants(forecasts.quantiles[1:])
    samples = (
        None if forecasts.samples is None else _stack_variants(forecasts.samples[1:])
    )
    scores = window_scores(
        np.tile(windows.truth, (count, 1)),
        quantiles,
        LEVELS,
        np.tile(windows.scale, count),
        samples=samples,
        mean=_stack_variants(forecasts.mean[1:]),
    )
    middle = forecasts.quantiles[:, :, LEVELS.index(0.5)]
    plain = np.tile(middle[0], (count, 1))
    flat = np.tile(flat_contexts(lens, windows.batch), count)
    scores |= forecast_distances(
        _stack_variants(middle[1:]), plain, steps=shared.distance_steps, flat=flat
    )
    return _table(
        windows, cells, shared.model.title, [spec.id for spec in specs], scores
    )


def run_naive(chunk: Chunk, cell: str) -> pa.Table:
    """Score the seasonal naive forecast; the errors of all models are divided by its error."""
    windows = chunk.load()
    scores = window_scores(windows.truth, chunk.seasonal_naive(), LEVELS, windows.scale)
    # there is no plain forecast that it could be near to
    scores |= {name: np.full(len(windows.batch), np.nan) for name in DISTANCES}
    return _table(windows, (cell,), SEASONAL_NAIVE, [SEASONAL_NAIVE], scores)


class CellWorker:
    """Worker that runs groups of cells with the given open lenses; of other lenses, the last one stays open."""

    def __init__(self, common: Mapping[str, Lens], device: str | None = None) -> None:
        self._lenses = common
        self._open_model = lru_cache(maxsize=1)(
            lambda config: open_model(config, device)
        )

    def __call__(self, task: GroupTask) -> pa.Table:
        """Compute the rows of a task whose payload are variants and whose data is a :class:`ChunkPlace`."""
        model = task.data.model
        return run_cells(
            self._lenses.get(model.title) or self._open_model(model),
            task.payload,
            task.data,
            task.cells,
        )


def open_model(config: ModelConfig, device: str | None = None) -> Lens:
    """Open the lens of a model of a sweep."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    where = device or config.device
    try:
        torch.empty(0, device=where)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"device {where!r} of {config.title} cannot be used: {reason}"
        ) from None
    return load(
        config.source,
        revision=config.revision,
        device=where,
        dtype=config.dtype,
        check=False,
    )


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
    place = np.repeat(np.arange(len(cells)), len(windows.batch))
    series = np.tile(np.arange(len(windows.batch)), len(cells))

    def words(values: Sequence[str], codes: np.ndarray) -> pa.DictionaryArray:
        return pa.array(values).dictionary_encode().take(pa.array(codes))

    columns: dict[str, Any] = {
        "cell": words(cells, place),
        "model": words([model], 0 * place),
        "variant": words(variants, place),
        "dataset": words([windows.dataset], 0 * place),
        "item": words(windows.items, series),
        "window": np.array(windows.windows, dtype=np.int32)[series],
        "variate": np.array(windows.variates, dtype=np.int32)[series],
    }
    columns |= {
        name: np.asarray(values, dtype=np.float64) for name, values in scores.items()
    }
    return pa.table(columns)


@dataclass(frozen=True)
class Cell:
    """One cell of a plan: the key of its content, names, the number of its chunk, and how many series it has."""

    key: str
    model: str
    variant: str
    dataset: str
    chunk: int
    series: int


def naive_cells(
    config: SweepConfig, sets: Sequence[EvaluationSet]
) -> list[tuple[Cell, Callable[[], pa.Table]]]:
    """Plan the cells of the seasonal naive forecast, each with the function that computes its rows."""
    cells: list[tuple[Cell, Callable[[], pa.Table]]] = []
    for dataset in sets:
        for number, indices in enumerate(dataset.chunks(config.chunk)):
            chunk = Chunk(dataset, indices, None)
            key = cell_key(
                variant=SEASONAL_NAIVE,
                numerics=NUMERICS,
                levels=list(LEVELS),
                versions={"gluonts": version("gluonts")},
                dataset=dataset.name,
                windows=chunk.fingerprint,
            )
            cell = Cell(
                key, SEASONAL_NAIVE, SEASONAL_NAIVE, dataset.name, number, chunk.series
            )
            cells.append((cell, partial(run_naive, chunk, key)))
    return cells


def specs_of(entries: Iterable[PlanEntry]) -> list[VariantSpec]:
    """Return the variants of some entries, each once."""
    return list({entry.spec.id: entry.spec for entry in entries}.values())


class ModelCells:
    """Cells of one model: its variants on its chunks, and the tasks that compute them."""

    def __init__(
        self,
        config: SweepConfig,
        model: ModelConfig,
        lens: Lens,
        sets: Sequence[EvaluationSet],
    ) -> None:
        self.config, self.model, self.lens = config, model, lens
        self.fingerprint = model_fingerprint(lens, model)
        apart = bool(self.fingerprint["univariate"])
        context_length = shown_steps(lens, model)
        uses_reference = config.how in ("mean", "resample")
        references = {}
        for dataset in sets if uses_reference else ():
            subset = dataset.sample(config.reference_windows, config.seed)
            references[dataset.name] = Chunk(
                subset, range(len(subset)), context_length, apart
            )
        self.places = []
        for number, (dataset, look, indices) in enumerate(parts_of(config, sets)):
            chunk = Chunk(dataset, indices, context_length, apart)
            how = model, config.seed, config.distance_steps, config.memory
            self.places.append(
                ChunkPlace(number, look, chunk, references.get(dataset.name), *how)
            )
        self._cache: dict[tuple[str, int], Cell] = {}

    def cells(
        self, entries: Iterable[PlanEntry], looks: int | None = None
    ) -> list[Cell]:
        """Return the cells of the variants of some entries, on the first ``looks`` looks, on all windows if None."""
        specs = specs_of(entries)
        return [
            self._cell(spec, place) for place in self._within(looks) for spec in specs
        ]

    def tasks(
        self, entries: Iterable[PlanEntry], exclude: set[str], looks: int | None = None
    ) -> list[GroupTask]:
        """Return the tasks that compute the cells not in ``exclude``, a block of variants per task."""
        tasks, specs, config = [], specs_of(entries), self.config
        for place in self._within(looks):
            missing = [
                (spec, cell)
                for spec in specs
                if (cell := self._cell(spec, place)).key not in exclude
            ]
            for first in range(0, len(missing), config.block):
                block = missing[first : first + config.block]
                variants = tuple(spec for spec, _ in block)
                label = f"{self.model.title} on {place.chunk.dataset}, chunk {place.number}, {len(block)} variants"
                tasks.append(
                    GroupTask(
                        tuple(cell.key for _, cell in block), variants, place, label
                    )
                )
        return tasks

    def _within(self, looks: int | None) -> Iterator[ChunkPlace]:
        return (place for place in self.places if looks is None or place.look < looks)

    def _cell(self, spec: VariantSpec, place: ChunkPlace) -> Cell:
        if (spec.id, place.number) not in self._cache:
            reference = place.reference if spec.how in ("mean", "resample") else None
            key = cell_key(
                model=self.fingerprint,
                components=list(spec.components),
                how=spec.how,
                spec_seed=spec.seed,
                reference=reference and reference.fingerprint,
                dataset=place.chunk.dataset,
                windows=place.chunk.fingerprint,
                num_samples=self.model.num_samples,
                seed=self.config.seed,
                distance_steps=self.config.distance_steps,
            )
            cell = Cell(
                key,
                self.model.title,
                spec.id,
                place.chunk.dataset,
                place.number,
                place.chunk.series,
            )
            self._cache[spec.id, place.number] = cell
        return self._cache[spec.id, place.number]


@dataclass(frozen=True, eq=False)
class SavedPlan:
    """A plan as a store holds it."""

    name: str
    about: dict[str, Any]
    entries: pd.DataFrame
    cells: pd.DataFrame


def plan_name(config: SweepConfig) -> str:
    """Name a sweep's plan: the sweep's name, as files allow it, and a hash of all that determines its results."""
    text = json.dumps(
        config.model_dump(
            mode="json", exclude_none=True, exclude={"memory", "devices"}
        ),
        sort_keys=True,
    )
    name = re.sub(r"[^\w.-]+", "-", config.name).strip(".-") or "sweep"
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def save_plan(
    store: Store,
    config: SweepConfig,
    about: Mapping[str, Any],
    entries: Sequence[PlanEntry],
    cells: Sequence[Cell],
) -> None:
    """Write a plan, unless the store holds one of this configuration that has all its cells and more."""
    name = plan_name(config)
    keys = {cell.key for cell in cells}
    if name in store.plans():
        with suppress(StoreError):
            before = read_saved(store, name)
            earlier_keys = set(before.cells["key"])
            # a run that resumes begins with less than it knew when it was stopped
            if earlier_keys > keys or (
                earlier_keys == keys and before.about["complete"] >= about["complete"]
            ):
                return
    store.write_plan(
        name,
        about,
        entries=plan_frame(entries),
        cells=pd.DataFrame([asdict(cell) for cell in cells]),
    )


def read_saved(store: Store, name: str | None = None) -> SavedPlan:
    """Read a plan of a store."""
    names = store.plans()
    if not names:
        raise InputError(
            f"no sweep was planned in {store.path}: run `tsfm-lens sweep CONFIG` first"
        )
    matches = [plan for plan in names if name in (None, plan, plan.rpartition("-")[0])]
    if not matches:
        raise unknown_name("sweep", name, names)
    if len(matches) > 1:
        raise InputError(
            f"{store.path} holds several sweeps, name one of them: {', '.join(matches)}"
        )
    about, tables = store.read_plan(matches[0])
    return SavedPlan(matches[0], about, tables["entries"], tables["cells"])
