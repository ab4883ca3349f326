"""Commands of the ablation lab: run a sweep, show its progress, report on it.

Each is one call into :mod:`tsfm_lens.sweep` or :mod:`tsfm_lens.report.sweep`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from tsfm_lens.cli.common import (
    PAPERS,
    Engine,
    SweepDisplay,
    Workers,
    app,
    progress_display,
    show_rows,
    stage,
)
from tsfm_lens.cli.reading import AsJson, check_sampling
from tsfm_lens.core.console import console, echo, interrupt_code
from tsfm_lens.core.io import check_writable

if TYPE_CHECKING:
    from tsfm_lens.sweep.engine.status import SweepStatus
    from tsfm_lens.sweep.engine.sweeping import Outcome
    from tsfm_lens.sweep.planner.config import SweepConfig

StoreOption = Annotated[
    Path | None,
    typer.Option(
        "--store",
        "-s",
        help="Folder of results; the configuration's name with .store if none.",
    ),
]
ConfigArgument = Annotated[
    Path,
    typer.Argument(metavar="CONFIG", help="YAML file of models, data and variants."),
]


class _OrRun(TyperGroup):
    """Group of commands with a default: ``sweep CONFIG`` is ``sweep run CONFIG``."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the group, and that of its default command."""
        super().format_help(ctx, formatter)
        command = self.commands["run"]
        run_context = command.context_class(command, info_name="run", parent=ctx)
        command.format_help(run_context, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the name of the default command first where no command is named."""
        # --help is the group's; any other option that comes first is of `run`
        if (
            args
            and args[0] not in self.commands
            and args[0] not in ctx.help_option_names
        ):
            args = ["run", *args]
        return super().parse_args(ctx, args)


sweeps = typer.Typer(
    cls=_OrRun,
    help=(
        "Ablation sweeps over models, variants and datasets: `sweep CONFIG` runs one,"
        " `sweep report` reports on it."
    ),
    no_args_is_help=True,
)
app.add_typer(sweeps, name="sweep", rich_help_panel=PAPERS)


@sweeps.command()
def run(
    config: ConfigArgument,
    store: StoreOption = None,
    engine: Engine = "single",
    workers: Workers = None,
    address: Annotated[
        str | None,
        typer.Option(help="Ray cluster to join; a local one is started if none."),
    ] = None,
    dry: Annotated[
        bool, typer.Option("--plan", help="Show what would run, and run nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a sweep, or resume one: finished cells are kept."""
    if dry:
        status(config, store, as_json)
        return
    settings = _read_config(config)
    folder = store or config.with_suffix(".store")
    check_writable(folder)
    sets = settings.evaluation_sets()
    from tsfm_lens.sweep.engine.sweeping import run_sweep

    with SweepDisplay() as display:
        outcome = run_sweep(
            settings,
            folder,
            engine=engine,
            workers=workers,
            address=address,
            progress=display.update,
            sets=sets,
        )
    _show_outcome(outcome, folder, as_json)
    # the outcome is printed even so, since finished cells are kept
    if outcome.cancelled:
        raise typer.Exit(interrupt_code())
    if outcome.failed:
        raise typer.Exit(1)


@sweeps.command()
def status(
    config: ConfigArgument, store: StoreOption = None, as_json: AsJson = False
) -> None:
    """Show which cells of a sweep are finished."""
    from tsfm_lens.sweep.engine.status import stored_status

    settings = _read_config(config)
    folder = store or config.with_suffix(".store")
    progress = stored_status(settings, folder)
    if progress is None:
        sets = settings.evaluation_sets()
        # without a stored plan it is made of the models themselves
        from tsfm_lens.sweep.engine.sweeping import plan_sweep

        with SweepDisplay():
            progress = plan_sweep(settings, folder, sets)
    _show_status(progress, as_json)


def _read_config(file: Path) -> SweepConfig:
    """Read a configuration, and refuse models that are not there."""
    from tsfm_lens.models.extras import require_packages
    from tsfm_lens.sweep.planner.config import read_config

    require_packages("sweep", "a sweep")
    settings = read_config(file)
    for model in settings.models:
        check_sampling(model.source, model.num_samples)
    return settings


@sweeps.command()
def report(
    store: Annotated[
        Path,
        typer.Argument(
            metavar="STORE|CONFIG", help="Folder of results, or the sweep's YAML file."
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of the report.")
    ] = Path("sweep-report"),
    name: Annotated[
        str | None, typer.Option(help="Which sweep, where a store holds several.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Turn a store into a report: every figure and table of the paper's ablation part,
    as HTML, CSV, LaTeX and JSON.
    """  # noqa: D205 - the text of --help
    from tsfm_lens.report.sweep import build_sweep_report
    from tsfm_lens.sweep.results.gathering import gather

    check_writable(out)
    folder = store
    if not store.is_dir():
        folder = store.with_suffix(".store")
        if name is None:
            from tsfm_lens.sweep.planner.config import plan_name, read_config

            # the store may also hold the results of an earlier version of this file
            name = plan_name(read_config(store))
    with progress_display() as bar:
        with stage(bar, "gather the results"):
            gathered = gather(folder, name)
        with stage(bar, "write the report"):
            page = build_sweep_report(
                gathered.results,
                out,
                title=gathered.title,
                provenance=gathered.provenance,
                notes=gathered.notes,
            )
    if as_json:
        echo(json.dumps({"report": str(page), "results": sorted(gathered.results)}))
    else:
        echo(str(page))


def _show_status(progress: SweepStatus, as_json: bool) -> None:
    if as_json:
        content = {
            "finished": progress.finished,
            "cells": progress.cells,
            "parts": progress.parts,
            "notes": progress.notes,
        }
        echo(json.dumps(content))
        return
    header = ["model", "family", "variants", "cells", "finished"]
    show_rows(header, [[part[key] for key in header] for part in progress.parts])
    echo(f"{progress.finished} of {progress.cells} cells are finished{progress.later}")
    for note in progress.notes:
        echo(note, err=True)


def _show_outcome(outcome: Outcome, folder: Path, as_json: bool) -> None:
    if as_json:
        echo(json.dumps(asdict(outcome)))
        return
    text = (
        f"{outcome.finished} of {outcome.cells} cells are finished ({outcome.resumed}"
        " of them before this run)"
    )
    if outcome.most > outcome.cells:
        text += f"; up to {outcome.most} could have been needed"
    echo(f"{text}; they are in {folder}")
    err = console(stderr=True)
    for line in outcome.notes:
        err.print(line, soft_wrap=True)
    for failure in outcome.failed:
        err.print(Text("failed:", style="bold red"), failure, soft_wrap=True)
    if outcome.cancelled:
        err.print("cancelled; the same command resumes")
    elif not outcome.failed:
        echo(f"tsfm-lens sweep report {folder}")
