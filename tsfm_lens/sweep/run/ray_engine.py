"""The Ray engine: groups of cells as calls of actors on a cluster, each with its own model."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from math import ceil
from threading import Lock
from typing import Any

import pyarrow as pa

from tsfm_lens.errors import InputError, SweepFailedError, missing_extra
from tsfm_lens.sweep.run.tasks import GroupTask, MakeWorker, Worker, cores

_ADDRESS_SECONDS = 5.0


def ray_workers(
    make_worker: MakeWorker,
    common: Any,
    workers: int | None,
    devices: Sequence[str],
    address: str | None,
    most: int,
    stack: ExitStack,
) -> list[Worker]:
    """Connect to a cluster until the end of ``stack``, and return at most ``most`` workers, which start later."""
    if connect(address):
        stack.callback(_ray().shutdown)
    gpu = any(device.startswith("cuda") for device in devices)
    nodes = [
        node["Resources"].get("GPU" if gpu else "CPU", 0.0)
        for node in _ray().nodes()
        if node["Alive"]
    ]
    count = min(workers or max(1, int(sum(nodes))), most)
    useful = [node for node in nodes if node >= 1] or [1.0]
    threads = 1 if gpu else max(1, int(min(useful)) // ceil(count / len(useful)))
    # inside an actor, the GPU that Ray gave it is the only one that it sees
    device = "cuda" if gpu else (devices[0] if devices else None)
    actor = _ray().remote(num_cpus=threads, num_gpus=int(gpu))(_RemoteWorker)
    arguments = _ray().put((make_worker, common)), device, threads
    memory = _Memory()
    return [_Actor(actor, arguments, memory) for _ in range(count)]


def limit_threads(threads: int) -> None:
    """Let the libraries of this process take so many threads."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    pa.set_cpu_count(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


class _RemoteWorker:
    """Actor on some node; it is a process of its own, and holds its model until the run ends."""

    def __init__(
        self, parts: tuple[MakeWorker, Any], device: str | None, threads: int
    ) -> None:
        self._parts, self._device, self._threads = parts, device, threads

    def start(self) -> None:
        limit_threads(self._threads)
        make_worker, common = self._parts
        self._work = make_worker(common, self._device)

    def compute(self, task: GroupTask, data: Any) -> pa.Table:
        return self._work(replace(task, data=data))


class _Memory:
    """Data that go into the cluster's memory once, not with every task; the last ones stay."""

    def __init__(self) -> None:
        self._lock, self._data, self._reference = Lock(), None, None

    def put(self, data: Any) -> Any:
        with self._lock:
            if data is not self._data:
                self._data, self._reference = data, _ray().put(data)
            return self._reference


class _Actor(Worker):
    """An actor, or the place that it waits for."""

    def __init__(self, actor: Any, arguments: tuple[Any, ...], memory: _Memory) -> None:
        self._class, self._arguments, self._memory = actor, arguments, memory
        self._actor: Any = None

    def start(self) -> None:
        self.stop()
        self._actor = self._class.remote(*self._arguments)
        _answer(self._actor.start.remote())

    def compute(self, task: GroupTask) -> pa.Table:
        return _answer(
            self._actor.compute.remote(
                replace(task, data=None), self._memory.put(task.data)
            )
        )

    def stop(self) -> None:
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
        raise BrokenExecutor(
            f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        ) from None


def _ray() -> Any:
    """Import the module ``ray``."""
    try:
        import ray
    except ImportError:
        raise missing_extra("--engine ray", "ray", ["ray"]) from None
    return ray


_HTTP2_OPENING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(
    [0, 0, 0, 4, 0, 0, 0, 0, 0]
)
"""Preface of HTTP/2 and an empty frame of settings, which every server of gRPC answers with its own settings."""
_SETTINGS_FRAME = 4


def _refuse_silent(address: str) -> None:
    """Refuse an address where no server of gRPC answers in time; Ray itself would end the process after a minute."""
    target = address.removeprefix("ray://")
    host, separator, port = target.rpartition(":")
    if not separator:
        # such as "auto", which Ray looks up on this machine
        return
    start = "Start a cluster with: ray start --head --port=6379"
    if not port.isdecimal():
        raise InputError(
            f"no Ray cluster can be at {address!r}: expected HOST:PORT, such as 10.0.0.1:6379. {start}"
        )
    try:
        with socket.create_connection(
            (host.strip("[]"), int(port)), timeout=_ADDRESS_SECONDS
        ) as connection:
            connection.settimeout(_ADDRESS_SECONDS)
            connection.sendall(_HTTP2_OPENING)
            header = connection.recv(9)
    except (OSError, OverflowError) as error:
        raise InputError(
            f"no Ray cluster answers at {address!r}: {error}. {start}"
        ) from error
    if len(header) < 4 or header[3] != _SETTINGS_FRAME:
        raise InputError(f"what answers at {address!r} is no Ray cluster. {start}")


def connect(address: str | None = None) -> bool:
    """Connect to a Ray cluster, unless this process has."""
    ray = _ray()
    if ray.is_initialized():
        return False
    address = address or os.environ.get("RAY_ADDRESS") or None
    local = {"address": "local", "num_cpus": cores(), "include_dashboard": False}
    own = address in (None, "local")
    if address is not None and not own:
        _refuse_silent(address)
    try:
        ray.init(
            **(local if own else {"address": address}),
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
    except Exception as error:
        # Ray's own exception here is of no class of its own
        if own:
            logs = "Its logs are in /tmp/ray/session_latest/logs"
            raise SweepFailedError(
                f"Ray could not start on this machine: {error} {logs}"
            ) from error
        start = "Start one with: ray start --head --port=6379"
        raise InputError(
            f"no Ray cluster answers at {address!r}: {error}. {start}"
        ) from error
    return True
