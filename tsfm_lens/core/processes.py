"""Processes beside this one that take nothing from it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable
from typing import Any

__all__ = ["clean_context"]


def clean_context(modules: Iterable[str]) -> Any:
    """Return a context whose processes begin with some modules imported.

    A plain fork would copy locks and CUDA states of the calling process.

    Args:
        modules: names of the modules, which the first process imports for all others
            where the system can fork.

    Returns:
        A context of :mod:`multiprocessing`.

    Example:
        >>> from tsfm_lens.core.processes import clean_context
        >>> clean_context(["numpy"]).get_start_method() in ("forkserver", "spawn")
        True
    """
    method = "spawn"
    if "forkserver" in multiprocessing.get_all_start_methods():
        method = "forkserver"
    context: Any = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(sorted({*modules} - {"__main__"}))
    return context
