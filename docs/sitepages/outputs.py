"""Outputs below the code of pages: figures that its Python draws, and what its
commands print, made by that very code when the site is built.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import re
import shlex
import tempfile
from contextlib import chdir, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
from typer.testing import CliRunner

from sitepages.drawing import CACHE, Drawn, sources, told
from sitepages.gallery import figure_html, write_figure
from sitepages.pictures import static_pictures
from sitepages.writing import DOCS, code, write
from tsfm_lens.cli import app

ROOTS = {"index": "", "start/index": "../", "data": "", "sweeps": ""}
"""Pages whose Python draws, and the way from each to the root of the site."""
PRINTING = ("compressing",)
"""Pages whose first command is shown with what it prints."""
FOLDER = "_cache/outputs"


def write_outputs() -> None:
    """Write the output of every block of Python, and of the commands that are shown
    with one, as pieces that pages include.
    """
    write_drawings()
    for page in PRINTING:
        printed = print_command(page)
        write(f"{FOLDER}/{page}-1.md", code(printed, "text") + "\n")


def write_drawings() -> None:
    """Write the figure of every block of Python as a piece of a page, which the page
    includes below the block.
    """
    for page, root in ROOTS.items():
        name = page.replace("/", "-")
        figures = {
            f"{name}-{number}": drawn
            for number, drawn in enumerate(list_drawings(page), 1)
            if drawn is not None
        }
        pictures = static_pictures(
            {slug: item.spec for slug, item in figures.items()}, CACHE / "pictures"
        )
        for slug, figure in figures.items():
            write_figure(slug, figure.spec, pictures.get(slug))
            html = figure_html(
                slug,
                figure.title,
                figure.height,
                figure.min_width,
                root,
                slug in pictures,
            )
            write(f"{FOLDER}/{slug}.md", f"**{figure.title}**\n\n{html}\n")


def find_python(page: str) -> list[str]:
    """The Python of a page, block by block."""
    return re.findall(
        r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), flags=re.DOTALL
    )


def list_drawings(page: str) -> list[Drawn | None]:
    """What the last line of each block draws; None of a block that ends in something
    else.
    """
    text = (DOCS / f"{page}.md").read_text()
    file = _find_kept(f"{find_python(page)}{find_config(text)}", "json")
    if not file.exists():
        drawn = run_blocks(page)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps([item and asdict(item) for item in drawn]))
    return [load and Drawn(**load) for load in json.loads(file.read_text())]


def print_command(page: str) -> str:
    """What the first command of a page prints, without the places of its files.

    Raises:
        RuntimeError: the command fails.
    """
    command = find_command(page)
    file = _find_kept(command, "txt")
    if not file.exists():
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            result = CliRunner().invoke(app, shlex.split(command)[1:])
            if result.exit_code:
                raise RuntimeError(f"{command}: {result.output}")
            lines = result.stdout.splitlines()
            places = {path.name for path in Path(folder).iterdir()}
        file.parent.mkdir(parents=True, exist_ok=True)
        shown = [line for line in lines if Path(line).name not in places]
        file.write_text("\n".join(shown))
    return file.read_text()


def find_command(page: str) -> str:
    """The first command of a page, without its prompt."""
    text = (DOCS / f"{page}.md").read_text()
    return re.search(r"^(?:\$ )?(tsfm-lens .*)$", text, flags=re.MULTILINE)[1]  # type: ignore[index]


def find_config(text: str) -> str:
    """The first YAML of a page, which its code reads as sweep.yaml; "" if none."""
    found = re.search(r"```yaml\n(.*?)```", text, flags=re.DOTALL)
    return found[1] if found else ""


def run_blocks(page: str) -> list[Drawn | None]:
    """Run the Python of a page, in a folder that has its first YAML as sweep.yaml."""
    names: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        config = find_config((DOCS / f"{page}.md").read_text())
        Path("sweep.yaml").write_text(config)
        return [run_block(block, names) for block in find_python(page)]


def _find_kept(content: str, ending: str) -> Path:
    key = hashlib.sha256(f"{sources()}{content}".encode()).hexdigest()[:32]
    return CACHE / "outputs" / f"{key}.{ending}"


def run_block(block: str, names: dict[str, Any]) -> Drawn | None:
    """Run a block as a notebook would: its last line may be a value."""
    *lines, last = ast.parse(block).body
    with redirect_stdout(io.StringIO()):
        exec(compile(ast.Module(lines, []), "block", "exec"), names)
        if not isinstance(last, ast.Expr):
            exec(compile(ast.Module([last], []), "block", "exec"), names)
            return None
        value = eval(compile(ast.Expression(last.value), "block", "eval"), names)
    if isinstance(value, go.Figure):
        return told(value, "", [])
    return None
