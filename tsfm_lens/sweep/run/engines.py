"""Engines that run groups of cells: one process, several processes, or a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import pyarrow as pa

from tsfm_lens.errors import InputError, SweepFailedError, unknown_name
from tsfm_lens.sweep.run.ray_engine import limit_threads, ray_workers
from tsfm_lens.sweep.run.tasks import (
    GroupDone,
    GroupTask,
    MakeWorker,
    Worker,
    cores,
    error_line,
    run_group,
)
from tsfm_lens.sweep.store.folder import Store

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
    """Compute the groups that a store does not hold yet, and return the outcome of all in the order of their ends."""
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    if workers is not None and workers < 1:
        raise InputError(f"a sweep needs at least one worker, not {workers}")
    outcomes: list[GroupDone] = []

    def tell(group: GroupDone) -> None:
        outcomes.append(group)
        on_done(group)

    keys = store.done()
    queue = _Queue(
        store, retries, [task for task in tasks if not keys.issuperset(task.cells)]
    )
    for task in tasks:
        if keys.issuperset(task.cells):
            tell(GroupDone(task, "resumed"))
    count = len(queue.pending)
    if not count:
        return outcomes
    if engine == "single":
        for outcome in queue.outcomes(
            Worker(make_worker, common, devices[0] if devices else None)
        ):
            tell(outcome)
        return outcomes
    with ExitStack() as stack:
        if engine == "ray":
            team = ray_workers(
                make_worker, common, workers, devices, address, count, stack
            )
        else:
            most = min(workers or len(devices) or min(cores(), _MOST_WORKERS), count)
            team = _processes(make_worker, common, most, devices)
        results: SimpleQueue[GroupDone | BaseException] = SimpleQueue()
        pool = stack.enter_context(ThreadPoolExecutor(len(team)))
        for worker in team:
            stack.callback(worker.stop)
            pool.submit(queue.put_outcomes, worker, results)
        stack.callback(queue.over.set)
        for _ in range(count):
            result = results.get()
            if isinstance(result, BaseException):
                raise result
            tell(result)
    return outcomes


class _Queue:
    """Groups that are to be computed, which workers take one by one; those that are held or lost come again, last."""

    def __init__(self, store: Store, retries: int, tasks: Sequence[GroupTask]) -> None:
        self.store, self.retries, self.pending, self.over = (
            store,
            retries,
            deque(tasks),
            threading.Event(),
        )
        self._held: set[str] = set()
        self._losses: Counter[str] = Counter()

    def put_outcomes(
        self, worker: Worker, results: SimpleQueue[GroupDone | BaseException]
    ) -> None:
        """Put the outcomes of a worker's groups, or the error that ended it, into a queue."""
        try:
            for outcome in self.outcomes(worker):
                results.put(outcome)
        except BaseException as error:
            results.put(error)
        finally:
            worker.stop()

    def outcomes(self, worker: Worker) -> Iterator[GroupDone]:
        """Let a worker compute groups until there are no more."""
        started = False
        while not self.over.is_set():
            started = started or self._start(worker)
            if self.over.is_set():
                # the run was interrupted while the worker started
                return
            try:
                task = self.pending.popleft()
            except IndexError:
                return
            try:
                outcome = run_group(self.store, task, worker.compute)
            except BrokenExecutor as error:
                started = False
                self._losses[task.key] += 1
                why = f"its worker died {self._losses[task.key]} times, often for want of memory: {error}"
                lost = self._losses[task.key] > self.retries
                outcome = GroupDone(task, "failed", error=why) if lost else None
            else:
                if outcome is None:
                    # once all others were tried
                    time.sleep(_RETRY_SECONDS if task.key in self._held else 0)
                    self._held.add(task.key)
            if outcome is None:
                self.pending.append(task)
            else:
                yield outcome

    def _start(self, worker: Worker) -> bool:
        for left in range(self.retries, -1, -1):
            try:
                worker.start()
                return True
            # what cannot be loaded once cannot be loaded twice; what died may have been in somebody's way
            except Exception as error:
                if self.over.is_set():
                    return False
                if not left or not isinstance(error, BrokenExecutor):
                    raise SweepFailedError(
                        f"a worker of the sweep cannot start: {error_line(error)}"
                    ) from error
        return False


def _processes(
    make_worker: MakeWorker, common: Any, workers: int, devices: Sequence[str]
) -> list[Worker]:
    # a plain fork would copy locks and CUDA states of the calling process
    method = (
        "forkserver"
        if "forkserver" in multiprocessing.get_all_start_methods()
        else "spawn"
    )
    context: Any = multiprocessing.get_context(method)
    module = getattr(make_worker, "__module__", "__main__")
    if method == "forkserver":
        # workers then start with the libraries loaded
        context.set_forkserver_preload(
            [__name__, *([module] if module != "__main__" else [])]
        )
    threads = max(1, cores() // workers)
    return [
        _Process(
            context,
            (
                make_worker,
                common,
                devices[place % len(devices)] if devices else None,
                threads,
            ),
        )
        for place in range(workers)
    ]


class _Process(Worker):
    """A worker process with its own model; a pool of one, so that it dies alone."""

    def __init__(self, context: Any, arguments: tuple[Any, ...]) -> None:
        self._context, self._parts, self._lock = context, arguments, threading.Lock()

    def start(self) -> None:
        self._data: Any = None
        self._executor = ProcessPoolExecutor(1, self._context, _begin)
        with _signals_blocked():
            # the first task starts the process
            self._pid = self._executor.submit(os.getpid)
        self._executor.submit(_make, *self._parts).result()

    def compute(self, task: GroupTask) -> pa.Table:
        data = None if task.data is self._data else (task.data,)
        self._data = task.data
        return self._executor.submit(_compute, replace(task, data=None), data).result()

    def stop(self) -> None:
        # the driver stops it, and the thread that waits for it
        with self._lock:
            if (
                hasattr(self, "_pid")
                and self._pid.done()
                and self._pid.exception() is None
            ):
                with suppress(OSError):
                    os.kill(self._pid.result(), signal.SIGKILL)
                self._executor.shutdown(cancel_futures=True)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Hold back Ctrl-C and SIGTERM from processes that this thread starts, from before their first import.

    A new process inherits the mask of the thread that starts it, and would print a traceback for a signal that comes
    while it imports; the parent decides when it ends.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


_work: Any = None
_data: Any = None


def _begin() -> None:
    """Begin a worker process, which ends with its parent."""
    # these signals may go to every process of a terminal or a service; the parent decides
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _make(
    make_worker: MakeWorker, common: Any, device: str | None, threads: int
) -> None:
    global _work
    limit_threads(threads)
    _work = make_worker(common, device)


def _compute(task: GroupTask, data: tuple[Any] | None) -> pa.Table:
    """Compute the rows of a group; its data are those of the group before if None."""
    global _data
    _data = _data if data is None else data[0]
    table: pa.Table = _work(replace(task, data=_data))
    return table
