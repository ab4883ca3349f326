"""A sweep from its configuration to a full store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from tsfm_lens.errors import InputError
from tsfm_lens.sweep.plan.config import SweepConfig
from tsfm_lens.sweep.plan.recipes import read_recipe
from tsfm_lens.sweep.plan.sources import evaluation_sets, repeats
from tsfm_lens.sweep.plan.stages import ModelPlan
from tsfm_lens.sweep.plan.variants import PlanEntry
from tsfm_lens.sweep.run.cells import LEVELS, NUMERICS, CellWorker, ChunkSource, open_model, run_naive
from tsfm_lens.sweep.run.engines import run_groups
from tsfm_lens.sweep.run.grid import Cell, ModelCells, specs_of
from tsfm_lens.sweep.run.progress import Progress, SweepProgress
from tsfm_lens.sweep.run.saved_plans import save_plan
from tsfm_lens.sweep.run.tasks import GroupDone, GroupTask, cores
from tsfm_lens.sweep.statistics.pooling import SEASONAL_NAIVE
from tsfm_lens.sweep.statistics.scores import DISTANCES, SUMS
from tsfm_lens.sweep.store.folder import Store, cell_key


@dataclass
class Outcome:
    """Outcome of a run of a sweep.

    Attributes:
        cells: of the whole plan; of what is known of it, if the run ended early.
        finished, resumed: cells in the store, and those of them that were there before.
        failed: what could not be computed, a line each.
        cancelled: whether it was interrupted.
        notes: what a reader should know, such as damaged files.
    """

    cells: int = 0
    finished: int = 0
    resumed: int = 0
    failed: list[str] = field(default_factory=list)
    cancelled: bool = False
    notes: list[str] = field(default_factory=list)

    def as_plain(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


_FACTS = ("name", "domain", "source", "horizon", "seasonality", "freq")


@dataclass(frozen=True)
class SweepStatus:
    """Progress of a sweep.

    Attributes:
        cells, finished: of what is known before results are.
        parts: a row per model and family.
        later: words on what depends on results.
    """

    cells: int
    finished: int
    parts: list[dict[str, Any]]
    later: str = ""


class Sweep:
    """A sweep under way.

    Args:
        config: what is swept over.
        folder: of the store.
        device: where this process opens models; their own if None.
    """

    def __init__(self, config: SweepConfig, folder: str | Path, device: str | None = None) -> None:
        self.config = config
        # what is wrong with data, models or variants shows before anything is written
        self.sets = evaluation_sets(config)
        self.repeats = repeats(self.sets)
        self.lenses = {model.title: open_model(model, device) for model in config.models}
        self.models = {
            model.title: ModelCells(config, model, self.lenses[model.title], self.sets) for model in config.models
        }
        self.plans = {
            model.title: ModelPlan(self.lenses[model.title], model, config, self.sets) for model in config.models
        }
        recipes = Counter(read_recipe(source).name for source in config.variants.recipes)
        if recipes and recipes.most_common(1)[0][1] > 1:
            name = recipes.most_common(1)[0][0]
            raise InputError(f"two recipes are called {name!r}; give each its own name in its file")
        for source in config.variants.recipes:
            if all(source in plan.unfit for plan in self.plans.values()):
                raise InputError(
                    f"recipe {source!r} is written for another model than {', '.join(self.plans)}; set "
                    "variants.scale_recipes: true to take the same shares of heads at the same depths"
                )
        self.folder = Path(folder)
        self.entries: list[PlanEntry] = []
        self.cells: dict[str, Cell] = {}
        self.results: list[dict[str, Any]] = []

    def naive(self) -> list[tuple[Cell, ChunkSource]]:
        """Plan the cells of the seasonal naive forecast."""
        cells = []
        for dataset in self.sets:
            for number, indices in enumerate(dataset.chunks(self.config.chunk)):
                chunk = ChunkSource(dataset, indices, None)
                key = cell_key(
                    variant=SEASONAL_NAIVE,
                    numerics=NUMERICS,
                    levels=list(LEVELS),
                    versions={"gluonts": version("gluonts")},
                    dataset=dataset.name,
                    windows=chunk.fingerprint,
                )
                cells.append((Cell(key, SEASONAL_NAIVE, SEASONAL_NAIVE, dataset.name, number, chunk.series), chunk))
        return cells

    def status(self) -> SweepStatus:
        """Count the finished ones of the cells that are known beforehand."""
        finished = Store(self.folder, create=False).done() if (self.folder / "store.json").exists() else set()
        parts, keys = [], set()
        for title, plan in self.plans.items():
            families: dict[str, list[PlanEntry]] = {}
            for entry in plan.first:
                families.setdefault(entry.family, []).append(entry)
            for family, entries in families.items():
                of_family = {cell.key for cell in self.models[title].cells(entries)}
                keys |= of_family
                row = {"model": title, "family": family, "variants": len(specs_of(entries))}
                parts.append({**row, "cells": len(of_family), "finished": len(of_family & finished)})
        later = sum(plan.later for plan in self.plans.values())
        words = f"; up to {later} further variants depend on results" if later else ""
        return SweepStatus(len(keys), len(keys & finished), parts, words)

    def save(self, store: Store, *, complete: bool) -> None:
        """Write what was planned so far, for reports; a plan that holds all of it already stays."""
        about = {
            "config": self.config.model_dump(mode="json", exclude_none=True),
            "complete": complete,
            "models": {title: self._about(title) for title in self.models},
            "datasets": [
                {fact: getattr(dataset, fact) for fact in _FACTS}
                | {"windows": len(dataset), "series": dataset.n_series}
                | {"notes": [*dataset.notes, *filter(None, [self.repeats.get(dataset.name)])]}
                for dataset in self.sets
            ],
            "heads_at": self.results,
        }
        save_plan(store, self.config, about, self.entries, list(self.cells.values()))

    def _about(self, title: str) -> dict[str, Any]:
        stack = self.lenses[title].wiring.output_stack
        provenance = self.lenses[title].provenance()
        return {**self.models[title].fingerprint, **provenance, "layers": stack.n_layers, "heads": stack.n_heads}


def plan_sweep(config: SweepConfig, folder: str | Path) -> SweepStatus:
    """Count the cells of a sweep that are finished; nothing is run.

    Raises:
        LensError: a model, dataset or variant of the configuration cannot be used.

    Example:
        >>> data = [{"source": "bundled", "names": ["nile"], "horizon": 4, "windows": 1}]
        >>> variants = {"layers": {"sizes": [1]}}
        >>> config = sweep.parse_config({"models": [{"source": "bolt-nano"}], "data": data, "variants": variants})
        >>> sweep.plan_sweep(config, folder / "store").finished
        0
    """
    return Sweep(config, folder).status()


def run_sweep(
    config: SweepConfig,
    folder: str | Path,
    *,
    engine: str = "single",
    workers: int | None = None,
    address: str | None = None,
    shared_store: bool = False,
    progress: Progress | None = None,
) -> Outcome:
    """Run a sweep, or go on with one.

    Args:
        config: what is swept over.
        folder: of the store; made if it is not there.
        engine: "single", "processes" or "ray".
        workers: of the engine; one per device or core if None.
        address: of a Ray cluster.
        shared_store: Ray workers see the store's folder and write themselves.
        progress: see :data:`.progress.Progress`.

    Returns:
        The outcome; a cancelled run and groups that failed raise no exception, so that finished cells are reported.

    Raises:
        StoreError: the store cannot be written.
        LensError: a model, dataset or variant of the configuration cannot be used.

    Example:
        >>> data = [{"source": "bundled", "names": ["nile"], "horizon": 4, "windows": 1}]
        >>> variants = {"layers": {"sizes": [1]}}
        >>> config = sweep.parse_config({"models": [{"source": "bolt-nano"}], "data": data, "variants": variants})
        >>> sweep.run_sweep(config, folder / "store").failed
        []
    """
    # one process is one worker, so that it takes the first device
    sweep = Sweep(config, folder, config.devices[0] if engine == "single" and config.devices else None)
    store = Store(folder, values=[*SUMS, *DISTANCES])
    outcome = Outcome(notes=[f"damaged: {damage}" for damage in store.damaged(move=True)])
    outcome.notes += [f"{name}: {words}" for name, words in sweep.repeats.items()]
    before = store.done()
    n_workers = workers or (1 if engine == "single" else len(config.devices) or cores())
    options = {"engine": engine, "workers": workers, "address": address, "shared_store": shared_store}
    runner = _Runner(sweep, store, options, SweepProgress(progress, n_workers), outcome)
    try:
        runner.run()
    except KeyboardInterrupt:
        outcome.cancelled = True
    sweep.save(store, complete=not outcome.cancelled and not outcome.failed)
    finished = store.done()
    outcome.cells = len(sweep.cells)
    outcome.finished = len(finished & sweep.cells.keys())
    outcome.resumed = len(before & sweep.cells.keys())
    return outcome


@dataclass
class _Runner:
    """Loop over the stages of every model, one after the other."""

    sweep: Sweep
    store: Store
    options: dict[str, Any]
    progress: SweepProgress
    outcome: Outcome

    def run(self) -> None:
        """Run the whole sweep."""
        naive = self.sweep.naive()
        self.sweep.cells |= {cell.key: cell for cell, _ in naive}
        finished = self.store.done()
        for title, plan in self.sweep.plans.items():
            cells_of_model = self.sweep.models[title]
            self.sweep.entries += plan.first
            self.sweep.cells |= {cell.key: cell for cell in cells_of_model.cells(plan.first)}
            self._expect(title, plan.later, cells_of_model.tasks(plan.first, finished))
        # a report of a run that is killed knows what was to come
        self.sweep.save(self.store, complete=False)
        self._naive(naive)
        for title in self.sweep.models:
            try:
                self._model(title)
            except _WaitingError:
                self.outcome.notes.append(f"{title}: heads@k and recipes wait for the cells that failed")
            self.sweep.save(self.store, complete=False)

    def _naive(self, cells: Sequence[tuple[Cell, ChunkSource]]) -> None:
        """Score the seasonal naive forecast here: it takes no model."""
        finished = self.store.done()
        for cell, chunk in cells:
            if cell.key not in finished:
                self.store.write(run_naive(chunk, cell.key), [cell.key])

    def _model(self, title: str) -> None:
        plan, cells_of_model = self.sweep.plans[title], self.sweep.models[title]
        earlier: set[str] = set()
        later = plan.later
        for stage in plan.stages(lambda entries, looks: self._rows(cells_of_model, entries, looks)):
            cells = cells_of_model.cells(stage.entries, stage.looks)
            # the first stage is in the plan from the beginning
            self.sweep.entries += stage.entries if earlier else []
            self.sweep.cells |= {cell.key: cell for cell in cells}
            tasks = cells_of_model.tasks(stage.entries, self.store.done(), stage.looks)
            later -= len(specs_of(stage.entries)) if earlier else 0
            self._expect(title, max(0, later), [])
            pending = {key for task in tasks for key in task.cells}
            fresh = {cell.key for cell in cells} - earlier
            self.progress.begin(f"{title}: {stage.title}", len(fresh - pending), tasks)
            self._groups(tasks)
            earlier |= fresh
        self.progress.settle(title)
        self.sweep.results += plan.results

    def _expect(self, title: str, variants: int, tasks: Sequence[GroupTask]) -> None:
        cells_of_model = self.sweep.models[title]
        cells = variants * len(cells_of_model.places) + sum(len(task.cells) for task in tasks)
        self.progress.expect(title, cells, variants * cells_of_model.cost + sum(task.cost for task in tasks))

    def _groups(self, tasks: Sequence[GroupTask]) -> None:
        # other processes open their own
        lenses = self.sweep.lenses if self.options["engine"] == "single" else {}
        devices = self.sweep.config.devices

        def on_done(group: GroupDone) -> None:
            if group.how == "failed":
                self.outcome.failed.append(f"{group.task}: {group.error}")
            self.progress.done(group)

        run_groups(tasks, CellWorker, lenses, self.store, devices=devices, on_done=on_done, **self.options)

    def _rows(self, cells_of_model: ModelCells, entries: Sequence[PlanEntry], looks: int | None) -> pd.DataFrame:
        """Return the rows of some variants, for what a plan decides on.

        Raises:
            _WaitingError: cells are missing because their group failed.
        """
        cells = [cell.key for cell in cells_of_model.cells(entries, looks)]
        if self.outcome.failed and not self.store.done().issuperset(cells):
            raise _WaitingError
        rows = self.store.read(cells).to_pandas()
        # a cell that another configuration left has the model's name there
        rows["model"] = cells_of_model.model.title
        return rows


class _WaitingError(Exception):
    """Results that a plan depends on are missing."""
