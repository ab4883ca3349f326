"""Records of the queue, read once all their planned runs are there.

Until then :func:`queued` says how many there are, and what the others need: no verdict
is looked at before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import xarray as xr

from tsfm_lens.studies.queue.driver import (
    RECORDS,
    Queue,
    QueueCell,
    read_record,
)
from tsfm_lens.studies.queue.trainings import RUNS, benchmark_cells, last_cells


def planned_cells(record: str) -> list[QueueCell]:
    """List the runs that are planned for a record of orders 2, 5 or 6."""
    cells = chain(benchmark_cells(Path()), last_cells(Path()))
    return [cell for cell in cells if cell.record == record]


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


def queued(name: str) -> tuple[xr.Dataset | None, str]:
    """Load a record of the queue, or say which of its runs are open.

    Returns:
        The record, None until it holds all planned runs; and what is open, empty if
        nothing is.
    """
    waiting = open_runs(planned_cells(name))
    if waiting:
        return None, waiting
    return read_record(RECORDS / f"{name}.nc"), ""


def open_data(*models: str) -> dict[str, str]:
    """Say what is open of benchmarks' runs of these models, by data set.

    Data sets without open runs are left out.
    """
    planned: defaultdict[tuple[str, str], list[QueueCell]] = defaultdict(list)
    for cell in planned_cells(RUNS):
        data, _, model = cell.group.split(" ", 2)
        planned[data, model].append(cell)
    waiting = {}
    for data in dict.fromkeys(data for data, _ in planned):
        # models that are not all planned are not to be compared there
        if all((data, model) in planned for model in models):
            texts = [open_runs(planned[data, model]) for model in models]
            waiting[data] = next(filter(None, texts), "")
    return {data: text for data, text in waiting.items() if text}
