"""State of a run."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field

from torch import Tensor

from tsfm_lens.hooks.block import Block, Steps


class Turns:
    """Queue in which one thread at a time holds a turn, by a token; each change is one call of C, for interrupts."""

    def __init__(self) -> None:
        self._queue: list[tuple[int, object]] = []

    def take(self, token: object) -> None:
        """Wait until no other thread holds a turn, and hold one."""
        thread = threading.get_ident()
        self._queue.append((thread, token))
        while self._queue[0][0] != thread:
            time.sleep(0.001)

    def give(self, token: object) -> None:
        """Give a turn back; a token that holds none is left alone."""
        for entry in tuple(self._queue):
            if entry[1] is token:
                with contextlib.suppress(ValueError):
                    self._queue.remove(entry)


# of torch's generators, and of the forwards of modules that hand back what was stored
ONE_RUN = Turns()


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

    def running(
        self, rows: int, place: tuple[int, int | None] = (0, None), block_rows: int | None = None
    ) -> Block[None]:
        """Count steps and rows of one run of the lens's own while the block runs."""
        return Block(Steps(None, lambda: self.restart(rows, block_rows, place), self.restart))

    def own(self, rows: Tensor) -> Tensor:
        """Return the rows of the part that runs, of a tensor with the rows of the whole batch."""
        if self.whole is None:
            return rows
        series = self.block_rows or self.n_series
        assert series is not None
        paths = (len(rows) // self.whole, self.whole, -1) if self.sample_major else (1, self.whole, -1)
        return rows.unflatten(0, paths).narrow(1, self.first, series).flatten(0, 2)
