"""The code of the pages runs: the Python blocks of each in order, and what a block
prints is what the page shows.

A block that is followed by one in ```text prints that, where "..." stands for anything.
A block that ends in a figure is followed by the figure, and no other block is. Then the
commands run whose files the blocks wrote. Blocks of other languages, and those in
```{code-block}, are not run.
"""

from __future__ import annotations

import doctest
import io
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest
from sitepages import outputs
from typer.testing import CliRunner

import documented_commands
from tsfm_lens.cli import app
from tsfm_lens.core import registry
from tsfm_lens.core.registry import figures

DOCS = Path(__file__).parent.parent / "docs"
FOLDERS = ("coming-from", "concepts", "howto", "start")
_BLOCK = re.compile(
    r"^```python\n(.*?)^```$(?:\n+^```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL
)
_LOOSE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Block(NamedTuple):
    """A piece of Python of a page, the line where it stands, and what it prints; None
    if the page does not say.
    """

    code: str
    line: int
    printed: str | None


def blocks(text: str) -> Iterator[Block]:
    for match in _BLOCK.finditer(text):
        yield Block(match[1], text[: match.start(1)].count("\n"), match[2])


def run_blocks(page: Path) -> int:
    """Run a page's blocks in one namespace, which is a module's; their number.

    Raises:
        AssertionError: a block prints or draws something else than the page shows.
    """
    namespace: dict[str, object] = {"__name__": page.stem}
    drawn: list[int] = []
    number = 0
    text = page.read_text()
    for block in blocks(text):
        number += 1
        with redirect_stdout(io.StringIO()) as out:
            output = outputs.run_block(block.code, namespace, block.line)
        if output is not None:
            drawn.append(number)
        if block.printed is not None:
            same = doctest.OutputChecker().check_output(
                block.printed, out.getvalue(), _LOOSE
            )
            if not same:
                visible = f"printed\n{out.getvalue()}\nthe page shows\n{block.printed}"
                raise AssertionError(f"{page.name}:{block.line}: {visible}")
    slug = outputs.slug_of(page.relative_to(DOCS).with_suffix("").as_posix())
    shown = re.findall(rf"{outputs.FOLDER}/{slug}-(\d+)\.md", text)
    assert [int(each) for each in shown] == drawn, "figures of the page"
    return number


def run_commands(page: Path) -> int:
    """Run a page's commands on files that its blocks wrote; their number.

    Raises:
        AssertionError: a command ends with another exit code than 0.
    """
    number = 0
    for mention in documented_commands.mentions(page):
        text = documented_commands.split_command(mention)
        if mention.whole and any(Path(word).exists() for word in text[1:]):
            if text[1] == "explain":
                # every section of an explanation is computed in tests/explain
                text += ["--sections", "input_attribution"]
            result = CliRunner().invoke(app, text[1:])
            assert result.exit_code == 0, f"{mention.place}: {result.output}"
            number += 1
    return number


COMMANDS = {"own-csv": 2, "cluster": 3, "score-your-method": 2}
"""Commands that run, by the page whose blocks write their files."""
LONG = ("fine-tuned-models", "models-on-one-axis")
"""Pages that train or remove much, which the site runs as well when it is built."""
PAGES = [
    page for folder in (*FOLDERS, ".") for page in sorted((DOCS / folder).glob("*.md"))
]
# some pages at the top show code that would train for hours
TOP = ("index", "data", "sweeps")
PAGES = [page for page in PAGES if page.parent != DOCS or page.stem in TOP]
PAGES = [page for page in PAGES if "```python" in page.read_text()]


@pytest.fixture(autouse=True)
def measurements_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page may declare a measurement of its own, which other tests do not know."""
    figures()
    monkeypatch.setattr(registry, "_MEASUREMENTS", dict(registry._MEASUREMENTS))
    monkeypatch.setattr(registry, "_FIGURES", registry._FIGURES.copy())


@pytest.mark.usefixtures("inputs_explained_alone")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            marks=[pytest.mark.exhaustive] if page.stem in LONG else [],
            id=f"{page.parent.name}/{page.stem}",
        )
        for page in PAGES
    ],
)
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_blocks(page) > 0
    assert run_commands(page) == COMMANDS.get(page.stem, 0)
