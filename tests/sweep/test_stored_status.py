"""The progress of a sweep is read from its store only while a new run would follow the
stored plan.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tsfm_lens.sweep.engine import status
from tsfm_lens.sweep.engine.sweeping import run_sweep
from tsfm_lens.sweep.planner.config import SweepConfig, parse_config


class Finished(NamedTuple):
    config: SweepConfig
    store: Path
    folder: Path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("status")
    rows = [f"2021-01-{day:02d},{day % 7}.5" for day in range(1, 29)]
    for name in ("load.csv", "parts/heat.csv"):
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(["date,load", *rows]))
    sources = [
        {"source": "file", "path": str(folder / path), "horizon": 2, "windows": 1}
        for path in ("load.csv", "parts/h*.csv")
    ]
    content = {
        "models": [{"source": "bolt-nano", "context_length": 20}],
        "data": sources,
        "variants": {"layers": {"sizes": [1], "parts": ["both"]}},
    }
    config = parse_config(content)
    run_sweep(config, folder / "store")
    return Finished(config, folder / "store", folder)


def test_a_finished_sweep_is_read_from_its_store(finished: Finished) -> None:
    progress = status.stored_status(finished.config, finished.store)
    assert progress is not None
    assert progress.cells == progress.finished > 0


def test_another_sweep_has_no_stored_status(finished: Finished, tmp_path: Path) -> None:
    other = finished.config.model_copy(update={"seed": 1})
    assert status.stored_status(other, finished.store) is None
    assert status.stored_status(finished.config, tmp_path) is None


@pytest.mark.parametrize("name", ["load.csv", "parts/heat.csv"], ids=["file", "glob"])
def test_newer_data_outdate_a_plan(name: str, finished: Finished) -> None:
    file = finished.folder / name
    before = file.stat()
    later = time.time() + 60
    os.utime(file, (later, later))
    try:
        assert status.stored_status(finished.config, finished.store) is None
    finally:
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("name", "value"),
    [("NUMERICS", -1), ("installed", lambda package: "0.0.1")],
    ids=["numerics", "library"],
)
def test_other_versions_outdate_a_plan(
    name: str, value: object, finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, name, value)
    assert status.stored_status(finished.config, finished.store) is None
