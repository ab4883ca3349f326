"""Notebooks run from top to bottom."""

from __future__ import annotations

import atexit
import re
from functools import cache
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

from tsfm_lens.zoo import checkpoint_names

EXAMPLES = Path(__file__).parent.parent / "examples"


@cache
def kernel() -> KernelManager:
    """One for all notebooks, as starting one takes longer than most of them."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(EXAMPLES))
    atexit.register(manager.shutdown_kernel, now=True)
    return manager


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook after a run in a kernel that holds no name of another one."""
    notebook = nbformat.read(path, as_version=4)
    source = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    missing = set(re.findall(r'load\("([\w-]+)"\)', source)) - set(checkpoint_names())
    if missing:
        pytest.skip(f"the embedded checkpoint {', '.join(sorted(missing))} is not in the package folder")
    notebook.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))
    NotebookClient(notebook, km=kernel(), timeout=300).execute()
    del notebook.cells[0]
    return notebook


def printed(notebook: nbformat.NotebookNode) -> str:
    """What the cells printed, tables included."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "".join(output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in outputs)


def figures(notebook: nbformat.NotebookNode) -> int:
    """Number of plotly figures."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return sum("application/vnd.plotly.v1+json" in output.get("data", {}) for output in outputs)
