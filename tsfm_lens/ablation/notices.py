"""Warnings and log lines of a library, shown once in the many runs of one request.

Read :func:`show_messages_once`. Only repetitions of a message are hidden.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def show_messages_once(lens: Lens) -> Iterator[None]:
    """Show each warning and log line of the model's libraries once.

    Later copies are dropped while the block runs.
    """
    shown: set[Hashable] = set()

    def remember(*message: Hashable) -> bool:
        """Return True the first time that it is called with a message."""
        is_new = message not in shown
        shown.add(message)
        return is_new

    def is_new_record(record: logging.LogRecord) -> bool:
        return remember(record.name, record.levelno, record.getMessage())

    show = warnings.showwarning

    def show_new(
        message: Warning | str, category: type[Warning], *location: Any, **options: Any
    ) -> None:
        if remember(category.__name__, str(message)):
            show(message, category, *location, **options)

    with ExitStack() as stack:
        for logger in _loggers(lens):
            logger.addFilter(is_new_record)
            # not by restoring a list of filters: other code may add some in the
            # meantime
            stack.callback(logger.removeFilter, is_new_record)
        # restores warnings.showwarning at the end
        stack.enter_context(warnings.catch_warnings())
        warnings.showwarning = show_new
        yield


def with_messages_once(probe: Callable[P, R]) -> Callable[P, R]:
    """Wrap a probe, whose first argument is a run, in :func:`show_messages_once`.

    With another first argument the probe shows all messages.

    Returns:
        The wrapped probe.
    """

    @wraps(probe)
    def quiet(*args: P.args, **options: P.kwargs) -> R:
        run: Any = args[0] if args else options.get("run")
        if not isinstance(run, Run):
            return probe(*args, **options)
        with show_messages_once(run.lens):
            return probe(*args, **options)

    return quiet


def _loggers(lens: Lens) -> list[logging.Logger]:
    """Return the loggers of the libraries that a model comes from.

    Libraries name a logger after the module that logs, or after the path of its file.
    """
    packages = {
        type(part).__module__.partition(".")[0]
        for part in (lens.native, lens.adapter.model)
    }
    folders = tuple(
        os.path.join(folder, "")
        for name in packages
        for folder in getattr(sys.modules.get(name), "__path__", ())
    )
    return [
        logger
        for name, logger in logging.root.manager.loggerDict.items()
        # the dictionary also has placeholders, for parents that nobody has asked for
        if isinstance(logger, logging.Logger)
        and (name.partition(".")[0] in packages or name.startswith(folders))
    ]
