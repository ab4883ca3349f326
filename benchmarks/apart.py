"""Work in a process of its own, whose memory nothing else has touched."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch


def apart(work: Callable[..., Any], *args: object) -> Any:
    """The result of a function in a process of its own, whose memory nothing else has
    touched.
    """
    pool = get_context("spawn").Pool(1, initializer=_quiet)
    try:
        return pool.apply(work, args)
    finally:
        pool.close()
        pool.join()


def _quiet() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)


def restart_peak() -> int:
    """Let the kernel count this process's peak from now on; the bytes that it holds."""
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def status(key: str) -> int:
    """Bytes that the kernel counts of this process: "VmRSS" now, "VmHWM" at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))
