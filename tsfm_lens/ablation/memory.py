"""How much memory a run takes, and how many variants fit side by side."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tsfm_lens.errors import InputError

# of what is free, left to others
_SHARE = 0.5


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors that operations have made and that are still held.

    Attributes:
        peak: the most that were held at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._now = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func`` and note what it made."""
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        # views, and what is written in place, hold no memory of their own
        entered = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in entered | self._known:
                self._note(leaf.untyped_storage())
        return output

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._known.add(key)
        self._now += size
        self.peak = max(self.peak, self._now)
        weakref.finalize(storage, self._released, key, size).atexit = False

    def _released(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._now -= size


def measured(work: Callable[[], Any], device: torch.device) -> tuple[Any, int]:
    """What a function returns, and the bytes of tensors that it held at most beyond those that were there."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        found = work()
        return found, torch.cuda.max_memory_allocated(device) - before
    with LiveBytes() as live:
        found = work()
    return found, live.peak


def limit_of(memory: int | None, device: torch.device) -> int:
    """The bytes that a run may take: those given, or half of what is free.

    Raises:
        InputError: not a positive number of bytes.
    """
    if memory is not None:
        if isinstance(memory, bool) or not isinstance(memory, int) or memory < 1:
            raise InputError(
                f"memory is {memory!r}, expected a number of bytes from 1 up, or None for half of the free"
            )
        return memory
    if device.type == "cuda":
        return int(_SHARE * torch.cuda.mem_get_info(device)[0])
    import psutil  # type: ignore[import-untyped]

    return int(_SHARE * psutil.virtual_memory().available)


def fitting(peaks: dict[int, int], limit: int) -> int:
    """How many variants fit side by side, from runs of fewer of them.

    Args:
        peaks: bytes by number of variants. What so many need, n times as many need no more than n times.
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
    """Whether an error says that memory ran out, on a GPU or in torch's allocator for the CPU."""
    words = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )
