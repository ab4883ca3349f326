"""Timing two things side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def ratios(
    ours: Sequence[Callable[[], object]], base: Callable[[], object], *, rounds: int, warm_up: int = 1
) -> list[tuple[float, float, float]]:
    """Time several things against one baseline, in turn, so that drift of the machine cancels.

    Args:
        ours: what is measured.
        base: what it is measured against.
        rounds: times each is run, after ``warm_up`` uncounted ones.

    Returns:
        For each of ``ours`` the median, smallest and largest ratio to the baseline run of the same round.
    """
    ratios_of: list[list[float]] = [[] for _ in ours]
    for turn in range(rounds + warm_up):
        # the order alternates, so that neither side always runs on a warmer cache
        order = list(range(len(ours)))
        if turn % 2:
            order.reverse()
            times = {index: seconds(ours[index]) for index in order}
            reference = seconds(base)
        else:
            reference = seconds(base)
            times = {index: seconds(ours[index]) for index in order}
        if turn >= warm_up:
            for index, value in times.items():
                ratios_of[index].append(value / reference)
    return [(statistics.median(row), min(row), max(row)) for row in ratios_of]
