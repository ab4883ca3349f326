"""The command that puts the paper's numbers beside the same measurements here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from tsfm_lens.cli.common import DATA_HELP, AsJson, Horizon, Seed, app, emit, read_series, show, show_rows

if TYPE_CHECKING:
    import xarray as xr


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="[ID]", help="Table or figure, such as S3-T5.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="The paper's own by default.")] = None,
    data: Annotated[list[str] | None, typer.Option("--data", "-d", metavar="FILE|bundled:NAME", help=DATA_HELP)] = None,
    windows: Annotated[int, typer.Option(min=1, help="Windows of chaotic systems, where no data is given.")] = 8,
    horizon: Horizon = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Sample paths of a sampling model.")] = None,
    sequences: Annotated[int, typer.Option(min=1, help="Sequences of the repeated-random-tokens test.")] = 64,
    seed: Seed = 0,
    listed: Annotated[bool, typer.Option("--list", help="Show every id, and what it needs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure what a table or figure of the paper reports, and show the paper's numbers beside it."""
    if listed:
        _list(as_json)
        return
    if name is None:
        raise typer.BadParameter("give the id of a table or figure, or --list")
    from transformers.utils import logging

    from tsfm_lens.paper.reproduce import item_of
    from tsfm_lens.paper.reproduce import reproduce as measure

    logging.disable_progress_bar()
    item_of(name)
    series = read_series(data) if data else None
    result = measure(
        name,
        model,
        series,
        windows=windows,
        horizon=horizon,
        num_samples=samples,
        n_sequences=sequences,
        seed=seed,
    )
    if as_json:
        emit(result)
        return
    _render(result)


def _list(as_json: bool) -> None:
    from tsfm_lens.paper.values import ITEMS

    if as_json:
        rows = [
            {
                "id": item.id,
                "title": item.title,
                "model": item.model,
                "needs_sweep": item.sweep,
                "values": {value.quantity: {"paper": value.paper, "unit": value.unit} for value in item.values},
                "settings": dict(item.settings),
                "note": item.note,
            }
            for item in ITEMS
        ]
        typer.echo(json.dumps(rows))
        return
    show_rows(
        ["id", "what", "numbers", "model", "needs"],
        [
            [item.id, item.title, str(len(item.values)), item.model, "benchmark sweep" if item.sweep else ""]
            for item in ITEMS
        ],
    )


def _render(result: xr.Dataset) -> None:
    from rich.markup import escape
    from rich.table import Table

    from tsfm_lens.paper.values import HOLDS

    table = Table(title=escape(result.attrs["title"]), title_justify="left", header_style="bold")
    for column in ("quantity", "paper", "ours", "difference", "unit", "where"):
        table.add_column(column, justify="right" if column in ("paper", "ours", "difference") else "left")
    for index in range(result.sizes["quantity"]):
        row = result.isel(quantity=index)
        unit = str(row["unit"].values)
        numbers = [float(row[key]) for key in ("paper", "ours", "difference")]
        if unit == HOLDS:
            words = ["holds" if number else "does not hold" for number in numbers[:2]]
            cells, unit = [*words, "" if numbers[2] == 0 else "differs"], "statement"
        else:
            cells = [_number(number) for number in numbers]
        table.add_row(*map(escape, (str(row["quantity"].values), *cells, unit, str(row["where"].values))))
    show(table)
    if result.sizes["setting"]:
        differ = Table("setting", "paper", "here", title="Settings that differ", title_justify="left")
        for name, theirs, ours in zip(
            result["setting"].values, result["paper_setting"].values, result["our_setting"].values, strict=True
        ):
            differ.add_row(*(escape(str(cell)) for cell in (name, theirs, ours)))
        show(differ)
    if result.attrs["note"]:
        typer.echo(result.attrs["note"], err=True)


def _number(value: float) -> str:
    return "" if value != value else f"{value:.4g}"
