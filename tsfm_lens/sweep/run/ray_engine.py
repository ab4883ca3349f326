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
from tsfm_lens.sweep.run.ray_cluster import MOST_SHARED, Begin, Ended, Order, Said, ray_package
from tsfm_lens.sweep.run.tasks import GroupTask, MakeWorker, Report, keep
from tsfm_lens.sweep.store.folder import Store

_LOG = logging.getLogger(__name__)
_PATIENCE_SECONDS = 60.0
_LOOK_SECONDS = 2.0
_END_SECONDS = 20.0
_MARK = "TSFM_LENS_SWEEP"


class _Seat:
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
        self._store, self._shared = store, shared_store
        self._said: list[tuple[int, Report]] = []
        self._seats: list[_Seat] = []
        # what was sent, with the data itself, so that its identity stays its own
        self._sent: OrderedDict[int, tuple[Any, int]] = OrderedDict()
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
            self._tell(Begin(parts, tuple(devices), workers, address, path, most))
            self.workers = self._next(None)
            self._seats = [_Seat() for _ in range(self.workers)]
        except BaseException:
            self.stop()
            raise

    def _tell(self, message: object) -> None:
        # of a process that is gone, wait() tells
        with suppress(OSError):
            self._pipe.send(message)

    def _next(self, timeout: float | None) -> Any:
        """The cluster's next message; None if there is none in so many seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _LOOK_SECONDS if end is None else min(_LOOK_SECONDS, max(0.0, end - time.monotonic()))
            try:
                if connection.wait([self._pipe], left):
                    message = self._pipe.recv()
                    break
            except (EOFError, OSError):
                raise self._failure(f"its driver ended with code {self._process.wait()}{self._last_words()}") from None
            if self._process.poll() is not None and not self._pipe.poll(0):
                raise self._failure(f"its driver ended with code {self._process.returncode}{self._last_words()}")
            if end is not None and time.monotonic() >= end:
                return None
        if isinstance(message, Ended):
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
        """Workers that are ready and have nothing to do."""
        return [worker for worker, seat in enumerate(self._seats) if seat.ready and seat.task is None]

    def submit(self, worker: int, task: GroupTask) -> None:
        """Send a task to an actor, its data once to the cluster."""
        seat = self._seats[worker]
        if not self._shared:
            # another process may work on the same store: the claim is held until the rows are written
            if not seat.claim.enter_context(self._store.claim(task.key)):
                self._say(worker, Report("held"))
                return
            if self._store.holds(task.cells):
                self._say(worker, Report("skipped"))
                return
        seat.task = task
        self._tell(Order(worker, task.cells, self._pickle(task.payload), task.key, *self._data(task.data)))

    def _say(self, worker: int, report: Report) -> None:
        self._seats[worker].claim.close()
        self._said.append((worker, report))

    def _data(self, data: Any) -> tuple[int, bytes | None]:
        """Number of the data, and the pickled data if the cluster does not hold it."""
        if id(data) in self._sent:
            return self._sent[id(data)][1], None
        number = 1 + max((number for _, number in self._sent.values()), default=0)
        self._sent[id(data)] = data, number
        if len(self._sent) > MOST_SHARED:
            self._sent.popitem(last=False)
        return number, self._pickle(data)

    def wait(self, timeout: float | None) -> list[tuple[int, Report]]:
        """Messages of actors; an actor that was lost is replaced."""
        if not self._said:
            limit = timeout if timeout is not None else _PATIENCE_SECONDS
            message: Said | None = self._next(limit)
            while message is not None:
                self._said.append((message.worker, self._hear(message)))
                message = self._next(0.0)
        said, self._said = self._said, []
        self._warn()
        return said

    def _hear(self, said: Said) -> Report:
        seat, report = self._seats[said.worker], said.report
        task, seat.task = seat.task, None
        if report.how in ("ready", "broken", "lost"):
            seat.ready = report.how == "ready"
            seat.claim.close()
            return report
        assert task is not None
        with seat.claim:
            return report if self._shared else keep(self._store, task, report, said.rows)

    def _warn(self) -> None:
        now = time.monotonic()
        if any(seat.ready for seat in self._seats):
            self._next_warning = now + _PATIENCE_SECONDS
        elif now >= self._next_warning:
            self._next_warning = now + _PATIENCE_SECONDS
            _LOG.warning("no worker has found a place on the Ray cluster yet; `ray status` says what is missing")

    def stop(self) -> None:
        """End every actor, leave the cluster, and leave no process behind."""
        for seat in self._seats:
            seat.claim.close()
        self._seats = []
        self._tell(None)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        _end_all(self._mark, self._process.pid)
        self._process.wait()
        self._pipe.close()
        self._log.close()


def _end_all(mark: str, session: int) -> None:
    """Kill what the cluster's process has started and that is still there."""
    left: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            # processes that Ray renames lose their environment, and some leave the session
            if os.getsid(process.pid) == session or process.environ().get(_MARK) == mark:
                left |= {member.pid: member for member in (process, *process.children(recursive=True))}
    for process in left.values():
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(list(left.values()), timeout=_END_SECONDS)
