"""The notebook on a changed forecast: its parts sum, and its texts state them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from executing import EXAMPLES, executed, figures, frames, printed, prose, states
from tsfm_lens.testing import last_digit

NOTEBOOK = EXAMPLES / "4-why-did-my-forecast-change.ipynb"
PARTS = ["origin", "people, new", "day_off, future"]
DAYS = ["Tue 01 Nov", "Wed 02 Nov", "Thu 03 Nov", "Fri 04 Nov"]


@pytest.fixture(scope="module")
def notebook() -> Any:
    return executed(NOTEBOOK)


def test_parts_sum_to_the_change(notebook: Any) -> None:
    table, _ = frames(notebook)
    whole = table["today"] - table["yesterday"]
    # five numbers, each rounded to a person
    assert (table[PARTS].sum(axis=1) - whole).abs().max() <= 5 * last_digit(0)
    text = prose(notebook)
    tuesday = table.loc[DAYS[0]]
    assert all(states(text, tuesday[name]) for name in ["yesterday", "today", *PARTS])


def test_the_mark_repairs_one_day_and_spoils_three(notebook: Any) -> None:
    table, errors = frames(notebook)
    text = prose(notebook)
    with_mark, without = errors["today"], errors["mark taken back"]
    stated = [*with_mark[DAYS], *without[DAYS]]
    assert all(states(text, error) for error in stated)
    assert "repairs Tuesday's forecast and spoils those of the three days" in text
    assert (with_mark < without)[DAYS].tolist() == [True, False, False, False]
    above = (table["today"] > table["came"])[DAYS[1:]]
    assert above.tolist() == [True, True, False]
    assert "from Friday on, the later start moves the forecast more" in text
    later, mark = (table.loc[DAYS[3] :, name].abs() for name in (PARTS[0], PARTS[2]))
    assert (later > mark).all()


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
