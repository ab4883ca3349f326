"""The one place that prints: texts appear as they are, whatever brackets or colons names and paths have.

Rich takes ``[/b]`` for markup and ``:name:`` for a picture; here it takes neither. What is to be bold or red is a
``rich.text.Text``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


def console(*, stderr: bool = False, width: int | None = None) -> Console:
    """A console that prints texts, and cells and titles of tables, as they are."""
    from rich.console import Console

    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


def progress(*, width: int = 0, eta: bool = False, after: str = "", hidden: bool = False) -> Progress:
    """A progress display on stderr, which leaves stdout alone: a description, a bar, done of all, time.

    Args:
        width: of the description, at least.
        eta: show the time left.
        after: what stands at the end of a line, such as "{task.fields[left]}".
        hidden: show nothing.
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    said = TextColumn(f"{{task.description:<{width}}}", markup=False)
    columns: list[Any] = [said, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    columns += [TimeRemainingColumn()] if eta else []
    columns += [TextColumn(after, markup=False)] if after else []
    return Progress(*columns, console=console(stderr=True), disable=hidden)
