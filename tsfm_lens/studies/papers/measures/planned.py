"""Records of the queue, read once all their planned runs are there.

Until then :func:`queued` says how many there are, and what the others need: no verdict
is looked at before.
"""

from __future__ import annotations

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
    by_data: dict[str, dict[str, list[QueueCell]]] = {}
    for cell in planned_cells(RUNS):
        data, _, model = cell.group.split(" ", 2)
        if model in models:
            by_data.setdefault(data, {}).setdefault(model, []).append(cell)
    waiting = {
        data: filter(None, map(open_runs, of_data.values()))
        for data, of_data in by_data.items()
        # else the models are not to be compared there
        if len(of_data) == len(models)
    }
    reasons = {data: next(texts, "") for data, texts in waiting.items()}
    return {data: text for data, text in reasons.items() if text}
