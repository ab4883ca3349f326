"""Groups of cells, workers that compute them, and places of workers."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from tsfm_lens.errors import LensError, StoreError
from tsfm_lens.sweep.store.files import group_key
from tsfm_lens.sweep.store.folder import Store


@dataclass(frozen=True, eq=False)
class GroupTask:
    """A group of cells that is computed, kept and resumed as one."""

    cells: tuple[str, ...]
    payload: Any = None
    data: Any = None
    cost: float = 1.0
    label: str = ""

    @cached_property
    def key(self) -> str:
        """Key of the group's lock."""
        return group_key(self.cells)

    def __str__(self) -> str:
        return self.label or f"{len(self.cells)} cells from {self.cells[0]}"


Work = Callable[[GroupTask], pa.Table]
MakeWorker = Callable[[Any, str | None], Work]
"""Makes a worker from what all tasks share, and its device; picklable, so a function or class of a module."""


@dataclass(frozen=True)
class GroupDone:
    """Outcome of a group: "resumed", "finished", "skipped" (by another process) or "failed"; or "held" or "stop"."""

    task: GroupTask
    how: str
    seconds: float = 0.0
    error: str = ""


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
                os.environ["OMP_NUM_THREADS"] = str(self._threads)
                pa.set_cpu_count(self._threads)
                if "torch" in sys.modules:
                    sys.modules["torch"].set_num_threads(self._threads)
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
        return GroupDone(task, "stop" if isinstance(error, StoreError) else "failed", error=error_line(error))
    return GroupDone(task, "finished", time.perf_counter() - start)


class WorkerSlot:
    """Place of a worker, here in the calling process; a ``BrokenExecutor`` in a future means that the worker died."""

    def __init__(self, worker: Worker, store: Store) -> None:
        self._worker, self._store = worker, store

    def start(self) -> Future[None]:
        """Start a worker, in place of an earlier one."""
        self._worker.start()
        return _finished(None)

    def run(self, task: GroupTask) -> Future[GroupDone]:
        """Let the worker compute a group."""
        return _finished(run_group(self._store, task, self._worker.compute))

    def stop(self) -> None:
        """End the worker, in the middle of a group if need be."""


def _finished(result: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(result)
    return future


def error_line(error: BaseException) -> str:
    """Say an error in one line: the package's messages say what to do, others need their type to be understood."""
    return str(error) if isinstance(error, LensError) else f"{type(error).__name__}: {error}"


def cores() -> int:
    """Count the cores that this process may use, as a scheduler such as SLURM gave them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
