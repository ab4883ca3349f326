"""Progress of a running sweep, in cells and in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tsfm_lens.sweep.run.progress import Estimate
from tsfm_lens.sweep.run.tasks import GroupDone, GroupTask

Progress = Callable[[str, int, int, float | None], None]
"""Called with the stage in words, cells finished, cells in all, and seconds left or None."""


class Ledger:
    """Counts of cells and their cost: those of the stage that runs, and those that are expected after it.

    Args:
        progress: called after every change.
        workers: that share the work.
    """

    def __init__(self, progress: Progress | None, workers: int) -> None:
        self._progress, self._workers = progress, workers
        self._estimate = Estimate()
        self._later: dict[str, tuple[int, float]] = {}
        self._title = ""
        self._finished = self._pending = 0
        self._cost = 0.0

    def expect(self, model: str, cells: int, cost: float) -> None:
        """Set what is still to come of a model after the stage that runs.

        Args:
            model: its name.
            cells, cost: of all its later stages, as far as can be known; at most what their searches need.
        """
        self._later[model] = (cells, cost)

    def settle(self, model: str) -> None:
        """Record that nothing more is to come of a model."""
        self._later[model] = (0, 0.0)
        self._tell()

    def begin(self, title: str, finished: int, tasks: Sequence[GroupTask]) -> None:
        """Begin a stage.

        Args:
            title: in words.
            finished: its cells that are in the store.
            tasks: what computes the others.
        """
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
            self._estimate.update(group.task.cost, group.seconds)
        self._tell()

    def _tell(self) -> None:
        if self._progress is None:
            return
        later_cells = sum(cells for cells, _ in self._later.values())
        later_cost = sum(cost for _, cost in self._later.values())
        seconds = self._estimate.remaining(max(0.0, self._cost + later_cost), self._workers)
        self._progress(self._title, self._finished, self._finished + self._pending + later_cells, seconds)
