"""A signal ends a command in one line: temporary files go, workers end, and nobody
prints a traceback.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SWEEP = Path(__file__).parent.parent / "sweep"
PATIENCE = 120
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
COMMAND = """
import tempfile, time
from pathlib import Path
from tsfm_lens.cli import app, main

@app.command()
def wait():
    with tempfile.TemporaryDirectory(dir="."):
        Path("begun").touch()
        time.sleep(600)

main()
"""
WORKER = """
import os, time
from pathlib import Path

begun = [*Path().glob("importing-*")]
Path(f"importing-{os.getpid()}").touch()
# the command imports it first, at once
if begun:
    time.sleep(1.5)
import sweep_toys

def make(common, device):
    return sweep_toys.make_toy(common, device)
"""
DRIVER = """
import sys
from pathlib import Path
from tsfm_lens.cli import app, main
from tsfm_lens.sweep.engine.engines import run_groups
from tsfm_lens.sweep.store import Store
import slow_toys, sweep_toys

@app.command()
def wait():
    Path("begun").touch()
    store = Store(Path("store"))
    tasks = sweep_toys.toy_tasks(4)
    options = {"engine": "processes", "workers": 2}
    run_groups(tasks, slow_toys.make, {"seconds": 600}, store, **options)

main()
"""


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def begin(code: str, folder: Path) -> subprocess.Popen[str]:
    """Start a command in a group of its own, in a folder."""
    path = os.pathsep.join([str(folder), str(SWEEP), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", code, "wait"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a shell in the background lets its processes ignore it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def members(group: int) -> list[int]:
    """Processes of a group that still run."""
    listed = subprocess.run(
        ["ps", "-eo", "pid=,pgid=,stat="], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split() for line in listed.splitlines()]
    return [
        int(pid)
        for pid, of_group, state in rows
        if int(of_group) == group and not state.startswith("Z")
    ]


@pytest.mark.parametrize("number", CODES)
def test_a_command_cleans_up(tmp_path: Path, number: signal.Signals) -> None:
    process = begin(COMMAND, tmp_path)
    wait_until((tmp_path / "begun").exists)
    process.send_signal(number)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == CODES[number]
    assert "Traceback" not in errors
    assert "interrupted" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["begun"]


@pytest.mark.skipif(
    not hasattr(signal, "pthread_sigmask"), reason="no masks of signals here"
)
@pytest.mark.parametrize(
    "number",
    # of which Python itself would print a traceback; the other ends a process at once
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive)],
)
def test_workers_that_still_import_say_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    """The signal goes to the whole group, as from a terminal or a service, while a
    worker's module is imported.
    """
    (tmp_path / "slow_toys.py").write_text(WORKER)
    process = begin(DRIVER, tmp_path)
    # the command imports the module first, then the process from which workers are made
    wait_until(lambda: len([*tmp_path.glob("importing-*")]) >= 2)
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == CODES[number]
    assert "Traceback" not in errors
    wait_until(lambda: not members(process.pid))
