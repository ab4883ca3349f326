"""Command that records the answers of `reproduce` to items without options.

``python -m tsfm_lens.studies.papers S1-F1 S0-J1A`` measures these items anew; without
ids it measures all that need nothing beyond what ships. ``--stale`` writes anew what is
read from records, after cells were added to them.
"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from tsfm_lens.core.errors import LensError
from tsfm_lens.studies.papers.answers import write_answer
from tsfm_lens.studies.papers.context import ANSWERS
from tsfm_lens.studies.papers.items import ITEMS, find_item
from tsfm_lens.studies.papers.reproduce import measure_item
from tsfm_lens.training.command import run_command


def record(
    ids: Annotated[list[str] | None, typer.Argument(help="items; all if none")] = None,
    *,
    stale: Annotated[
        bool, typer.Option("--stale", help="all items that are read from records")
    ] = False,
) -> None:
    """Measure items, and write their answers beside the code."""
    names = [*(ids or ()), *(ANSWERS if stale else ())]
    for item in map(find_item, names) if names else ITEMS:
        if item.why and item.id not in ANSWERS:
            continue
        start = time.process_time()
        try:
            write_answer(item, *measure_item(item))
        except LensError as error:
            typer.echo(f"{item.id} is not recorded: {error}", err=True)
            continue
        typer.echo(f"{item.id}: {time.process_time() - start:.1f} s")


if __name__ == "__main__":
    run_command(record)
