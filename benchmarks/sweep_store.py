"""The store and the engines of sweeps, without a model: rows per second, cells per
second, overhead per cell.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from tsfm_lens import testing
from tsfm_lens.sweep.engine.engines import run_groups
from tsfm_lens.sweep.engine.ray_engine import connect
from tsfm_lens.sweep.engine.workers import GroupDone, GroupTask
from tsfm_lens.sweep.statistics.changes import changes
from tsfm_lens.sweep.statistics.scores import DISTANCES, SUMS, per_series
from tsfm_lens.sweep.store import KEY_COLUMNS, Store, cell_key

Row = tuple[str, str, str, str, bool | None]
VALUES = (*SUMS, *DISTANCES)
REPORTED = ("MASE", "NRMSE", "sMAPE", "CRPS", "MSIS", "spearman_distance")

# a million rows: variants × datasets × series, in files of 50 variants
VARIANTS = 250
DATASETS = 100
SERIES = 40
BLOCK = 50
SECONDS = 60.0
MEMORY = 1e9
# fixed work of a cell, and the size of groups and runs
WORK = 0.004
CELLS = 16
GROUPS = 60
SHARE_OF_FORWARD = 0.02


def group_rows(
    cells: list[str], variants: list[str], dataset: str, series: int
) -> pa.Table:
    """Rows of a group as the worker of a sweep makes them, with random numbers in the
    place of scores.
    """
    count = len(cells)
    rng = np.random.default_rng(int(cells[0], 16))

    def words(values: list[str], in_blocks: bool) -> pa.DictionaryArray:
        codes = np.arange(len(values), dtype=np.int32)
        return pa.DictionaryArray.from_arrays(
            np.repeat(codes, series) if in_blocks else np.tile(codes, count), values
        )

    zero = np.zeros(count * series, dtype=np.int32)
    return pa.table(
        {
            "cell": words(cells, True),
            "model": pa.DictionaryArray.from_arrays(zero, ["model"]),
            "variant": words(variants, True),
            "dataset": pa.DictionaryArray.from_arrays(zero, [dataset]),
            "item": words([f"item {index}" for index in range(series)], False),
            "window": zero,
            "variate": zero,
            **{name: 1 + rng.random(count * series) for name in VALUES},
        }
    )


def write_million(path: Path) -> list[str]:
    """Write a million rows in groups of a realistic size."""
    store = Store(path)
    written = []
    for dataset in range(DATASETS):
        for first in range(0, VARIANTS, BLOCK):
            names = [
                "plain" if v == 0 else f"variant {v}"
                for v in range(first, first + BLOCK)
            ]
            cells = [cell_key(dataset=dataset, variant=name) for name in names]
            store.write(group_rows(cells, names, f"dataset {dataset}", SERIES), cells)
            written += cells
    return written


def store_once() -> dict[str, float]:
    """Write, find, read and pool a million rows, and test every variant's change;
    seconds, and peak memory in bytes.
    """
    before = _peak()
    measured: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        start = time.perf_counter()
        cells = write_million(path)
        measured["write"] = time.perf_counter() - start
        store = Store(path, create=False)
        measured["done"] = _seconds(store.done)
        start = time.perf_counter()
        # some datasets at a time, so that never all rows are held
        batch = VARIANTS * 10
        parts = []
        for first in range(0, len(cells), batch):
            rows = store.read(
                cells[first : first + batch], [*KEY_COLUMNS, *SUMS, "spearman_distance"]
            ).to_pandas()
            parts.append(per_series(rows, REPORTED))
        measured["read"] = time.perf_counter() - start
        series = pd.concat(parts, ignore_index=True)
        assert len(series) == VARIANTS * DATASETS * SERIES
        measured["changes"] = _seconds(lambda: changes(series, metric="MASE"))
        measured["disk"] = float(
            sum(file.stat().st_size for file in path.rglob("*.parquet"))
        )
    measured["peak"], measured["before"] = _peak(), before
    return measured


def store_rows() -> list[Row]:
    """A million result rows written and reported on, in a fresh process so that the
    peak memory is its own.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        measured = pool.apply(store_once)
    parts = ("write", "done", "read", "changes")
    total = sum(measured[part] for part in parts)
    span = ", ".join(f"{part} {measured[part]:.1f} s" for part in parts)
    memory = (
        f"{measured['before'] / 1e6:.0f} MB of it the imported libraries;"
        f" {measured['disk'] / 1e6:.0f} MB on disk"
    )
    return [
        (
            "store: a million rows written and reported on",
            f"{total:.1f} s",
            span,
            f"< {SECONDS:g} s",
            total < SECONDS,
        ),
        (
            "store: peak memory of that",
            f"{measured['peak'] / 1e6:.0f} MB",
            memory,
            "< 1 GB",
            measured["peak"] < MEMORY,
        ),
    ]


