"""Shared by the tests of sweeps: processes that are killed, and tables that must not
notice.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tsfm_lens.core.processes import clean_context
from tsfm_lens.sweep.store import KEY_COLUMNS, Store

# processes of tests import their worker from this folder
sys.path.insert(0, str(Path(__file__).parent))
# seconds after which something is taken to hang
_PATIENCE = 300


@pytest.fixture(scope="session", autouse=True)
def libraries() -> None:
    """What takes long to import is there before any process starts, and kills hit its
    work.
    """
    clean_context(["tsfm_lens.sweep.engine.cells", "chronos"])
    forkserver.ensure_running()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store of toy numbers."""

    return Store(tmp_path / "store")


def _begin(started: Any, run: Callable[..., None], arguments: Sequence[Any]) -> None:
    # a shell in the background lets its processes ignore this, and tests send it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    started.set()
    run(*arguments)


@pytest.fixture
def start_process() -> Iterator[Callable[..., Any]]:
    """Starts ``run(*arguments)`` in a process of its own, and returns when it has
    begun; ended with the test.
    """
    context = multiprocessing.get_context("forkserver")
    processes = []

    def start(run: Callable[..., None], *arguments: Any) -> Any:
        started = context.Event()
        process = context.Process(target=_begin, args=(started, run, arguments))
        process.start()
        processes.append(process)
        assert started.wait(_PATIENCE), "the process did not start"
        return process

    yield start
    for process in processes:
        if process.is_alive():
            process.kill()
        process.join()


@pytest.fixture
def kill_often(start_process: Callable[..., Any]) -> Callable[..., int]:
    """Runs something that resumes from a store many times, and kills it each time."""

    def kill(
        run: Callable[..., None],
        *arguments: Any,
        store: Path,
        kills: int,
        longest: float,
        seed: int = 0,
        begun: Callable[[], Any] = lambda: None,
    ) -> int:
        delays = random.Random(seed)
        for hit in range(kills):
            process = start_process(run, *arguments)
            begun()
            process.join(delays.uniform(0, longest))
            process.kill()
            process.join()
            if process.exitcode != -signal.SIGKILL:
                assert process.exitcode == 0
                return hit
            if (store / "store.json").exists():
                from sweep_toys import check_undamaged

                check_undamaged(store)
        return kills

    return kill


@pytest.fixture
def parse_table() -> Callable[..., pd.DataFrame]:
    """The rows of all of a store's cells, sorted, none twice: what two stores are
    compared by.
    """

    def table(path: Path, cells: Sequence[str] | None = None) -> pd.DataFrame:
        store = Store(path, create=False)
        found = store.read(store.done() if cells is None else cells).to_pandas()
        found = found.astype(
            dict.fromkeys(["cell", "model", "variant", "dataset", "item"], str)
        )
        assert not found.duplicated(["cell", "item", "window", "variate"]).any()
        return found.sort_values(list(KEY_COLUMNS), ignore_index=True)

    return table


@pytest.fixture
def wait_for_condition() -> Callable[..., None]:
    """Waits until something is so, however slow the machine; fails if that takes longer
    than any test may.
    """

    def wait(so: Callable[[], Any]) -> None:
        end = time.monotonic() + _PATIENCE
        while not so():
            assert time.monotonic() < end, f"waited for {_PATIENCE} s"
            time.sleep(0.01)

    return wait


@pytest.fixture
def alive() -> Callable[[int], bool]:
    """Whether a process still runs; a zombie does not."""

    def is_alive(pid: int) -> bool:
        try:
            os.kill(pid, 0)
            return (
                Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                != "Z"
            )
        except (ProcessLookupError, FileNotFoundError):
            return False

    return is_alive
