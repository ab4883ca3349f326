"""All cells of the queue, in their order, from its plan."""

from __future__ import annotations

from pathlib import Path

from tsfm_lens.studies.queue.driver import QueueCell
from tsfm_lens.studies.queue.language import language_cells, level_cells
from tsfm_lens.studies.queue.lens_paper import lens_cells
from tsfm_lens.studies.queue.ranks import rank_cells
from tsfm_lens.studies.queue.trainings import (
    benchmark_cells,
    last_cells,
    rate_cells,
    small_cells,
)


def all_cells(data: Path) -> list[QueueCell]:
    """Return the cells of all orders; ``data`` is the folder of the benchmark files."""
    return [
        *small_cells(data),
        *lens_cells(),
        *benchmark_cells(data),
        *rank_cells(),
        *language_cells(),
        *rate_cells(),
        *last_cells(data),
        *level_cells(),
    ]
