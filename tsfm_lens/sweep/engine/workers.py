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
from functools import cached_property, lru_cache, partial
from typing import Any

import pyarrow as pa

from tsfm_lens.core.errors import LensError, SweepFailedError
from tsfm_lens.sweep.store import group_key


@dataclass(frozen=True, eq=False)
class GroupTask:
    """Group of cells that is computed, kept and resumed together.

    Attributes:
        cells: keys of the cells in the store.
        payload: what is computed in this group, such as its variants.
        data: what it is computed from, such as a chunk of series; tasks may share it.
        label: text by which the group is shown.
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
"""Function that computes the rows of a group."""
MakeWorker = Callable[[Any, str | None], Work]
"""Picklable function or class that makes a :data:`Work`.

Its arguments are what all groups have in common, and a device.
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
    """Worker in the calling process; subclasses are other processes."""

    def __init__(
        self, make_worker: MakeWorker, common: Any, device: str | None
    ) -> None:
        self._make = partial(_make_work, make_worker, common, device)
        self._work: Work | None = None

    def submit(self, task: GroupTask) -> Future[pa.Table]:
        """Begin to compute a group; in the calling process, it is computed at once."""
        future: Future[pa.Table] = Future()
        try:
            # at the first group, so that an error of making becomes that of a future,
            # as in other processes
            self._work = self._work or self._make()
            future.set_result(self._work(task))
        except Exception as error:
            future.set_exception(error)
        return future

    def result(self, future: Future[pa.Table]) -> pa.Table:
        """Return the rows of a group; a BrokenExecutor says that the worker died."""
        return future.result()

    def stop(self) -> None:
        """End the worker's process, if it has one, even in the middle of a group."""


def _make_work(make_worker: MakeWorker, common: Any, device: str | None) -> Work:
    try:
        return make_worker(common, device)
    except Exception as error:
        raise SweepFailedError(
            f"a worker of the sweep cannot start: {error_line(error)}"
        ) from error


@dataclass(frozen=True)
class RemoteWork:
    """Settings by which another process computes groups.

    Attributes:
        parts: pickled pair of a :data:`MakeWorker` and what all groups have in common.
        device: device of the worker.
        threads: number of threads that its libraries may take.
    """

    parts: bytes
    device: str | None
    threads: int


def compute_remotely(work: RemoteWork, task: GroupTask, data: bytes) -> pa.Table:
    """Compute the rows of a group in this process, with its data pickled apart.

    The process keeps its worker and its last data for the next group.

    Returns:
        The rows.
    """
    # before the data are unpickled, which imports libraries, too
    compute = _make_once(work)
    # the same bytes are unpickled once: the cache compares them by content
    return compute(replace(task, data=_unpickle(data)))


@lru_cache(maxsize=1)
def _make_once(work: RemoteWork) -> Work:
    # first, as unpickling imports libraries, which read OMP_NUM_THREADS only then
    limit_threads(work.threads)
    make_worker, common = pickle.loads(work.parts)
    return _make_work(make_worker, common, work.device)


_unpickle = lru_cache(maxsize=1)(pickle.loads)


def limit_threads(threads: int) -> None:
    """Limit the libraries of this process to a number of threads."""
    # for libraries that are still to be imported; below, for those that are
    os.environ["OMP_NUM_THREADS"] = str(threads)
    pa.set_cpu_count(threads)
    # a worker whose groups need no torch should not load it
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

    Returns:
        The number of cores.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
