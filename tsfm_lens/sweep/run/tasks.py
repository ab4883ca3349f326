"""Groups of cells as tasks: their computation by a worker, and its outcome."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future
from dataclasses import dataclass, field, replace
from pathlib import Path
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
        key: of the lock; made from the cells if not given.
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
class GroupDone:
    """Outcome of a group.

    Attributes:
        task: the group.
        how: "resumed" (finished before this run), "finished", "skipped" (another process finished it) or "failed";
            of a worker also "held" (another process computes it) and "stop" (the store cannot be written).
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


class WorkerSlot(Protocol):
    """Place of a worker; a ``BrokenExecutor`` in a future means that the worker died."""

    def start(self) -> Future[None]:
        """Start a worker, in place of an earlier one."""
        ...

    def run(self, task: GroupTask) -> Future[GroupDone]:
        """Let the worker compute a group."""
        ...

    def stop(self) -> None:
        """End the worker, in the middle of a group if need be."""
        ...


class Worker:
    """Computation of groups in one process, of a store at a path, with so many threads of its libraries if not None."""

    def __init__(
        self, make_worker: MakeWorker, common: Any, device: str | None, path: Path, threads: int | None = None
    ) -> None:
        self._make_worker, self._arguments = make_worker, (common, device)
        self._path, self._threads = path, threads
        self._work: Work | None = None
        self._store: Store | None = None
        self._data: Any = None

    def start(self) -> int:
        """Make what computes, and return the number of the process."""
        for _ in range(2):
            # before libraries are imported, and after
            if self._threads is not None:
                _limit_threads(self._threads)
            self._work = self._work or self._make_worker(*self._arguments)
        return os.getpid()

    def compute(self, task: GroupTask) -> pa.Table:
        """Compute the rows of a group."""
        assert self._work is not None
        return self._work(task)

    def run(self, task: GroupTask, data: tuple[Any] | None) -> GroupDone:
        """Compute a group and write it; its data are those of the group before if None."""
        self._data = self._data if data is None else data[0]
        self._store = self._store or Store(self._path, create=False)
        done = run_group(self._store, replace(task, data=self._data), self.compute)
        return replace(done, task=task)


def run_group(store: Store, task: GroupTask, compute: Work) -> GroupDone:
    """Lock a group, skip it if another process has finished it, compute it, and write it."""
    start = time.perf_counter()
    try:
        with store.lock(task.key) as ours:
            if not ours:
                return GroupDone(task, "held")
            if store.holds(task.cells):
                return GroupDone(task, "skipped")
            store.write(compute(task), task.cells)
    except BrokenExecutor:
        raise
    except Exception as error:
        how = "stop" if isinstance(error, StoreError) else "failed"
        details = "".join(traceback.format_exception(error))
        return GroupDone(task, how, error=error_line(error), details=details)
    return GroupDone(task, "finished", time.perf_counter() - start)


def error_line(error: BaseException) -> str:
    """Say an error in one line: the package's messages say what to do, others need their type to be understood."""
    return str(error) if isinstance(error, LensError) else f"{type(error).__name__}: {error}"


def cores() -> int:
    """Count the cores that this process may use, as a scheduler such as SLURM gave them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _limit_threads(threads: int) -> None:
    os.environ["OMP_NUM_THREADS"] = str(threads)
    pa.set_cpu_count(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
