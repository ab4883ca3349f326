"""The cells of one model: every variant on every chunk of windows, and the tasks that compute them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from tsfm_lens.data.evaluation import EvaluationSet
from tsfm_lens.errors import InputError, StoreError, unknown_name
from tsfm_lens.models import Lens
from tsfm_lens.sweep.plan.config import ModelConfig, SweepConfig
from tsfm_lens.sweep.plan.stages import parts_of
from tsfm_lens.sweep.plan.variants import PlanEntry, VariantSpec, plan_frame
from tsfm_lens.sweep.run.cells import CellGroup, ChunkSource, Shared, model_fingerprint, shown_steps
from tsfm_lens.sweep.run.engines import GroupTask
from tsfm_lens.sweep.store.folder import Store, cell_key

# of the context in one pass of a model that takes patches
_TOKENS = 64


@dataclass(frozen=True)
class Cell:
    """One cell of a plan: the key of its content, names, the number of its chunk, and how many series it has."""

    key: str
    model: str
    variant: str
    dataset: str
    chunk: int
    series: int


@dataclass(frozen=True, eq=False)
class ChunkPlace:
    """A chunk of windows, where all variants of a model run."""

    dataset: EvaluationSet
    number: int
    look: int
    chunk: ChunkSource
    reference: ChunkSource | None

    @cached_property
    def shared(self) -> Shared:
        """Data of all groups here; one object, so that it is sent once."""
        return Shared(self.chunk, self.reference)


def specs_of(entries: Iterable[PlanEntry]) -> list[VariantSpec]:
    """Return the variants of some entries, each once."""
    return list({entry.spec.id: entry.spec for entry in entries}.values())


class ModelCells:
    """Cells of one model: its variants on its chunks, and the tasks that compute them."""

    def __init__(self, config: SweepConfig, model: ModelConfig, lens: Lens, sets: Sequence[EvaluationSet]) -> None:
        self.config, self.model, self.lens = config, model, lens
        self.fingerprint = model_fingerprint(lens, model)
        apart = bool(self.fingerprint["univariate"])
        context_length = shown_steps(lens, model)
        uses_reference = config.how in ("mean", "resample")
        references = {}
        for dataset in sets if uses_reference else ():
            subset = dataset.sample(config.reference_windows, config.seed)
            references[dataset.name] = ChunkSource(subset, range(len(subset)), context_length, apart)
        self.places = [
            ChunkPlace(
                dataset,
                number,
                look,
                ChunkSource(dataset, indices, context_length, apart),
                references.get(dataset.name),
            )
            for number, (dataset, look, indices) in enumerate(parts_of(config, sets))
        ]
        self._parameters = float(sum(parameter.numel() for parameter in lens.parameters()))
        self.cost = sum(self._work(place) for place in self.places)
        self._cache: dict[tuple[str, int], Cell] = {}

    def cells(self, entries: Iterable[PlanEntry], looks: int | None = None) -> list[Cell]:
        """Return the cells of the variants of some entries, on the first ``looks`` looks, on all windows if None."""
        specs = specs_of(entries)
        return [self._cell(spec, place) for place in self._within(looks) for spec in specs]

    def tasks(self, entries: Iterable[PlanEntry], exclude: set[str], looks: int | None = None) -> list[GroupTask]:
        """Return the tasks that compute the cells not in ``exclude``, a block of variants per task."""
        tasks, specs, config = [], specs_of(entries), self.config
        for place in self._within(looks):
            missing = [(spec, cell) for spec in specs if (cell := self._cell(spec, place)).key not in exclude]
            for first in range(0, len(missing), config.block):
                block = missing[first : first + config.block]
                variants = tuple(spec for spec, _ in block)
                group = CellGroup(self.model, variants, config.seed, config.distance_steps, config.memory)
                # the plain model runs beside every group
                cost = self._work(place) * (len(block) + 1)
                label = f"{self.model.title} on {place.dataset.name}, chunk {place.number}, {len(block)} variants"
                tasks.append(GroupTask(tuple(cell.key for _, cell in block), group, place.shared, cost, label))
        return tasks

    def _work(self, place: ChunkPlace) -> float:
        """Estimate the work of one variant, for the time left: parameters times tokens that pass through them."""
        adapter, horizon = self.lens.adapter, place.dataset.horizon
        if adapter.readout == "token":
            # a token per step of every sample path
            default = getattr(getattr(adapter, "settings", None), "num_samples", 20)
            tokens = horizon * (self.model.num_samples or default)
        else:
            tokens = _TOKENS * -(-horizon // adapter.longest_pass)
        return self._parameters * place.chunk.series * tokens

    def _within(self, looks: int | None) -> Iterator[ChunkPlace]:
        return (place for place in self.places if looks is None or place.look < looks)

    def _cell(self, spec: VariantSpec, place: ChunkPlace) -> Cell:
        if (spec.id, place.number) not in self._cache:
            reference = None
            if spec.how in ("mean", "resample") and place.reference is not None:
                reference = place.reference.fingerprint
            key = cell_key(
                model=self.fingerprint,
                components=list(spec.components),
                how=spec.how,
                spec_seed=spec.seed,
                reference=reference,
                dataset=place.dataset.name,
                windows=place.chunk.fingerprint,
                num_samples=self.model.num_samples,
                seed=self.config.seed,
                distance_steps=self.config.distance_steps,
            )
            series = place.chunk.series
            cell = Cell(key, self.model.title, spec.id, place.dataset.name, place.number, series)
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
    """Name a sweep's plan: its own name, as far as a file can have it, and a hash of all that decides its results."""
    text = json.dumps(config.model_dump(mode="json", exclude_none=True, exclude={"memory", "devices"}), sort_keys=True)
    name = re.sub(r"[^\w.-]+", "-", config.name).strip(".-") or "sweep"
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def save_plan(
    store: Store, config: SweepConfig, about: Mapping[str, Any], entries: Sequence[PlanEntry], cells: Sequence[Cell]
) -> None:
    """Write a plan, unless the store holds one of this configuration that has all its cells and more."""
    name = plan_name(config)
    keys = {cell.key for cell in cells}
    if name in store.plans():
        with suppress(StoreError):
            before = read_saved(store, name)
            earlier_keys = set(before.cells["key"])
            # a run that resumes begins with less than it knew when it was stopped
            if earlier_keys > keys or (earlier_keys == keys and before.about["complete"] >= about["complete"]):
                return
    store.write_plan(name, about, entries=plan_frame(entries), cells=pd.DataFrame([asdict(cell) for cell in cells]))


def read_saved(store: Store, name: str | None = None) -> SavedPlan:
    """Read a plan of a store."""
    names = store.plans()
    if not names:
        raise InputError(f"no sweep was planned in {store.path}: run `tsfm-lens sweep CONFIG` first")
    matches = [plan for plan in names if name in (None, plan, plan.rpartition("-")[0])]
    if not matches:
        raise unknown_name("sweep", name, names)
    if len(matches) > 1:
        raise InputError(f"{store.path} holds several sweeps, name one of them: {', '.join(matches)}")
    about, tables = store.read_plan(matches[0])
    return SavedPlan(matches[0], about, tables["entries"], tables["cells"])
