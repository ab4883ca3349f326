"""The cells of one model: every variant on every chunk of windows, and the tasks that compute them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from tsfm_lens.data.evaluation import EvaluationSet
from tsfm_lens.models import Lens
from tsfm_lens.sweep.plan.config import ModelConfig, SweepConfig
from tsfm_lens.sweep.plan.stages import parts_of
from tsfm_lens.sweep.plan.variants import PlanEntry, VariantSpec
from tsfm_lens.sweep.run.cells import CellGroup, ChunkSource, Shared, model_fingerprint, shown_steps
from tsfm_lens.sweep.run.tasks import GroupTask
from tsfm_lens.sweep.store.folder import cell_key

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
    """A chunk of windows, where all variants of a model run.

    Attributes:
        dataset: whose windows.
        number: of the chunk.
        look: of a sequential test at which it is added, 0 without one.
        chunk: the windows.
        reference: windows on which "mean" and "resample" are recorded.
    """

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
