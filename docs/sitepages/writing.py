"""What the pages that are written have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

DOCS = Path(__file__).parents[1]


_WRITTEN: set[Path] = set()


def write(page: str, text: str) -> None:
    """Write a page below docs/, unless it is there as it is: Sphinx reads what is
    newer.
    """
    file = DOCS / page
    _WRITTEN.add(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists() or file.read_text() != text:
        file.write_text(text)


def write_bytes(file: Path, content: bytes) -> None:
    """Write a file, unless it is there as it is."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists() or file.read_bytes() != content:
        file.write_bytes(content)


def remove_others() -> None:
    """Remove what earlier builds wrote beside the pages of this one."""
    for folder in {file.parent for file in _WRITTEN}:
        for file in {*folder.glob("*.md"), *folder.glob("*.ipynb")} - _WRITTEN:
            file.unlink()


def plain(text: str) -> str:
    """A text without markup of MyST, with code in backticks left as code."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(
        part if part[:1] == "`" else re.sub(r"([\\*_<>\[\]$|#{}])", r"\\\1", part)
        for part in parts
    )


def from_docstring(text: str) -> str:
    """A paragraph of a docstring as markup of MyST: code as code, references by their
    last word.
    """
    text = re.sub(
        r":[\w:]+:`~?([^`]+)`",
        lambda found: f"`{found[1].rpartition('.')[2]}`",
        " ".join(text.split()),
    )
    return plain(text.replace("``", "`"))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of MyST; cells are markup already."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def code(text: str, language: str = "python") -> str:
    """A block of code."""
    return f"```{language}\n{text.rstrip()}\n```"
