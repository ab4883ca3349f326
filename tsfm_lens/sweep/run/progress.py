"""Time left of a sweep, from what was measured in this run and nothing else."""

from __future__ import annotations

from collections import deque


class Estimate:
    """Seconds left, by the pace of the groups that this run finished last.

    Groups of an earlier run do not count: they say nothing of this machine. Before the first group there is none.

    Args:
        window: how many of the last groups the pace is taken from; few enough to follow a change of the model, enough
            to even out groups.
    """

    def __init__(self, window: int = 32) -> None:
        self._last: deque[tuple[float, float]] = deque(maxlen=window)

    def update(self, cost: float, seconds: float) -> None:
        """Take in a finished group.

        Args:
            cost: of the group, in the units in which the plan counts.
            seconds: that one worker took for it.
        """
        self._last.append((cost, seconds))

    @property
    def pace(self) -> float | None:
        """Seconds that one worker takes per unit of cost; None before the first group."""
        cost = sum(cost for cost, _ in self._last)
        return sum(seconds for _, seconds in self._last) / cost if cost > 0 else None

    def remaining(self, pending_cost: float, workers: int = 1) -> float | None:
        """Estimate the seconds until the rest is done.

        Args:
            pending_cost: of the groups that are not finished.
            workers: that share them.

        Returns:
            Seconds, 0 when nothing is left; None while nothing was measured.
        """
        if pending_cost <= 0:
            return 0.0
        pace = self.pace
        return None if pace is None else pace * pending_cost / max(1, workers)
