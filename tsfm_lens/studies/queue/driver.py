"""Cells of experiments, run in order, each added to its record at once.

The records alone say what is done, so that the state may be lost. Read
:class:`QueueCell` and :meth:`Queue.work` first; :func:`added` joins a cell's part to
its record. Which cells there are is in the other modules of this package.
"""

from __future__ import annotations

import fcntl
import gc
import json
import multiprocessing
import re
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import xarray as xr

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.io import replacing
from tsfm_lens.core.processes import clean_context
from tsfm_lens.core.registry import declarations
from tsfm_lens.training.loop import taking_signals

__all__ = [
    "PLAN",
    "RECORDS",
    "QueueCell",
    "Workplace",
    "Queue",
    "added",
    "joined",
    "read_record",
    "unfinished",
]

RECORDS = Path(__file__).parents[1] / "experiments" / "results" / "queue"
"""Folder of the records that ship; its README describes them."""

PLAN: dict[str, Any] = declarations(Path(__file__).with_name("plan.yaml"))
"""Seeds and sizes of all experiments, fixed beforehand."""

SECONDS = "processor_seconds"
"""Variable of a record over ``cell``, the names of what it holds."""

DEVICE = "device"
"""Variable of a record over ``cell``: "cpu", or "cuda" for a GPU."""


@dataclass(frozen=True)
class Workplace:
    """Folders that a cell runs in.

    ``folder`` keeps what it needs to go on after a stop, ``records`` are all records.
    """

    folder: Path
    records: Path

    @property
    def corpora(self) -> Path:
        """Folder of the series that recipes are trained on, shared by all cells."""
        return self.folder.parent.parent / "corpora"


@dataclass(frozen=True)
class QueueCell:
    """One experiment of the queue.

    Attributes:
        order: number of its subject in the queue; cells of one order run as they are
            listed.
        record: name of the record that it is kept in.
        name: name of the cell, unique in its record.
        run: function that computes its part of the record in a workplace, and returns
            None if it was stopped.
        group: name shared by cells that cost about the same; the record's if empty.
        seconds: processor seconds that it is expected to take.
        files: files that it reads.
        needs_cuda: whether it runs on a GPU alone.
    """

    order: int
    record: str
    name: str
    run: Callable[[Workplace], xr.Dataset | None]
    group: str = ""
    seconds: float = 0.0
    files: tuple[Path, ...] = ()
    needs_cuda: bool = False

    @classmethod
    def seeded(
        cls,
        order: int,
        record: str,
        title: str,
        seed: int,
        run: Callable[[Workplace], xr.Dataset | None],
        **more: Any,
    ) -> QueueCell:
        """Return the cell of one seed; those of all seeds of a title cost alike."""
        return cls(order, record, f"{title}, seed {seed}", run, title, **more)

    @property
    def key(self) -> tuple[str, str]:
        """Record and name, by which it is known."""
        return self.record, self.name

    @property
    def folder(self) -> str:
        """Name of the folder with what the cell needs to resume."""
        return re.sub(r"[^\w.=+-]+", "-", f"{self.record} {self.name}")

    @property
    def missing(self) -> list[str]:
        """What it needs and is not there: names of files, or a CUDA device."""
        missing = [file.name for file in self.files if not file.exists()]
        if self.needs_cuda and not torch.cuda.is_available():
            missing.append("a CUDA device")
        return missing


def read_record(file: Path) -> xr.Dataset | None:
    """Read a record, None if there is none yet."""
    if not file.exists():
        return None
    with xr.open_dataset(file, engine="scipy") as data:
        return data.load()


def write_record(record: xr.Dataset, file: Path) -> None:
    """Write a record; the former one stays whole until then."""
    with replacing(file) as new:
        record.to_netcdf(new, engine="scipy")


def added(
    record: xr.Dataset | None,
    part: xr.Dataset,
    name: str,
    seconds: float,
    device: str = "cpu",
) -> xr.Dataset:
    """Add the part of a cell to what the record holds, NaN where neither has a value.

    Raises:
        InputError: the record has a cell of that name.
    """
    numbered = {
        dim: np.arange(size)
        for dim, size in part.sizes.items()
        if dim not in part.coords
    }
    part = part.assign_coords({**numbered, "cell": [name]})
    cost = {SECONDS: ("cell", [float(seconds)]), DEVICE: ("cell", [device])}
    part = part.assign(cost)
    if record is None:
        return part
    return joined(record, part)


