"""The reference of the command line, as typer writes it from the commands themselves."""

from __future__ import annotations

import subprocess
import sys

from sitepages.api import FOLDER
from sitepages.writing import DOCS, write

PAGE = f"{FOLDER}/commands.md"


def write_commands() -> None:
    """One page with every command and its options."""
    write(PAGE, text())


def text() -> str:
    """The page."""
    asked = [sys.executable, "-m", "typer", "tsfm_lens.cli", "utils", "docs", "--name", "tsfm-lens"]
    made = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=DOCS.parent).stdout
    _, _, rest = made.partition("\n")
    told = "Data goes to stdout, messages to stderr; exit code 0 is done, 1 refused, 2 misused."
    return f"# Command line\n\n{told}\n{rest}"
