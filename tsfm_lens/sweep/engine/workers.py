"""Groups of cells, and the workers that compute them, in this process or another.

Read :class:`GroupTask` and :class:`Worker` first; :func:`compute_remotely` is what
other processes run. Locks, repetitions and writing are in
:mod:`tsfm_lens.sweep.engine.engines`.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import pyarrow as pa

from tsfm_lens.core.errors import LensError, SweepFailedError
from tsfm_lens.sweep.store import group_key


@dataclass(frozen=True, eq=False)
class GroupTask:
    """Group of cells that is computed, kept and resumed together.

    Tasks may share their data.
    """

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
"""Makes the compute function from the data that all tasks share and a device; a
picklable function or class.
"""


@dataclass(frozen=True)
class GroupDone:
    """Outcome of a group.

    ``how`` is "resumed", "finished", "skipped" (another process computed it) or
    "failed".
    """

    task: GroupTask
    how: str
    seconds: float = 0.0
    error: str = ""


class Worker:
    """Worker in the calling process."""

    def __init__(
        self, make_worker: MakeWorker, common: Any, device: str | None
    ) -> None:
        self._made_of = make_worker, common, device
        self._work: Work | None = None

    def submit(self, task: GroupTask) -> Future[pa.Table]:
        """Begin to compute a group."""
        future: Future[pa.Table] = Future()
        try:
            self._work = self._work or _made(*self._made_of)
            future.set_result(self._work(task))
        except Exception as error:
            future.set_exception(error)
        return future

    def result(self, future: Future[pa.Table]) -> pa.Table:
        """Return the rows of a group; a BrokenExecutor says that the worker died."""
        return future.result()

    def stop(self) -> None:
        """End the worker, in the middle of a group if need be."""


def _made(make_worker: MakeWorker, common: Any, device: str | None) -> Work:
    try:
        return make_worker(common, device)
    except Exception as error:
        raise SweepFailedError(
            f"a worker of the sweep cannot start: {error_line(error)}"
        ) from error


@dataclass(frozen=True)
class RemoteWork:
    """Settings by which another process computes groups.

    ``parts`` is what makes its worker, pickled; it takes one ``device`` and so many
    ``threads``.
    """

    parts: bytes
    device: str | None
    threads: int


def compute_remotely(how: RemoteWork, task: GroupTask, data: bytes) -> pa.Table:
    """Compute the rows of a group in this process.

    The process keeps its worker and its last data for the next group.
    """
    compute = _make_once(how)
    return compute(replace(task, data=_unpacked(data)))


@lru_cache(maxsize=1)
def _make_once(work: RemoteWork) -> Work:
    # before anything is unpacked: libraries read the variable when they are imported
    limit_threads(work.threads)
    make_worker, common = pickle.loads(work.parts)
    return _made(make_worker, common, work.device)


_unpacked = lru_cache(maxsize=1)(pickle.loads)


def limit_threads(threads: int) -> None:
    """Let the libraries of this process take so many threads."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    pa.set_cpu_count(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def error_line(error: BaseException) -> str:
    """Write an error in one line; errors of other packages also show their type."""
    if isinstance(error, LensError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def cores() -> int:
    """Count the cores that this process may use.

    A scheduler such as SLURM may have given it fewer than the machine has.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
