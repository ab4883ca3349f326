"""Code that runs as ``python -c`` does, in processes that begin with the libraries
imported, which takes longer than all else, and with nothing of this package.
"""

from __future__ import annotations

import os
import sys
from multiprocessing import forkserver
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tsfm_lens.core.processes import clean_context

LIBRARIES = ("chronos", "plotly.graph_objects", "pytest", "scipy.stats", "xarray")


class Done(NamedTuple):
    """How a process ended, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


def run_code(code: str, *arguments: str, folder: Path) -> Done:
    """Run code in a folder, whose modules come before others."""
    context = clean_context(LIBRARIES)
    forkserver.ensure_running()
    with TemporaryDirectory() as told:
        files = [Path(told) / name for name in ("stdout", "stderr")]
        process = context.Process(target=_run, args=(code, arguments, folder, files))
        process.start()
        process.join()
        return Done(process.exitcode, *(file.read_text() for file in files))


def _run(code: str, arguments: list[str], folder: Path, files: list[Path]) -> None:
    for number, file in enumerate(files, start=1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(folder)
    sys.argv = ["-c", *arguments]
    sys.path.insert(0, str(folder))
    for name in [*sys.modules]:
        if name.partition(".")[0] == "tsfm_lens":
            del sys.modules[name]
    exec(code, {"__name__": "__main__"})
