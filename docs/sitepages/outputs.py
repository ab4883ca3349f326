"""Figures below the code of the first pages, drawn by that very code when the site is
built.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import re
from contextlib import redirect_stdout
from dataclasses import asdict
from typing import Any

import plotly.graph_objects as go

from sitepages.drawing import CACHE, Drawn, sources, told
from sitepages.gallery import figure_html, write_figure
from sitepages.pictures import static_pictures
from sitepages.writing import DOCS, write

ROOTS = {"index": "", "start/index": "../"}
"""Pages with outputs, and the way from each to the root of the site."""
FOLDER = "_cache/outputs"


def write_outputs() -> None:
    """Write the output of every block of Python as a piece of a page, which the page
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
    blocks = find_python(page)
    file = (
        CACHE
        / "outputs"
        / f"{hashlib.sha256(f'{sources()}{blocks}'.encode()).hexdigest()[:32]}.json"
    )
    if not file.exists():
        names: dict[str, Any] = {}
        drawn = [run_block(block, names) for block in blocks]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps([item and asdict(item) for item in drawn]))
    return [load and Drawn(**load) for load in json.loads(file.read_text())]


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
