"""The command that trains a model of the lab."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tsfm_lens.cli.common import AsJson, app, show_rows
from tsfm_lens.console import echo


@app.command()
def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML file of a run, see docs/training.md.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the run; the name of the file without .yaml if none.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; torch's own number if none.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of weights and batches; the file's if none.")] = None,
    as_json: AsJson = False,
) -> None:
    """Train a model of the lab: SAMformer, its ablations and baselines, on a file of your own or the toy problem.

    Ctrl-C ends the run after the step at hand; --resume goes on as if it had never been stopped.
    """
    import torch

    from tsfm_lens.studies.experiments import read_train_config
    from tsfm_lens.studies.experiments import train as train_run

    if threads is not None:
        torch.set_num_threads(threads)
    chosen = read_train_config(config)
    if seed is not None:
        chosen = chosen.model_copy(update={"seed": seed})
    folder = out or config.with_suffix("")
    found = train_run(chosen, folder, resume=resume)
    if as_json:
        echo(json.dumps({**found, "folder": str(folder)}))
    elif not found["ended"]:
        echo(f"stopped after step {found['step']}; --resume goes on")
    else:
        parts = [part for part in ("validation", "test") if part in found]
        rows = [[part, *(f"{found[part][error]:.4f}" for error in ("mse", "mae"))] for part in parts]
        show_rows(["", "MSE", "MAE"], rows)
        echo(
            f"{found['parameters']:,} parameters, {found['epochs']} epochs, the best after {found['best_epoch']}, "
            f"{found['seconds']:.0f} s"
        )
        echo(str(folder))
    if not found["ended"]:
        raise typer.Exit(130)
