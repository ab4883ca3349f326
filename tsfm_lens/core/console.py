"""Output to the terminal, in which texts appear as they are.

Brackets, colons and control characters of a name neither format nor move anything:
:func:`echo` and :func:`console` escape them. The module also turns signals into exit
codes, with :func:`termination` and :func:`interrupt_code`.
"""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

# also the signs that turn the direction of writing, which hide what a name says, and
# those that end a line
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def visible(text: str, *, keep: str = "") -> str:
    r"""Escape control characters: ESC becomes the four signs ``\x1b``."""

    def escape(sign: re.Match[str]) -> str:
        if sign[0] in keep:
            return sign[0]
        return sign[0].encode("unicode_escape").decode()

    return _CONTROL.sub(escape, text)


def echo(text: str = "", *, err: bool = False) -> None:
    """Print lines to stdout, or to stderr, with control characters escaped."""
    typer.echo(visible(text, keep="\n\t"), err=err)


# rich turns every string, also of cells and titles, into text by this method
class _PlainConsole(Console):
    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text, keep="\n\t"), **options)


# TextColumn would read brackets of a description as markup
class _PlainColumn(TextColumn):
    def render(self, task: Task) -> Text:
        return Text(visible(self.text_format.format(task=task)))


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Return a console that prints texts, cells and titles of tables as they are.

    Control characters are escaped.
    """
    return _PlainConsole(
        stderr=stderr, width=width, markup=False, emoji=False, highlight=False
    )


def progress(
    *,
    width: int = 0,
    eta: bool = False,
    after: str = "",
    hidden: bool = False,
    transient: bool = False,
) -> Progress:
    """Return a progress display on stderr, which leaves stdout alone.

    It has a description, a bar, counts, the elapsed time and, with ``eta``, the
    remaining time. If ``transient``, it is wiped off at its end.
    """
    description = _PlainColumn(f"{{task.description:<{width}}}")
    columns = [
        description,
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    ]
    columns += [TimeRemainingColumn()] if eta else []
    columns += [_PlainColumn(after)] if after else []
    return Progress(
        *columns, console=console(stderr=True), disable=hidden, transient=transient
    )


class Terminated(KeyboardInterrupt):
    """The process was asked to end by SIGTERM; it cleans up as after Ctrl-C."""


@contextmanager
def termination() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that temporary files go.

    Outside the main thread, it changes nothing.
    """
    # Python sets handlers of signals in the main thread alone
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: object) -> None:
        # a second one must not cut off the cleaning up
        signal.signal(number, signal.SIG_IGN)
        _RECEIVED.append(number)
        raise Terminated

    former = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


_RECEIVED: list[int] = []


def interrupt_code() -> int:
    """Return the exit code of a command that a signal interrupted.

    It is 143 after SIGTERM, else 130.
    """
    # as a shell reports it
    return 128 + (_RECEIVED[-1] if _RECEIVED else signal.SIGINT)


@contextmanager
def standard_streams() -> Iterator[None]:
    """Let stdout and stderr take any text, and report errors of the system.

    An error, such as a full device, is a line on stderr, and the exit code is 1.
    """
    # a sign that the terminal's encoding lacks must not end the program
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            yield
        finally:
            # here, so that a full device is noticed while it can still be reported
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        # who closed the pipe wants no more lines
        if not isinstance(error, BrokenPipeError):
            file = ""
            if error.filename:
                file = f"{error.filename}: "
            with suppress(OSError):
                console(stderr=True).print(
                    f"error: {file}{error.strerror or error}", soft_wrap=True
                )
        for stream in filter(None, (sys.stdout, sys.stderr)):
            try:
                stream.flush()
            except OSError:
                # what is left in its buffer would fail once more at the end of the
                # process
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise SystemExit(1) from None
