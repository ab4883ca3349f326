"""What commands of pages print, made when the site is built."""

from __future__ import annotations

import hashlib
import shlex
import tempfile
from contextlib import chdir
from pathlib import Path

from typer.testing import CliRunner

from sitepages.drawing import CACHE, sources
from sitepages.writing import code, write
from tsfm_lens.cli import app

FOLDER = "_cache/printed"
PAGES = {
    "compressing": (
        "tsfm-lens compress bolt-nano --keep 0.25 --data bundled:all --horizon 24 --out"
        " small --figure before-and-after.html"
    )
}
"""Commands that a page shows with their output, by the page."""


def write_printed() -> None:
    """Write what each command prints as a piece that its page includes."""
    for page, command in PAGES.items():
        write(f"{FOLDER}/{page}.md", code(print_command(command), "text") + "\n")


def print_command(command: str) -> str:
    """What a command prints, without the places of the files that it writes.

    Raises:
        RuntimeError: the command fails.
    """
    key = hashlib.sha256(f"{sources()}{command}".encode()).hexdigest()[:32]
    file = CACHE / "printed" / f"{key}.txt"
    if not file.exists():
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            result = CliRunner().invoke(app, shlex.split(command)[1:])
            written = {path.name for path in Path(folder).iterdir()}
        if result.exit_code:
            raise RuntimeError(f"{command}: {result.output}")
        shown = [
            line
            for line in result.stdout.splitlines()
            if Path(line).name not in written
        ]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(shown))
    return file.read_text()
