"""The Ray engine: groups of cells as calls of actors on a cluster, each with its own model."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from tsfm_lens.errors import InputError, MissingExtraError, SweepFailedError
from tsfm_lens.sweep.store import Store
from tsfm_lens.sweep.tasks import (
    GroupTask,
    MakeWorker,
    Report,
    Work,
    compute,
    cores,
    failure,
    keep,
    limit_threads,
    run_one,
)

_LOG = logging.getLogger(__name__)
_ANSWER_SECONDS = 5.0
_PATIENCE_SECONDS = 60.0
# chunks of series that stay in the cluster's memory for the next task; older ones are sent again
_MOST_SHARED = 64


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise MissingExtraError('--engine ray needs Ray: pip install "tsfm-lens-toolbox[ray]"') from None
    return ray


def connect(address: str | None = None) -> bool:
    """Connect to a Ray cluster, unless this process has.

    Args:
        address: "auto" for the one of this machine, "host:port", or "ray://host:port"; $RAY_ADDRESS if None, and if
            that is not set, a cluster of this machine alone that lives as long as the process.

    Returns:
        Whether this call connected, so that the caller should disconnect.

    Raises:
        MissingExtraError: Ray is not installed.
        InputError: nothing answers at the address.
        SweepFailedError: Ray cannot start on this machine.
    """
    ray = _ray()
    if ray.is_initialized():
        return False
    address = address or os.environ.get("RAY_ADDRESS") or None
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address in (None, "local"):
        try:
            ray.init(address="local", num_cpus=cores(), include_dashboard=False, **quiet)
        except Exception as error:
            # Ray's own exception here is of no class of its own
            raise SweepFailedError(
                f"Ray could not start on this machine: {error} Its logs are in /tmp/ray/session_latest/logs. On one "
                "machine --engine processes does the same without it."
            ) from error
        return True
    _knock(str(address))
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise InputError(
            f"no Ray cluster answers at {address!r}: {error}. Start one with: ray start --head --port=6379"
        ) from error
    return True


def _knock(address: str) -> None:
    """Ray itself waits for minutes where nobody listens."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"the address of a Ray cluster is auto, host:port or ray://host:port, not {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()
    except OSError as error:
        raise InputError(
            f"no Ray cluster answers at {address!r} ({error}). Is it running, and is this the port of "
            "`ray start --head` (6379 by default)?"
        ) from error


class _Actor:
    """A worker on some node; it is a process of its own, and holds its model until the run ends."""

    def __init__(self, threads: int) -> None:
        limit_threads(threads)
        self._threads = threads
        self._work: Work | None = None
        self._store: Store | None = None

    def build(self, make_worker: MakeWorker, common: Any, device: str | None, path: Path | None) -> Report:
        """Make the worker; of a store that is shared, open it."""
        try:
            self._store = None if path is None else Store(path, create=False)
            self._work = make_worker(common, device)
        except Exception as error:
            return failure("broken", error)
        limit_threads(self._threads)
        return Report("ready")

    def run(self, cells: tuple[str, ...], payload: Any, key: str, data: Any) -> tuple[Report, pa.Table | None]:
        """Compute a group, and write it if the store is shared."""
        assert self._work is not None
        task = GroupTask(cells, payload, data, key=key)
        if self._store is not None:
            return run_one(self._store, self._work, task), None
        return compute(self._work, task)


class _Seat:
    """An actor, what it was asked last, and for which task."""

    def __init__(self, actor: Any, asked: Any) -> None:
        self.actor, self.asked = actor, asked
        self.task: GroupTask | None = None
        self.ready = False
        # the group's claim, where this process writes the store
        self.claim = ExitStack()


