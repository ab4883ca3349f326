"""A process beside the sweep that is the driver of a Ray cluster: whatever ends it leaves the sweep itself alive.

Ray's library ends its process when Ray's own services fail. It therefore runs in a process of its own: ``RayPool``
starts it and reads its messages from a pipe. Objects for the cluster stay pickled on the way.
"""

from __future__ import annotations

import logging
import os
import pickle
import queue
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa

from tsfm_lens.errors import InputError, LensError, MissingExtraError, SweepFailedError
from tsfm_lens.sweep.run.tasks import GroupTask, Report, Work, compute, cores, failure, limit_threads, run_one
from tsfm_lens.sweep.store.folder import Store

_ANSWER_SECONDS = 5.0
# chunks of series that stay in the cluster's memory for the next task; older ones are sent again
MOST_SHARED = 64
# after which a cluster of this machine alone takes its head for dead
_HEAD_SECONDS = "20"


@dataclass(frozen=True)
class Init:
    """First message to the cluster's process.

    Attributes:
        parts: pickled pair of the function that makes a worker, and the data that all workers need.
        devices, workers, address: as of ``run_groups``.
        path: of a store that workers see; None if rows travel.
        most: workers that there is work for.
    """

    parts: bytes
    devices: tuple[str, ...]
    workers: int | None
    address: str | None
    path: Path | None
    most: int


@dataclass(frozen=True)
class Submit:
    """Group for a worker; ``data`` is None where the cluster holds it under its number already."""

    worker: int
    cells: tuple[str, ...]
    payload: bytes
    key: str
    number: int
    data: bytes | None


@dataclass(frozen=True)
class Message:
    """Message of a worker, with the rows of its group unless it wrote them itself."""

    worker: int
    report: Report
    rows: pa.Table | None = None


@dataclass(frozen=True)
class Failed:
    """Failure of the cluster: the class of the error, and its message."""

    kind: str
    message: str


