"""State of a run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor

# of torch's generators, and of the forwards of modules that hand back what was stored
ONE_RUN = threading.RLock()


@dataclass
class RunState:
    """State of a run; interventions and recorders read it.

    Attributes:
        n_series: series (a variate is one) in the running batch; activations have a multiple of it as rows.
        step: forecast steps already read out in this run.
        offset: by stack, the position of an activation's first token (above 0 with a key-value cache).
        block_rows: series of one variant, where several variants run side by side.
        first, whole: where the run is a part of a batch, the place of its first row there, and the rows of all of it.
        sample_major: whether sample paths are the outermost part of the rows.
        sizes: lengths of "series" and "variate" in the running pass, for models that keep them apart.
    """

    n_series: int | None = None
    step: int = 0
    offset: dict[str, int] = field(default_factory=dict)
    block_rows: int | None = None
    first: int = 0
    whole: int | None = None
    sample_major: bool = False
    sizes: dict[str, int] = field(default_factory=dict)

    def restart(
        self, n_series: int | None = None, block_rows: int | None = None, part: tuple[int, int | None] = (0, None)
    ) -> None:
        """Go to the beginning of a run; without ``n_series``, of one that the lens did not start."""
        self.n_series, self.step, self.block_rows = n_series, 0, block_rows
        self.first, self.whole = part
        self.offset.clear()

    @contextmanager
    def running(
        self, rows: int, place: tuple[int, int | None] = (0, None), block_rows: int | None = None
    ) -> Iterator[None]:
        """Count steps and rows of one run of the lens's own while the block runs."""
        self.restart(rows, block_rows, place)
        try:
            yield
        finally:
            self.restart()

    def own(self, rows: Tensor) -> Tensor:
        """Return the rows of the part that runs, of a tensor with the rows of the whole batch."""
        if self.whole is None:
            return rows
        series = self.block_rows or self.n_series
        assert series is not None
        paths = (len(rows) // self.whole, self.whole, -1) if self.sample_major else (1, self.whole, -1)
        return rows.unflatten(0, paths).narrow(1, self.first, series).flatten(0, 2)
