"""The Ray engine gives the single engine's table, on two nodes of which one is killed
in the middle.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest
import sweep_toys as toys
from sweep_toys import IsAlive, ReadTable, Start, Wait

from closeness import close_in_float32
from refusals import expect_error
from tsfm_lens.core.errors import install_command
from tsfm_lens.sweep.engine import ray_engine
from tsfm_lens.sweep.engine.engines import run_groups
from tsfm_lens.sweep.engine.sweeping import run_sweep
from tsfm_lens.sweep.engine.workers import GroupDone
from tsfm_lens.sweep.planner.config import parse_config
from tsfm_lens.sweep.store import KEY_COLUMNS, Store

ray = pytest.importorskip("ray", reason="Ray is not installed")
from ray.cluster_utils import Cluster  # noqa: E402


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one CPU each, on this machine."""
    # workers of any node import the toy worker
    path = [str(Path(__file__).parent), os.environ["PYTHONPATH"]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(path))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        made = start_cluster()
        made.add_node(**NODE)
        made.wait_for_nodes()
        yield made
        ray.shutdown()
        made.shutdown()


NODE = {
    "num_cpus": 1,
    "object_store_memory": 100 * 2**20,
    "include_log_monitor": False,
    "no_monitor": True,
}
# a dead node is missed after five checks, one every half second; a slow answer passes
HEAD = {
    **NODE,
    "include_dashboard": False,
    "_system_config": {"health_check_period_ms": 500},
}


def start_cluster() -> Any:
    # Ray gives its own processes 15 seconds to start, which a machine that is busy does
    # not always keep
    try:
        return Cluster(initialize_head=True, head_node_args=HEAD)
    except Exception:
        return Cluster(initialize_head=True, head_node_args=HEAD)


def run(
    path: Path, tasks: list[Any], common: dict[str, Any], cluster: Any, **options: Any
) -> Any:
    store = Store(path)
    return run_groups(
        tasks,
        toys.make_toy,
        common,
        store,
        engine="ray",
        address=cluster.address,
        **options,
    )


def test_dying_node_leaves_table_unchanged(
    tmp_path: Path, cluster: Any, parse_table: ReadTable
) -> None:
    """A node that dies in the middle of a sweep does not change the table."""
    tasks = toys.toy_tasks(24, data=toys.Counted(tmp_path))
    common = {"notes": tmp_path, "seconds": 0.1}
    workers_then = []

    def kill_a_node(done: GroupDone) -> None:
        pids = {pid for _, pid, *_ in toys.list_notes(tmp_path, "computed")}
        if not workers_then and len(pids) == 2:
            workers_then.append(pids)
            # at once, its raylet and its worker with it
            (node,) = cluster.worker_nodes
            cluster.remove_node(node, allow_graceful=False)

    assert toys.count_outcomes(
        run(tmp_path / "ray", tasks, common, cluster, on_done=kill_a_node)
    ) == {"finished": 24}
    assert not cluster.worker_nodes
    # both nodes took part, and what the dead one had in hand was computed again
    assert len(workers_then) == 1
    computed = Counter(key for key, *_ in toys.list_notes(tmp_path, "computed"))
    assert set(computed) == {task.key for task in tasks}
    # data went into the cluster's memory once, not with every task
    assert len(toys.list_notes(tmp_path, "sent")) == 1
    run_groups(
        toys.toy_tasks(24),
        toys.make_toy,
        {},
        Store(tmp_path / "single"),
    )
    pd.testing.assert_frame_equal(
        parse_table(tmp_path / "ray"), parse_table(tmp_path / "single")
    )


def test_dead_workers_and_failed_groups_reported(
    tmp_path: Path, cluster: Any, parse_table: ReadTable
) -> None:
    """Workers that die and groups that fail are reported."""
    common = {"notes": tmp_path}
    tasks = [
        *toys.toy_tasks(8, misbehave="die once", which=3),
        *toys.toy_tasks(11, misbehave="raise", which=9)[8:],
    ]
    outcomes = run(tmp_path / "store", tasks, common, cluster)
    reported = [
        (str(outcome.task), outcome.error)
        for outcome in outcomes
        if outcome.how != "finished"
    ]
    assert reported == [("group 9", "ZeroDivisionError: no toy can do that")]
    expect_error(
        "the toy is broken", run, tmp_path / "store", tasks, {"broken": True}, cluster
    )
    # mended, only what failed is left
    assert toys.count_outcomes(
        run(tmp_path / "store", toys.toy_tasks(11), common, cluster)
    ) == {
        "finished": 1,
        "resumed": 10,
    }
    run_groups(
        toys.toy_tasks(11),
        toys.make_toy,
        {},
        Store(tmp_path / "single"),
    )
    pd.testing.assert_frame_equal(
        parse_table(tmp_path / "store"), parse_table(tmp_path / "single")
    )


