"""The walks of CONTRIBUTING.md: their code, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def read_section(title: str) -> str:
    """Return the text of a section."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    return page.split(f"\n## {title}\n")[1].split("\n## ")[0]


def find_blocks(section: str, language: str) -> list[str]:
    """Return the blocks of code of one language in a section."""
    return re.findall(rf"```{language}\n(.*?)```", read_section(section), re.DOTALL)


def write_modules(section: str, folder: Path) -> None:
    """Write each block of Python to the file that its first line names."""
    for block in find_blocks(section, "python"):
        path = folder / block.splitlines()[0].removeprefix("# ")
        assert not path.exists()
        path.write_text(block)
