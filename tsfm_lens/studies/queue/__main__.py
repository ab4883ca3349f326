"""Command that runs the open cells of the queue, or says what is open (--status).

``python -m tsfm_lens.studies.queue --data DIR`` starts it. The loop is
:class:`tsfm_lens.studies.queue.driver.Queue`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

import tsfm_lens
from tsfm_lens.core.console import console
from tsfm_lens.studies.queue.driver import RECORDS, Queue, unfinished
from tsfm_lens.studies.queue.orders import all_cells
from tsfm_lens.training.command import run_command

STATE = Path(tsfm_lens.__file__).parents[1] / ".queue"
VARIABLE = "TSFM_LENS_BENCHMARKS"


def run(
    *,
    data: Annotated[
        Path,
        typer.Option(
            envvar=VARIABLE,
            help="folder of ETTh1.csv, ETTh2.csv and exchange_rate.txt.gz",
        ),
    ] = Path("."),
    state: Annotated[
        Path,
        typer.Option(
            help="folder of the state; what is lost with it is computed again"
        ),
    ] = STATE,
    records: Annotated[Path, typer.Option(help="folder of the records")] = RECORDS,
    order: Annotated[
        list[int] | None, typer.Option(help="of these orders alone; repeatable")
    ] = None,
    record: Annotated[
        list[str] | None, typer.Option(help="of these records alone; repeatable")
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, help="cells that run at a time, a core each")
    ] = 1,
    status: Annotated[
        bool, typer.Option("--status", help="say what is done and open; run nothing")
    ] = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="try cells that failed once more")
    ] = False,
) -> None:
    """Run the open cells of the queue in order, each with one thread.

    A file "stop" in the state, or SIGTERM, ends it.

    Every finished cell is added to its record at once. The records alone say what is
    done. Most cells train on a GPU where there is one.
    """
    cells = [
        cell
        for cell in all_cells(data)
        if (not order or cell.order in order) and (not record or cell.record in record)
    ]
    queue = Queue(cells, records, state)
    missing = sorted({name for cell in unfinished(queue) for name in cell.missing})
    if missing:
        console(stderr=True).print(
            f"cells wait for {', '.join(missing)}; files are looked for in {data}"
        )
    if status:
        _show_status(queue)
        return
    if retry:
        queue.forget_failures()
    torch.set_num_threads(1)
    done = queue.work(typer.echo, processes=processes)
    typer.echo(f"{done} cells finished")


def _show_status(queue: Queue) -> None:
    table = queue.status()
    typer.echo(table.round(2).to_string())
    totals = (
        table[["cells", "done", "failed", "hours used", "hours left"]]
        .groupby("order")
        .sum()
    )
    typer.echo(totals.round(2).to_string())
    for (record, cell), error in queue.failures().items():
        typer.echo(f"failed: {record}: {cell}: {error}")


if __name__ == "__main__":
    run_command(run)
