"""Notebooks: executed once for tests, site and repository, with figures to touch here
and pictures of them there.
"""

from __future__ import annotations

import atexit
import base64
import copy
import hashlib
import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

from sitepages.drawing import CACHE, HEIGHT, ROOT, sources
from sitepages.gallery import figure_html, write_figure
from sitepages.pictures import static_pictures
from sitepages.writing import write

EXAMPLES = ROOT / "examples"
PAPERS = "papers"  # folder of notebooks that show runs of a paper
PLOTLY = "application/vnd.plotly.v1+json"
_KEPT = CACHE / "notebooks"


@cache
def kernel() -> KernelManager:
    """One for all notebooks, as starting one takes longer than most of them."""
    manager = KernelManager(kernel_name="python3")
    # figures as data, of which pages and pictures are made here
    manager.start_kernel(
        cwd=str(EXAMPLES), env={**os.environ, "PLOTLY_RENDERER": "plotly_mimetype"}
    )
    atexit.register(manager.shutdown_kernel, now=True)
    return manager


def execute(path: Path) -> nbformat.NotebookNode:
    """Run a notebook in a kernel that holds no name of another one, and keep what it
    gave for :func:`executed`.
    """
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))
    NotebookClient(notebook, km=kernel(), timeout=300).execute()
    del notebook.cells[0]
    _KEPT.mkdir(parents=True, exist_ok=True)
    part = _KEPT / f".{uuid4().hex}.part"
    part.write_text(nbformat.writes(notebook))
    part.replace(_place(path))
    return notebook


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook after a run, which is made only if neither its code nor the package
    is what was last run.
    """
    retained = _place(path)
    if not retained.exists():
        return execute(path)
    notebook = nbformat.read(path, as_version=4)
    ran = [
        cell
        for cell in nbformat.read(retained, as_version=4).cells
        if cell.cell_type == "code"
    ]
    # texts may have changed since
    for cell, before in zip(
        (item for item in notebook.cells if item.cell_type == "code"), ran, strict=True
    ):
        cell.outputs = before.outputs
        cell.execution_count = before.execution_count
    return notebook


def _place(path: Path) -> Path:
    text = f"{sources()}{hash_code(nbformat.read(path, as_version=4))}"
    return _KEPT / f"{path.stem}-{hashlib.sha256(text.encode()).hexdigest()[:32]}.ipynb"


def hash_code(notebook: nbformat.NotebookNode) -> str:
    """A hash of what is run in a notebook."""
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()[:32]


def names() -> list[str]:
    """Of all notebooks below ``examples/``: those to learn from, then the papers'."""
    return [
        path.relative_to(EXAMPLES).with_suffix("").as_posix()
        for folder in (EXAMPLES, EXAMPLES / PAPERS)
        for path in sorted(folder.glob("*.ipynb"))
    ]


def write_notebooks() -> None:
    """All notebooks as pages, and one that lists those to learn from with their first
    sentences; the page on papers lists the others.
    """
    listed = []
    tutorials = []
    for name in names():
        notebook = executed(EXAMPLES / f"{name}.ipynb")
        stem = Path(name).name
        pictures = static_pictures(_specs(notebook, stem), CACHE / "pictures")
        root = "../" * len(Path("notebooks", name).parent.parts)
        write(
            f"notebooks/{name}.ipynb",
            nbformat.writes(_to_touch(notebook, stem, pictures, root)) + "\n",
        )
        if name.startswith(f"{PAPERS}/"):
            continue
        tutorials.append(name)
        lines = notebook.cells[0].source.split("\n\n")
        reported = ""
        if len(lines) > 1:
            reported = " ".join(lines[1].split())
        listed.append(
            f"**[{lines[0].removeprefix('# ')}]({name}.ipynb)**\n: {reported}"
        )
    toctree = "\n".join(tutorials)
    opening = (
        "# Notebooks\n\nEach has one finding, and its tests compute it again. They use"
        " embedded models and bundled series, and need no network. The files are in"
        " `examples/`. [](../papers.md) has notebooks on training and architecture."
    )
    entries = "\n\n".join(listed)
    write(
        "notebooks/index.md",
        f"{opening}\n\n{entries}\n\n```{{toctree}}\n:hidden:\n\n{toctree}\n```\n",
    )


def with_pictures(path: Path) -> str:
    """A notebook as it is kept in the repository: texts and tables, and a picture of
    each figure.

    Raises:
        RuntimeError: there is no browser that could draw the pictures.
    """
    notebook = copy.deepcopy(executed(path))
    name = path.stem
    specs = _specs(notebook, name)
    pictures = static_pictures(specs, CACHE / "pictures")
    if len(pictures) < len(specs):
        raise RuntimeError(
            "pictures of figures need chromium and chromedriver on the path"
        )
    for slug, output in _figures(notebook, name):
        picture = base64.b64encode(pictures[slug]).decode()
        output["data"] = {"image/png": picture, "text/plain": _title(output)}
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [
                _plain(item) for item in cell.outputs if not _progress(item)
            ]
    notebook.metadata = {
        **nbformat.read(path, as_version=4).metadata,
        "tsfm_lens": {"rendered": hash_code(notebook)},
    }
    return nbformat.writes(notebook) + "\n"


def _progress(output: Any) -> bool:
    """Whether an output is a bar or a warning that a reader has no use for."""
    return output.get(
        "name"
    ) == "stderr" or "application/vnd.jupyter.widget-view+json" in output.get(
        "data", {}
    )


def _plain(output: Any) -> Any:
    if "execution_count" in output:
        output["execution_count"] = None
    if "data" in output:
        output["metadata"] = {}
    return output


def _title(output: Any) -> str:
    layout = output["data"][PLOTLY].get("layout", {})
    return str((layout.get("meta") or {}).get("title") or "figure")


def _figures(notebook: nbformat.NotebookNode, name: str) -> Iterator[tuple[str, Any]]:
    """Every output with a plotly figure, under the name of its files."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    visible = [output for output in outputs if PLOTLY in output.get("data", {})]
    for position, output in enumerate(visible, start=1):
        yield f"{name}-{position}", output


def _specs(notebook: nbformat.NotebookNode, name: str) -> dict[str, str]:
    made = {}
    for slug, output in _figures(notebook, name):
        spec = {
            key: output["data"][PLOTLY].get(key) for key in ("data", "layout", "frames")
        }
        made[slug] = json.dumps(
            {key: value for key, value in spec.items() if value is not None},
            sort_keys=True,
        )
    return made


def _to_touch(
    notebook: nbformat.NotebookNode,
    name: str,
    pictures: dict[str, bytes],
    root: str,
) -> nbformat.NotebookNode:
    """The notebook with figures drawn by the one plotly.js of the site, whose root is
    ``root`` from its page.
    """
    page = copy.deepcopy(notebook)
    # the state of progress bars, for which scripts would be fetched from the net
    page.metadata.pop("widgets", None)
    specs = _specs(notebook, name)
    for slug, output in _figures(page, name):
        layout = output["data"][PLOTLY].get("layout", {})
        wide = int((layout.get("meta") or {}).get("min_width", 0))
        write_figure(slug, specs[slug], pictures.get(slug))
        html = figure_html(
            slug,
            _title(output),
            int(layout.get("height") or HEIGHT),
            wide,
            root,
            slug in pictures,
        )
        output["data"] = {"text/html": html}
        output["metadata"] = {}
    for cell in page.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _progress(output)]
    return page
