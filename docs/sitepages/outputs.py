"""Figures below the code of pages, drawn by that very code when the site is built."""

from __future__ import annotations

import ast
import base64
import contextlib
import hashlib
import io
import json
import re
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeAlias

import plotly.graph_objects as go

from sitepages.drawing import CACHE, Drawn, sources, told
from sitepages.gallery import figure_html, write_figure
from sitepages.pictures import static_pictures
from sitepages.writing import DOCS, write

FOLDER = "_cache/outputs"
_FOLDERS = ("", "start", "concepts", "howto", "coming-from")
_WORKERS = 2

Output: TypeAlias = Drawn | str | None
"""What a block draws: a figure, a picture of matplotlib in base64, or nothing."""


def pages() -> Iterator[str]:
    """Pages that include what their code draws."""
    for folder in _FOLDERS:
        for file in sorted((DOCS / folder).glob("*.md")):
            page = file.relative_to(DOCS).with_suffix("").as_posix()
            if f"{FOLDER}/{slug_of(page)}-" in file.read_text():
                yield page


def slug_of(page: str) -> str:
    """The name of a page in the names of its outputs."""
    return page.replace("/", "-")


def write_outputs() -> None:
    """Write the output of every block of Python as a piece of a page, which the page
    includes below the block.
    """
    names = list(pages())
    missing = [page for page in names if not _stored(page).exists()]
    if missing:
        # a page may register a measurement or set a style, which is not for the others
        with ProcessPoolExecutor(_WORKERS, get_context("spawn")) as pool:
            list(pool.map(draw_page, missing))
    roots: dict[str, str] = {}
    figures: dict[str, Drawn] = {}
    for page in names:
        for number, output in enumerate(_read(page), 1):
            slug = f"{slug_of(page)}-{number}"
            roots[slug] = "../" * page.count("/")
            if isinstance(output, Drawn):
                figures[slug] = output
            elif output is not None:
                html = f'<img src="data:image/png;base64,{output}" alt="by the code">'
                write(f"{FOLDER}/{slug}.md", f"{html}\n")
    specs = {slug: figure.spec for slug, figure in figures.items()}
    pictures = static_pictures(specs, CACHE / "pictures")
    for slug, figure in figures.items():
        write_figure(slug, figure.spec, pictures.get(slug))
        html = figure_html(
            slug,
            figure.title,
            figure.height,
            figure.min_width,
            roots[slug],
            slug in pictures,
        )
        write(f"{FOLDER}/{slug}.md", f"**{figure.title}**\n\n{html}\n")


def find_python(page: str) -> list[str]:
    """The Python of a page, block by block."""
    return re.findall(
        r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), flags=re.DOTALL
    )


def _stored(page: str) -> Path:
    """The file of a page's outputs, by the code that they follow from."""
    key = hashlib.sha256(f"{sources()}{find_python(page)}".encode()).hexdigest()[:32]
    return CACHE / "outputs" / f"{key}.json"


def draw_page(page: str) -> None:
    """Store what the last line of each block draws."""
    file = _stored(page)
    names: dict[str, Any] = {"__name__": slug_of(page)}
    with _inside_work():
        drawn = [run_block(block, names) for block in find_python(page)]
    kept = [asdict(item) if isinstance(item, Drawn) else item for item in drawn]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(kept))


def _read(page: str) -> list[Output]:
    stored = json.loads(_stored(page).read_text())
    return [Drawn(**item) if isinstance(item, dict) else item for item in stored]


@contextlib.contextmanager
def _inside_work() -> Iterator[None]:
    """Every page has an empty folder of its own, and what it prints is not shown."""
    # pages run side by side, and what an earlier build wrote would be read again
    with (
        tempfile.TemporaryDirectory() as work,
        contextlib.chdir(work),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        yield


def run_block(block: str, names: dict[str, Any], line: int = 0) -> Output:
    """Run a block as a notebook would: its last line may be a value.

    Args:
        block: the code.
        names: its namespace, which it changes.
        line: lines of the page above it, for tracebacks.
    """
    file = str(names.get("__name__", "block"))
    *lines, last = ast.parse("\n" * line + block).body
    exec(compile(ast.Module(lines, []), file, "exec"), names)
    if not isinstance(last, ast.Expr):
        exec(compile(ast.Module([last], []), file, "exec"), names)
        return None
    value = eval(compile(ast.Expression(last.value), file, "eval"), names)
    if isinstance(value, go.Figure):
        return told(value, "", [])
    if type(value).__module__ == "matplotlib.figure":
        out = io.BytesIO()
        value.savefig(out, format="png", dpi=200, bbox_inches="tight")
        return base64.b64encode(out.getvalue()).decode()
    return None
