"""Engines that run groups of cells: one process, several processes, or a Ray cluster."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from multiprocessing import connection
from typing import Any

from tsfm_lens.errors import InputError, StoreError, SweepFailedError, unknown_name
from tsfm_lens.sweep.run.tasks import (
    GroupDone,
    GroupTask,
    MakeWorker,
    Pool,
    Report,
    RunSummary,
    cores,
    failure,
    limit_threads,
    run_one,
)
from tsfm_lens.sweep.store.folder import Store

__all__ = ["ENGINES", "GroupDone", "GroupTask", "RunSummary", "run_groups"]

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
    on_done: Callable[[GroupDone], None] | None = None,
    address: str | None = None,
    shared_store: bool = False,
) -> RunSummary:
    """Compute the groups that a store does not hold yet.

    Several calls, in several processes or on several machines, may work on one store: each group is computed by the
    one that claims it, and each call returns when all groups are finished, whoever finished them.

    Args:
        tasks: the groups; independent of one another, started in this order.
        make_worker: called once per worker with ``common`` and its device; gives what computes the rows of a task.
        common: what all workers need; picklable.
        store: where the rows go.
        engine: "single", "processes" or "ray". Scripts that use processes need ``if __name__ == "__main__":``.
        workers: how many; by default one per device, else one per core up to eight ("ray": one per GPU or CPU).
        devices: torch devices, dealt out to workers in turn; of "ray", ("cuda",) gives each worker a GPU.
        retries: how often a group is started again after its worker died.
        on_done: called for each group, in the calling process.
        address: of a Ray cluster, "auto" or "host:port"; without, $RAY_ADDRESS or a local one.
        shared_store: Ray workers see the store's folder and write themselves; otherwise rows travel to the driver.

    Returns:
        The outcome of the groups; ``raise_if_failed`` turns failed ones into an error.

    Raises:
        StoreError: the store cannot be written; finished groups are kept.
        SweepFailedError: no worker can start.
        KeyboardInterrupt: after all workers were ended; finished groups are kept.
    """
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    if workers is not None and workers < 1:
        raise InputError(f"a sweep needs at least one worker, not {workers}")
    start = time.perf_counter()
    summary = RunSummary()

    def tell(group: GroupDone) -> None:
        summary.add(group)
        if on_done is not None:
            on_done(group)

    keys = store.done()
    pending: deque[GroupTask] = deque()
    for task in tasks:
        if keys.issuperset(task.cells):
            tell(GroupDone(task, "resumed"))
        else:
            pending.append(task)
    if pending:
        pool = _pool(engine, make_worker, common, store, workers, devices, address, shared_store, len(pending))
        try:
            _Driver(pool, retries, tell).run(pending)
        finally:
            pool.stop()
    summary.seconds = time.perf_counter() - start
    return summary


def _pool(
    engine: str,
    make_worker: MakeWorker,
    common: Any,
    store: Store,
    workers: int | None,
    devices: Sequence[str],
    address: str | None,
    shared_store: bool,
    most: int,
) -> Pool:
    if engine == "single":
        return _Inline(make_worker, common, store, devices[0] if devices else None)
    if engine == "ray":
        from tsfm_lens.sweep.run.ray_engine import RayPool

        return RayPool(make_worker, common, store, workers, devices, address, shared_store, most)
    count = workers or len(devices) or min(cores(), _MOST_WORKERS)
    return _Processes(make_worker, common, store, min(count, most), devices)


class _Driver:
    """Distribution of tasks to workers, with what becomes of those that are held, lost or failed."""

    def __init__(self, pool: Pool, retries: int, tell: Callable[[GroupDone], None]) -> None:
        self.pool, self.retries, self.tell = pool, retries, tell
        self.running: dict[int, GroupTask] = {}
        self.retry_queue: deque[tuple[float, GroupTask]] = deque()
        self.losses: Counter[str] = Counter()
        self.false_starts = 0

    def run(self, pending: deque[GroupTask]) -> None:
        while pending or self.running or self.retry_queue:
            while self.retry_queue and self.retry_queue[0][0] <= time.monotonic():
                pending.append(self.retry_queue.popleft()[1])
            for worker in self.pool.idle():
                if not pending:
                    break
                self.running[worker] = pending.popleft()
                self.pool.submit(worker, self.running[worker])
            timeout = max(0.0, self.retry_queue[0][0] - time.monotonic()) if self.retry_queue else None
            for worker, report in self.pool.wait(timeout):
                self._on_report(worker, report, pending)

    def _on_report(self, worker: int, report: Report, pending: deque[GroupTask]) -> None:
        if report.how == "ready":
            self.false_starts = 0
            return
        if report.how == "stop":
            raise StoreError(report.error)
        task = self.running.pop(worker, None)
        if task is None:
            self._false_start(report)
        elif report.how == "held":
            self.retry_queue.append((time.monotonic() + _RETRY_SECONDS, task))
        elif report.how == "lost":
            self._lost(task, report, pending)
        else:
            self.tell(GroupDone(task, report.how, report.seconds, report.error, report.details))

    def _false_start(self, report: Report) -> None:
        # what cannot be loaded once cannot be loaded twice; what died may have been in somebody's way
        self.false_starts += 1
        if report.how == "broken" or self.false_starts > self.retries + self.pool.workers:
            raise SweepFailedError(f"a worker of the sweep cannot start: {report.error}\n{report.details}".rstrip())

    def _lost(self, task: GroupTask, report: Report, pending: deque[GroupTask]) -> None:
        self.losses[task.key] += 1
        if self.losses[task.key] <= self.retries:
            # last, so that a group that kills its workers delays no other
            pending.append(task)
        else:
            error = f"its worker died {self.losses[task.key]} times: {report.error}"
            self.tell(GroupDone(task, "failed", 0.0, error, report.details))


class _Inline:
    """One worker, in the calling process."""

    workers = 1

    def __init__(self, make_worker: MakeWorker, common: Any, store: Store, device: str | None) -> None:
        self._store = store
        self._work = make_worker(common, device)
        self._reports: list[tuple[int, Report]] = []

    def idle(self) -> list[int]:
        return [0]

    def submit(self, worker: int, task: GroupTask) -> None:
        self._reports.append((worker, run_one(self._store, self._work, task)))

    def wait(self, timeout: float | None) -> list[tuple[int, Report]]:
        if not self._reports and timeout:
            time.sleep(timeout)
        reports, self._reports = self._reports, []
        return reports

    def stop(self) -> None:
        pass


class _WorkerSlot:
    """A worker process, the pipe to it, and the data that it was sent last."""

    def __init__(self, process: Any, pipe: Any) -> None:
        self.process, self.pipe = process, pipe
        self.data: Any = None
        self.ready = False
        self.busy = False


class _Processes:
    """Worker processes, each with its own model, that write to the store themselves."""

    def __init__(
        self, make_worker: MakeWorker, common: Any, store: Store, workers: int, devices: Sequence[str]
    ) -> None:
        self.workers = workers
        # a plain fork would copy locks and CUDA states of the calling process
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        self._context: Any = multiprocessing.get_context(method)
        module = getattr(make_worker, "__module__", "__main__")
        if method == "forkserver":
            # workers then start with the libraries loaded
            self._context.set_forkserver_preload([__name__, *([module] if module != "__main__" else [])])
        self._arguments = make_worker, common, store.path
        self._devices = devices
        self._slots: list[_WorkerSlot] = []
        try:
            for worker in range(workers):
                self._slots.append(self._start(worker))
        except BaseException:
            self.stop()
            raise

    def _start(self, worker: int) -> _WorkerSlot:
        ours, theirs = self._context.Pipe()
        device = self._devices[worker % len(self._devices)] if self._devices else None
        arguments = (theirs, *self._arguments, device, max(1, cores() // self.workers))
        process = self._context.Process(target=_serve, args=arguments, daemon=True, name=f"sweep-{worker}")
        process.start()
        theirs.close()
        return _WorkerSlot(process, ours)

    def idle(self) -> list[int]:
        return [worker for worker, slot in enumerate(self._slots) if slot.ready and not slot.busy]

    def submit(self, worker: int, task: GroupTask) -> None:
        slot = self._slots[worker]
        fresh = task.data is not slot.data
        slot.data, slot.busy = task.data, True
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            # wait() finds out that it died
            slot.pipe.send((task.cells, task.payload, task.key, fresh, task.data if fresh else None))

    def wait(self, timeout: float | None) -> list[tuple[int, Report]]:
        pipes: dict[Any, int] = {slot.pipe: worker for worker, slot in enumerate(self._slots)}
        reports: list[tuple[int, Report]] = []
        for pipe in connection.wait(list(pipes), timeout):
            worker = pipes[pipe]
            try:
                report = self._slots[worker].pipe.recv()
            except (EOFError, OSError):
                report = self._replace(worker)
            else:
                self._slots[worker].ready, self._slots[worker].busy = True, False
            reports.append((worker, report))
        return reports

    def _replace(self, worker: int) -> Report:
        slot = self._slots[worker]
        slot.pipe.close()
        slot.process.join(5)
        code = slot.process.exitcode
        if code is not None and code < 0:
            why = f"killed by signal {-code} ({signal.Signals(-code).name})"
            why += ", often for want of memory" if code == -signal.SIGKILL else ""
        else:
            why = f"ended with code {code}"
        self._slots[worker] = self._start(worker)
        return Report("lost", error=why)

    def stop(self) -> None:
        # nothing is lost: a file of the store is whole or not there
        for slot in self._slots:
            slot.process.kill()
        for slot in self._slots:
            slot.process.join(10)
            slot.pipe.close()
        self._slots = []


def _serve(
    pipe: Any, make_worker: MakeWorker, common: Any, path: os.PathLike[str], device: str | None, threads: int
) -> None:
    """Run a worker process until it is killed or its parent is gone."""
    # Ctrl-C goes to every process of the terminal; the parent decides
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    limit_threads(threads)
    try:
        store = Store(path, create=False)
        work = make_worker(common, device)
    except BaseException as error:
        pipe.send(failure("broken", error))
        return
    limit_threads(threads)
    pipe.send(Report("ready"))
    data = None
    while True:
        try:
            cells, payload, key, fresh, new_data = pipe.recv()
            data = new_data if fresh else data
            pipe.send(run_one(store, work, GroupTask(cells, payload, data, key=key)))
        except (EOFError, OSError):
            # the parent is gone
            return


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