def joined(record: xr.Dataset, part: xr.Dataset) -> xr.Dataset:
    """Join a record and one of other cells, NaN where neither has a value.

    Raises:
        InputError: both have a cell of one name.
    """
    names = record["cell"].values
    for name in part["cell"].values:
        if name in names:
            raise InputError(
                f"the record has the cell {name!r} already; it is not added again"
            )
    record, part = _with_device(record), _with_device(part)
    labels = {*record.coords, *part.coords} - {*record.dims, *part.dims}
    combined = part.reset_coords().combine_first(record.reset_coords())
    # combine_first sorts labels; they stay in the order in which they came
    order = {dim: _union(record.get(dim), part.get(dim)) for dim in combined.dims}
    return (
        combined.reindex(order)
        .set_coords(labels)
        .assign_attrs({**record.attrs, **part.attrs})
    )


def _with_device(record: xr.Dataset) -> xr.Dataset:
    """Return a record with the devices of its cells."""
    if DEVICE in record:
        return record
    # older records have none, and all their cells ran on a CPU
    return record.assign({DEVICE: ("cell", ["cpu"] * record.sizes["cell"])})


def _union(*labels: xr.DataArray | None) -> list[object]:
    known = [part.values.tolist() for part in labels if part is not None]
    return list(dict.fromkeys(chain.from_iterable(known)))


