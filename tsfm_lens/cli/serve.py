"""Command that opens a local page."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any

import typer

from tsfm_lens.cli import completing
from tsfm_lens.cli.common import MODEL_HELP, app
from tsfm_lens.cli.reading import DataIfAny, Request, check_sampling, forecasts
from tsfm_lens.console import echo


@app.command()
@forecasts()
def serve(
    model: Annotated[
        str, typer.Argument(metavar="[MODEL]", help=MODEL_HELP, autocompletion=completing.models)
    ] = "bolt-nano",
    data: DataIfAny = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The next free one from here on.")] = 8866,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    *,
    request: Request,
) -> None:
    """Open a page on this machine: drop a file, choose a model, see forecast, heads, ablations and explanations.

    Nothing leaves the machine, and nothing is left running: Ctrl-C ends it.
    """
    from tsfm_lens.serve import serve as open_page

    check_sampling(model, request.samples)
    request = replace(request, data=data or ["bundled:co2"])
    request.series()
    options = {name: getattr(request, name) for name in ("horizon", "holdout", "seed")}
    options["num_samples"] = request.samples

    def announce(address: str) -> None:
        echo(json.dumps({"page": address}) if request.as_json else f"{address}\nCtrl-C ends it.")

    how: dict[str, Any] = {"reading": request.reading, "options": options, "port": port, "browser": browser}
    open_page(model, request.data, started=announce, **how)
