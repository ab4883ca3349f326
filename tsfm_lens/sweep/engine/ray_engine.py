"""Ray engine: groups of cells as plain tasks on a cluster.

Read :func:`ray_workers` first. The processes of the cluster keep their models from task
to task. Lost tasks are repeated by :mod:`tsfm_lens.sweep.engine.engines`, not by Ray.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Future
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import lru_cache
from math import ceil
from typing import Any

import pyarrow as pa

from tsfm_lens.core.errors import InputError, SweepFailedError, missing_extra
from tsfm_lens.sweep.engine.workers import (
    GroupTask,
    RemoteWork,
    Worker,
    compute_remotely,
    cores,
)

# how long a server may take to answer at an address
_ADDRESS_SECONDS = 5.0


def ray_workers(
    parts: bytes,
    workers: int | None,
    devices: Sequence[str],
    address: str | None,
    limit: int,
    stack: ExitStack,
) -> list[Worker]:
    """Connect to a cluster until the end of a stack, and make workers.

    ``parts`` is the pickled pair (make_worker, common), which the cluster's processes
    unpack.

    Returns:
        At most ``limit`` workers, each of which computes one task at a time.
    """
    if connect(address):
        stack.callback(_ray().shutdown)
    gpu = any(device.startswith("cuda") for device in devices)
    resource = "GPU" if gpu else "CPU"
    amounts = [
        node["Resources"].get(resource, 0.0) for node in _ray().nodes() if node["Alive"]
    ]
    count = min(workers or max(1, int(sum(amounts))), limit)
    # a node may offer less than one, such as a head node that takes no tasks
    useful = [amount for amount in amounts if amount >= 1] or [1.0]
    device: str | None = "cuda"
    threads = 1
    if not gpu:
        # a task runs on one node, so the smallest node must have enough threads for its
        # share of the workers
        workers_per_node = ceil(count / len(useful))
        threads = max(1, int(min(useful)) // workers_per_node)
        device = None
        if devices:
            device = devices[0]
    # "cuda" has no number, as a task sees only the GPU that Ray gave it; there are no
    # retries, since ``engines`` repeats lost tasks
    remote = _ray().remote(num_cpus=threads, num_gpus=int(gpu), max_retries=0)
    # data go into the cluster's memory once, not with every task; only the latest are
    # kept, since consecutive groups share them
    pack = lru_cache(maxsize=1)(lambda data: _ray().put(pickle.dumps(data)))
    work = _ray().put(RemoteWork(parts, device, threads))
    call = remote(compute_remotely)
    return [_RayWorker(call, work, pack) for _ in range(count)]


class _RayWorker(Worker):
    """Worker that has one task at a time in the cluster."""

    def __init__(self, call: Any, work: Any, pack: Callable[[Any], Any]) -> None:
        self._call = call
        self._remote_work = work
        self._pack = pack
        self._reference: Any = None

    def submit(self, task: GroupTask) -> Future[pa.Table]:
        task_without_data = replace(task, data=None)
        data = self._pack(task.data)
        self._reference = self._call.remote(self._remote_work, task_without_data, data)
        future: Future[pa.Table] = self._reference.future()
        return future

    def result(self, future: Future[pa.Table]) -> pa.Table:
        errors = _ray().exceptions
        try:
            return future.result()
        except errors.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            raise cause from None
        except errors.RayError as error:
            # as when a worker process dies, so that the group is tried again
            reason = str(error).strip().partition("\n")[0]
            raise BrokenExecutor(f"{type(error).__name__}: {reason}") from None

    def stop(self) -> None:
        if self._reference is not None:
            with suppress(Exception):
                _ray().cancel(self._reference, force=True)


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
"""Preface of HTTP/2 and an empty frame of settings, which every server of gRPC answers
with its own settings.
"""
_SETTINGS_FRAME = 4


def _check_server(address: str) -> None:
    """Raise InputError for an address where no gRPC server answers in time.

    Ray itself would end the process after a minute.
    """
    target = address.removeprefix("ray://")
    host, separator, port = target.rpartition(":")
    if not separator:
        # such as "auto", which Ray looks up on this machine
        return
    start = "Start a cluster with: ray start --head --port=6379"
    if not port.isdecimal():
        raise InputError(
            f"no Ray cluster can be at {address!r}: expected HOST:PORT, such as"
            f" 10.0.0.1:6379. {start}"
        )
    try:
        with socket.create_connection(
            (host.strip("[]"), int(port)), timeout=_ADDRESS_SECONDS
        ) as connection:
            connection.settimeout(_ADDRESS_SECONDS)
            connection.sendall(_HTTP2_OPENING)
            # a frame begins with nine bytes, the length in three and then its type
            header = connection.recv(9)
    except (OSError, OverflowError) as error:
        raise InputError(
            f"no Ray cluster answers at {address!r}: {error}. {start}"
        ) from error
    if len(header) < 4 or header[3] != _SETTINGS_FRAME:
        raise InputError(f"what answers at {address!r} is no Ray cluster. {start}")


def connect(address: str | None = None) -> bool:
    """Connect to a Ray cluster, unless this process has.

    Returns:
        True if it was connected here, so that it is to be disconnected, too.
    """
    ray = _ray()
    if ray.is_initialized():
        return False
    address = address or os.environ.get("RAY_ADDRESS") or None
    starts_local = address in (None, "local")
    options: dict[str, Any] = {"address": address}
    if starts_local:
        options = {"address": "local", "num_cpus": cores(), "include_dashboard": False}
    elif address is not None:
        _check_server(address)
    try:
        ray.init(**options, logging_level=logging.ERROR, log_to_driver=False)
    except Exception as error:
        # Ray's own exception here is of no class of its own
        if starts_local:
            logs = "Its logs are in /tmp/ray/session_latest/logs"
            raise SweepFailedError(
                f"Ray could not start on this machine: {error} {logs}"
            ) from error
        start = "Start one with: ray start --head --port=6379"
        raise InputError(
            f"no Ray cluster answers at {address!r}: {error}. {start}"
        ) from error
    return True
