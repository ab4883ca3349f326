"""``python -m benchmarks.paper``: every command of the README whose checkpoint is here,
as one markdown table.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import warnings
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import xarray as xr
from rich.console import Console
from typer.main import get_command

from tsfm_lens.cli import app
from tsfm_lens.core.errors import CheckpointError, LensError, MissingExtraError
from tsfm_lens.studies.papers.items import HOLDS, Item
from tsfm_lens.studies.papers.reproduce import find_item, reproduce

README = Path(__file__).with_name("README.md")
EMBEDDED = {"S3-F21": "bolt-nano"}
EMBEDDED_SERIES = ["co2", "elnino", "pedestrians"]
EMBEDDED_HORIZON = 24
HEADER = (
    "| id | model | quantity | paper | ours | difference | unit"
    " |\n|---|---|---|---|---|---|---|\n"
)


def commands() -> list[list[str]]:
    """The arguments of each command of the README after ``tsfm-lens reproduce``."""
    cells = [
        cell
        for line in README.read_text().splitlines()
        if line.startswith("|")
        for cell in line.split("`")
    ]
    return [
        shlex.split(cell)[2:]
        for cell in cells
        if cell.startswith("tsfm-lens reproduce S")
    ]


@cache
def _command() -> Any:
    group: Any = get_command(app)
    return group.commands["reproduce"]


def parsed(arguments: Sequence[str]) -> dict[str, Any]:
    """The arguments as the command line reads them, by name of the parameter.

    Raises:
        UsageError of click: there is no such option.
    """
    return _command().make_context("reproduce", list(arguments)).params


def embedded(item: Item) -> str | None:
    """The embedded model that stands in for an item's own; None where it needs none."""
    if item.sweep:
        return "bolt-nano"
    # items of several models take the embedded ones by themselves
    if item.model:
        return EMBEDDED.get(item.id, "chronos-nano")
    return None


def rows(result: xr.Dataset, name: str, model: str) -> Iterator[str]:
    """A result's lines of the table: what the paper prints, the parts of its claims,
    and recipes scaled to a model.
    """
    printed = np.isfinite(result["paper"].values)
    scaled = np.char.find(result["quantity"].values.astype(str), " scaled to ") >= 0
    parts = result["part_of"].values.astype(str) != ""
    for index in np.flatnonzero(printed | parts | scaled):
        one = result.isel(quantity=int(index))
        unit = str(one["unit"].values)
        numbers = [float(one[key]) for key in ("paper", "ours", "difference")]
        cells = [f"{number:.4g}" if np.isfinite(number) else "" for number in numbers]
        if unit == HOLDS:
            low = float(one["low"])
            high = float(one["high"])
            span = ""
            if np.isfinite(low):
                span = f" ({float(one['estimate']):.4g}, {low:.4g} to {high:.4g})"
            paper = ""
            if printed[index]:
                paper = "holds"
            cells = [paper, f"{one['verdict'].values}{span}", ""]
            unit = str(one["margin"].values) or "claim"
        yield (
            f"| {name} | {model} | {one['quantity'].values} | {' | '.join(cells)} |"
            f" {unit} |"
        )


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper", description=__doc__
    )
    parser.add_argument("--out", type=Path, help="markdown file; stdout if not given")
    parser.add_argument(
        "--only", default="", help="ids, e.g. S3-T5,S3-PREF (default: all)"
    )
    parser.add_argument(
        "--local",
        action="append",
        default=[],
        metavar="ID=FOLDER",
        help="a copy of a checkpoint",
    )
    parser.add_argument(
        "--embedded",
        action="store_true",
        help="on the embedded models: mechanics, not values",
    )
    parser.add_argument(
        "--windows", type=int, help="windows instead of those of the commands"
    )
    parser.add_argument(
        "--sweeps",
        action="store_true",
        help="also the sweeps over GIFT-Eval; --only runs them too",
    )
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    folders = dict(pair.split("=", 1) for pair in options.local)
    only = {find_item(name).id for name in options.only.split(",") if name}
    console = Console(stderr=True)
    lines: list[str] = []
    notes: dict[str, None] = {}
    with TemporaryDirectory() as scratch:
        for arguments in commands():
            asked = parsed(arguments)
            name = str(asked["name"])
            if only and name not in only:
                continue
            item = find_item(name)
            if item.sweep and not (only or options.sweeps or options.embedded):
                notes[f"{name} runs over the whole benchmark: --sweeps"] = None
                continue
            if item.theory and options.embedded and not only:
                continue
            named = [str(entry) for entry in asked["model"] or ()]
            if options.embedded:
                named = [entry for entry in [embedded(item)] if entry]
            label = ", ".join(named)
            if any(line.startswith(f"| {name} | {label} |") for line in lines):
                continue
            more: dict[str, Any] = (
                {} if item.theory else {"windows": options.windows or asked["windows"]}
            )
            if options.embedded and not item.theory:
                more["horizon"] = EMBEDDED_HORIZON
            chosen: Any = [folders.get(entry, entry) for entry in named]
            if item.sweep:
                more["store"] = (
                    Path(scratch) / "store" if options.embedded else asked["store"]
                )
                more["data"] = EMBEDDED_SERIES if options.embedded else None
                chosen = chosen or [
                    folders.get(source, source) for source in item.model.split(", ")
                ]
            try:
                with console.status(f"{name} {label}"):
                    result = reproduce(name, chosen, **more)
            except (CheckpointError, MissingExtraError) as error:
                notes[f"{label or name}: {error}"] = None
                continue
            except LensError as error:
                notes[f"{name} on {label}: {error}"] = None
                continue
            lines += rows(result, name, label)
            if result.attrs["note"]:
                notes[f"{name}: {result.attrs['note']}"] = None
    text = HEADER + "\n".join(lines) + "\n\n" + "".join(f"- {note}\n" for note in notes)
    if options.out:
        options.out.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
