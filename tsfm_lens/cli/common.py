"""Common parts of all commands: the application, its arguments, and the display.

Read :data:`app` and :func:`stage` first. The options for series and forecasts are in
``reading.py``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.text import Text
from typer.core import TyperGroup

from tsfm_lens.cli import completing
from tsfm_lens.cli.reading import (
    FOREIGN,
    RENAMED,
    Request,
    check_sampling,
    describe_faults,
    read_data,
    translate_options,
)
from tsfm_lens.core.console import console, echo, interrupt_code, progress, visible
from tsfm_lens.core.errors import LensError
from tsfm_lens.core.io import WRITTEN

if TYPE_CHECKING:
    import xarray as xr
    from rich.table import Table

    from tsfm_lens.data import SeriesBatch
    from tsfm_lens.models import Lens

DAILY = "Daily work"
PAPERS = "Papers and training"
"""Groups of commands in the help."""
MODEL_HELP = "Embedded checkpoint, local folder, or hub id."
Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help=MODEL_HELP, autocompletion=completing.models),
]
Sections = Annotated[
    str | None,
    typer.Option(
        metavar="KIND[,KIND…]",
        help="Measurements to show, as `tsfm-lens measurements` lists them.",
        autocompletion=completing.kinds,
    ),
]
Engine = Annotated[
    Literal["single", "processes", "ray"],
    typer.Option(help="What runs the cells of a sweep."),
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, help="Workers of the engine; one per core or device."),
]


# a pipe has no width, and rich would fold every cell to fit into 80 columns
_PIPED_WIDTH = 1000
# a log gets at most 2880 lines a day
_SECONDS_A_LINE = 30.0
_MAX_FILES = 4  # that an interrupt names
_ARGUMENTS = "tsfm_lens.arguments"  # key of what was typed, in click's context
progress_display = partial(progress, width=28)


class _Commands(TyperGroup):
    """Group of commands that ends an error or an interrupt with one message.

    A deliberate error (LensError) becomes its message and exit code 1.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep the arguments as they were typed, of which messages make commands."""
        ctx.meta[_ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        # a process may run several commands, one after the other
        WRITTEN.clear()
        try:
            return super().invoke(ctx)
        # typer itself would end with a code, and name no files
        except KeyboardInterrupt:
            names = [*map(str, WRITTEN)][:_MAX_FILES]
            if len(WRITTEN) > _MAX_FILES:
                names.append("…")
            text = "nothing was left behind"
            if names:
                text = f"files written: {', '.join(names)}"
            # without soft_wrap, rich would break paths into lines
            console(stderr=True).print(f"interrupted; {text}", soft_wrap=True)
            raise typer.Exit(interrupt_code()) from None
        except LensError as error:
            arguments = ctx.meta[_ARGUMENTS]
            if error.faults is not None:
                text = describe_faults(error.faults, arguments)
            elif arguments[:1] == ["sweep"]:
                # its options are fields of a configuration, named as in Python
                text = str(error)
            else:
                text = translate_options(str(error))
            console(stderr=True).print(
                Text("error:", style="bold red"), text, soft_wrap=True
            )
            raise typer.Exit(1) from None
        except Exception as error:
            _name_renamed(error)
            raise


def _name_renamed(error: Exception) -> None:
    """Name the option that has taken the place of one that does not exist."""
    # the error of typer's own parser, or of click's in older versions
    former = getattr(error, "option_name", None)
    if former in RENAMED:
        error.message = f"{former} is called {RENAMED[former]}, as in Python."  # type: ignore[attr-defined]
        error.possibilities = None  # type: ignore[attr-defined]
    elif former in FOREIGN:
        error.message = f"{former} is called {FOREIGN[former]} here."  # type: ignore[attr-defined]
        error.possibilities = None  # type: ignore[attr-defined]


app = typer.Typer(
    cls=_Commands,
    help=(
        "See inside a time-series foundation model, change one thing, know what it did"
        " to the forecast."
    ),
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    # a defect shows Python's own traceback, of which typer would leave frames out
    pretty_exceptions_enable=False,
)


def _version(value: bool) -> None:
    if value:
        import tsfm_lens

        echo(f"tsfm-lens-toolbox {tsfm_lens.__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print it."),
    ] = False,
) -> None:
    """Define the options of all commands."""


def open_lens(model: str, *, check: bool = True) -> Lens:
    """Open the lens, without the progress bar of the library that reads the weights."""
    from tsfm_lens.models.locating import locate

    # a model that is not there is refused before torch is imported
    locate(model)
    from transformers.utils import logging

    from tsfm_lens import load

    # two displays on one terminal would write over each other
    logging.disable_progress_bar()
    return load(model, check=check)


def emit(result: xr.Dataset) -> None:
    """Print a result as JSON to stdout."""
    from tsfm_lens.report.pipeline import as_plain

    # NaN is no JSON; `as_plain` has put null in its place, and this makes sure
    echo(json.dumps(as_plain(result), allow_nan=False))


def write_data(text: str) -> None:
    """Write data to stdout.

    They go into a file or a pipe as they are, and to a terminal with control characters
    escaped.
    """
    out = sys.stdout
    if out is None:  # it was closed
        return
    if out.isatty():
        out.write(visible(text, keep="\n\t"))
    else:
        out.write(text)
    out.flush()


def show_rows(
    header: Sequence[str], rows: Sequence[Sequence[object]], *, digits: int = 4
) -> None:
    """Print a table of results to stdout, numbers with so many significant digits."""
    from rich.table import Table

    # only columns of numbers are aligned at the right; a column may mix both
    numeric = [
        all(isinstance(row[i], int | float) for row in rows) for i in range(len(header))
    ]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name, right in zip(header, numeric, strict=True):
        table.add_column(
            visible(name), justify="right" if right else "left", overflow="fold"
        )
    for row in rows:
        cells = [
            f"{cell:.{digits}g}" if isinstance(cell, float) else visible(str(cell))
            for cell in row
        ]
        table.add_row(*cells)
    show(table)


def show(table: Table) -> None:
    """Print to stdout; as wide as needed when piped, so that no name is truncated."""
    out = console()
    if not out.is_terminal:
        out = console(width=_PIPED_WIDTH)
    out.print(table)


def show_page(
    page: Path,
    left_out: Mapping[str, str],
    results: Mapping[str, xr.Dataset],
    as_json: bool,
    **metadata: object,
) -> None:
    """Print the path of a page, and its sections that were left out.

    With ``as_json``, its results and ``metadata`` are printed as well, by name.
    """
    if as_json:
        from tsfm_lens.report.pipeline import as_plain

        numbers = {name: as_plain(result) for name, result in results.items()}
        content = {
            "page": str(page),
            "left_out": dict(left_out),
            **metadata,
            "results": numbers,
        }
        echo(json.dumps(content, allow_nan=False))
        return
    for section, reason in left_out.items():
        echo(f"left out: {section}: {translate_options(reason)}", err=True)
    echo(str(page))


@contextmanager
def stage(bar: Any, words: str, total: int | None = 1) -> Iterator[Callable[..., None]]:
    """Show one task until the block ends.

    Yields:
        Function that takes the count done, and the total of a task of several.
    """
    task = bar.add_task(words, total=total)
    # a task of unknown length gets its total with the first count
    yield lambda count, total=total: bar.update(task, completed=count, total=total)
    bar.update(task, completed=total or 1, total=total or 1)


def open_with_progress(bar: Any, model: str) -> Lens:
    """Open the lens while the display says so."""
    with stage(bar, "open the model"):
        return open_lens(model)


def read_with_progress(bar: Any, request: Request, *models: str) -> SeriesBatch:
    """Read the series while the display says so.

    Returns:
        The series.

    Raises:
        InputError: a model does not take samples or covariates that are asked for.
    """
    from tsfm_lens.models.arguments import check_covariates

    # before the files are read, which may take longer
    architectures = [check_sampling(model, request.samples) for model in models]
    with stage(bar, "read the series"):
        batch = read_data(
            request.data, request.reading, request.horizon, request.holdout
        )
    for architecture in architectures:
        # a folder of a wiring of somebody's own says it once it is open
        if architecture is not None:
            check_covariates(architecture.name, architecture.covariates, batch)
    return batch


def make_step_progress(
    bar: Any, lens: Lens, kinds: Sequence[str]
) -> Callable[[str, int, int], None]:
    """Return the progress callback of a page.

    It has a bar for each step, and all bars are visible from the start.
    """
    from tsfm_lens.report.pipeline import list_steps

    bars = {
        # not started, so that the time of a step begins with the step
        name: bar.add_task(name_step(name), total=1, start=False)
        for name in list_steps(lens, kinds)
    }

    def progress(name: str, count: int, total: int) -> None:
        bar.start_task(bars[name])
        bar.update(bars[name], completed=count, total=total)

    return progress


class SweepDisplay:
    """Progress of a sweep on stderr: cells, and the time left.

    The time is shown once it can be estimated.
    """

    def __init__(self, unit: str = "cells") -> None:
        self._unit = unit
        err = console(stderr=True)
        self._bar = progress(
            width=36, after="{task.fields[left]}", hidden=not err.is_terminal
        )
        self._task = self._bar.add_task("reading models and data", total=None, left="")
        # the log of a batch job gets a line now and then
        self._lines = None if err.is_terminal else err
        self._next = 0.0

    def __enter__(self) -> SweepDisplay:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, what: str, count: int, total: int, left: float | None) -> None:
        """Show the progress of the sweep."""
        if left is None:
            text = ""
        else:
            text = f"about {_duration(left)} left"
        self._bar.update(
            self._task, description=what, completed=count, total=total, left=text
        )
        # monotonic, as a long sweep may see the clock set
        now = time.monotonic()
        if self._lines is not None and (now >= self._next or count == total):
            self._next = now + _SECONDS_A_LINE
            line = f"{what}: {count} of {total} {self._unit}"
            if text:
                line += f", {text}"
            self._lines.print(line, soft_wrap=True)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{round(seconds)} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} min"
    if seconds < 172800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"


def name_step(step: str) -> str:
    """Return the text that the display shows for a step."""
    if step == "report":
        return "write the report"
    return step.replace("_", " ")
