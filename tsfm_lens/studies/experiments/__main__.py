"""Command that trains a grid of runs, and writes its record.

``python -m tsfm_lens.studies.experiments toy --out DIR`` is the toy problem's. Runs
that have ended are left as they are, so that a grid that was stopped goes on with the
same command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
import xarray as xr

from tsfm_lens.core.console import console
from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.core.io import replacing
from tsfm_lens.studies.experiments import grids
from tsfm_lens.studies.experiments.grid import Arm, gathered, of_seeds, run_arms
from tsfm_lens.studies.samformer.models import oracle_loss
from tsfm_lens.studies.train_config import TrainConfig
from tsfm_lens.training.command import run_command

RADII = (0.0, 0.1, 0.3, 0.5, 0.7, 1.0)
_TOY = {
    "epochs": 20,
    "oracle": oracle_loss(512, 70_000),
    "about": "forecasts that are linear in the window",
}


@dataclass(frozen=True)
class TrainingGrid:
    """Grid of runs: its arms, seeds, and how its record is gathered.

    ``arms`` takes the file of the benchmark if ``needs`` names one.
    """

    arms: Callable[..., Mapping[str, TrainConfig]]
    seeds: int
    gather: Callable[[list[Arm], Path], xr.Dataset] = gathered
    attrs: Mapping[str, object] = field(default_factory=dict)
    needs: str = ""


GRIDS = {
    "toy": TrainingGrid(partial(grids.toy_arms, epochs=20, watch=True), 7, attrs=_TOY),
    "optimizers": TrainingGrid(
        partial(grids.toy_arms, grids.TOY_OPTIMIZERS, epochs=20), 7, attrs=_TOY
    ),
    "radii": TrainingGrid(
        partial(grids.rho_arms, data="exchange", horizon=96, rhos=RADII),
        5,
        attrs={"names": "exchange"},
        needs="exchange_rate.txt.gz",
    ),
    "in_context": TrainingGrid(grids.in_context_arms, 14, grids.in_context_results),
    "in_context_widths": TrainingGrid(
        partial(grids.in_context_arms, grids.WIDTH_ARMS, widths=grids.WIDTHS),
        8,
        grids.in_context_results,
    ),
    "encoders": TrainingGrid(
        partial(grids.encoder_arms, horizons=(96,)), 7, needs="ETTh1.csv"
    ),
    "transfer": TrainingGrid(grids.transfer_arms, 3, grids.transfer_results),
}
"""Grids by the name of their record."""


def train_grid(
    name: Annotated[str, typer.Argument(help=f"of {', '.join(GRIDS)}")],
    out: Annotated[Path, typer.Option(help="folder of the runs")],
    *,
    data: Annotated[
        Path | None, typer.Option(help="file of a grid that is on a benchmark")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="seeds of each arm; the record's if none")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads")] = 1,
) -> None:
    """Train the arms of a grid, and write its record to OUT."""
    if name not in GRIDS:
        raise unknown_name("grid", name, GRIDS)
    grid = GRIDS[name]
    if grid.needs and data is None:
        raise InputError(f"{name} is of a benchmark; give --data {grid.needs}")
    torch.set_num_threads(threads)
    configs = grid.arms(data) if grid.needs else grid.arms()
    runs = list(of_seeds(configs, range(seeds or grid.seeds)))

    def show_progress(folder: str, index: int, total: int) -> None:
        console(stderr=True).print(f"{folder}: {index} of {total} done")

    if not run_arms(runs, out, progress=show_progress):
        console().print("stopped; the same command goes on")
        raise typer.Exit(130)
    file = out / f"{name}.nc"
    with replacing(file) as part:
        grid.gather(runs, out).assign_attrs(grid.attrs).to_netcdf(part, engine="scipy")
    console().print(str(file))


if __name__ == "__main__":
    run_command(train_grid)
