"""Progress of long work in Python, in a terminal or a notebook.

:class:`DelayedProgress` is a callback that shows a bar once work has taken a second.
The displays of the command line are in :mod:`tsfm_lens.core.console`.
"""

from __future__ import annotations

import time
from typing import Any

_DELAY = 1.0  # seconds without a bar, so that quick work leaves no trace


class DelayedProgress:
    """Callback that shows how far work is, and about how long it will still take.

    It is called with (done, total), or with (name, done, total) where work has several
    steps. The bar goes when the block ends. Nothing is shown where stderr is neither a
    terminal nor a notebook, or where another display is running.
    """

    def __init__(self, description: str = "") -> None:
        self._description = description
        self._began = time.monotonic()
        self._display: Any = None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> DelayedProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._display is not None:
            self._display.stop()

    def __call__(self, *position: Any) -> None:
        """Show a position, (done, total) or (name, done, total)."""
        *names, done, total = position
        if self._display is None:
            if time.monotonic() - self._began < _DELAY:
                return
            self._display = _start_display()
        description = str(names[0]) if names else self._description
        if description not in self._tasks:
            self._tasks[description] = self._display.add_task(description, total=total)
        self._display.update(self._tasks[description], completed=done, total=total)


def _start_display() -> Any:
    # rich takes longer to import than most work that never shows a bar
    from rich.errors import LiveError

    from tsfm_lens.core.console import console, progress

    target = console(stderr=True)
    is_watched = target.is_terminal or target.is_jupyter
    display = progress(eta=True, hidden=not is_watched, transient=True)
    try:
        display.start()
    except LiveError:
        # the command line shows its own display around this work
        display.disable = True
    return display
