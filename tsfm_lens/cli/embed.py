"""Command that embeds a file of series into a folder.

It is one call of :func:`tsfm_lens.sweep.write_embeddings`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tsfm_lens.cli import completing
from tsfm_lens.cli.common import (
    DAILY,
    Model,
    app,
    open_with_progress,
    progress_display,
)
from tsfm_lens.cli.reading import AsJson, Reading, reads_files, translate_options
from tsfm_lens.core.choices import check_pool
from tsfm_lens.core.console import echo
from tsfm_lens.core.io import check_writable


@app.command(rich_help_panel=DAILY)
@reads_files
def embed(
    model: Model,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|bundled:NAME",
            help="Long CSV or Parquet file, sorted by id; or bundled series.",
            autocompletion=completing.data,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the vectors.")],
    layer: Annotated[
        int | None,
        typer.Option(
            help="Stream after this layer, -1 the embedding; what leaves the stack if"
            " none."
        ),
    ] = None,
    stack: Annotated[
        str | None, typer.Option(help="Stack; the encoder where there are several.")
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(help="One vector a series: mean, max, first or last token."),
    ] = None,
    as_json: AsJson = False,
    *,
    reading: Reading,
) -> None:
    """Write the vector of every token of a file, with the times that it covers, as
    Parquet; the same command resumes.
    """  # noqa: D205 - the text of --help
    from tsfm_lens.data.files import READABLE, regular_file
    from tsfm_lens.data.sources import find_bundled, read_sources

    check_writable(out)
    check_pool(pool)
    source: Any = file
    if find_bundled([file]):
        source = read_sources([file], **reading)
        reading = {}
    else:
        # a wrong path is refused before a model is opened
        regular_file(file, READABLE)
    with progress_display() as bar:
        lens = open_with_progress(bar, model)
        from tsfm_lens.sweep.embeddings import write_embeddings

        task = bar.add_task("embed the series", total=None)
        outcome = write_embeddings(
            lens,
            source,
            out,
            layer,
            stack=stack,
            pool=pool,
            progress=lambda count: bar.update(
                task, description=f"embed the series: {count:,}"
            ),
            **reading,
        )
        bar.update(task, total=1, completed=1)
    for note in outcome.notes:
        echo(f"note: {translate_options(note)}", err=True)
    if as_json:
        content = {
            "folder": str(outcome.folder),
            "series": outcome.series,
            "parts": outcome.parts,
            "resumed": outcome.resumed,
            "notes": outcome.notes,
        }
        echo(json.dumps(content))
        return
    echo(
        f"{outcome.series} series in {outcome.parts} parts ({outcome.resumed} of them"
        f" before this run); they are in {outcome.folder / 'cells'}"
    )
