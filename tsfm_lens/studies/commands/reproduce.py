"""Command that puts the paper's numbers beside the same measurements here.

It parses options, shows progress and prints tables; the measuring is
:func:`tsfm_lens.studies.papers.reproduce.reproduce`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsfm_lens.cli import completing
from tsfm_lens.cli.common import PAPERS, app, emit, show, show_rows
from tsfm_lens.cli.reading import AsJson, Seed
from tsfm_lens.core.console import console, echo

if TYPE_CHECKING:
    import xarray as xr


def _ids() -> list[str]:
    from tsfm_lens.studies.papers.items import BY_ID

    return list(BY_ID)


@app.command(rich_help_panel=PAPERS)
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]",
            help="Table or figure, such as S3-T5.",
            autocompletion=completing.make_completer(_ids),
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="For an item that is measured on models: others than the embedded"
            " ones; may be given more than once.",
            autocompletion=completing.models,
        ),
    ] = None,
    seed: Seed = 0,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Draws of an experiment without a model."),
    ] = None,
    list_ids: Annotated[
        bool, typer.Option("--list", help="Show every id, and what it needs.")
    ] = False,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="Compute, even if there is a recorded answer; what needs trained"
            " models, from the records of their runs.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a table or figure of a paper reports, beside what is measured here.

    An id alone is answered from its record; options, or --fresh, compute it.
    """
    if list_ids:
        _list(as_json)
        return
    if name is None:
        raise typer.BadParameter("give the id of a table or figure, or --list")
    from tsfm_lens.studies.papers.answers import recorded
    from tsfm_lens.studies.papers.items import find_item

    item = find_item(name)
    answer = None
    if not (fresh or model or seed or seeds):
        answer = recorded(item)
    if answer is None:
        # these import torch: what is wrong above is refused without it
        from transformers.utils import logging

        from tsfm_lens.studies.papers import reproduce as papers

        logging.disable_progress_bar()
        with console(stderr=True).status(item.id):
            answer = papers.reproduce(
                name, model or None, seed=seed, seeds=seeds, fresh=fresh
            )
    (emit if as_json else _render)(answer)


def _list(as_json: bool) -> None:
    from tsfm_lens.core.registry import measurements
    from tsfm_lens.studies.papers.items import ITEMS

    metadata: list[dict[str, Any]] = [
        {
            "id": item.id,
            "title": item.title,
            "also": list(item.also),
            "model": item.model or ", ".join(item.models),
            "measurements": [
                measurement.kind
                for measurement in measurements().values()
                if item.id in measurement.paper
            ],
            "values": {
                value.quantity: {"paper": value.paper, "unit": value.unit}
                for value in item.values
            },
            "settings": dict(item.settings),
            "note": item.note,
            "why": item.why,
        }
        for item in ITEMS
    ]
    if as_json:
        echo(json.dumps(metadata))
        return
    rows = [
        [
            " ".join(item.ids),
            item.title,
            str(len(item.values)),
            row["model"],
            " ".join(row["measurements"]),
            item.why or ("no model" if item.theory else ""),
        ]
        for item, row in zip(ITEMS, metadata, strict=True)
    ]
    show_rows(["id", "what", "numbers", "model", "measurement", "needs"], rows)


def _render(result: xr.Dataset) -> None:
    from rich.table import Table

    from tsfm_lens.core.stats import CONFIDENCE_TEXT, LEVEL_TEXT

    table = Table(
        title=result.attrs["title"], title_justify="left", header_style="bold"
    )
    columns = [
        "quantity",
        "paper",
        "formula",
        "ours",
        "estimate",
        f"{CONFIDENCE_TEXT} interval",
        "difference",
        "unit",
        "where",
    ]
    for column in columns:
        table.add_column(column, justify="right" if column in columns[1:-2] else "left")
    reasons: dict[str, None] = {}
    for row in (
        result.drop_dims("setting").to_dataframe().reset_index().to_dict("records")
    ):
        table.add_row(*_cells(row))
        if row["why"]:
            reasons[f"{row['verdict']}: {row['why']}"] = None
    show(table)
    # what is not run has a verdict and no unit
    if any((result["verdict"].values != "") & (result["unit"].values != "")):
        echo(
            "A claim holds if all of its parts do, and does not if one does not. The"
            " estimate of a part is by how much it is true of the median"
            f" {result.attrs['over']}: it holds if that stands above 0, at"
            f" {LEVEL_TEXT} after"
            " Holm over the parts, and does not if it stands below. It depends on ε, or"
            " on the data, if it holds at one and does not at another."
        )
    for reason in reasons:
        echo(reason)
    if result.sizes["setting"]:
        title = "Settings here, and the paper's where it states them"
        differences = Table(
            "setting", "paper", "here", title=title, title_justify="left"
        )
        names = ("setting", "paper_setting", "our_setting")
        for setting in zip(*(result[name].values for name in names), strict=True):
            differences.add_row(*map(str, setting))
        show(differences)
    if result.attrs["note"]:
        echo(result.attrs["note"], err=True)


def _cells(row: Mapping[Any, Any]) -> list[str]:
    """Return the cells of a row of the table: a number, a claim, or a part of one."""
    paper, formula, ours, estimate, low, high, difference = (
        "" if row[key] != row[key] else f"{row[key]:.4g}"
        for key in (
            "paper",
            "formula",
            "ours",
            "estimate",
            "low",
            "high",
            "difference",
        )
    )
    interval = low and f"{low} to {high}"
    text = row["quantity"]
    unit = row["unit"]
    if not row["verdict"]:
        numbers = [paper, formula, ours, "", interval, difference]
        return [text, *numbers, unit, row["where"]]
    paper = ""
    if unit:
        paper = "holds"
    if part_of := row["part_of"]:
        paper = ""
        text = f"  - {text.removeprefix(part_of + ': ')}"
    return [
        text,
        paper,
        "",
        row["verdict"],
        estimate,
        interval,
        "",
        row["margin"] or (unit and "claim"),
        row["where"],
    ]
