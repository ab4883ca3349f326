"""Every engine gives the same table, whatever dies on the way, and says what could not
be computed.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import sweep_toys as toys
from sweep_toys import IsAlive, KillOften, ReadTable, Start, Wait

from refusals import expect_error
from tsfm_lens.core.errors import SweepFailedError
from tsfm_lens.sweep.engine.engines import run_groups
from tsfm_lens.sweep.engine.sweeping import SweepProgress
from tsfm_lens.sweep.engine.workers import GroupDone, GroupTask
from tsfm_lens.sweep.store import KEY_COLUMNS, Store


def run(
    path: Path,
    tasks: list[GroupTask],
    common: dict[str, Any] | None = None,
    **options: Any,
) -> list[GroupDone]:
    return run_groups(tasks, toys.make_toy, common or {}, Store(path), **options)


def expected(tasks: list[GroupTask]) -> pd.DataFrame:
    """What a store must hold in the end, made without store and engine."""
    rows = toys.toy_rows([cell for task in tasks for cell in task.cells]).to_pandas()
    return rows.sort_values(list(KEY_COLUMNS), ignore_index=True)


@pytest.mark.parametrize("engine", ["single", "processes"])
def test_killed_runs_give_the_same_table(
    tmp_path: Path,
    kill_often: KillOften,
    wait_for_condition: Wait,
    parse_table: ReadTable,
    engine: str,
) -> None:
    """A run that was killed ends in the table of an undisturbed run."""
    groups = 100
    kills = 2
    workers = 1 if engine == "single" else 2
    # no run gets to its end, so that every kill hits
    common = {"seconds": 0.005, "notes": tmp_path, "most": 16}
    path = tmp_path / "store"
    before = 0

    def at_work() -> None:
        # a group is noted before it is written; of so many, one worker has noted two,
        # and has written the first
        wait_for_condition(
            lambda: len(toys.list_notes(tmp_path, "computed")) > before + workers
        )

    for turn in range(kills):
        before = len(toys.list_notes(tmp_path, "computed"))
        hit = kill_often(
            toys.run_toy,
            path,
            groups,
            common,
            engine,
            store=path,
            kills=1,
            longest=0.05,
            seed=turn,
            begun=at_work,
        )
        assert hit == 1
    tasks = toys.toy_tasks(groups)
    finished = len(Store(path).done())
    assert kills * 4 <= finished <= kills * workers * 16 * 4
    assert toys.count_outcomes(run(path, tasks)) == {
        "resumed": finished // 4,
        "finished": groups - finished // 4,
    }
    pd.testing.assert_frame_equal(parse_table(path), expected(tasks))


def test_two_processes_compute_each_group_once(
    tmp_path: Path, start_process: Start, parse_table: ReadTable
) -> None:
    """Two processes that share a store compute each group once."""
    groups = 40
    common = {"notes": tmp_path, "together": 2}
    both = [
        start_process(toys.run_toy, tmp_path / "store", groups, common)
        for _ in range(2)
    ]
    for process in both:
        process.join()
        assert process.exitcode == 0
    computed = toys.list_notes(tmp_path, "computed")
    assert Counter(Counter(key for key, *_ in computed).values()) == {1: groups}
    # both did a part, and each waited for the other's last group
    assert len({pid for _, pid in computed}) == 2
    tasks = toys.toy_tasks(groups)
    pd.testing.assert_frame_equal(parse_table(tmp_path / "store"), expected(tasks))


@pytest.mark.parametrize("engine", ["single", "processes"])
def test_interrupt_keeps_finished_groups(
    tmp_path: Path,
    start_process: Start,
    wait_for_condition: Wait,
    alive: IsAlive,
    parse_table: ReadTable,
    engine: str,
) -> None:
    """An interrupt keeps what is finished and ends every worker."""
    groups = 100
    running = 1 if engine == "single" else 2
    common = {"notes": tmp_path, "most": 6 // running}
    process = start_process(
        toys.run_until_interrupted, tmp_path / "store", groups, common, engine
    )
    wait_for_condition(lambda: len(toys.list_notes(tmp_path, "computed")) == 6)
    os.kill(process.pid, signal.SIGINT)
    process.join()
    assert process.exitcode == 0
    assert toys.list_notes(tmp_path, "ended") == [["interrupted"]]
    workers = [int(pid) for pid, _ in toys.list_notes(tmp_path, "workers")]
    assert len(workers) == running
    wait_for_condition(lambda: not any(alive(pid) for pid in workers))
    retained = len(Store(tmp_path / "store").done()) // 4
    # what a worker had noted last may not have been written
    assert 6 - running <= retained <= 6
    toys.check_undamaged(tmp_path / "store")
    tasks = toys.toy_tasks(groups)
    assert toys.count_outcomes(run(tmp_path / "store", tasks))["resumed"] == retained
    pd.testing.assert_frame_equal(parse_table(tmp_path / "store"), expected(tasks))


def test_workers_end_with_their_killed_driver(
    tmp_path: Path,
    start_process: Start,
    wait_for_condition: Wait,
    alive: IsAlive,
) -> None:
    """Workers end when the process that started them is killed."""
    # a group that takes longer than any test: only the death of the driver can end it
    process = start_process(
        toys.run_toy,
        tmp_path / "store",
        4,
        {"seconds": 600, "notes": tmp_path},
        "processes",
    )
    wait_for_condition(lambda: len(toys.list_notes(tmp_path, "workers")) == 2)
    process.kill()
    process.join()
    wait_for_condition(
        lambda: (
            not any(alive(int(pid)) for pid, _ in toys.list_notes(tmp_path, "workers"))
        )
    )


def test_group_of_dead_worker_is_recomputed(
    tmp_path: Path, parse_table: ReadTable
) -> None:
    """A group whose worker died is computed by a fresh worker."""
    tasks = toys.toy_tasks(8, misbehave="die once", which=3)
    # the only one: what is computed after its death is computed by its successor
    assert toys.count_outcomes(
        run(
            tmp_path / "store",
            tasks,
            {"notes": tmp_path},
            engine="processes",
            workers=1,
        )
    ) == {"finished": 8}
    ((dead,),) = toys.list_notes(tmp_path, "died")
    before, after = (pid for pid, _ in toys.list_notes(tmp_path, "workers"))
    assert (before, after != dead) == (dead, True)
    assert [
        pid
        for key, pid, *_ in toys.list_notes(tmp_path, "computed")
        if key == tasks[3].key
    ] == [after]
    pd.testing.assert_frame_equal(parse_table(tmp_path / "store"), expected(tasks))


def test_group_that_kills_workers_is_skipped(
    tmp_path: Path,
) -> None:
    """A group that kills its worker every time is given up; all others finish."""
    tasks = toys.toy_tasks(8, misbehave="die", which=0)
    outcomes = run(
        tmp_path / "store",
        tasks,
        {"notes": tmp_path},
        engine="processes",
        workers=2,
        retries=1,
    )
    (failed,) = (outcome for outcome in outcomes if outcome.how != "finished")
    assert (failed.how, failed.task) == ("failed", tasks[0])
    assert "died 2 times, often for want of memory" in failed.error


@pytest.mark.parametrize("engine", ["single", "processes"])
def test_failing_group_is_named_others_finish(tmp_path: Path, engine: str) -> None:
    """A group that fails is named, and all other groups finish."""
    outcomes = run(
        tmp_path / "store",
        toys.toy_tasks(5, misbehave="raise", which=1),
        engine=engine,
        workers=2,
    )
    reported = [
        (str(outcome.task), outcome.error)
        for outcome in outcomes
        if outcome.how != "finished"
    ]
    assert reported == [("group 1", "ZeroDivisionError: no toy can do that")]
    # mended, only that group is computed
    mended = run(tmp_path / "store", toys.toy_tasks(5), engine=engine, workers=2)
    assert toys.count_outcomes(mended) == {"finished": 1, "resumed": 4}


@pytest.mark.parametrize("engine", ["single", "processes"])
def test_a_full_disk_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    store = Store(tmp_path / "store")
    tasks = toys.toy_tasks(4)
    # a file where the folder of the third group should be: what worker processes meet,
    # too
    (store.path / "cells" / tasks[2].key[:2]).touch()
    expect_error(
        "File exists",
        run_groups,
        tasks,
        toys.make_toy,
        {},
        store,
        engine=engine,
        workers=1,
    )
    assert len(store.done()) >= 8


@pytest.mark.parametrize("engine", ["single", "processes"])
def test_worker_that_cannot_start_ends_run(tmp_path: Path, engine: str) -> None:
    with pytest.raises((SweepFailedError, RuntimeError), match="the toy is broken"):
        run(
            tmp_path / "store",
            toys.toy_tasks(4),
            {"broken": True},
            engine=engine,
            workers=2,
        )
    for options, text in (
        ({"engine": "process"}, "Closest: processes"),
        ({"workers": 0}, "one worker, not 0"),
    ):
        expect_error(text, run, tmp_path / "store", [], **options)


def test_shared_data_reach_each_worker_once(
    tmp_path: Path,
) -> None:
    """Shared data are sent to each worker once, and workers share out the devices."""
    data = toys.Counted(tmp_path)
    tasks = [*toys.toy_tasks(10, data=data), *toys.toy_tasks(12)[10:]]
    common = {"notes": tmp_path, "together": 2}
    run(tmp_path / "store", tasks, common, engine="processes", devices=("cpu", "meta"))
    assert 1 <= len(toys.list_notes(tmp_path, "sent")) <= 2
    assert Counter(device for _, device in toys.list_notes(tmp_path, "workers")) == {
        "cpu": 1,
        "meta": 1,
    }
    # each task got its own data, not those of the one before
    assert Counter(
        " ".join(where) for _, _, *where in toys.list_notes(tmp_path, "computed")
    ) == {"counted": 10, "": 2}


def test_remaining_time_follows_the_current_pace() -> None:
    """The time left is that of this run alone and follows its pace."""

    def done(cells: int, seconds: float) -> GroupDone:
        return GroupDone(GroupTask(tuple("abc"[:cells])), "finished", seconds)

    one = SweepProgress(None, 1)
    three = SweepProgress(None, 3)
    assert one.seconds_left(10) is None
    for progress in (one, three):
        progress.done(done(2, 6.0))
    assert (one.seconds_left(10), three.seconds_left(10)) == (30.0, 10.0)
    # a slower model: after a window of its groups, the old pace is forgotten
    for _ in range(32):
        one.done(done(1, 7.0))
    assert one.seconds_left(10) == 70.0
