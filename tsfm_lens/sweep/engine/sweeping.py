"""Run of a sweep, from its configuration to a complete store.

Read :func:`run_sweep` first: it takes the plan stage by stage, reports progress, and
returns an :class:`Outcome`. The cells of a stage are planned in
:mod:`tsfm_lens.sweep.planner.table` and computed in
:mod:`tsfm_lens.sweep.engine.cells`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from tsfm_lens.core.errors import StoreError
from tsfm_lens.models.extras import require_packages
from tsfm_lens.sweep.data.evaluation import EvaluationSet
from tsfm_lens.sweep.engine.cells import run
from tsfm_lens.sweep.engine.status import SweepStatus, count_parts
from tsfm_lens.sweep.engine.workers import GroupDone, cores
from tsfm_lens.sweep.planner.config import SweepConfig
from tsfm_lens.sweep.planner.table import KEPT_COLUMNS, ModelPlan, SweepPlan
from tsfm_lens.sweep.planner.variants import PlanEntry, plan_frame
from tsfm_lens.sweep.store import Store

Progress = Callable[[str, int, int, float | None], None]
"""Called with the stage in words, cells finished, cells in all, and seconds left or
None.
"""
# number of latest groups from which the time left is estimated: few, so that the
# estimate follows soon when the next model is slower or faster
_LATEST_GROUPS = 32


@dataclass
class Outcome:
    """Outcome of a run of a sweep.

    Attributes:
        cells: number in the plan, as far as it was known when the run ended.
        most: cells that the plan could come to, with all that depends on results.
        finished, resumed: cells in the store, and those that were there before this
            run.
        failed: groups that could not be computed, a line each.
        cancelled: whether it was interrupted.
        notes: what a reader should know, such as windows without a value to score.
    """

    cells: int = 0
    most: int = 0
    finished: int = 0
    resumed: int = 0
    failed: list[str] = field(default_factory=list)
    cancelled: bool = False
    notes: list[str] = field(default_factory=list)


class SweepProgress:
    """Counts of cells of the running stage and of later ones, with the time left.

    The time is estimated from the groups that finished last.
    """

    def __init__(self, progress: Progress | None, workers: int) -> None:
        self._progress = progress
        self._workers = workers
        self._last: deque[tuple[int, float]] = deque(maxlen=_LATEST_GROUPS)
        self._later: dict[str, int] = {}
        self._title = ""
        self._finished = self._pending = 0

    def expect(self, model: str, cells: int) -> None:
        """Set how many cells of a model are still to come after this stage, at most."""
        self._later[model] = cells

    def begin(self, title: str, finished: int, pending: int) -> None:
        """Begin a stage.

        ``finished`` is the number of its cells that are in the store, without those
        that an earlier stage counted; ``pending`` is that of the cells to be computed.
        """
        self._title = title
        self._finished += finished
        self._pending = pending
        self.tell()

    def done(self, group: GroupDone) -> None:
        """Count a group of the present stage, which has ended.

        Groups of an earlier run do not enter the estimate of time.
        """
        cells = len(group.task.cells)
        # cells that failed stay among the pending ones, as a next run computes them
        if group.how != "failed":
            self._finished += cells
            self._pending -= cells
        if group.how == "finished":
            self._last.append((cells, group.seconds))
        self.tell()

    def seconds_left(self, cells: int) -> float | None:
        """Estimate the seconds that all workers take for some cells.

        Returns:
            Seconds, None before the first group.
        """
        measured = sum(count for count, _ in self._last)
        if not measured:
            return None
        seconds = sum(seconds for _, seconds in self._last)
        # seconds are those of one worker, and all of them share the cells
        return seconds / measured * cells / self._workers

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


def plan_sweep(
    config: SweepConfig,
    folder: str | Path,
    sets: Sequence[EvaluationSet] | None = None,
) -> SweepStatus:
    """Count the cells of a sweep that are finished; nothing is run.

    Args:
        config: what is run, from :func:`read_config` or :func:`parse_config`.
        folder: of the store, which need not exist.
        sets: those of the configuration, where they are read already.

    Returns:
        Numbers of cells, finished and planned, by model and family.

    Raises:
        LensError: a model, dataset or variant of the configuration cannot be used.

    Example:
        >>> nile = {"source": "bundled", "names": ["nile"], "horizon": 4, "windows": 1}
        >>> content = {"models": [{"source": "bolt-nano"}], "data": [nile]}
        >>> content["variants"] = {"layers": {"sizes": [1]}}
        >>> config = sweep.parse_config(content)
        >>> sweep.plan_sweep(config, folder / "store").finished
        0
    """
    require_packages("sweep", "a sweep")
    return _status(SweepPlan(config, sets=sets), Path(folder))


def _status(plan: SweepPlan, folder: Path) -> SweepStatus:
    """Count the finished cells among those that need no results."""
    finished: set[str] = set()
    # a plan is shown without making a store
    if (folder / "store.json").exists():
        finished = Store(folder, create=False).done()
    entries = plan_frame(
        [entry for model in plan.models.values() for entry in model.first.entries]
    )
    parts = count_parts(entries, plan.all_cells, finished)
    later = sum(model.later for model in plan.models.values())
    text = ""
    if later:
        text = (
            f"; up to {later} further variants ({plan.later_cells} cells) depend on"
            " results"
        )
    keys = set(plan.first["key"])
    return SweepStatus(len(keys), len(keys & finished), parts, text, plan.notes)


def run_sweep(
    config: SweepConfig,
    folder: str | Path,
    *,
    engine: str = "single",
    workers: int | None = None,
    address: str | None = None,
    progress: Progress | None = None,
    sets: Sequence[EvaluationSet] | None = None,
) -> Outcome:
    """Run or resume a sweep.

    Args:
        config: what is swept over.
        folder: of the store; made if it is not there.
        engine: "single", "processes" or "ray".
        workers: of the engine; one per device or core if None.
        address: of a Ray cluster.
        progress: called with the stage in words, cells finished, cells in all, and
            seconds left or None.
        sets: those of the configuration, where they are read already.

    Returns:
        The outcome. A cancelled run and failed groups raise no exception, so that
        finished cells are reported.

    Raises:
        StoreError: the store cannot be written.
        LensError: a model, dataset or variant of the configuration cannot be used.

    Example:
        >>> nile = {"source": "bundled", "names": ["nile"], "horizon": 4, "windows": 1}
        >>> content = {"models": [{"source": "bolt-nano"}], "data": [nile]}
        >>> content["variants"] = {"layers": {"sizes": [1]}}
        >>> config = sweep.parse_config(content)
        >>> sweep.run_sweep(config, folder / "store").failed
        []
    """
    require_packages("sweep", "a sweep")
    if engine == "ray":
        require_packages("ray", "the engine ray")
    # this process opens the models for planning, and with the engine "single" computes
    # with them as the only worker, on the first device
    device = None
    if engine == "single" and config.devices:
        device = config.devices[0]
    plan = SweepPlan(config, device, sets)
    store = Store(folder)
    store.remove_leftovers()
    before = store.done()
    default_workers = 1
    if engine != "single":
        default_workers = len(plan.devices) or cores()
    n_workers = workers or default_workers
    run_missing = partial(
        run,
        engine=engine,
        workers=workers,
        address=address,
        devices=plan.devices,
        block=plan.block,
        lenses=plan.lenses,
    )
    outcome = Outcome(notes=plan.notes)
    sweep = _Sweep(
        plan, store, run_missing, SweepProgress(progress, n_workers), outcome
    )
    try:
        sweep.run()
    except KeyboardInterrupt:
        outcome.cancelled = True
    # also after an interrupt, so that a report knows what was planned
    sweep.save(complete=not outcome.cancelled and not outcome.failed)
    outcome.cells = len(sweep.cells)
    outcome.most = len(plan.first) + plan.later_cells
    outcome.finished = len(store.done() & sweep.cells.keys())
    outcome.resumed = len(before & sweep.cells.keys())
    return outcome


class _Sweep:
    """Running sweep: its plan, the cells and entries so far, and the outcome."""

    def __init__(
        self,
        plan: SweepPlan,
        store: Store,
        run_missing: Callable[..., list[GroupDone]],
        progress: SweepProgress,
        outcome: Outcome,
    ) -> None:
        self.plan = plan
        self.store = store
        self.progress = progress
        self.outcome = outcome
        self._run = run_missing
        self.entries: list[PlanEntry] = []
        self.cells: dict[str, tuple[Any, ...]] = {}

    def run(self) -> None:
        """Run all stages of one model after the other.

        What failed is noted in the outcome.
        """
        self._add(self.plan.naive, [])
        finished = self.store.done()
        for model in self.plan.models.values():
            cells = model.first.cells
            self._add(cells, model.first.entries)
            missing = int((~cells["key"].isin(finished)).sum())
            self.progress.expect(model.name, model.later * len(model.tasks) + missing)
        # so that a report of a run that is killed can say what is missing
        self.save(complete=False)
        # the seasonal naive forecast takes no model, and no other process
        run(self.plan.naive, self.store)
        # its cells count like those of models, here and in the outcome
        naive = set(self.plan.naive["key"])
        self.progress.begin("seasonal naive", len(naive & self.store.done()), 0)
        for model in self.plan.models.values():
            try:
                self._run_model(model)
            except _WaitingError:
                self.outcome.notes.append(
                    f"{model.name}: heads@k and recipes wait for the cells that failed"
                )
            self.save(complete=False)

    def _run_model(self, model: ModelPlan) -> None:
        earlier: set[str] = set()
        later = model.later
        for stage in model.stages(self._rows):
            if stage is not model.first:
                self._add(stage.cells, stage.entries)
                later -= len({entry.spec.id for entry in stage.entries})
            self.progress.expect(model.name, max(0, later) * len(model.tasks))
            keys = set(stage.cells["key"])
            # read anew for each stage: other processes may work on the same store
            pending = keys - self.store.done()
            # stages share cells, such as those of the plain model, which are counted in
            # the first of them alone
            fresh = keys - earlier
            title = f"{model.name}: {stage.title}"
            self.progress.begin(title, len(fresh - pending), len(pending))
            self._run(stage.cells, self.store, on_done=self._on_done)
            earlier |= fresh
        # a search may have ended before all that was expected
        self.progress.expect(model.name, 0)
        self.progress.tell()

    def _rows(self, cells: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of some cells, on which a plan decides."""
        # without a failure all cells are there, and the store need not look at all of
        # its files
        if self.outcome.failed and not self.store.done().issuperset(cells["key"]):
            raise _WaitingError
        # a cell that another configuration computed may have another name of the model
        rows = self.store.read(cells["key"]).to_pandas()
        return rows.assign(model=cells["model"].iloc[0])

    def _on_done(self, group: GroupDone) -> None:
        if group.how == "failed":
            self.outcome.failed.append(f"{group.task}: {group.error}")
        self.progress.done(group)

    def _add(self, cells: pd.DataFrame, entries: list[PlanEntry]) -> None:
        self.entries += entries
        table = cells[list(KEPT_COLUMNS)]
        # by key, since stages and models share cells
        self.cells |= {row[0]: row for row in table.itertuples(index=False, name=None)}

    def _is_known(self, complete: bool) -> bool:
        """Test if the store's plan holds all that was planned so far.

        Returns:
            True if it does, as at the beginning of a run that resumes another.
        """
        try:
            saved = self.store.read_plan(self.plan.name)
        except StoreError:
            return False
        keys = set(saved.cells["key"])
        is_same = keys == self.cells.keys() and saved.about["complete"] >= complete
        # a plan with more cells is of a run that got further: its searches asked for
        # them
        return keys > self.cells.keys() or is_same

    def save(self, *, complete: bool) -> None:
        """Write what was planned so far, for reports.

        A stored plan that holds all of it already is left as it is.
        """
        name = self.plan.name
        if name in self.store.plans() and self._is_known(complete):
            return
        self.store.write_plan(
            name,
            self.plan.about(complete=complete),
            entries=plan_frame(self.entries),
            cells=pd.DataFrame(self.cells.values(), columns=KEPT_COLUMNS),
        )


class _WaitingError(Exception):
    """Absence of results that a plan depends on, because their group failed."""
