"""Notebooks run from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from sitepages.notebooks import EXAMPLES, execute

from tsfm_lens.zoo import checkpoint_names

__all__ = ["EXAMPLES", "executed", "figures", "printed"]


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook after a run in a kernel that holds no name of another one."""
    notebook = nbformat.read(path, as_version=4)
    source = "\n".join(
        cell.source for cell in notebook.cells if cell.cell_type == "code"
    )
    missing = set(re.findall(r'load\("([\w-]+)"\)', source)) - set(checkpoint_names())
    if missing:
        pytest.skip(
            f"the embedded checkpoint {', '.join(sorted(missing))} is not in the"
            " package folder"
        )
    # the site shows what was run here last
    return execute(path)


def printed(notebook: nbformat.NotebookNode) -> str:
    """What the cells printed, tables included."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "".join(
        output.get("text", "") or output.get("data", {}).get("text/plain", "")
        for output in outputs
    )


def figures(notebook: nbformat.NotebookNode) -> int:
    """Number of plotly figures."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return sum(
        "application/vnd.plotly.v1+json" in output.get("data", {}) for output in outputs
    )
