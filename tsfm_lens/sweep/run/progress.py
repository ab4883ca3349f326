"""Progress of a running sweep, in cells and in time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from tsfm_lens.sweep.run.tasks import GroupDone, GroupTask

Progress = Callable[[str, int, int, float | None], None]
"""Called with the stage in words, cells finished, cells in all, and seconds left or None."""
_WINDOW = 32


class SweepProgress:
    """Counts of cells and their cost: those of the stage that runs, and those that are expected after it.

    Time left goes by the pace of the groups that this run finished last: few enough to follow a change of the model,
    enough to even out groups. Groups of an earlier run do not count: they say nothing of this machine.

    Args:
        progress: called after every change.
        workers: that share the work.
    """

    def __init__(self, progress: Progress | None, workers: int) -> None:
        self._progress, self._workers = progress, workers
        self._last: deque[tuple[float, float]] = deque(maxlen=_WINDOW)
        self._later: dict[str, tuple[int, float]] = {}
        self._title = ""
        self._finished = self._pending = 0
        self._cost = 0.0

    def expect(self, model: str, cells: int, cost: float) -> None:
        """Set how many cells of a model, and what work, are still to come after this stage, at most."""
        self._later[model] = (cells, cost)

    def settle(self, model: str) -> None:
        """Record that nothing more is to come of a model."""
        self._later[model] = (0, 0.0)
        self._tell()

    def begin(self, title: str, finished: int, tasks: Sequence[GroupTask]) -> None:
        """Begin a stage of which so many cells are in the store, and ``tasks`` compute the others."""
        self._title = title
        self._finished += finished
        self._pending = sum(len(task.cells) for task in tasks)
        self._cost = sum(task.cost for task in tasks)
        self._tell()

    def done(self, group: GroupDone) -> None:
        """Count a group of the stage that has ended."""
        cells = len(group.task.cells)
        if group.how != "failed":
            self._finished += cells
            self._pending -= cells
        self._cost -= group.task.cost
        if group.how == "finished":
            self._last.append((group.task.cost, group.seconds))
        self._tell()

    def seconds_left(self, cost: float) -> float | None:
        """Estimate the seconds that work of some cost takes all workers; None before the first group."""
        if cost <= 0:
            return 0.0
        measured = sum(each for each, _ in self._last)
        return sum(seconds for _, seconds in self._last) / measured * cost / self._workers if measured else None

    def _tell(self) -> None:
        if self._progress is not None:
            cells = sum(cells for cells, _ in self._later.values())
            cost = self._cost + sum(cost for _, cost in self._later.values())
            total = self._finished + self._pending + cells
            self._progress(self._title, self._finished, total, self.seconds_left(cost))
