"""Time and memory of calls, for comparisons of two ways to compute the same.

:func:`in_turn` times functions by rounds, so that drift of the machine affects all of
them; :func:`measured` finds the memory that a call takes at most.
"""

from __future__ import annotations

import statistics
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Clock = Callable[[], float]


def make_clock(device: torch.device) -> Clock:
    """Return a wall clock that first waits for what a GPU has not finished."""

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    return now


def seconds(work: Callable[[], object], clock: Clock = time.perf_counter) -> float:
    """Measure the time of one call, on the wall unless another clock is given."""
    start = clock()
    work()
    return clock() - start


def ratios(
    ours: Sequence[Callable[[], object]],
    base: Callable[[], object],
    *,
    rounds: int,
    warm_up: int = 1,
    clock: Clock = time.perf_counter,
) -> list[tuple[float, float, float]]:
    """Time several functions against one baseline, in turn.

    Drift of the machine then cancels. Return median, lowest and highest ratio of each.
    """
    times = in_turn([*ours, base], rounds=rounds, warm_up=warm_up, clock=clock)
    base_times = times[-1]
    rows = [
        [ours_s / base_s for ours_s, base_s in zip(row, base_times, strict=True)]
        for row in times[:-1]
    ]
    return [(statistics.median(row), min(row), max(row)) for row in rows]


def in_turn(
    works: Sequence[Callable[[], object]],
    *,
    rounds: int,
    warm_up: int = 1,
    clock: Clock = time.perf_counter,
) -> list[list[float]]:
    """Measure the seconds of each of several functions by round, in turn."""
    times: list[list[float]] = [[] for _ in works]
    for turn in range(rounds + warm_up):
        # the order alternates, so that neither side always runs on a warmer cache
        order = list(range(len(works)))
        for index in reversed(order) if turn % 2 else order:
            duration = seconds(works[index], clock)
            if turn >= warm_up:
                times[index].append(duration)
    return times


class LiveBytes(TorchDispatchMode):
    """Dispatch mode that counts the bytes of live tensors.

    It counts those that operations have made inside it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._now = 0
        self._keys: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func`` and note the tensors that it made."""
        output = func(*args, **kwargs or {})
        # views and in-place results hold no memory of their own, and the meta device
        # has none
        inputs = {
            leaf.untyped_storage()._cdata
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, Tensor)
        }
        for leaf in tree_leaves(output):
            if not isinstance(leaf, Tensor) or leaf.is_meta:
                continue
            storage = leaf.untyped_storage()
            key = storage._cdata
            size = storage.nbytes()
            if key not in inputs and key not in self._keys:
                self._keys.add(key)
                self._now += size
                self.peak = max(self.peak, self._now)
                # nothing is counted any more when Python ends
                weakref.finalize(storage, self._release, key, size).atexit = False
        return output

    def _release(self, key: int, size: int) -> None:
        self._keys.discard(key)
        self._now -= size


def measured(work: Callable[[], Any], device: torch.device) -> tuple[Any, int]:
    """Return a function's result, and the peak of the memory that it took.

    The peak is in bytes of tensors beyond those that were there before.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = work()
        return result, torch.cuda.max_memory_allocated(device) - before
    with LiveBytes() as live:
        result = work()
    return result, live.peak
