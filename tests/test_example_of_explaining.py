"""The notebook on a changed forecast: its parts sum, and its texts state them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from executing import EXAMPLES, executed, figures, frames, printed, prose, states
from tsfm_lens.testing import last_digit

NOTEBOOK = EXAMPLES / "4-why-did-my-forecast-change.ipynb"
PARTS = ["origin", "people, new", "day_off, future"]
DAYS = ["Tue 01 Nov", "Wed 02 Nov", "Thu 03 Nov"]


@pytest.fixture(scope="module")
def notebook() -> Any:
    return executed(NOTEBOOK)


def test_parts_sum_to_the_change(notebook: Any) -> None:
    (table,) = frames(notebook)
    whole = table["today"] - table["yesterday"]
    # five numbers, each rounded to a person
    assert (table[PARTS].sum(axis=1) - whole).abs().max() <= 5 * last_digit(0)
    text = prose(notebook)
    tuesday = table.loc[DAYS[0]]
    assert all(states(text, tuesday[name]) for name in ["yesterday", "today", *PARTS])


def test_the_mark_repairs_one_day_and_spoils_two(notebook: Any) -> None:
    (table,) = frames(notebook)
    errors = table[["yesterday", "today"]].sub(table["came"], axis=0).abs()
    text = prose(notebook)
    assert all(states(text, error) for error in errors.loc[DAYS].to_numpy().ravel())
    fell = errors["today"] < errors["yesterday"]
    assert fell[DAYS].tolist() == [True, False, False]


def test_verdict_is_that_of_the_texts(notebook: Any) -> None:
    """One route fails; with a longer past the test of the inputs fails."""
    assert "Verdict: the explanation holds in part" in printed(notebook)
    drawn = [
        json.dumps(output["data"])
        for cell in notebook.cells
        if '"deletion_curves"' in cell.source or '"route_faithfulness"' in cell.source
        for output in cell.outputs
    ]
    inputs, routes = drawn
    assert ": failed" not in inputs
    # three tests of each of four routes
    assert routes.count(": failed") == 1
    assert routes.count(": passed") == 11
    assert figures(notebook) == 5
    names: dict[str, Any] = {}
    opening = next(cell.source for cell in notebook.cells if cell.cell_type == "code")
    exec(opening.replace("days=56", "days=84"), names)
    longer = names["today"].explain(sections=("input_attribution", "deletion_curves"))
    assert longer.summary()["verdict"] == "fails"
