"""Runs of benchmarks that are planned and open: no verdict is looked at before.

Read :func:`open_data` first, which says what is open of each data set.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tsfm_lens.studies.queue.driver import RECORDS, Queue, QueueCell
from tsfm_lens.studies.queue.trainings import RUNS, benchmark_cells


def planned_cells() -> list[QueueCell]:
    """List the runs that are planned on benchmarks."""
    return [cell for cell in benchmark_cells(Path()) if cell.record == RUNS]


def open_runs(cells: Iterable[QueueCell]) -> str:
    """Say how many of these runs are done and what the others need.

    The text is empty if all are done.
    """
    # nothing is run here, so that the queue needs no state
    counts = Queue([*cells], RECORDS, RECORDS).status().sum()
    total, done = int(counts["cells"]), int(counts["done"])
    if done == total:
        return ""
    return (
        f"not testable yet: {done} of {total} planned runs are done, and the others"
        f" need some {counts['hours left']:.1f} hours of one core"
    )


def open_data(*models: str) -> dict[str, str]:
    """Say what is open of benchmarks' runs of these models, by data set.

    Data sets without open runs are left out.
    """
    planned: defaultdict[tuple[str, str], list[QueueCell]] = defaultdict(list)
    for cell in planned_cells():
        data, _, model = cell.group.split(" ", 2)
        planned[data, model].append(cell)
    waiting: dict[str, str] = {}
    for data in dict.fromkeys(data for data, _ in planned):
        of_models = [planned.get((data, model), []) for model in models]
        # models that are not all planned are not to be compared there
        if all(of_models):
            for text in filter(None, map(open_runs, of_models)):
                waiting.setdefault(data, text)
    return waiting
