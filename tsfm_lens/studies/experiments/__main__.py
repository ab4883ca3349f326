"""Train the grid of an experiment and write its results.

``python -m tsfm_lens.studies.experiments toy --out DIR`` is the toy problem's. Runs
that have ended are left as they are, so that a grid that was stopped goes on with the
same command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import torch
import typer
import xarray as xr

from tsfm_lens.core.console import console
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.io import replacing
from tsfm_lens.studies.experiments import grids
from tsfm_lens.studies.experiments.grid import (
    Arm,
    gathered,
    measured,
    of_seeds,
    run_arms,
)
from tsfm_lens.studies.samformer.models import oracle_loss
from tsfm_lens.studies.train_config import TrainConfig
from tsfm_lens.training.command import HELP, run_command

app = typer.Typer(no_args_is_help=True, help=__doc__, context_settings=HELP)
Out = Annotated[Path, typer.Option(help="folder of the runs")]
Seeds = Annotated[int, typer.Option(min=1, help="seeds of each arm")]
Threads = Annotated[int, typer.Option(min=1, help="CPU threads")]

RADII = [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0]

_TOY = {
    "oracle": oracle_loss(512, 70_000),
    "about": "forecasts that are linear in the window",
}


@app.command()
def toy(out: Out, *, seeds: Seeds = 7, epochs: int = 20, threads: Threads = 1) -> None:
    """Train the toy problem: transformer, random transformer, σReparam and SAM.

    All are watched (figures 1 to 3).
    """
    configs = grids.toy_arms(epochs=epochs, watch=True)
    _train(configs, seeds, out, "toy", threads, {"epochs": epochs, **_TOY})


@app.command()
def optimizers(
    out: Out, *, seeds: Seeds = 7, epochs: int = 20, threads: Threads = 1
) -> None:
    """Train the toy problem by other optimisers (figure 15)."""
    configs = grids.toy_arms(grids.TOY_OPTIMIZERS, epochs=epochs)
    _train(configs, seeds, out, "optimizers", threads, {"epochs": epochs, **_TOY})


@app.command()
def benchmarks(
    out: Out,
    *,
    data: Annotated[
        list[str],
        typer.Option(metavar="NAME=FILE", help="ETTh1, ETTh2 or exchange; repeatable"),
    ],
    horizon: Annotated[list[int], typer.Option(help="96, 192, 336 or 720; repeatable")],
    arm: Annotated[
        list[str], typer.Option(help="SAMformer, Transformer, …; repeatable")
    ],
    seeds: Seeds = 5,
    threads: Threads = 1,
) -> None:
    """Train on benchmarks of tables 1, 6, 9 and 10, from files of your own.

    What the trained weights are like is measured too.
    """
    configs: dict[str, TrainConfig] = {}
    for name, file in map(_name_and_file, data):
        for steps in horizon:
            arms = grids.benchmark_arms(file, name, steps)
            subset = {
                title: config
                for title, config in arms.items()
                if title.split(" ", 2)[2] in arm
            }
            if len(subset) < len(set(arm)):
                names = ", ".join(title.split(" ", 2)[2] for title in arms)
                raise InputError(f"arms {', '.join(arm)}; there are {names}")
            configs |= subset

    _train(
        configs,
        seeds,
        out,
        "benchmarks",
        threads,
        {"names": ", ".join(grids.RHO)},
        measured,
    )


@app.command()
def radii(
    out: Out,
    *,
    data: Annotated[
        str, typer.Option(metavar="NAME=FILE", help="ETTh1, ETTh2 or exchange")
    ],
    horizon: Annotated[int, typer.Option(help="96, 192, 336 or 720")] = 96,
    rho: Annotated[
        list[float], typer.Option(min=0.0, help="0 is Adam alone; repeatable")
    ] = RADII,
    seeds: Seeds = 5,
    threads: Threads = 1,
) -> None:
    """Train SAMformer by the radius ρ of sharpness-aware minimisation (figure 14).

    The series are in a file of your own.
    """
    name, file = _name_and_file(data)
    _train(
        grids.rho_arms(file, name, horizon, rho),
        seeds,
        out,
        "radii",
        threads,
        {"names": name},
    )


def _name_and_file(entry: str) -> tuple[str, str]:
    name, _, file = entry.partition("=")
    if not file:
        raise InputError(
            f"{entry!r}; expected the name of a benchmark and its file, as in"
            " ETTh1=ETTh1.csv"
        )
    return name, file


@app.command()
def in_context(
    out: Out,
    *,
    seeds: Seeds = 14,
    epochs: int = 4,
    tokens: Annotated[
        str, typer.Option(help="pairs, or single as in the paper")
    ] = "pairs",
    threads: Threads = 1,
) -> None:
    """Train regression in context by the rank of the scores (S2-F2, S2-F3).

    Arms are one head of several ranks, MLR, BTT and 8 heads.
    """
    configs = grids.in_context_arms(epochs=epochs, tokens=tokens)
    _train(configs, seeds, out, "in_context", threads, {}, grids.in_context_results)


@app.command()
def widths(out: Out, *, seeds: Seeds = 8, threads: Threads = 1) -> None:
    """Train regression in context by width (S2-F3a, S2-F11).

    Arms are one head, 8 heads, and 8 heads of BTT.
    """
    configs = grids.in_context_arms(grids.WIDTH_ARMS, widths=grids.WIDTHS)
    _train(
        configs, seeds, out, "in_context_widths", threads, {}, grids.in_context_results
    )


@app.command()
def encoders(
    out: Out,
    *,
    data: Annotated[Path, typer.Option(help="file of ETTh1")],
    horizon: Annotated[list[int], typer.Option(help="96, 192 or 336; repeatable")],
    seeds: Seeds = 7,
    threads: Threads = 1,
) -> None:
    """Train forecasts of ETTh1 with several scoring functions (S2-ETT).

    The encoder is the same otherwise.
    """
    _train(
        grids.encoder_arms(data, horizons=horizon), seeds, out, "encoders", threads, {}
    )


@app.command()
def transfer(out: Out, *, seeds: Seeds = 3, threads: Threads = 1) -> None:
    """Train with several learning rates at three widths (S2-F5).

    Weights and rates follow μP or the standard parametrisation.
    """
    _train(
        grids.transfer_arms(),
        seeds,
        out,
        "transfer",
        threads,
        {},
        grids.transfer_results,
    )


def _train(
    configs: Mapping[str, TrainConfig],
    seeds: int,
    out: Path,
    name: str,
    threads: int,
    attrs: Mapping[str, object],
    gather: Callable[[list[Arm], Path], xr.Dataset] = gathered,
) -> None:
    torch.set_num_threads(threads)
    runs = list(of_seeds(configs, range(seeds)))

    def show_progress(folder: str, index: int, total: int) -> None:
        console(stderr=True).print(f"{folder}: {index} of {total} done")

    if not run_arms(runs, out, progress=show_progress):
        console().print("stopped; the same command goes on")
        raise typer.Exit(130)
    record = gather(runs, out).assign_attrs(
        {key: value for key, value in attrs.items() if value}
    )
    file = out / f"{name}.nc"
    with replacing(file) as part:
        record.to_netcdf(part, engine="scipy")
    console().print(str(file))


if __name__ == "__main__":
    run_command(app)
