"""Cells of SAMformer's benchmarks: main table, ablations, radii of SAM, and TSMixer.

:func:`benchmark_cells` lists them; each trains and measures one run by
:mod:`tsfm_lens.studies.experiments.grid`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import xarray as xr

from tsfm_lens.studies.experiments import grids
from tsfm_lens.studies.experiments.grid import Arm, measured, of_seeds, run_arms
from tsfm_lens.studies.queue.driver import PLAN, QueueCell, Workplace

SETTINGS: Mapping[str, Any] = PLAN["samformer"]

RUNS = "samformer_runs"
RADII = "samformer_radii"
IDS = {
    RUNS: (
        "S1-T1 S1-T6 S1-T7 S1-T9 S1-T10 S1-F5 S1-F6 S1-F7 S1-F8 S1-F9 S1-F10 S1-F12"
        " S1-F13"
    ),
    RADII: "S1-F14",
}


def trained(record: str, arm: Arm, workplace: Workplace) -> xr.Dataset | None:
    """Train one run and measure it at its end; None if it was stopped."""
    if not run_arms([arm], workplace.folder, quiet=True):
        return None
    return measured([arm], workplace.folder).assign_attrs(ids=IDS[record])


def benchmark_cells(data: Path) -> Iterator[QueueCell]:
    """List the cells, seed by seed; ``data`` is the folder of the benchmark files.

    Whenever the queue stops, the finished cells can then be compared.
    """
    # the same for every seed
    arms_of = cache(grids.benchmark_arms)
    for part in SETTINGS["runs"]:
        for seed, name, horizon in product(
            SETTINGS["seeds"], part["data"], part["horizons"]
        ):
            file = data / SETTINGS["files"][name]
            arms = arms_of(file, name, horizon)
            for arm in part["arms"]:
                title = f"{name} {horizon} {arm}"
                seconds = expected_seconds(arm, name, horizon)
                run = Arm(title, arms[title].model_copy(update={"seed": seed}))
                yield _cell(part["order"], RUNS, run, seconds, file)
    radii = SETTINGS["radii"]
    horizon = radii["horizon"]
    files = {name: data / SETTINGS["files"][name] for name in radii["data"]}
    rho_arms = {
        name: grids.rho_arms(file, name, horizon, radii["rho"])
        for name, file in files.items()
    }
    for seed, (name, file) in product(radii["seeds"], files.items()):
        seconds = expected_seconds("SAMformer", name, horizon)
        for run in of_seeds(rho_arms[name], [seed]):
            yield _cell(radii["order"], RADII, run, seconds, file)


def expected_seconds(arm: str, data: str, horizon: int) -> float:
    """Return the processor seconds that a run is expected to take."""
    epochs = SETTINGS["epochs"].get(arm, SETTINGS["epochs_of_others"])
    return float(SETTINGS["epoch_seconds"][arm][data][horizon] * epochs)


def _cell(order: int, record: str, arm: Arm, seconds: float, file: Path) -> QueueCell:
    run = partial(trained, record, arm)
    more = {"seconds": seconds, "files": (file,)}
    return QueueCell.seeded(order, record, arm.name, arm.config.seed, run, **more)
