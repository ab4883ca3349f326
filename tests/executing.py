"""Notebooks run from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pandas as pd
import pytest
from sitepages.notebooks import EXAMPLES, execute

from tsfm_lens.testing import last_digit
from tsfm_lens.zoo import checkpoint_names

__all__ = ["EXAMPLES", "executed", "figures", "frames", "printed", "prose", "states"]


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


def frames(notebook: nbformat.NotebookNode) -> list[pd.DataFrame]:
    """Tables of numbers that the notebook shows, as far as their digits go."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    found = []
    for output in outputs:
        html = output.get("data", {}).get("text/html", "")
        for text in re.findall(r"<table.*?</table>", html, flags=re.DOTALL):
            table = ElementTree.fromstring(text)
            header = [cell.text for cell in table.findall("thead/tr[1]/th")]
            rows = [[cell.text for cell in row] for row in table.findall("tbody/tr")]
            numbers = [[float(number) for number in row[1:]] for row in rows]
            labels = [row[0] for row in rows]
            found.append(pd.DataFrame(numbers, index=labels, columns=header[1:]))
    return found


def prose(notebook: nbformat.NotebookNode) -> str:
    """Its texts, on one line."""
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    return " ".join(" ".join(cells).split())


def states(text: str, value: float, decimals: int = 0) -> bool:
    """Whether a number with so many decimals is the value, but for its last digit."""
    digits = rf"\.\d{{{decimals}}}(?!\d)" if decimals else r"(?![.,]?\d)"
    stated = [
        float(number.replace("\N{MINUS SIGN}", "-").replace(",", ""))
        for number in re.findall(rf"[+\N{{MINUS SIGN}}-]?\b\d[\d,]*{digits}", text)
    ]
    # the value has been rounded as well
    return any(abs(number - value) <= 2 * last_digit(decimals) for number in stated)
