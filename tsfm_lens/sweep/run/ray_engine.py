"""The Ray engine: groups of cells as calls of actors on a cluster, each with its own model."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from tsfm_lens.errors import InputError, MissingExtraError, SweepFailedError
from tsfm_lens.sweep.run.tasks import GroupDone, GroupTask, MakeWorker, Worker, WorkerSlot, cores, run_group
from tsfm_lens.sweep.store.folder import Store

_ANSWER_SECONDS = 5.0


def ray_slots(
    make_worker: MakeWorker,
    common: Any,
    store: Store,
    workers: int | None,
    devices: Sequence[str],
    address: str | None,
    shared_store: bool,
    most: int,
    stack: ExitStack,
) -> list[WorkerSlot]:
    """Connect to a cluster until the end of ``stack``, and return places of at most ``most`` workers."""
    if connect(address):
        stack.callback(_ray().shutdown)
    gpu = any(device.startswith("cuda") for device in devices)
    nodes = [node["Resources"].get("GPU" if gpu else "CPU", 0.0) for node in _ray().nodes() if node["Alive"]]
    count = min(workers or max(1, int(sum(nodes))), most)
    threads = 1 if gpu else share(nodes, count)
    # inside an actor, the GPU that Ray gave it is the only one that it sees
    device = "cuda" if gpu else (devices[0] if devices else None)
    actor = _ray().remote(num_cpus=threads, num_gpus=int(gpu))(_RayWorker)
    arguments = _ray().put((make_worker, common)), device, store.path, threads
    # data go into the cluster's memory once
    put = lru_cache(maxsize=1)(_ray().put)
    return [_Actor(actor, arguments, None if shared_store else store, put) for _ in range(count)]


class _RayWorker(Worker):
    """A worker on some node; it is a process of its own, and holds its model until the run ends."""

    def __init__(self, parts: tuple[MakeWorker, Any], *arguments: Any) -> None:
        super().__init__(*parts, *arguments)

    def compute_with(self, task: GroupTask, data: Any) -> pa.Table:
        """Compute the rows of a group for the driver."""
        return self.compute(replace(task, data=data))

    def run_with(self, task: GroupTask, data: Any) -> GroupDone:
        """Compute a group and write it to a store that this node sees."""
        return self.run(task, (data,))


class _Actor(WorkerSlot):
    """Place of an actor; a thread waits for its answers, and writes them to ``store`` unless the actor does."""

    def __init__(self, actor: Any, arguments: tuple[Any, ...], store: Store | None, put: Any) -> None:
        self._class, self._arguments, self._writes_to, self._put = actor, arguments, store, put
        self._actor: Any = None
        self._thread = ThreadPoolExecutor(1)

    def start(self) -> Future[None]:
        self._kill()
        self._actor = self._class.remote(*self._arguments)
        return self._thread.submit(_answer, self._actor.start.remote())

    def run(self, task: GroupTask) -> Future[GroupDone]:
        actor, bare = self._actor, replace(task, data=None)
        data = None if task.data is None else self._put(task.data)
        if self._writes_to is None:
            return self._thread.submit(_answer, actor.run_with.remote(bare, data))
        # another process may work on the same store: the lock is held until the rows are written
        return self._thread.submit(
            run_group, self._writes_to, bare, lambda task: _answer(actor.compute_with.remote(task, data))
        )

    def stop(self) -> None:
        self._kill()
        self._thread.shutdown(cancel_futures=True)

    def _kill(self) -> None:
        if self._actor is not None:
            with suppress(Exception):
                _ray().kill(self._actor)


def _answer(reference: Any) -> Any:
    """Wait for the answer of an actor; a BrokenExecutor if it died."""
    errors = _ray().exceptions
    try:
        return _ray().get(reference)
    except errors.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None
    except errors.RayError as error:
        raise BrokenExecutor(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}") from None


def _ray() -> Any:
    """Import the module ``ray``."""
    try:
        import ray
    except ImportError:
        raise MissingExtraError('--engine ray needs Ray: pip install "tsfm-lens-toolbox[ray]"') from None
    return ray


def connect(address: str | None = None) -> bool:
    """Connect to a Ray cluster, unless this process has."""
    ray = _ray()
    if ray.is_initialized():
        return False
    address = address or os.environ.get("RAY_ADDRESS") or None
    local = {"address": "local", "num_cpus": cores(), "include_dashboard": False}
    own = address in (None, "local")
    if not own:
        _ping(str(address))
    try:
        ray.init(**(local if own else {"address": address}), logging_level=logging.ERROR, log_to_driver=False)
    except Exception as error:
        # Ray's own exception here is of no class of its own
        if own:
            logs = "Its logs are in /tmp/ray/session_latest/logs"
            raise SweepFailedError(f"Ray could not start on this machine: {error} {logs}") from error
        start = "Start one with: ray start --head --port=6379"
        raise InputError(f"no Ray cluster answers at {address!r}: {error}. {start}") from error
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


def share(nodes: Sequence[float], workers: int) -> int:
    """Share the CPUs among the workers: the most that each can have so that all find a place, and at least one."""
    for cpus in range(int(max(nodes, default=1)), 1, -1):
        if sum(int(node // cpus) for node in nodes) >= workers:
            return cpus
    return 1
