"""Timing of two functions side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

Clock = Callable[[], float]


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
    """Time several things against one baseline, in turn, so that drift of the machine cancels.

    Args:
        ours: the functions to measure.
        base: the baseline.
        rounds: times each is run, after ``warm_up`` uncounted ones.
        clock: ``time.process_time`` on a machine that others use, for work of one thread.

    Returns:
        For each of ``ours`` the median, smallest and largest ratio to the baseline run of the same round.
    """
    times = in_turn([*ours, base], rounds=rounds, warm_up=warm_up, clock=clock)
    of_base = times[-1]
    rows = [[one / other for one, other in zip(row, of_base, strict=True)] for row in times[:-1]]
    return [(statistics.median(row), min(row), max(row)) for row in rows]


def in_turn(
    works: Sequence[Callable[[], object]], *, rounds: int, warm_up: int = 1, clock: Clock = time.perf_counter
) -> list[list[float]]:
    """Measure the seconds of each of several functions by round, in turn.

    Args:
        works: the functions to time.
        rounds: times each is run, after ``warm_up`` uncounted ones.
        clock: see :func:`ratios`.
    """
    times: list[list[float]] = [[] for _ in works]
    for turn in range(rounds + warm_up):
        # the order alternates, so that neither side always runs on a warmer cache
        order = list(range(len(works)))
        for index in reversed(order) if turn % 2 else order:
            duration = seconds(works[index], clock)
            if turn >= warm_up:
                times[index].append(duration)
    return times
