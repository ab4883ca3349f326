"""Engines that run groups of cells: one process, several processes, or a Ray cluster."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from tsfm_lens.errors import InputError, StoreError, SweepFailedError, unknown_name
from tsfm_lens.sweep.run.ray_engine import ray_slots
from tsfm_lens.sweep.run.tasks import (
    GroupDone,
    GroupTask,
    MakeWorker,
    Worker,
    WorkerSlot,
    cores,
    error_line,
)
from tsfm_lens.sweep.store.folder import Store

ENGINES = ("single", "processes", "ray")
_LOG = logging.getLogger(__name__)
# more workers than this seldom help before memory ends: each holds a model
_MOST_WORKERS = 8
_RETRY_SECONDS = 0.5
_PATIENCE_SECONDS = 60.0


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
    shared_store: bool = False,
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
    pending: deque[GroupTask] = deque()
    for task in tasks:
        if keys.issuperset(task.cells):
            tell(GroupDone(task, "resumed"))
        else:
            pending.append(task)
    with ExitStack() as stack:
        slots: list[WorkerSlot] = []
        if not pending:
            pass
        elif engine == "single":
            worker = Worker(make_worker, common, devices[0] if devices else None, store.path)
            slots = [WorkerSlot(worker, store)]
        elif engine == "ray":
            slots += ray_slots(make_worker, common, store, workers, devices, address, shared_store, len(pending), stack)
        else:
            count = min(workers or len(devices) or min(cores(), _MOST_WORKERS), len(pending))
            slots += _processes(make_worker, common, store, count, devices)
        for slot in slots:
            stack.callback(slot.stop)
        _distribute(pending, slots, retries, tell)
    return outcomes


def _distribute(
    pending: deque[GroupTask], slots: Sequence[WorkerSlot], retries: int, tell: Callable[[GroupDone], None]
) -> None:
    """Hand tasks to workers until all are done; those that are held or lost come again."""
    idle: list[WorkerSlot] = []
    waiting: deque[tuple[float, GroupTask]] = deque()
    losses: Counter[str] = Counter()
    futures: dict[Future[Any], tuple[WorkerSlot, GroupTask | None]] = {slot.start(): (slot, None) for slot in slots}
    while pending or waiting or any(task for _, task in futures.values()):
        while waiting and waiting[0][0] <= time.monotonic():
            pending.append(waiting.popleft()[1])
        while idle and pending:
            slot, task = idle.pop(), pending.popleft()
            futures[slot.run(task)] = slot, task
        for future in _ended(futures, waiting[0][0] - time.monotonic() if waiting else None):
            slot, group = futures.pop(future)
            error = future.exception()
            key = "start" if group is None else group.key
            losses[key] += isinstance(error, BrokenExecutor)
            if isinstance(error, BrokenExecutor):
                futures[slot.start()] = slot, None
            else:
                idle.append(slot)
            if group is None:
                # what cannot be loaded once cannot be loaded twice; what died may have been in somebody's way
                if error is not None and (slot in idle or losses[key] > retries + len(slots)):
                    raise SweepFailedError(f"a worker of the sweep cannot start: {error_line(error)}") from error
            elif isinstance(error, BrokenExecutor):
                if losses[key] <= retries:
                    # last, so that a group that kills its workers delays no other
                    pending.append(group)
                else:
                    why = f"its worker died {losses[key]} times, often for want of memory: {error}"
                    tell(GroupDone(group, "failed", error=why))
            else:
                done = replace(future.result(), task=group)
                if done.how == "stop":
                    raise StoreError(done.error)
                if done.how == "held":
                    waiting.append((time.monotonic() + _RETRY_SECONDS, group))
                else:
                    tell(done)


def _ended(
    futures: Mapping[Future[Any], tuple[WorkerSlot, GroupTask | None]], seconds: float | None
) -> Collection[Future[Any]]:
    """Wait until one of the futures has ended, or so many seconds."""
    if not futures:
        time.sleep(max(0.0, seconds or 0.0))
        return ()
    ended = wait(futures, _PATIENCE_SECONDS if seconds is None else max(0.0, seconds), FIRST_COMPLETED).done
    if not ended and seconds is None and not any(task for _, task in futures.values()):
        _LOG.warning("no worker has found a place yet; on a Ray cluster `ray status` says what is missing")
    return ended


def _processes(
    make_worker: MakeWorker, common: Any, store: Store, workers: int, devices: Sequence[str]
) -> list[WorkerSlot]:
    # a plain fork would copy locks and CUDA states of the calling process
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context: Any = multiprocessing.get_context(method)
    module = getattr(make_worker, "__module__", "__main__")
    if method == "forkserver":
        # workers then start with the libraries loaded
        context.set_forkserver_preload([__name__, *([module] if module != "__main__" else [])])
    threads = max(1, cores() // workers)
    return [
        _Process(
            context, (make_worker, common, devices[place % len(devices)] if devices else None, store.path, threads)
        )
        for place in range(workers)
    ]


class _Process(WorkerSlot):
    """A worker process with its own model, which writes to the store itself; a pool of one, so that it dies alone."""

    def __init__(self, context: Any, arguments: tuple[Any, ...]) -> None:
        self._context, self._arguments = context, arguments

    def start(self) -> Future[None]:
        self._data: Any = None
        self._executor = ProcessPoolExecutor(1, self._context, _begin, self._arguments)
        self._pid = self._executor.submit(os.getpid)
        return self._executor.submit(_call, "start")

    def run(self, task: GroupTask) -> Future[GroupDone]:
        data = None if task.data is self._data else (task.data,)
        self._data = task.data
        return self._executor.submit(_call, "run", replace(task, data=None), data)

    def stop(self) -> None:
        # nothing is lost: a file of the store is whole or not there
        if self._pid.done() and self._pid.exception() is None:
            with suppress(OSError):
                os.kill(self._pid.result(), signal.SIGKILL)
        self._executor.shutdown(cancel_futures=True)


_worker: Worker | None = None


def _begin(*arguments: Any) -> None:
    """Begin a worker process, which ends with its parent."""
    global _worker
    # Ctrl-C goes to every process of the terminal; the parent decides
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker = Worker(*arguments)


def _call(method: str, *arguments: Any) -> Any:
    return getattr(_worker, method)(*arguments)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
