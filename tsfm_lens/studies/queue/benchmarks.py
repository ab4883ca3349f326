"""Cells of SAMformer's benchmarks: main table, ablations, radii of SAM, and TSMixer.

:func:`benchmark_cells` lists them; each trains and measures one run by
:mod:`tsfm_lens.studies.experiments.grid`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import xarray as xr

from tsfm_lens.studies.experiments import grids
from tsfm_lens.studies.experiments.grid import Arm, measured, run_arms
from tsfm_lens.studies.queue.driver import QueueCell, Workplace
from tsfm_lens.studies.train_config import TrainConfig

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


def benchmark_cells(plan: Mapping[str, Any], data: Path) -> Iterator[QueueCell]:
    """List the cells, seed by seed.

    Whenever the queue stops, the finished cells can then be compared.
    """
    for part in plan["runs"]:
        for seed in plan["seeds"]:
            for name in part["data"]:
                for horizon in part["horizons"]:
                    file = data / plan["files"][name]
                    arms = grids.benchmark_arms(file, name, horizon)
                    for arm in part["arms"]:
                        seconds = expected_seconds(plan, arm, name, horizon)
                        title = f"{name} {horizon} {arm}"
                        yield _cell(
                            part["order"], RUNS, title, arms[title], seed, seconds, file
                        )
    yield from _radii(plan, plan["radii"], data)


def expected_seconds(
    plan: Mapping[str, Any], arm: str, data: str, horizon: int
) -> float:
    """Return the processor seconds that a run is expected to take."""
    epochs = plan["epochs"].get(arm, plan["epochs_of_others"])
    return float(plan["epoch_seconds"][arm][data][horizon] * epochs)


def _radii(
    plan: Mapping[str, Any], part: Mapping[str, Any], data: Path
) -> Iterator[QueueCell]:
    for seed in part["seeds"]:
        for name in part["data"]:
            file = data / plan["files"][name]
            horizon = part["horizon"]
            seconds = expected_seconds(plan, "SAMformer", name, horizon)
            for title, config in grids.rho_arms(
                file, name, horizon, part["rho"]
            ).items():
                yield _cell(part["order"], RADII, title, config, seed, seconds, file)


def _cell(
    order: int,
    record: str,
    title: str,
    config: TrainConfig,
    seed: int,
    seconds: float,
    file: Path,
) -> QueueCell:
    arm = Arm(title, config.model_copy(update={"seed": seed}))
    return QueueCell(
        order,
        record,
        f"{title}, seed {seed}",
        partial(trained, record, arm),
        title,
        seconds,
        (file,),
    )
