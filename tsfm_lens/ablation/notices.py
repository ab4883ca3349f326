"""Warnings and log lines of a library, shown once in many runs of one request.

Read :func:`said_once`. Messages that differ are all shown; nothing else is hidden.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def said_once(lens: Lens) -> Iterator[None]:
    """Show each warning and log line of the model's libraries once.

    Later copies are dropped while the block runs.
    """
    messages: set[Hashable] = set()

    def fresh(*message: Hashable) -> bool:
        repeats = message in messages
        messages.add(message)
        return not repeats

    def first_time(record: logging.LogRecord) -> bool:
        return fresh(record.name, record.levelno, record.getMessage())

    def show_fresh(
        message: Warning | str, category: type[Warning], *location: Any, **options: Any
    ) -> None:
        if fresh(category.__name__, str(message)):
            show(message, category, *location, **options)

    with ExitStack() as stack:
        for logger in _loggers(lens):
            logger.addFilter(first_time)
            stack.callback(logger.removeFilter, first_time)
        stack.enter_context(warnings.catch_warnings())
        # catch_warnings restores it
        show = warnings.showwarning
        warnings.showwarning = show_fresh
        yield


def saying_once(probe: Callable[P, R]) -> Callable[P, R]:
    """Wrap a probe, whose first argument is a run, in :func:`said_once`."""

    @wraps(probe)
    def once(*args: P.args, **options: P.kwargs) -> R:
        run: Any = args[0] if args else options.get("run")
        with said_once(run.lens) if isinstance(run, Run) else nullcontext():
            return probe(*args, **options)

    return once


def _loggers(lens: Lens) -> list[logging.Logger]:
    """Return the loggers of the libraries that a model comes from.

    They are named after a module, or after its file.
    """
    packages = {
        type(part).__module__.partition(".")[0]
        for part in (lens.native, lens.adapter.model)
    }
    folders = [
        folder
        for name in packages
        for folder in getattr(sys.modules.get(name), "__path__", ())
    ]
    return [
        logger
        for name, logger in logging.root.manager.loggerDict.items()
        if isinstance(logger, logging.Logger)
        and (
            name.partition(".")[0] in packages
            or any(Path(name).is_relative_to(folder) for folder in folders)
        )
    ]
