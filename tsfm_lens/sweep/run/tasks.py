"""Groups of cells as tasks: their computation by a worker, and its outcome."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa

from tsfm_lens.errors import LensError, StoreError, SweepFailedError
from tsfm_lens.sweep.store.folder import Store, group_key


@dataclass(frozen=True, eq=False)
class GroupTask:
    """A group of cells that is computed, kept and resumed as one.

    Attributes:
        cells: their keys. If any of them is not finished the whole group is computed; nothing counts twice.
        payload: what the worker needs to know; picklable, small.
        data: what many tasks share, such as a chunk of series; sent to a worker once, by reference where it can be.
        cost: expected work, in any unit that is the same for all tasks; for the time left.
        label: for readers, in messages.
        key: of the claim; made from the cells if not given.
    """

    cells: tuple[str, ...]
    payload: Any = None
    data: Any = None
    cost: float = 1.0
    label: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        if not self.key:
            object.__setattr__(self, "key", group_key(self.cells))

    def __str__(self) -> str:
        return self.label or f"{len(self.cells)} cells from {self.cells[0]}"


Work = Callable[[GroupTask], pa.Table]
MakeWorker = Callable[[Any, str | None], Work]
"""Makes a worker from what all tasks share, and its device; picklable, so a function or class of a module."""


@dataclass(frozen=True)
class Report:
    """A worker's message about itself or about its group.

    Attributes:
        how: "ready", "finished", "skipped" (another process had finished it), "held" (another process computes it),
            "failed" (an exception), "lost" (the worker died), "broken" (it cannot start), "stop" (the store fails).
        seconds: that the group took.
        error: one line.
        details: the traceback.
    """

    how: str
    seconds: float = 0.0
    error: str = ""
    details: str = ""


@dataclass(frozen=True)
class GroupDone:
    """Outcome of a group.

    Attributes:
        task: the group.
        how: "resumed" (finished before this run), "finished", "skipped" (another process finished it) or "failed".
        seconds: that it took, 0 unless finished.
        error, details: why it failed, in one line and in full.
    """

    task: GroupTask
    how: str
    seconds: float = 0.0
    error: str = ""
    details: str = ""


@dataclass
class RunSummary:
    """Outcome of a run of groups.

    Attributes:
        finished, skipped, resumed: how many groups, as in :class:`GroupDone`.
        failed: those that could not be computed.
        seconds: wall time of the run.
        busy: seconds that workers spent on finished groups, together.
    """

    finished: int = 0
    skipped: int = 0
    resumed: int = 0
    failed: list[GroupDone] = field(default_factory=list)
    seconds: float = 0.0
    busy: float = 0.0

    def add(self, group: GroupDone) -> None:
        """Count a group."""
        self.busy += group.seconds
        if group.how == "failed":
            self.failed.append(group)
        else:
            setattr(self, group.how, getattr(self, group.how) + 1)

    def raise_if_failed(self) -> None:
        """Raise a SweepFailedError that names the groups that failed, and why."""
        if not self.failed:
            return
        lines = [f"{group.task} ({len(group.task.cells)} cells): {group.error}" for group in self.failed[:5]]
        more = f"\n  and {len(self.failed) - 5} more" if len(self.failed) > 5 else ""
        total = self.finished + self.skipped + self.resumed
        raise SweepFailedError(
            f"{len(self.failed)} groups of cells could not be computed, {total} are kept. Mend the cause and run the "
            "same command again, which computes only those:\n  " + "\n  ".join(lines) + more
        )


class Pool(Protocol):
    """Workers of an engine, by number."""

    workers: int

    def idle(self) -> list[int]:
        """Return the numbers of the workers that can take a task."""
        ...

    def submit(self, worker: int, task: GroupTask) -> None:
        """Hand a task to an idle worker."""
        ...

    def wait(self, timeout: float | None) -> list[tuple[int, Report]]:
        """Collect messages of workers, as (worker, report): the first ones, or none after ``timeout`` seconds.

        A worker that was lost is replaced by a fresh one of the same number.
        """
        ...

    def stop(self) -> None:
        """End every worker, in the middle of a task if need be."""
        ...


def compute(work: Work, task: GroupTask) -> tuple[Report, pa.Table | None]:
    """Let a worker compute a group; an exception becomes a report."""
    start = time.perf_counter()
    try:
        rows = work(task)
    except Exception as error:
        return failure("failed", error), None
    return Report("finished", time.perf_counter() - start), rows


def keep(store: Store, task: GroupTask, report: Report, rows: pa.Table | None) -> Report:
    """Write the rows of a computed group; what goes wrong becomes a report."""
    if rows is None:
        return report
    start = time.perf_counter()
    try:
        store.write(rows, task.cells)
    except StoreError as error:
        return failure("stop", error)
    except Exception as error:
        return failure("failed", error)
    return replace(report, seconds=report.seconds + time.perf_counter() - start)


def run_one(store: Store, work: Work, task: GroupTask) -> Report:
    """Claim a group, skip it if another process has finished it, compute it, and write it."""
    try:
        with store.claim(task.key) as ours:
            if not ours:
                return Report("held")
            if store.holds(task.cells):
                return Report("skipped")
            return keep(store, task, *compute(work, task))
    except StoreError as error:
        return failure("stop", error)


def failure(how: str, error: BaseException) -> Report:
    """Return a report of an exception."""
    # our own messages say what to do; others need their type to be understood
    line = str(error) if isinstance(error, LensError) else f"{type(error).__name__}: {error}"
    return Report(how, error=line, details="".join(traceback.format_exception(error)))


def cores() -> int:
    """Count the cores that this process may use, as a scheduler such as SLURM gave them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def limit_threads(threads: int) -> None:
    """Let the libraries of this process use so many threads, before or after they are imported."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    pa.set_cpu_count(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
