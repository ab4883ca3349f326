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


def printed(notebook: nbformat.NotebookNode) -> str:
    """What the cells printed, tables included."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "".join(output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in outputs)


def figures(notebook: nbformat.NotebookNode) -> int:
    """Number of plotly figures."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return sum("application/vnd.plotly.v1+json" in output.get("data", {}) for output in outputs)


def test_first_look_finds_heads_that_matter_more_than_others() -> None:
    """The last cells state a share for both models; three heads can never hold less than an even spread."""
    notebook = executed(EXAMPLES / "01-first-look.ipynb")
    ratios = [float(found) for found in re.findall(r"([\d.]+) times an even spread", printed(notebook))]
    assert len(ratios) == 2
    assert all(ratio >= 1 for ratio in ratios)
    assert figures(notebook) == 9


def test_own_model_is_wired_in_one_short_cell() -> None:
    notebook = nbformat.read(EXAMPLES / "02-your-own-model.ipynb", as_version=4)
    (wiring,) = [cell.source for cell in notebook.cells if "(PatchAdapter)" in cell.source]
    assert len(wiring.splitlines()) <= 60


def test_own_model_passes_every_oracle_and_wrong_wirings_do_not() -> None:
    """The trained model forecasts about as well as the last season repeated, and no wrong table passes."""
    notebook = executed(EXAMPLES / "02-your-own-model.ipynb")
    text = printed(notebook)
    assert "10 of 10 oracles passed" in text
    assert float(re.findall(r"repeating the last season: ([\d.]+)", text)[0]) < 1.3
    right, interleaved = re.findall(r"my-forecaster: Forecaster.*?└", text, flags=re.DOTALL)
    assert "failed" not in right.lower()
    assert "failed" in interleaved.lower()
    assert "10 head order: off by" in text
    assert figures(notebook) == 4
