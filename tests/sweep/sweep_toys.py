"""A worker without a model: numbers made from the cells' keys; importable by the
processes that tests start.
"""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from tsfm_lens.sweep.engine.engines import run_groups
from tsfm_lens.sweep.engine.workers import GroupDone, GroupTask
from tsfm_lens.sweep.store import Store, cell_key

VALUES = ("error", "distance")
ReadTable = Callable[..., pd.DataFrame]
Start = Callable[..., Any]
Wait = Callable[..., None]
KillOften = Callable[..., int]
IsAlive = Callable[[int], bool]
CELLS = tuple(cell_key(cell=number) for number in range(6))


def toy_rows(cells: Sequence[str], rows: int = 3) -> pa.Table:
    """Rows of some cells; the numbers follow from each cell's key alone."""
    frames = [
        pd.DataFrame(
            {
                "cell": cell,
                "model": "toy",
                "variant": cell[:8],
                "dataset": "keys",
                "item": [f"item {row}" for row in range(rows)],
                "window": np.zeros(rows, dtype=np.int32),
                "variate": np.zeros(rows, dtype=np.int32),
                **dict(
                    zip(
                        VALUES,
                        np.random.default_rng(int(cell, 16)).normal(size=(2, rows)),
                        strict=True,
                    )
                ),
            }
        )
        for cell in cells
    ]
    return pa.Table.from_pandas(pd.concat(frames), preserve_index=False)


def toy_tasks(
    groups: int, cells: int = 4, *, data: Any = None, **payload: Any
) -> list[GroupTask]:
    """Tasks of the toy worker."""
    which = payload.pop("which", -1)
    misbehave = payload.pop("misbehave", "")
    return [
        GroupTask(
            tuple(cell_key(group=group, cell=cell) for cell in range(cells)),
            {**payload, "misbehave": misbehave if group == which else ""},
            data,
            label=f"group {group}",
        )
        for group in range(groups)
    ]


def make_toy(
    common: dict[str, Any], device: str | None
) -> Callable[[GroupTask], pa.Table]:
    """A worker that takes ``seconds`` a group, and notes in the folder ``notes`` what
    it does.
    """
    if common.get("broken"):
        raise RuntimeError("the toy is broken")
    notes = None
    if "notes" in common:
        notes = Path(common["notes"])
    note(notes, "workers", f"{os.getpid()} {device}")
    begun = 0

    def work(task: GroupTask) -> pa.Table:
        nonlocal begun
        begun += 1
        if begun > common.get("most", begun):
            time.sleep(3600)
        if begun == 1 and "together" in common:
            note(notes, "begun", str(os.getpid()))
            while (
                len({pid for (pid,) in list_notes(notes, "begun")}) < common["together"]
            ):
                time.sleep(0.01)
        time.sleep(common.get("seconds", 0.0))
        misbehave = task.payload["misbehave"]
        if misbehave == "raise":
            raise ZeroDivisionError("no toy can do that")
        if misbehave == "die" or (
            misbehave == "die once" and not (notes / "died").exists()
        ):
            if misbehave == "die once":
                note(notes, "died", str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        if task.data is None:
            where = os.environ.get("RAY_NODE_IP_ADDRESS", "")
        else:
            where = task.data
        note(notes, "computed", f"{task.key} {os.getpid()} {where}")
        return toy_rows(task.cells, task.payload.get("rows", 3))

    return work


def note(folder: Path | None, name: str, line: str) -> None:
    """Add a line to a file that several processes write."""
    if folder is not None:
        with open(folder / name, "ab", buffering=0) as file:
            file.write(f"{line}\n".encode())


def list_notes(folder: Path, name: str) -> list[list[str]]:
    """Words of each line that was noted."""
    path = folder / name
    if path.exists():
        return [line.split() for line in path.read_text().splitlines()]
    return []


def check_undamaged(path: Path, store: Store | None = None) -> None:
    """Check that a store, opened now or before, warns of no file."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (store or Store(path, create=False)).done()


def count_outcomes(outcomes: Sequence[GroupDone]) -> dict[str, int]:
    """How many groups ended in which way."""
    return dict(Counter(outcome.how for outcome in outcomes))


class Counted:
    """Shared data that notes each time it is packed to be sent."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes

    def __reduce__(self) -> tuple[Any, ...]:
        note(self.notes, "sent", "once")
        return Counted, (self.notes,)

    def __str__(self) -> str:
        return "counted"


def run_toy(
    path: Path,
    groups: int,
    common: dict[str, Any],
    engine: str = "single",
    cells: int = 4,
) -> None:
    """A whole toy sweep, as a process of a test runs it."""
    run_groups(
        toy_tasks(groups, cells),
        make_toy,
        common,
        Store(path),
        engine=engine,
        workers=2,
    )


def run_until_interrupted(
    path: Path, groups: int, common: dict[str, Any], engine: str
) -> None:
    """The same, noting how it ends."""
    try:
        run_toy(path, groups, common, engine)
    except KeyboardInterrupt:
        note(Path(common["notes"]), "ended", "interrupted")
    else:
        note(Path(common["notes"]), "ended", "finished")


def hold_lock(path: Path, key: str, notes: Path) -> None:
    """Lock a group, say so, and sleep."""
    with Store(path).lock(key) as ours:
        note(notes, "lock", str(ours))
        time.sleep(3600)


def write_and_die(path: Path, cells: Sequence[str], step: str) -> None:
    """Write a group, and be killed at one step of it."""
    from tsfm_lens.core import io as places

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def write_half(path: Path, content: Any) -> None:
        with path.open("wb") as file:
            file.write(bytes(content)[: len(content) // 2])
            file.flush()
            die()

    store = Store(path)
    if step == "write":
        Path.write_bytes = write_half  # type: ignore[method-assign, assignment]
    elif step == "fsync":
        places.os.fsync = die
    elif step == "replace":
        places.os.replace = die
    else:
        places._sync_folder = die
    store.write(toy_rows(cells), cells)
