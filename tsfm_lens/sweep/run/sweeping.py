"""Run of a sweep, from its configuration to a complete store."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from tsfm_lens.errors import InputError
from tsfm_lens.models.extras import require_packages
from tsfm_lens.sweep.plan.config import SweepConfig
from tsfm_lens.sweep.plan.recipes import read_recipe
from tsfm_lens.sweep.plan.stages import ModelPlan
from tsfm_lens.sweep.plan.variants import PlanEntry
from tsfm_lens.sweep.run.cells import (
    Cell,
    CellWorker,
    ModelCells,
    naive_cells,
    open_model,
    save_plan,
    specs_of,
)
from tsfm_lens.sweep.run.engines import run_groups
from tsfm_lens.sweep.run.tasks import GroupDone, cores
from tsfm_lens.sweep.statistics.scores import DISTANCES, SUMS
from tsfm_lens.sweep.store.folder import Store

Progress = Callable[[str, int, int, float | None], None]
"""Called with the stage in words, cells finished, cells in all, and seconds left or None."""
_FACTS = ("name", "domain", "source", "horizon", "seasonality", "freq")
_PACE = 32  # groups finished last, by which time left goes: few enough to follow a change of the model


@dataclass
class Outcome:
    """Outcome of a run of a sweep.

    Attributes:
        cells: number in the plan, as far as it was known when the run ended.
        finished, resumed: cells in the store, and those that were there before this run.
        failed: groups that could not be computed, a line each.
        cancelled: whether it was interrupted.
        notes: what a reader should know, such as damaged files.
    """

    cells: int = 0
    finished: int = 0
    resumed: int = 0
    failed: list[str] = field(default_factory=list)
    cancelled: bool = False
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class SweepStatus:
    """Progress of a sweep: the cells that need no results, a row per model and family, and a sentence on the rest.

    ``notes`` are remarks on the data, such as windows that had no value to be scored on.
    """

    cells: int
    finished: int
    parts: list[dict[str, Any]]
    later: str = ""
    notes: list[str] = field(default_factory=list)


class SweepProgress:
    """Counts of cells of the running stage and of later ones, and the time left, estimated from the last groups."""

    def __init__(self, progress: Progress | None, workers: int) -> None:
        self._progress, self._workers = progress, workers
        self._last: deque[tuple[int, float]] = deque(maxlen=_PACE)
        self._later: dict[str, int] = {}
        self._title = ""
        self._finished = self._pending = 0

    def expect(self, model: str, cells: int) -> None:
        """Set how many cells of a model are still to come after this stage, at most."""
        self._later[model] = cells

    def begin(self, title: str, finished: int, pending: int) -> None:
        """Begin a stage of which so many cells are in the store, and so many are to be computed."""
        self._title = title
        self._finished += finished
        self._pending = pending
        self.tell()

    def done(self, group: GroupDone) -> None:
        """Count a finished group of the stage; groups of an earlier run do not enter the estimate of time."""
        cells = len(group.task.cells)
        if group.how != "failed":
            self._finished += cells
            self._pending -= cells
        if group.how == "finished":
            self._last.append((cells, group.seconds))
        self.tell()

    def seconds_left(self, cells: int) -> float | None:
        """Estimate the seconds that some cells take all workers; None before the first group."""
        measured = sum(each for each, _ in self._last)
        return (
            sum(seconds for _, seconds in self._last) / measured * cells / self._workers
            if measured
            else None
        )

    def tell(self) -> None:
        """Report the present counts."""
        if self._progress is not None:
            left = self._pending + sum(self._later.values())
            self._progress(
                self._title,
                self._finished,
                self._finished + left,
                self.seconds_left(left),
            )


class Sweep:
    """A running sweep; ``device`` is where this process opens models, the one of the configuration if None."""

    def __init__(
        self, config: SweepConfig, folder: str | Path, device: str | None = None
    ) -> None:
        self.config = config
        # what is wrong with data, models or variants shows before anything is written
        self.sets = config.evaluation_sets()
        self.lenses = {
            model.title: open_model(model, device) for model in config.models
        }
        of_models = [
            (model.title, self.lenses[model.title], model) for model in config.models
        ]
        self.models = {
            title: ModelCells(config, model, lens, self.sets)
            for title, lens, model in of_models
        }
        self.plans = {
            title: ModelPlan(lens, model, config, self.sets)
            for title, lens, model in of_models
        }
        for name, times in Counter(
            read_recipe(source).name for source in config.variants.recipes
        ).items():
            if times > 1:
                raise InputError(
                    f"two recipes are called {name!r}; give each its own name in its file"
                )
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

    @property
    def notes(self) -> list[str]:
        """Remarks on the data, each with the name of its dataset."""
        return [
            f"{dataset.name}: {note}" for dataset in self.sets for note in dataset.notes
        ]

    def status(self) -> SweepStatus:
        """Count the finished cells among those that need no results."""
        finished = (
            Store(self.folder, create=False).done()
            if (self.folder / "store.json").exists()
            else set()
        )
        keys = {cell.key for cell, _ in naive_cells(self.config, self.sets)}
        row: dict[str, Any] = {
            "model": "seasonal naive",
            "family": "forecast",
            "variants": 1,
        }
        parts = [{**row, "cells": len(keys), "finished": len(keys & finished)}]
        for title, plan in self.plans.items():
            for family in dict.fromkeys(entry.family for entry in plan.first):
                entries = [entry for entry in plan.first if entry.family == family]
                of_family = {cell.key for cell in self.models[title].cells(entries)}
                keys |= of_family
                row = {
                    "model": title,
                    "family": family,
                    "variants": len(specs_of(entries)),
                }
                parts.append(
                    {
                        **row,
                        "cells": len(of_family),
                        "finished": len(of_family & finished),
                    }
                )
        later = sum(plan.later for plan in self.plans.values())
        words = f"; up to {later} further variants depend on results" if later else ""
        return SweepStatus(len(keys), len(keys & finished), parts, words, self.notes)

    def run(
        self,
        store: Store,
        options: dict[str, Any],
        progress: SweepProgress,
        outcome: Outcome,
    ) -> None:
        """Run all stages of every model, one model after the other, and note in the outcome what failed."""
        naive = naive_cells(self.config, self.sets)
        self._add([cell for cell, _ in naive])
        finished = store.done()
        for title, plan in self.plans.items():
            self._add(self.models[title].cells(plan.first), plan.first)
            missing = sum(
                len(task.cells)
                for task in self.models[title].tasks(plan.first, finished)
            )
            progress.expect(
                title, plan.later * len(self.models[title].places) + missing
            )
        # a report of a run that is killed knows what was to come
        self.save(store, complete=False)
        for cell, rows in naive:
            if cell.key not in finished:
                # it takes no model, and no other process
                store.write(rows(), [cell.key])
        for title in self.models:
            try:
                self._run_model(title, store, options, progress, outcome)
            except _WaitingError:
                outcome.notes.append(
                    f"{title}: heads@k and recipes wait for the cells that failed"
                )
            self.save(store, complete=False)

    def _run_model(
        self,
        title: str,
        store: Store,
        options: dict[str, Any],
        progress: SweepProgress,
        outcome: Outcome,
    ) -> None:
        plan, model = self.plans[title], self.models[title]

        def rows(entries: Sequence[PlanEntry], looks: int | None) -> pd.DataFrame:
            """Return the rows of some variants, for what a plan decides on."""
            keys = [cell.key for cell in model.cells(entries, looks)]
            if outcome.failed and not store.done().issuperset(keys):
                raise _WaitingError
            # a cell that another configuration left has the model's name there
            return store.read(keys).to_pandas().assign(model=title)

        def on_done(group: GroupDone) -> None:
            if group.how == "failed":
                outcome.failed.append(f"{group.task}: {group.error}")
            progress.done(group)

        earlier: set[str] = set()
        later = plan.later
        for stage in plan.stages(rows):
            cells = model.cells(stage.entries, stage.looks)
            # the first stage is in the plan from the beginning
            self._add(cells, stage.entries if earlier else [])
            tasks = model.tasks(stage.entries, store.done(), stage.looks)
            later -= len(specs_of(stage.entries)) if earlier else 0
            progress.expect(title, max(0, later) * len(model.places))
            pending = {key for task in tasks for key in task.cells}
            fresh = {cell.key for cell in cells} - earlier
            progress.begin(
                f"{title}: {stage.title}", len(fresh - pending), len(pending)
            )
            # other processes open their own models
            lenses = self.lenses if options["engine"] == "single" else {}
            run_groups(
                tasks,
                CellWorker,
                lenses,
                store,
                devices=self.config.devices,
                on_done=on_done,
                **options,
            )
            earlier |= fresh
        progress.expect(title, 0)
        progress.tell()
        self.results += plan.results

    def _add(self, cells: Sequence[Cell], entries: Sequence[PlanEntry] = ()) -> None:
        self.entries += entries
        self.cells |= {cell.key: cell for cell in cells}

    def save(self, store: Store, *, complete: bool) -> None:
        """Write what was planned so far, for reports; a plan that holds all of it already stays."""
        models = {}
        for title, lens in self.lenses.items():
            stack = lens.wiring.output_stack
            sizes = {"layers": stack.n_layers, "heads": stack.n_heads}
            models[title] = {
                **self.models[title].fingerprint,
                **lens.provenance(),
                **sizes,
            }
        about = {
            "config": self.config.model_dump(mode="json", exclude_none=True),
            "complete": complete,
            "models": models,
            "datasets": [
                {fact: getattr(dataset, fact) for fact in _FACTS}
                | {"windows": len(dataset), "series": dataset.n_series}
                | {"notes": list(dataset.notes)}
                for dataset in self.sets
            ],
            "heads_at": self.results,
        }
        save_plan(store, self.config, about, self.entries, list(self.cells.values()))


class _WaitingError(Exception):
    """Results that a plan depends on are missing, because their group failed."""


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
    require_packages("sweep", "a sweep")
    return Sweep(config, folder).status()


def run_sweep(
    config: SweepConfig,
    folder: str | Path,
    *,
    engine: str = "single",
    workers: int | None = None,
    address: str | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Run or resume a sweep.

    Args:
        config: what is swept over.
        folder: of the store; made if it is not there.
        engine: "single", "processes" or "ray".
        workers: of the engine; one per device or core if None.
        address: of a Ray cluster.
        progress: called with the stage in words, cells finished, cells in all, and seconds left or None.

    Returns:
        The outcome. A cancelled run and failed groups raise no exception, so that finished cells are reported.

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
    require_packages("sweep", "a sweep")
    if engine == "ray":
        require_packages("ray", "the engine ray")
    # one process is one worker, so that it takes the first device
    sweep = Sweep(
        config,
        folder,
        config.devices[0] if engine == "single" and config.devices else None,
    )
    store = Store(folder, values=[*SUMS, *DISTANCES])
    damages = [f"damaged: {damage}" for damage in store.damaged(move=True)]
    outcome = Outcome(notes=[*sweep.notes, *damages])
    before = store.done()
    n_workers = workers or (1 if engine == "single" else len(config.devices) or cores())
    options = {"engine": engine, "workers": workers, "address": address}
    try:
        sweep.run(store, options, SweepProgress(progress, n_workers), outcome)
    except KeyboardInterrupt:
        outcome.cancelled = True
    sweep.save(store, complete=not outcome.cancelled and not outcome.failed)
    outcome.cells = len(sweep.cells)
    outcome.finished = len(store.done() & sweep.cells.keys())
    outcome.resumed = len(before & sweep.cells.keys())
    return outcome