class Toy:
    """A worker of fixed work: so many seconds of processor time per cell."""

    def __init__(self, common: dict[str, Any], device: str | None = None) -> None:
        self.work = common["work"]

    def __call__(self, task: GroupTask) -> pa.Table:
        end = time.process_time() + self.work * len(task.cells)
        while time.process_time() < end:
            pass
        return group_rows(
            list(task.cells), [cell[:8] for cell in task.cells], "toy", SERIES
        )


def run_engine(
    engine: str, workers: int, work: float, groups: int = GROUPS
) -> tuple[float, float, float]:
    """Cells per second once all workers run, seconds to the first group, and seconds of
    a group inside its worker.
    """
    tasks = [
        GroupTask(tuple(cell_key(g=group, c=cell) for cell in range(CELLS)))
        for group in range(groups)
    ]
    times: list[float] = []
    busy: list[float] = []

    def note(done: GroupDone) -> None:
        times.append(time.perf_counter())
        busy.append(done.seconds)

    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        store = Store(folder)
        outcomes = run_groups(
            tasks,
            Toy,
            {"work": work},
            store,
            engine=engine,
            workers=workers,
            on_done=note,
        )
        assert all(outcome.how == "finished" for outcome in outcomes)
    skipped = 2 * workers
    rate = CELLS * (len(times) - 1 - skipped) / (times[-1] - times[skipped])
    return rate, times[0] - start, statistics.median(busy)


def engine_rows(
    engines: tuple[str, ...] = ("single", "processes", "ray"),
) -> Iterator[Row]:
    """Cells per second of fixed work with one and two workers, and what the engine adds
    to a cell.
    """
    forward = base_forward()
    for engine in engines:
        if engine == "ray":
            start_ray()
        for workers in (1,) if engine == "single" else (1, 2):
            rate, first, _ = run_engine(engine, workers, WORK)
            ideal = min(workers, os.cpu_count() or 1) / WORK
            note = (
                f"{1000 * WORK:g} ms of work per cell, at most {ideal:.0f}; first group"
                f" after {first:.1f} s"
            )
            yield (
                f"{engine}, {workers} worker(s): cells per second",
                f"{rate:.0f}",
                note,
                "",
                None,
            )
        # one worker without work: what is left is claiming, writing, scheduling and
        # sending
        idle, _, inside = run_engine(engine, 1, 0.0, 4 * GROUPS)
        overhead = 1 / idle
        note = (
            f"groups of {CELLS} cells × {SERIES} series, {1000 * inside:.1f} ms of each"
            " for making and writing rows; a Bolt-base forecast of one series takes"
            f" {1000 * forward:.0f} ms"
        )
        limit = SHARE_OF_FORWARD * forward
        name = f"{engine}: the engine's own time per cell"
        value = f"{1000 * overhead:.2f} ms"
        yield name, value, note, f"< {1000 * limit:.2f} ms", overhead < limit


def start_ray() -> None:
    """A cluster of this machine, one for all measurements."""
    folder = tempfile.mkdtemp()
    # jsonschema, if this is there, spends seconds on a grammar in each of Ray's
    # processes, which have 15 to start
    Path(folder, "rfc3987_syntax.py").write_text(
        "raise ImportError('not in benchmarks')"
    )
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [folder, str(Path.cwd()), os.environ.get("PYTHONPATH", "")]
    )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    connect()


def base_forward(rounds: int = 5) -> float:
    """Seconds of a forecast of one series of 512 steps by a model of Chronos-Bolt
    base's size, random weights.
    """
    from tsfm_lens.data import as_series
    from tsfm_lens.models import load

    lens = load(testing.published("chronos-bolt", "base"), check=False)
    series = as_series([np.sin(np.arange(512) / 4)])
    return statistics.median(
        _seconds(lambda: lens.forecast(series, 64)) for _ in range(rounds + 1)
    )


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _peak() -> float:
    # kilobytes, but bytes on macOS
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1.0 if sys.platform == "darwin" else 1e3
    )


if __name__ == "__main__":
    for measure in (store_rows, engine_rows):
        for row in measure():
            print(*row, sep=" | ", flush=True)
