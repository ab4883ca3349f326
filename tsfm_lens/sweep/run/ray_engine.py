"""The Ray engine: groups of cells as calls of actors on a cluster, each with its own model."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from multiprocessing import Pipe, connection
from typing import Any

import psutil  # type: ignore[import-untyped]

from tsfm_lens import errors
from tsfm_lens.errors import SweepFailedError
from tsfm_lens.sweep.run.ray_cluster import MOST_SHARED, Failed, Init, Message, Submit, ray_package
from tsfm_lens.sweep.run.tasks import GroupTask, MakeWorker, Report, keep
from tsfm_lens.sweep.store.folder import Store

_LOG = logging.getLogger(__name__)
_PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 2.0
_END_SECONDS = 20.0
_MARK = "TSFM_LENS_SWEEP"


class _TaskSlot:
    """A worker of the cluster: its task, and the claim of its group where this process writes the store."""

    def __init__(self) -> None:
        self.task: GroupTask | None = None
        self.ready = False
        self.claim = ExitStack()


class RayPool:
    """Workers of a Ray cluster. Rows travel to this process, which writes the store, unless the store is shared.

    Args:
        make_worker, common, store, workers, devices, address, shared_store: as of ``run_groups``.
        most: workers that there is work for.

    Raises:
        MissingExtraError: Ray is not installed.
        InputError: nothing answers at the address.
        SweepFailedError: the cluster cannot start, or fails; ``wait`` raises it too.
    """

    def __init__(
        self,
        make_worker: MakeWorker,
        common: Any,
        store: Store,
        workers: int | None,
        devices: Sequence[str],
        address: str | None,
        shared_store: bool,
        most: int,
    ) -> None:
        ray = ray_package()
        self._pickle = ray.cloudpickle.dumps
        self._store, self._shared_store = store, shared_store
        self._reports: list[tuple[int, Report]] = []
        self._slots: list[_TaskSlot] = []
        # numbers of the data that the cluster holds, with the data itself, so that its identity stays its own
        self._data_cache: OrderedDict[int, tuple[Any, int]] = OrderedDict()
        self._next_warning = time.monotonic() + _PATIENCE_SECONDS
        # all that the cluster's process starts inherits this, and can be found by it
        self._mark = uuid.uuid4().hex
        if address is None and ray.is_initialized():
            address = ray.get_runtime_context().gcs_address
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._pipe, theirs = Pipe()
        code = f"from tsfm_lens.sweep.run.ray_cluster import serve; serve({theirs.fileno()})"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[theirs.fileno()],
            env={**os.environ, _MARK: self._mark},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            # Ctrl-C is for this process, which then ends that one
            start_new_session=True,
        )
        theirs.close()
        try:
            path = store.path if shared_store else None
            parts = self._pickle((make_worker, common))
            self._send(Init(parts, tuple(devices), workers, address, path, most))
            self.workers = self._next(None)
            self._slots = [_TaskSlot() for _ in range(self.workers)]
        except BaseException:
            self.stop()
            raise

    def _send(self, message: object) -> None:
        # wait() reports a process that is gone
        with suppress(OSError):
            self._pipe.send(message)

    def _next(self, timeout: float | None) -> Any:
        """Return the cluster's next message; None if there is none in so many seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            wait_seconds = _LOOK_SECONDS if end is None else min(_LOOK_SECONDS, max(0.0, end - time.monotonic()))
            try:
                if connection.wait([self._pipe], wait_seconds):
                    message = self._pipe.recv()
                    break
            except (EOFError, OSError):
                raise self._failure(f"its driver ended with code {self._process.wait()}{self._last_words()}") from None
            if self._process.poll() is not None and not self._pipe.poll(0):
                raise self._failure(f"its driver ended with code {self._process.returncode}{self._last_words()}")
            if end is not None and time.monotonic() >= end:
                return None
        if isinstance(message, Failed):
            if message.kind != SweepFailedError.__name__:
                raise getattr(errors, message.kind)(message.message)
            raise self._failure(message.message)
        return message

    def _failure(self, why: str) -> SweepFailedError:
        return SweepFailedError(
            f"the Ray cluster failed: {why}. {len(self._store.done())} cells are kept in {self._store.path}: run the "
            "same command again to go on from there; on one machine --engine processes does the same without Ray."
        )

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = [line for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        return f" ({lines[-1].strip()[:300]})" if lines else ""

    def idle(self) -> list[int]:
        """Return the workers that are ready and have nothing to do."""
        return [worker for worker, slot in enumerate(self._slots) if slot.ready and slot.task is None]

    def submit(self, worker: int, task: GroupTask) -> None:
        """Send a task to an actor, its data once to the cluster."""
        slot = self._slots[worker]
        if not self._shared_store:
            # another process may work on the same store: the claim is held until the rows are written
            if not slot.claim.enter_context(self._store.claim(task.key)):
                self._report(worker, Report("held"))
                return
            if self._store.holds(task.cells):
                self._report(worker, Report("skipped"))
                return
        slot.task = task
        self._send(Submit(worker, task.cells, self._pickle(task.payload), task.key, *self._data(task.data)))

    def _report(self, worker: int, report: Report) -> None:
        self._slots[worker].claim.close()
        self._reports.append((worker, report))

    def _data(self, data: Any) -> tuple[int, bytes | None]:
        """Return the number of the data, and the pickled data if the cluster does not hold it."""
        if id(data) in self._data_cache:
            return self._data_cache[id(data)][1], None
        number = 1 + max((number for _, number in self._data_cache.values()), default=0)
        self._data_cache[id(data)] = data, number
        if len(self._data_cache) > MOST_SHARED:
            self._data_cache.popitem(last=False)
        return number, self._pickle(data)

    def wait(self, timeout: float | None) -> list[tuple[int, Report]]:
        """Collect messages of actors; an actor that was lost is replaced."""
        if not self._reports:
            limit = timeout if timeout is not None else _PATIENCE_SECONDS
            message: Message | None = self._next(limit)
            while message is not None:
                self._reports.append((message.worker, self._on_message(message)))
                message = self._next(0.0)
        reports, self._reports = self._reports, []
        self._warn()
        return reports

    def _on_message(self, message: Message) -> Report:
        slot, report = self._slots[message.worker], message.report
        task, slot.task = slot.task, None
        if report.how in ("ready", "broken", "lost"):
            slot.ready = report.how == "ready"
            slot.claim.close()
            return report
        assert task is not None
        with slot.claim:
            return report if self._shared_store else keep(self._store, task, report, message.rows)

    def _warn(self) -> None:
        now = time.monotonic()
        if any(slot.ready for slot in self._slots):
            self._next_warning = now + _PATIENCE_SECONDS
        elif now >= self._next_warning:
            self._next_warning = now + _PATIENCE_SECONDS
            _LOG.warning("no worker has found a place on the Ray cluster yet; `ray status` says what is missing")

    def stop(self) -> None:
        """End every actor, leave the cluster, and leave no process behind."""
        for slot in self._slots:
            slot.claim.close()
        self._slots = []
        self._send(None)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        _end_all(self._mark, self._process.pid)
        self._process.wait()
        self._pipe.close()
        self._log.close()


def _end_all(mark: str, session: int) -> None:
    """Kill what the cluster's process has started and that is still there."""
    processes: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            # processes that Ray renames lose their environment, and some leave the session
            if os.getsid(process.pid) == session or process.environ().get(_MARK) == mark:
                processes |= {member.pid: member for member in (process, *process.children(recursive=True))}
    for process in processes.values():
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(list(processes.values()), timeout=_END_SECONDS)