def ray_package() -> Any:
    """Import the module ``ray``.

    Raises:
        MissingExtraError: it is not installed.
    """
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
        True if this call connected, so that the caller should disconnect.

    Raises:
        MissingExtraError: Ray is not installed.
        InputError: nothing answers at the address.
        SweepFailedError: Ray cannot start on this machine.
    """
    ray = ray_package()
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
                f"Ray could not start on this machine: {error} Its logs are in /tmp/ray/session_latest/logs"
            ) from error
        return True
    _ping(str(address))
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise InputError(
            f"no Ray cluster answers at {address!r}: {error}. Start one with: ray start --head --port=6379"
        ) from error
    return True


def _ping(address: str) -> None:
    """Refuse an address where nobody listens; Ray itself waits there for minutes."""
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

    def build(self, parts: bytes, device: str | None, path: Path | None) -> Report:
        """Make the worker from its pickled function and what that takes; of a store that is shared, open it."""
        try:
            make_worker, common = pickle.loads(parts)
            self._store = None if path is None else Store(path, create=False)
            self._work = make_worker(common, device)
        except Exception as error:
            return failure("broken", error)
        limit_threads(self._threads)
        return Report("ready")

    def run(self, cells: tuple[str, ...], payload: bytes, key: str, data: bytes) -> tuple[Report, pa.Table | None]:
        """Compute a group from its pickled parts, and write it if the store is shared."""
        assert self._work is not None
        try:
            task = GroupTask(cells, pickle.loads(payload), pickle.loads(data), key=key)
        except Exception as error:
            return failure("failed", error), None
        if self._store is not None:
            return run_one(self._store, self._work, task), None
        return compute(self._work, task)


class _ActorSlot:
    """An actor, and the reference of its last call."""

    def __init__(self, actor: Any) -> None:
        self.actor, self.reference = actor, None


class _Cluster:
    """Actors of a cluster, and the data that it holds for them.

    Args:
        init: what to start.
        pipe: to the sweep.
    """

    def __init__(self, init: Init, pipe: Connection) -> None:
        self._ray, self._init, self._pipe = ray_package(), init, pipe
        self._events: queue.SimpleQueue[Submit | tuple[int, Any] | None] = queue.SimpleQueue()
        self._data: dict[int, Any] = {}
        connect(init.address)
        gpu = any(device.startswith("cuda") for device in init.devices)
        nodes = _nodes(self._ray, "GPU" if gpu else "CPU")
        self.workers = min(init.workers or max(1, int(sum(nodes))), init.most)
        self._threads = 1 if gpu else share(nodes, self.workers)
        # inside an actor, the GPU that Ray gave it is the only one that it sees
        self._device = "cuda" if gpu else (init.devices[0] if init.devices else None)
        options = {"num_cpus": self._threads, "num_gpus": 1 if gpu else 0, "max_restarts": 0}
        self._class = self._ray.remote(**options)(_Actor)
        self._parts = self._ray.put(init.parts)
        self._slots: list[_ActorSlot] = []

    def run(self) -> None:
        """Start the actors and pass messages and answers on until the sweep has no more, or is gone."""
        self._slots = [self._start(worker) for worker in range(self.workers)]
        threading.Thread(target=self._listen, daemon=True).start()
        while (event := self._events.get()) is not None:
            if isinstance(event, Submit):
                self._submit(event)
            else:
                self._on_answer(*event)

    def _listen(self) -> None:
        while True:
            try:
                message = self._pipe.recv()
            except (EOFError, OSError):
                message = None
            self._events.put(message)
            if message is None:
                return

    def _start(self, worker: int) -> _ActorSlot:
        slot = _ActorSlot(self._class.remote(self._threads))
        self._track(worker, slot, slot.actor.build.remote(self._parts, self._device, self._init.path))
        return slot

    def _track(self, worker: int, slot: _ActorSlot, reference: Any) -> None:
        slot.reference = reference
        reference.future().add_done_callback(lambda _future: self._events.put((worker, reference)))

    def _submit(self, message: Submit) -> None:
        if message.data is not None:
            self._data[message.number] = self._ray.put(message.data)
            # the sweep sends again what is older
            for number in sorted(self._data)[:-MOST_SHARED]:
                del self._data[number]
        slot = self._slots[message.worker]
        data = self._data[message.number]
        self._track(message.worker, slot, slot.actor.run.remote(message.cells, message.payload, message.key, data))

    def _on_answer(self, worker: int, reference: Any) -> None:
        slot = self._slots[worker]
        if slot.reference is not reference:
            return
        try:
            answer = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            self._replace(worker, error)
            return
        report, rows = answer if isinstance(answer, tuple) else (answer, None)
        self._pipe.send(Message(worker, report, rows))

    def _replace(self, worker: int, error: Exception) -> None:
        if not any(node["Alive"] for node in self._ray.nodes()):
            raise SweepFailedError("no node of the Ray cluster is alive")
        with suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(self._slots[worker].actor)
        self._slots[worker] = self._start(worker)
        line = str(error).strip().splitlines()[0] if str(error).strip() else ""
        self._pipe.send(Message(worker, Report("lost", error=f"{type(error).__name__}: {line}", details=str(error))))

    def stop(self) -> None:
        """End every actor, and leave the cluster."""
        for slot in self._slots:
            with suppress(Exception):
                self._ray.kill(slot.actor)
        self._ray.shutdown()


def serve(handle: int) -> None:
    """Run the cluster's process.

    Args:
        handle: of the pipe to the sweep.
    """
    # Ray's processes must not hold the pipe open when this one is gone
    os.set_inheritable(handle, False)
    pipe = Connection(handle)
    try:
        init: Init = pipe.recv()
        if init.address is None:
            os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", _HEAD_SECONDS)
        cluster = _Cluster(init, pipe)
        pipe.send(cluster.workers)
        cluster.run()
        cluster.stop()
    except LensError as error:
        pipe.send(Failed(type(error).__name__, str(error)))
    except (EOFError, OSError):
        # the sweep is gone
        return


def _nodes(ray: Any, resource: str) -> list[float]:
    return [node["Resources"].get(resource, 0.0) for node in ray.nodes() if node["Alive"]]


def share(nodes: Sequence[float], workers: int) -> int:
    """Share the CPUs among the workers: the most that each can have so that all find a place, and at least one."""
    for cpus in range(int(max(nodes, default=1)), 1, -1):
        if sum(int(node // cpus) for node in nodes) >= workers:
            return cpus
    return 1