def test_sweep_equals_one_process(
    tmp_path: Path, cluster: Any, parse_table: ReadTable
) -> None:
    """A sweep of a model on a cluster gives the table of one process."""
    config = parse_config(
        {
            "models": [{"source": "bolt-nano", "context_length": 64}],
            "data": [
                {"source": "bundled", "names": ["co2"], "horizon": 6, "windows": 2}
            ],
            "variants": {"layers": {}},
            "block": 2,
        }
    )
    outcome = run_sweep(
        config, tmp_path / "ray", engine="ray", address=cluster.address, workers=1
    )
    assert (outcome.failed, outcome.finished) == ([], outcome.cells)
    run_sweep(config, tmp_path / "single")
    actual = parse_table(tmp_path / "ray")
    expected = parse_table(tmp_path / "single")
    pd.testing.assert_frame_equal(
        actual[list(KEY_COLUMNS)], expected[list(KEY_COLUMNS)]
    )
    for name in set(expected) - set(KEY_COLUMNS):
        close_in_float32(actual[name], expected[name], depth=1000, what=name)


@pytest.mark.campaign
@pytest.mark.parametrize("victim", ["raylet/raylet", "gcs/gcs_server"])
def test_failing_cluster_loses_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    victim: str,
    alive: IsAlive,
    start_process: Start,
    wait_for_condition: Wait,
) -> None:
    """A cluster that fails loses nothing and leaves no process behind."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path])
    )
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # the worker does no more than two groups, so that only the cluster's end ends the
    # run
    common = {"notes": tmp_path, "most": 2}
    # Ray ends the process of its driver when its own services fail
    process = start_process(toys.run_toy, tmp_path / "store", 5, common, "ray")
    wait_for_condition(
        lambda: (
            len(toys.list_notes(tmp_path, "computed")) >= 2 or not process.is_alive()
        )
    )
    if not process.is_alive():
        pytest.skip(
            "Ray, which gives its own processes some seconds to start, does not start"
            " on this machine now"
        )
    started = psutil.Process(process.pid).children(recursive=True)
    (service,) = [
        item
        for item in started
        if victim in f"{item.name()} {' '.join(item.cmdline())}"
    ]
    service.kill()
    process.join()
    wait_for_condition(lambda: not [item for item in started if alive(item.pid)])
    store = Store(tmp_path / "store")
    tasks = toys.toy_tasks(5)
    toys.check_undamaged(store.path)
    assert store.done() >= set(tasks[0].cells)
    assert "failed" not in toys.count_outcomes(
        run_groups(tasks, toys.make_toy, {}, store)
    )


def test_missing_ray_is_named_with_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Ray the message says how to install it."""
    monkeypatch.setitem(sys.modules, "ray", None)
    expect_error(
        re.escape(install_command("ray")),
        run_groups,
        toys.toy_tasks(1),
        toys.make_toy,
        {},
        Store(tmp_path),
        engine="ray",
    )


class Answering(threading.Thread):
    """A server that takes connections and answers them with some bytes, or never."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(daemon=True)
        self.answer = answer
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listening.getsockname()[1]}"
        self.open = []

    def run(self) -> None:
        while True:
            connection, _ = self.listening.accept()
            self.open.append(connection)
            if self.answer:
                connection.sendall(self.answer)


@pytest.mark.parametrize("prefix", ["", "ray://"])
def test_address_without_cluster_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """In a process of its own: Ray would end it."""
    monkeypatch.setattr(ray_engine, "_ADDRESS_SECONDS", 0.2)
    silent = Answering(b"")
    web = Answering(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    for server in (silent, web):
        server.start()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead = f"127.0.0.1:{closed.getsockname()[1]}"
    for address in (
        dead,
        silent.address,
        web.address,
        "no.such.host.invalid:6379",
        "127.0.0.1:99999",
        "host:port",
    ):
        options = {"engine": "ray", "address": prefix + address}
        expect_error(
            re.escape(address),
            run_groups,
            toys.toy_tasks(1),
            toys.make_toy,
            {},
            Store(tmp_path),
            **options,
        )
