"""Command that opens a local page."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tsfm_lens.cli import completing
from tsfm_lens.cli.common import MODEL_HELP, AsJson, DataIfAny, Holdout, Horizon, Samples, Seed, app
from tsfm_lens.cli.reading import Reading, check_sampling, read_data, reads_files
from tsfm_lens.console import echo


@app.command()
@reads_files
def serve(
    model: Annotated[
        str, typer.Argument(metavar="[MODEL]", help=MODEL_HELP, autocompletion=completing.models)
    ] = "bolt-nano",
    data: DataIfAny = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The next free one from here on.")] = 8866,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    horizon: Horizon = None,
    holdout: Holdout = True,
    samples: Samples = None,
    seed: Seed = 0,
    as_json: AsJson = False,
    *,
    reading: Reading,
) -> None:
    """Open a page on this machine: drop a file, choose a model, see forecast, heads, ablations and explanations.

    Nothing leaves the machine, and nothing is left running: Ctrl-C ends it.
    """
    from tsfm_lens.serve import serve as open_page

    check_sampling(model, samples)
    sources = data or ["bundled:co2"]
    read_data(sources, reading, horizon, holdout)
    options = {"horizon": horizon, "holdout": holdout, "num_samples": samples, "seed": seed}

    def announce(address: str) -> None:
        echo(json.dumps({"page": address}) if as_json else f"{address}\nCtrl-C ends it.")

    open_page(model, sources, reading=reading, options=options, port=port, browser=browser, started=announce)
