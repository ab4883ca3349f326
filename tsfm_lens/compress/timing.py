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

    Each round gives the ratio of a function's time to that of the baseline, in which
    drift of the machine cancels.

    Returns:
        For each function, the median, lowest and highest ratio of the rounds.
    """
    times = in_turn([*ours, base], rounds=rounds, warm_up=warm_up, clock=clock)
    base_times = times[-1]
    summaries = []
    for function_times in times[:-1]:
        by_round = [
            function_s / base_s
            for function_s, base_s in zip(function_times, base_times, strict=True)
        ]
        summaries.append((statistics.median(by_round), min(by_round), max(by_round)))
    return summaries


def in_turn(
    works: Sequence[Callable[[], object]],
    *,
    rounds: int,
    warm_up: int = 1,
    clock: Clock = time.perf_counter,
) -> list[list[float]]:
    """Time each of several functions once in every round.

    The first ``warm_up`` rounds do not count.

    Returns:
        Seconds, one list over the rounds for each function.
    """
    times: list[list[float]] = [[] for _ in works]
    for turn in range(rounds + warm_up):
        # every second round runs in reverse, so that no function always has the cache
        # that the same other one leaves
        order = list(range(len(works)))
        if turn % 2:
            order.reverse()
        for index in order:
            duration = seconds(works[index], clock)
            if turn >= warm_up:
                times[index].append(duration)
    return times


class LiveBytes(TorchDispatchMode):
    """Dispatch mode that counts the bytes of live tensors.

    Only tensors that were made under the mode count; ``peak`` is their largest sum.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._live_bytes = 0
        # addresses of the storages that are counted
        self._live: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func`` and note the tensors that it made."""
        output = func(*args, **kwargs or {})
        # views and results of operations in place share the storage of an input
        input_storages = {
            leaf.untyped_storage()._cdata
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, Tensor)
        }
        for leaf in tree_leaves(output):
            # tensors on the meta device hold no memory
            if not isinstance(leaf, Tensor) or leaf.is_meta:
                continue
            storage = leaf.untyped_storage()
            address = storage._cdata
            size = storage.nbytes()
            if address not in input_storages and address not in self._live:
                self._live.add(address)
                self._live_bytes += size
                self.peak = max(self.peak, self._live_bytes)
                release = weakref.finalize(storage, self._release, address, size)
                # storages that live until Python exits need no release
                release.atexit = False
        return output

    def _release(self, address: int, size: int) -> None:
        self._live.discard(address)
        self._live_bytes -= size


def measured(work: Callable[[], Any], device: torch.device) -> tuple[Any, int]:
    """Return a function's result, and the peak of the memory that it took.

    The peak is in bytes; tensors that were there before the call do not count.
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
