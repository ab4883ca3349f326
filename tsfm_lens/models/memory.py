"""Memory: the need of a run, the free bytes of a device, and the limit of a run.

The limit is, in this order: the argument ``memory``, the environment variable ``TSFM_LENS_MEMORY``, half of the free
bytes of the device. On a CPU these are the machine's available bytes or those that a control group (a container, a
batch job) still allows, whichever is less.
"""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tsfm_lens.errors import InputError

VARIABLE = "TSFM_LENS_MEMORY"
"""Environment variable with the bytes that a run may take, such as 2000000000, 2GB or 1.5GiB."""

# of the free memory, left to others
_SHARE = 0.5
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
# control groups, version 2 and 1: their mount, the files of limit and use, and the key of reclaimable use
_GROUPS = {
    2: ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    1: ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


class OverLimit(MemoryError):
    """Error that stops a measured run because it holds more bytes than it may."""


class LiveBytes(TorchDispatchMode):
    """Dispatch mode that counts the bytes of all live tensors that operations have made.

    Args:
        limit: bytes beyond which the run is stopped; None for no limit.

    Attributes:
        peak: the most that were held at once.

    Raises:
        OverLimit: from the operation that comes to hold more than the limit.
    """

    def __init__(self, limit: int | None = None) -> None:
        super().__init__()
        self.peak = self._now = 0
        self._limit = limit
        self._keys: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func`` and note the tensors that it made."""
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        # views and in-place results hold no memory of their own, and the meta device has none
        inputs = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(output):
            if not isinstance(leaf, Tensor) or leaf.is_meta:
                continue
            if leaf.untyped_storage()._cdata not in inputs | self._keys:
                self._note(leaf.untyped_storage())
        return output

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._keys.add(key)
        self._now += size
        self.peak = max(self.peak, self._now)
        weakref.finalize(storage, self._release, key, size).atexit = False
        if self._limit is not None and self._now > self._limit:
            raise OverLimit(f"the run holds more than {self._limit} bytes")

    def _release(self, key: int, size: int) -> None:
        self._keys.discard(key)
        self._now -= size


def measured(work: Callable[[], Any], device: torch.device, limit: int | None = None) -> tuple[Any, int]:
    """Return a function's result, and the most bytes of tensors that it held beyond those that were there.

    Raises:
        OverLimit: on a CPU, as soon as it holds more than the limit.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = work()
        return result, torch.cuda.max_memory_allocated(device) - before
    with LiveBytes(limit) as live:
        result = work()
    return result, live.peak


def limit_of(memory: int | str | None, device: torch.device) -> int:
    """Return the bytes that a run may take: the argument, the environment variable's, or half of the free ones.

    Args:
        memory: bytes, or a text such as "2GB" or "1.5GiB".

    Raises:
        InputError: not a positive number of bytes.
    """
    if memory is not None:
        return as_bytes(memory, "memory")
    if os.environ.get(VARIABLE, "").strip():
        return as_bytes(os.environ[VARIABLE], f"the environment variable {VARIABLE}")
    return int(_SHARE * free_bytes(device))


def is_given(memory: int | str | None) -> bool:
    """Return whether somebody has set a limit."""
    return memory is not None or bool(os.environ.get(VARIABLE, "").strip())


def free_bytes(device: torch.device) -> int:
    """Return the bytes that are free on a device; on a CPU no more than the process's control group still allows."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    import psutil  # type: ignore[import-untyped]

    return min(int(psutil.virtual_memory().available), *group_allowances())


def group_allowances(root: Path = Path("/")) -> Iterator[int]:
    """Yield the bytes that each control group of this process still allows; groups without a limit yield none.

    Args:
        root: of the file system.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        mount, most, used, spare = _GROUPS[1 if controllers else 2]
        folder = Path(path.lstrip("/"))
        # a group has no more than any group around it; in a container its own path may not be mounted
        for group in (folder, *folder.parents):
            at = root / mount / group
            try:
                limit, now = ((at / name).read_text().strip() for name in (most, used))
                stat = dict(row.split() for row in (at / "memory.stat").read_text().splitlines())
            except (OSError, ValueError):
                continue
            if limit.isdigit():
                yield max(0, int(limit) - int(now) + int(stat.get(spare, 0)))


def as_bytes(value: int | str, what: str) -> int:
    """Read a number of bytes, maybe as a text with a unit (kB, MB, GB, TB of 1000; KiB, MiB, GiB, TiB of 1024).

    Args:
        value: the number or text.
        what: its name, for the message.

    Raises:
        InputError: no positive number of bytes.
    """
    if isinstance(value, str):
        form = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", value.lower())
        number = float(form[1]) * (1024 if form[3] else 1000) ** _UNITS[form[2]] if form else 0.0
        if 1 <= number < 2**63:
            return int(number)
    elif isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise InputError(
        f"{what} is {value!r}, expected a number of bytes from 1 up, such as 2000000000 or '2GB', or None for half of "
        "what is free"
    )


def in_words(size: float) -> str:
    """Format bytes for people."""
    for unit, width in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= width:
            return f"{size / width:.1f} {unit}"
    return f"{int(size)} bytes"


def fitting(peaks: dict[int, int], limit: int) -> int:
    """Count the variants that fit side by side, from runs of fewer of them.

    Args:
        peaks: bytes by number of variants. The need of n times as many variants is at most n times as large.
        limit: bytes.

    Raises:
        InputError: not even one variant fits.
    """
    if peaks[1] > limit:
        raise InputError(
            f"one variant of this batch needs {peaks[1] / 2**20:.1f} MiB for its tensors, memory allows "
            f"{limit / 2**20:.1f} MiB; forecast fewer series at once, or give it at least {peaks[1]} bytes"
        )
    return max(limit * copies // max(peak, 1) for copies, peak in peaks.items() if peak <= limit)


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, on a GPU or in torch's allocator for the CPU."""
    words = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )
