"""Groups of cells, the workers that compute them, and the computation of one under its lock."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass
from functools import cached_property
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
    label: str = ""

    @cached_property
    def key(self) -> str:
        """Key of the group's lock."""
        return group_key(self.cells)

    def __str__(self) -> str:
        return self.label or f"{len(self.cells)} cells from {self.cells[0]}"


Work = Callable[[GroupTask], pa.Table]
MakeWorker = Callable[[Any, str | None], Work]
"""Makes the compute function from the data that all tasks share and a device; a picklable function or class."""


@dataclass(frozen=True)
class GroupDone:
    """Outcome of a group: "resumed", "finished", "skipped" (by another process) or "failed"."""

    task: GroupTask
    how: str
    seconds: float = 0.0
    error: str = ""


class Worker:
    """Worker in the calling process; of one elsewhere a ``BrokenExecutor`` says that it died."""

    def __init__(
        self, make_worker: MakeWorker, common: Any, device: str | None
    ) -> None:
        self._make, self._arguments = make_worker, (common, device)

    def start(self) -> None:
        """Make what computes, in place of an earlier one."""
        self._work = self._make(*self._arguments)

    def compute(self, task: GroupTask) -> pa.Table:
        """Compute the rows of a group."""
        return self._work(task)

    def stop(self) -> None:
        """End the worker, in the middle of a group if need be."""


def run_group(store: Store, task: GroupTask, compute: Work) -> GroupDone | None:
    """Lock a group, skip it if it is finished, else compute and write it; None if another process holds its lock."""
    start = time.perf_counter()
    try:
        with store.lock(task.key) as ours:
            if not ours:
                return None
            if store.holds(task.cells):
                return GroupDone(task, "skipped")
            store.write(compute(task), task.cells)
    except (BrokenExecutor, StoreError):
        raise
    except Exception as error:
        return GroupDone(task, "failed", error=error_line(error))
    return GroupDone(task, "finished", time.perf_counter() - start)


def error_line(error: BaseException) -> str:
    """Write an error in one line; errors of other packages also show their type."""
    return (
        str(error)
        if isinstance(error, LensError)
        else f"{type(error).__name__}: {error}"
    )


def cores() -> int:
    """Count the cores that this process may use, as a scheduler such as SLURM gave them."""
    return (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1
    )