class Queue:
    """Cells in their order, with the folder of the records and one of state.

    The state may be lost.

    Args:
        cells: cells of all orders, each once.
        records: folder of the records, which ship.
        state: folder of locks, failures, and what unfinished cells need to resume.

    Raises:
        InputError: two cells have one name in one record.
    """

    def __init__(self, cells: Sequence[QueueCell], records: Path, state: Path) -> None:
        self.cells = sorted(cells, key=lambda cell: cell.order)
        self.records = records
        self.state = state
        for (record, name), count in Counter(cell.key for cell in cells).items():
            if count > 1:
                raise InputError(
                    f"the cell {name!r} stands {count} times in {record!r}"
                )
        self.stopped = False

    @property
    def stop_file(self) -> Path:
        """File that ends the queue after the running cell."""
        return self.state / "stop"

    def finished(self) -> dict[tuple[str, str], float]:
        """Return the processor seconds of every cell that its record holds."""
        seconds = {}
        for name in {cell.record for cell in self.cells}:
            record = read_record(self.records / f"{name}.nc")
            if record is not None:
                for cell, took in record[SECONDS].to_series().items():
                    seconds[name, str(cell)] = float(took)
        return seconds

    def failures(self) -> dict[tuple[str, str], str]:
        """Return the errors of cells that failed, by the cell."""
        file = self.state / "failed.jsonl"
        if not file.exists():
            return {}
        lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
        return {(line["record"], line["cell"]): line["error"] for line in lines}

    def forget_failures(self) -> None:
        """Let cells that failed be tried again."""
        (self.state / "failed.jsonl").unlink(missing_ok=True)

    def work(self, say: Callable[[str], None] = print, *, processes: int = 1) -> int:
        """Run the cells that are open, and return how many were finished.

        A stop file or SIGTERM ends it; a failed cell is noted, and the next one runs.

        Args:
            say: is told of every cell that ends.
            processes: number of cells that run at a time, each in a process of its own;
                of several, the longest cells of an order start first.

        Raises:
            InputError: another queue works on this state.
        """
        for folder in (self.state, self.records):
            folder.mkdir(parents=True, exist_ok=True)
        closed = self.finished().keys() | self.failures().keys()
        cells = [
            cell for cell in self.cells if cell.key not in closed and not cell.missing
        ]
        with self._alone(), taking_signals(self._stop):
            outcomes = self._in_turn(cells)
            if processes > 1:
                outcomes = self._beside(cells, processes)
            return sum(self._end(cell, outcome, say) for cell, outcome in outcomes)

    def _before_stop(self, cells: Iterable[QueueCell]) -> Iterator[QueueCell]:
        """Yield cells until the queue is asked to stop."""
        for cell in cells:
            if self.stopped or self.stop_file.exists():
                return
            yield cell

    def _in_turn(self, cells: Iterable[QueueCell]) -> Iterator[_Running]:
        """Yield each cell with what computes it here."""
        for cell in self._before_stop(cells):
            yield cell, partial(_computed, cell.run, self._place(cell))

    def _beside(self, cells: Iterable[QueueCell], processes: int) -> Iterator[_Running]:
        """Run cells in processes, and yield each that has ended."""
        expected = self._expected(self.finished())
        cells = sorted(cells, key=lambda cell: (cell.order, -expected[cell.key]))
        waiting = self._before_stop(cells)
        running: dict[Future[_Outcome], QueueCell] = {}
        context = clean_context([WITH_LIBRARIES])
        with ProcessPoolExecutor(processes, context, _start_worker) as pool:
            while True:
                for cell in islice(waiting, processes - len(running)):
                    outcome = pool.submit(_computed, cell.run, self._place(cell))
                    running[outcome] = cell
                if not running:
                    return
                if self.stopped:
                    for worker in multiprocessing.active_children():
                        worker.terminate()
                ended, _ = wait(running, timeout=1, return_when=FIRST_COMPLETED)
                for outcome in ended:
                    yield running.pop(outcome), outcome.result

    def _place(self, cell: QueueCell) -> Workplace:
        folder = self.state / "work" / cell.folder
        folder.mkdir(parents=True, exist_ok=True)
        return Workplace(folder, self.records)

    def _end(
        self,
        cell: QueueCell,
        outcome: Callable[[], _Outcome],
        say: Callable[[str], None],
    ) -> bool:
        """Wait for what a cell computed, and keep it; return whether it is finished."""
        folder = self._place(cell).folder
        spent = folder / "spent"
        before = 0.0
        if spent.exists():
            before = float(spent.read_text())
        try:
            part, seconds, device = outcome()
            seconds += before
            if part is None:
                self.stopped = True
                spent.write_text(f"{seconds}")
                say(f"{_now()} stopped in {cell.record}: {cell.name}")
                return False
            self._keep(cell, part, seconds, device)
        except BrokenProcessPool:
            # a process was killed, of whichever cell
            self.stopped = True
            say(f"{_now()} killed in {cell.record}: {cell.name}")
            return False
        # any error: one cell that fails must not keep the others from running
        except Exception as error:
            self._note_failure(cell, error)
            say(f"{_now()} FAILED {cell.record}: {cell.name}: {error}")
            return False
        shutil.rmtree(folder, ignore_errors=True)
        say(f"{_now()} order {cell.order}, {cell.record}: {cell.name}, {seconds:.0f} s")
        return True

    def _keep(
        self, cell: QueueCell, part: xr.Dataset, seconds: float, device: str
    ) -> None:
        file = self.records / f"{cell.record}.nc"
        record = added(read_record(file), part, cell.name, seconds, device)
        write_record(record, file)

    def _note_failure(self, cell: QueueCell, error: Exception) -> None:
        line = {
            "record": cell.record,
            "cell": cell.name,
            "error": f"{type(error).__name__}: {error}",
            "when": _now(),
            "trace": traceback.format_exc(),
        }
        with (self.state / "failed.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        # a lock of the kernel ends with its process, however that ends
        with (self.state / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    f"another queue works in {self.state}; stop it first, by"
                    f" {self.stop_file}"
                ) from None
            yield

    def _stop(self, *_: object) -> None:
        self.stopped = True

    def status(self) -> pd.DataFrame:
        """Count cells by order and record: done, failed, without files, open.

        Hours used and those that remain are given too.

        What remains is the mean of finished cells of the same group, or what was
        expected where none is finished.
        """
        finished = self.finished()
        failed = self.failures()
        expected = self._expected(finished)
        rows = []
        for cell in self.cells:
            took = finished.get(cell.key)
            is_open = took is None
            rows.append(
                {
                    "order": cell.order,
                    "record": cell.record,
                    "cells": 1,
                    "done": not is_open,
                    "failed": is_open and cell.key in failed,
                    "no file": is_open and bool(cell.missing),
                    "hours used": (took or 0.0) / 3600,
                    "hours left": is_open * expected[cell.key] / 3600,
                }
            )
        return pd.DataFrame(rows).groupby(["order", "record"]).sum()

    def _expected(self, finished: Mapping[tuple[str, str], float]) -> pd.Series[float]:
        """Return the seconds that each cell should take, by those of its group if any.

        ``finished`` are the seconds that finished cells took.
        """
        rows = [
            (cell.record, cell.group, cell.seconds, finished.get(cell.key, np.nan))
            for cell in self.cells
        ]
        table = pd.DataFrame(
            rows,
            index=[cell.key for cell in self.cells],
            columns=["record", "group", "seconds", "took"],
        )
        means = table.groupby(["record", "group"])["took"].transform("mean")
        return means.fillna(table["seconds"])


WITH_LIBRARIES = f"{__package__}.language"
"""A module with whose libraries processes of cells begin."""


class _Outcome(NamedTuple):
    """What a cell computed, None if it was stopped, and what that took."""

    part: xr.Dataset | None
    seconds: float
    device: str


_Running = tuple[QueueCell, Callable[[], _Outcome]]
"""A cell, and what waits for its outcome."""


def _computed(
    run: Callable[[Workplace], xr.Dataset | None], workplace: Workplace
) -> _Outcome:
    """Run a cell; whether it used a GPU is seen from the memory that it took there."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    start = time.process_time()
    part = run(workplace)
    seconds = time.process_time() - start
    device = "cpu"
    if torch.cuda.is_initialized() and torch.cuda.max_memory_allocated():
        device = "cuda"
    return _Outcome(part, seconds, device)


def _start_worker() -> None:
    """Prepare a process for cells; a cell that can be stopped takes signals itself."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)


def unfinished(queue: Queue) -> list[QueueCell]:
    """List the cells that no record holds."""
    finished = queue.finished()
    return [cell for cell in queue.cells if cell.key not in finished]


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")
