"""Functions as commands, ``python -m …``.

Errors are printed in one line, without a traceback.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from tsfm_lens.core.console import console, standard_streams, termination
from tsfm_lens.core.errors import LensError

__all__ = ["HELP", "Threads", "run_command"]

HELP = {"help_option_names": ["-h", "--help"]}
"""Settings of every command: -h is help too."""
Threads = Annotated[int, typer.Option(min=1, help="CPU threads")]
"""Option --threads of a command."""


def run_command(command: Callable[..., Any]) -> None:
    """Run a function, or an app of typer, with the arguments of the command line."""
    with standard_streams(), termination():
        try:
            if not isinstance(command, typer.Typer):
                function = command
                command = typer.Typer(add_completion=False)
                command.command(context_settings=HELP)(function)
            command()
        except LensError as error:
            console(stderr=True).print(f"error: {error}", soft_wrap=True)
            raise SystemExit(1) from None
