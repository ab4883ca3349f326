"""Commands of the benchmark of methods: list, fetch, score, compare and convert.

They parse options and print; the work is in :mod:`tsfm_lens.studies.bench`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tsfm_lens.cli.common import PAPERS, app, show_rows
from tsfm_lens.cli.reading import AsJson
from tsfm_lens.core.console import echo
from tsfm_lens.core.io import check_writable

if TYPE_CHECKING:
    import pandas as pd

benches = typer.Typer(
    help=(
        "Score a method of your own on models whose mechanism is known: `bench fetch`"
        " writes one, `bench score` compares an answer with the truth."
    ),
    no_args_is_help=True,
)
app.add_typer(benches, name="bench", rich_help_panel=PAPERS)

Seed = Annotated[
    int,
    typer.Option(min=0, help="Draws the model and its series; keep it to yourself."),
]


def _hide_library_progress() -> None:
    """Turn off the bar of the library that writes weights, once for every model."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def _print_lines(lines: Sequence[str], as_json: bool) -> None:
    text = "\n".join(lines)
    if as_json:
        text = json.dumps(list(lines))
    echo(text)


def _print_table(table: pd.DataFrame, as_json: bool, digits: int) -> None:
    if as_json:
        # NaN, where a number means nothing, is no JSON
        echo(table.to_json(orient="records"))
        return
    cells = table.astype(object).where(table.notna(), "")
    show_rows([str(name) for name in table], cells.values.tolist(), digits=digits)


@benches.command("list")
def list_models(as_json: AsJson = False) -> None:
    """List the models of the benchmark."""
    from tsfm_lens.studies.bench.models import bench_names

    _print_lines(bench_names(), as_json)


@benches.command()
def fetch(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="One that `bench list` lists.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder of the model and its twin.")
    ],
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Write a model, its untrained twin and their series, without the truth."""
    check_writable(out)
    from tsfm_lens.studies.bench.models import TWIN
    from tsfm_lens.studies.bench.models import fetch as fetch_model

    _hide_library_progress()
    folder = fetch_model(name, seed, out)
    _print_lines([str(folder), str(folder / TWIN)], as_json)


@benches.command()
def score(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="Answers, one a model.")
    ],
    seed: Seed = 0,
    draw: Annotated[
        int | None,
        typer.Option(
            min=0, help="Seed of new series for circuits; drawn now if not given."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare answers with the truth."""
    from tsfm_lens.studies.bench.scoring import score_files

    _hide_library_progress()
    # a seed with all its digits, so that --draw can take it
    table = score_files(files, seed, draw).astype({"draw": "Int64"})
    if not as_json:
        table = table.drop(columns="file")
    _print_table(table, as_json, digits=3)


@benches.command()
def compare(
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Table, as CSV; one that is there goes on."),
    ],
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME…]", help="Models; all that tell methods apart."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each model.")] = 2,
    large: Annotated[
        bool, typer.Option("--large", help="The models of 304 parts.")
    ] = False,
    twins: Annotated[
        bool, typer.Option("--twins", help="Answer untrained twins, too.")
    ] = False,
    method: Annotated[
        list[str] | None, typer.Option(help="Rivals; all if not given.")
    ] = None,
    since: Annotated[
        str, typer.Option(help="Answer again what has an earlier date, YYYY-MM-DD.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Let rival methods answer, and show which mechanism defeats which."""
    check_writable(out.parent)
    from tsfm_lens.core.console import console
    from tsfm_lens.studies.bench.models import separating_names
    from tsfm_lens.studies.bench.table import fill_table, summarise
    from tsfm_lens.studies.method_scores.page import PLANTED, UNTRAINED

    _hide_library_progress()
    names = models or separating_names(large=large)
    table = fill_table(
        out,
        names,
        range(seeds),
        method,
        conditions=(PLANTED, UNTRAINED)[: 1 + twins],
        since=since,
        log=console(stderr=True).print,
    )
    means = summarise(table[table["model"].isin(names)])
    _print_table(means.reset_index(), as_json, digits=2)


@benches.command()
def convert(
    importances: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="importances.json of MIB's circuit track."),
    ],
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="What `bench fetch` wrote.")
    ],
    method: Annotated[str, typer.Option(help="Name of the method.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File of the answer.")],
) -> None:
    """Convert a file of MIB into an answer."""
    check_writable(out.parent)
    from tsfm_lens.studies.bench.submission import from_importances

    from_importances(importances, folder, method).write(out)
    echo(str(out))
