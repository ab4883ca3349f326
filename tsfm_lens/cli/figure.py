"""Command that draws one figure, with its caption, ready for print.

How a figure is computed and written is in :mod:`tsfm_lens.report.figures`; bad
arguments are refused here, before a model is opened.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from tsfm_lens.cli import completing
from tsfm_lens.cli.common import (
    DAILY,
    MODEL_HELP,
    app,
    open_with_progress,
    progress_display,
    read_with_progress,
    show_rows,
    stage,
)
from tsfm_lens.cli.reading import (
    DataIfAny,
    Request,
    check_item,
    check_sampling,
    forecasts,
)
from tsfm_lens.core.choices import STATIC, checked_formats
from tsfm_lens.core.console import echo
from tsfm_lens.core.declared import check_figure_name
from tsfm_lens.core.io import check_writable


@app.command(rich_help_panel=DAILY)
@forecasts()
def figure(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="Such as layer_gain or logit_map; see --list.",
            autocompletion=completing.figures,
        ),
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL…",
            help=f"{MODEL_HELP} Two stand side by side.",
            autocompletion=completing.models,
        ),
    ] = None,
    data: DataIfAny = None,
    horizon: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Forecast steps; the length that the model is made for by default.",
        ),
    ] = None,
    item: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Item to draw; all, or the first, by default."
        ),
    ] = "",
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("figures"),
    formats: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="FORMAT[,FORMAT…]",
            help=(
                "html, svg, pdf, png, json, csv (its numbers); by default html, and the"
                " next three where a browser draws them."
            ),
        ),
    ] = None,
    column: Annotated[
        Literal["single", "double"] | None,
        typer.Option(
            help=(
                "Width in print: single (89 mm) or double (183 mm); by default the"
                " narrowest that fits."
            )
        ),
    ] = None,
    list_all: Annotated[
        bool, typer.Option("--list", help="List all figures and exit.")
    ] = False,
    *,
    request: Request,
) -> None:
    """Draw one figure by its name, and write its files and caption."""
    if list_all:
        _list_figures(request.as_json)
        return
    if name is None or not models or not data:
        missing = {"NAME": name, "MODEL": models, "--data": data}
        text = " and ".join(option for option, value in missing.items() if not value)
        raise typer.BadParameter(f"{text} missing; --list names all figures")
    named_formats = None
    if formats is not None:
        named_formats = _split(formats)
    check_figure_name(name)
    check_writable(out)
    # bad arguments are refused before a model is opened; what imports plotly or torch
    # comes after the series are read
    for model in models:
        check_sampling(model, request.samples)
    with progress_display() as bar:
        series = read_with_progress(bar, request, *models)
        if item:
            check_item(series, item)
        file_formats = named_formats or _drawable()
        _check_drawing(name, models, file_formats)
        from tsfm_lens.report.figures import make_figure, write_figure

        lenses = [open_with_progress(bar, model) for model in models]
        with stage(bar, f"compute figure {name}"):
            # the other lenses get this run's series and settings
            run = request.run(lenses[0], series)
            if item:
                run = run.select(item)
            result = make_figure(name, run, lenses[1:])
        drawing = bar.add_task("draw", total=len(file_formats))
        paths = write_figure(
            result,
            out,
            formats=file_formats,
            column=column,
            model=models[0],
            sources=data,
            progress=lambda file: bar.update(
                drawing, advance=1, description=f"draw {file}"
            ),
        )
    if request.as_json:
        from tsfm_lens.report.pipeline import as_plain

        record = {
            "figure": result.entry.name,
            "files": [str(path) for path in paths],
            "results": [as_plain(element) for element in result.results],
        }
        echo(json.dumps(record, allow_nan=False))
        return
    for path in paths:
        echo(str(path))


def _split(formats: str) -> list[str]:
    """Return the formats that are named, each once."""
    names = [name.strip().lower() for name in formats.split(",") if name.strip()]
    if not names:
        raise typer.BadParameter(
            "name at least one of html, svg, pdf, png, json, csv", param_hint="--format"
        )
    return checked_formats(names)


def _drawable() -> list[str]:
    """Return the formats that can be drawn on this machine, and say why not all."""
    from tsfm_lens.core.errors import RenderError
    from tsfm_lens.viz.saving import locate_browser

    try:
        locate_browser()
    # only the default falls back: a format that is named is refused without a browser
    except RenderError as error:
        echo(f"only html is written: {error}", err=True)
        return ["html"]
    return ["html", *STATIC]


def _check_drawing(name: str, models: Sequence[str], formats: Sequence[str]) -> None:
    """Refuse a figure that the models do not allow, or formats without a browser."""
    from tsfm_lens.core.registry import find_figure
    from tsfm_lens.models.locating import architecture_named
    from tsfm_lens.report.figures import check_architecture, check_single
    from tsfm_lens.viz.saving import locate_browser

    entry = find_figure(name)
    check_single(entry, len(models))
    static = [file_format for file_format in formats if file_format in STATIC]
    if static:
        locate_browser(static[0])
    for model in models:
        architecture = architecture_named(model)
        if architecture is not None:
            check_architecture(entry, architecture, model)


def _list_figures(as_json: bool) -> None:
    """Write the name and title of every figure; as JSON, also what it computes."""
    from tsfm_lens.core.registry import figures
    from tsfm_lens.models.architecture import models_meeting
    from tsfm_lens.report.figures import (
        describe_computation,
        requirements,
        takes_models,
    )

    entries = figures().values()
    if as_json:
        records = []
        for entry in entries:
            needed_models = " and ".join(map(models_meeting, requirements(entry)))
            record = {
                "name": entry.name,
                "title": entry.title,
                "computes": describe_computation(entry),
                "models": needed_models,
                "several": takes_models(entry),
            }
            records.append(record)
        echo(json.dumps(records))
        return
    # what is computed for a figure is in --json alone: it would make lines of 350
    # characters
    show_rows(
        ["figure", "what it shows"], [[entry.name, entry.title] for entry in entries]
    )
    echo(
        "\nThe paper's figures 3, 4, 7, 10, 11 and 16 to 19 are drawn from a sweep:"
        " `tsfm-lens sweep CONFIG.yaml`, then `tsfm-lens sweep report STORE`."
    )
