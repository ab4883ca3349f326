"""Command that trains a small model.

It parses options and prints errors; the training is
:func:`tsfm_lens.studies.experiments.running.train`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tsfm_lens.cli.common import PAPERS, app, show_rows
from tsfm_lens.cli.reading import AsJson
from tsfm_lens.core.console import echo
from tsfm_lens.core.io import check_writable


@app.command(rich_help_panel=PAPERS)
def train(
    config: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG", help="YAML file of a run, see docs/training.md."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder of the run; the name of the file without .yaml if none.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in the folder.")
    ] = False,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads; torch's own number if none.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed of weights and batches; the file's if none."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a model of the lab: SAMformer, its ablations and baselines.

    The series are in a file of your own, or those of the toy problem.

    Ctrl-C ends the run after the step at hand; --resume goes on as if it had never been
    stopped.
    """
    from tsfm_lens.studies.train_config import read_train_config

    settings = read_train_config(config)
    if seed is not None:
        settings = settings.model_copy(update={"seed": seed})
    folder = out or config.with_suffix("")
    check_writable(folder)
    # torch is imported last: a file that is wrong is refused without it
    import torch

    from tsfm_lens.studies.experiments import train as train_run

    if threads is not None:
        torch.set_num_threads(threads)
    result = train_run(settings, folder, resume=resume)
    if as_json:
        echo(json.dumps({**result, "folder": str(folder)}))
    elif not result["ended"]:
        echo(f"stopped after step {result['step']}; --resume goes on")
    else:
        rows = [
            [part, *(f"{result[part][error]:.4f}" for error in ("mse", "mae"))]
            for part in ("validation", "test")
            if part in result
        ]
        show_rows(["", "MSE", "MAE"], rows)
        echo(
            f"{result['parameters']:,} parameters, {result['epochs']} epochs, the best"
            f" after {result['best_epoch']}, {result['seconds']:.0f} s"
        )
        echo(str(folder))
    if not result["ended"]:
        raise typer.Exit(130)
