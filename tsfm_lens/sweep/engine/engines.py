"""Engines that run groups of cells: this process, several processes, or Ray.

Read :func:`run_groups` first: it locks a group in the store, lets a worker compute it,
and writes it. So engines differ only in how a worker computes, and a worker that dies
loses no more than its present group.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from tsfm_lens.core.errors import InputError, StoreError, SweepFailedError, unknown_name
from tsfm_lens.core.processes import clean_context
from tsfm_lens.sweep.engine.ray_engine import ray_workers
from tsfm_lens.sweep.engine.workers import (
    GroupDone,
    GroupTask,
    MakeWorker,
    RemoteWork,
    Worker,
    compute_remotely,
    cores,
    error_line,
)
from tsfm_lens.sweep.store import Store

ENGINES = ("single", "processes", "ray")
# more workers than this seldom help before memory ends: each holds a model
_MOST_WORKERS = 8
_RETRY_SECONDS = 0.5


def run_groups(
    tasks: Sequence[GroupTask],
    make_worker: MakeWorker,
    common: Any,
    store: Store,
    *,
    engine: str = "single",
    workers: int | None = None,
    devices: Sequence[str] = (),
    retries: int = 2,
    on_done: Callable[[GroupDone], object] = lambda group: None,
    address: str | None = None,
) -> list[GroupDone]:
    """Compute the groups that a store does not hold yet.

    Returns:
        The outcomes of all groups, in the order in which they ended.
    """
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    if workers is not None and workers < 1:
        raise InputError(f"a sweep needs at least one worker, not {workers}")
    outcomes: list[GroupDone] = []

    def report(outcome: GroupDone) -> None:
        outcomes.append(outcome)
        on_done(outcome)

    # the store is asked once for all groups, before any process starts
    finished = store.done()
    pending: list[GroupTask] = []
    for task in tasks:
        if finished.issuperset(task.cells):
            report(GroupDone(task, "resumed"))
        else:
            pending.append(task)
    if not pending:
        return outcomes
    n_pending = len(pending)
    with ExitStack() as stack:
        team: Sequence[Worker]
        if engine == "single":
            device = devices[0] if devices else None
            team = [Worker(make_worker, common, device)]
        elif engine == "processes":
            limit = workers or len(devices) or min(cores(), _MOST_WORKERS)
            team = _process_workers(make_worker, common, min(limit, n_pending), devices)
        else:
            parts = pickle.dumps((make_worker, common))
            team = ray_workers(parts, workers, devices, address, n_pending, stack)
        # stopped also after an error or an interrupt; as the stack is undone backwards,
        # before Ray is shut down
        for worker in team:
            stack.callback(worker.stop)
        _compute(pending, team, store, retries, report)
    return outcomes


@dataclass(frozen=True, eq=False)
class _Running:
    """Group that a worker computes, with the lock that is held for it.

    ``start`` is the reading of ``perf_counter`` when the worker began.
    """

    worker: Worker
    task: GroupTask
    start: float
    lock: ExitStack


def _compute(
    tasks: Sequence[GroupTask],
    team: Sequence[Worker],
    store: Store,
    retries: int,
    report: Callable[[GroupDone], None],
) -> None:
    """Compute all groups.

    Groups that another process holds, and groups whose worker died, are tried again
    after the others.
    """
    pending = deque(tasks)
    idle = list(team)
    running: dict[Future[pa.Table], _Running] = {}
    losses: Counter[GroupTask] = Counter()
    try:
        while pending or running:
            held: list[GroupTask] = []
            while idle and pending:
                task = pending.popleft()
                with ExitStack() as lock:
                    if not lock.enter_context(store.lock(task.key)):
                        held.append(task)
                    # another process may have finished it before it was locked
                    elif store.holds(task.cells):
                        report(GroupDone(task, "skipped"))
                    else:
                        worker = idle.pop()
                        start = time.perf_counter()
                        future = worker.submit(task)
                        # the lock outlives this block, until the group has ended
                        running[future] = _Running(worker, task, start, lock.pop_all())
            pending += held
            if not running:
                # workers are idle, so other processes hold all groups that are left
                if pending:
                    time.sleep(_RETRY_SECONDS)
                continue
            timeout = None
            if held:
                timeout = _RETRY_SECONDS
            for future in wait(running, timeout, FIRST_COMPLETED).done:
                group = running.pop(future)
                task = group.task
                idle.append(group.worker)
                # None: the worker died, and the group is tried again
                outcome = None
                with group.lock:
                    try:
                        outcome = _write_rows(store, group, future)
                    except BrokenExecutor as error:
                        losses[task] += 1
                        if losses[task] > retries:
                            reason = (
                                f"its worker died {losses[task]} times, often for want"
                                f" of memory: {error}"
                            )
                            outcome = GroupDone(task, "failed", error=reason)
                if outcome is None:
                    pending.append(task)
                else:
                    report(outcome)
    finally:
        # groups that were interrupted, which another process may compute from now on
        for group in running.values():
            group.lock.close()


def _write_rows(store: Store, group: _Running, future: Future[pa.Table]) -> GroupDone:
    """Write the rows that a worker computed.

    An error that concerns this group alone becomes its outcome; others are raised.

    Returns:
        The outcome of the group.
    """
    task = group.task
    try:
        store.write(group.worker.result(future), task.cells)
    except (BrokenExecutor, StoreError, SweepFailedError):
        # these are errors of the worker, the store or the sweep, not of this group
        raise
    except Exception as error:
        return GroupDone(task, "failed", error=error_line(error))
    return GroupDone(task, "finished", time.perf_counter() - group.start)


def _process_workers(
    make_worker: MakeWorker, common: Any, count: int, devices: Sequence[str]
) -> list[Worker]:
    # workers then start with the libraries loaded
    modules = [__name__, getattr(make_worker, "__module__", "__main__")]
    context = clean_context(modules)
    parts = pickle.dumps((make_worker, common))
    threads = max(1, cores() // count)
    # consecutive groups share their data, which are then packed once for all workers
    pack = lru_cache(maxsize=1)(pickle.dumps)
    workers: list[Worker] = []
    for index in range(count):
        device = None
        if devices:
            device = devices[index % len(devices)]
        work = RemoteWork(parts, device, threads)
        workers.append(_ProcessWorker(context, work, pack))
    return workers


class _ProcessWorker(Worker):
    """A worker process with its own model; a pool of one, so that it dies alone."""

    def __init__(
        self,
        context: Any,
        work: RemoteWork,
        pack: Callable[[Any], bytes],
    ) -> None:
        self._context = context
        self._remote_work = work
        self._pack = pack
        self._executor: ProcessPoolExecutor | None = None
        self._pid: Future[int] | None = None

    def submit(self, task: GroupTask) -> Future[pa.Table]:
        # the data travel apart from the task, since they are packed once for many tasks
        task_without_data = replace(task, data=None)
        data = self._pack(task.data)
        if self._executor is not None:
            with suppress(BrokenExecutor):
                return self._executor.submit(
                    compute_remotely, self._remote_work, task_without_data, data
                )
        # that of a process before it may belong to another by now
        self._pid = None
        self._executor = ProcessPoolExecutor(1, self._context, _begin_process)
        with _signals_blocked():
            # the first task starts the process
            self._pid = self._executor.submit(os.getpid)
        return self._executor.submit(
            compute_remotely, self._remote_work, task_without_data, data
        )

    def stop(self) -> None:
        if self._executor is not None:
            # a shutdown alone would wait for the group in hand
            # a signal may come before the first task is given
            if self._pid is not None:
                with suppress(OSError, BrokenExecutor):
                    os.kill(self._pid.result(), signal.SIGKILL)
            self._executor.shutdown(cancel_futures=True)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block Ctrl-C and SIGTERM in processes that this thread starts.

    A new process inherits the mask of the thread that starts it, and would print a
    traceback for a signal that comes while it imports; the parent decides when it ends.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _begin_process() -> None:
    """Begin a worker process, which ends with its parent."""
    # these signals may go to every process of a terminal or a service; the parent
    # decides
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
