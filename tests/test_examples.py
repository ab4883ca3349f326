"""The example notebooks run from top to bottom on the embedded checkpoints, and ship without outputs."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tsfm_lens.zoo import checkpoint_names

EXAMPLES = Path(__file__).parent.parent / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def executed(path: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(path, as_version=4)
    source = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    missing = set(re.findall(r'load\("([\w-]+)"\)', source)) - set(checkpoint_names())
    if missing:
        pytest.skip(f"the embedded checkpoint {', '.join(sorted(missing))} is not in the package folder")
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute(cwd=str(EXAMPLES))
    return notebook


def test_there_are_examples() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_ships_without_outputs(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_first_look_finds_heads_that_matter_more_than_others() -> None:
    """The last cells state a share for both models; three heads can never hold less than an even spread."""
    notebook = executed(EXAMPLES / "01-first-look.ipynb")
    text = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))
    ratios = [float(found) for found in re.findall(r"([\d.]+) times an even spread", text)]
    assert len(ratios) == 2
    assert all(ratio >= 1 for ratio in ratios)
    figures = [
        output
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "application/vnd.plotly.v1+json" in output.get("data", {})
    ]
    assert len(figures) == 9