class RayPool:
    """Workers of a Ray cluster. Rows travel to this process, which writes the store, unless the store is shared.

    Args:
        make_worker, common, store, workers, devices, address, shared_store: as of ``run_groups``.
        most: workers that there is work for.
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
        self._ray = _ray()
        self._connected = connect(address)
        self._store, self._shared = store, shared_store
        self._make = make_worker
        self._seats: list[_Seat] = []
        self._said: list[tuple[int, Report]] = []
        self._data: OrderedDict[int, tuple[Any, Any]] = OrderedDict()
        self._next_warning = time.monotonic() + _PATIENCE_SECONDS
        try:
            gpu = any(device.startswith("cuda") for device in devices)
            nodes = _nodes(self._ray, "GPU" if gpu else "CPU")
            self.workers = min(workers or max(1, int(sum(nodes))), most)
            cpus = 1 if gpu else share(nodes, self.workers)
            # inside an actor, the GPU that Ray gave it is the only one that it sees
            self._device = "cuda" if gpu else (devices[0] if devices else None)
            self._class = self._ray.remote(num_cpus=cpus, num_gpus=1 if gpu else 0, max_restarts=0)(_Actor)
            self._threads = cpus
            self._common = self._ray.put(common)
            for _ in range(self.workers):
                self._seats.append(self._start())
        except BaseException:
            self.stop()
            raise

    def _start(self) -> _Seat:
        actor = self._class.remote(self._threads)
        path = self._store.path if self._shared else None
        return _Seat(actor, actor.build.remote(self._make, self._common, self._device, path))

    def idle(self) -> list[int]:
        """Workers that are ready and have nothing to do."""
        return [worker for worker, seat in enumerate(self._seats) if seat.ready and seat.asked is None]

    def submit(self, worker: int, task: GroupTask) -> None:
        """Send a task to an actor, its data by reference."""
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
        seat.asked = seat.actor.run.remote(task.cells, task.payload, task.key, self._reference(task.data))

    def _say(self, worker: int, report: Report) -> None:
        self._seats[worker].claim.close()
        self._said.append((worker, report))

    def _reference(self, data: Any) -> Any:
        if data is None:
            return None
        # the entry holds the data too, so that its identity stays its own
        kept = self._data.pop(id(data), None) or (data, self._ray.put(data))
        self._data[id(data)] = kept
        if len(self._data) > _MOST_SHARED:
            self._data.popitem(last=False)
        return kept[1]

    def wait(self, timeout: float | None) -> list[tuple[int, Report]]:
        """What actors have to say; an actor that was lost is replaced."""
        asked = {seat.asked: worker for worker, seat in enumerate(self._seats) if seat.asked is not None}
        if not self._said:
            limit = timeout if timeout is not None else _PATIENCE_SECONDS
            if asked:
                found, _ = self._ray.wait(list(asked), num_returns=1, timeout=limit)
                more, _ = self._ray.wait(list(asked), num_returns=len(asked), timeout=0)
                for reference in dict.fromkeys([*found, *more]):
                    worker = asked[reference]
                    self._said.append((worker, self._hear(worker, reference)))
            else:
                time.sleep(limit)
        said, self._said = self._said, []
        self._warn()
        return said

    def _hear(self, worker: int, reference: Any) -> Report:
        seat = self._seats[worker]
        try:
            answer = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            return self._replace(worker, error)
        seat.asked = None
        if isinstance(answer, Report):
            seat.ready = answer.how == "ready"
            return answer
        report, rows = answer
        task, seat.task = seat.task, None
        assert task is not None
        with seat.claim:
            return report if self._shared else keep(self._store, task, report, rows)

    def _replace(self, worker: int, error: Exception) -> Report:
        seat = self._seats[worker]
        seat.claim.close()
        with suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(seat.actor)
        self._seats[worker] = self._start()
        line = str(error).strip().splitlines()[0] if str(error).strip() else ""
        return Report("lost", error=f"{type(error).__name__}: {line}", details=str(error))

    def _warn(self) -> None:
        now = time.monotonic()
        if any(seat.ready for seat in self._seats):
            self._next_warning = now + _PATIENCE_SECONDS
        elif now >= self._next_warning:
            self._next_warning = now + _PATIENCE_SECONDS
            _LOG.warning("no worker has found a place on the Ray cluster yet; `ray status` says what is missing")

    def stop(self) -> None:
        """End every actor, and leave the cluster if this pool joined it."""
        for seat in self._seats:
            seat.claim.close()
            with suppress(Exception):
                self._ray.kill(seat.actor)
        self._seats = []
        if self._connected:
            self._ray.shutdown()


def _nodes(ray: Any, resource: str) -> list[float]:
    return [node["Resources"].get(resource, 0.0) for node in ray.nodes() if node["Alive"]]


def share(nodes: Sequence[float], workers: int) -> int:
    """CPUs a worker, so that all of them find a place: the most that they can have, and at least one."""
    for cpus in range(int(max(nodes, default=1)), 1, -1):
        if sum(int(node // cpus) for node in nodes) >= workers:
            return cpus
    return 1
