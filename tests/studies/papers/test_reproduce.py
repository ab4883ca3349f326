"""The paper's numbers beside ours: exact where the answer is known, honest elsewhere;
and the command.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from tsfm_lens import testing
from tsfm_lens.cli import app
from tsfm_lens.models import load
from tsfm_lens.studies.papers.answers import read_answer
from tsfm_lens.studies.papers.items import BY_ID, HOLDS, ITEMS, PAPERS
from tsfm_lens.studies.papers.measures import lens_records
from tsfm_lens.studies.papers.reproduce import find_item, reproduce
from tsfm_lens.sweep.planner.recipes import parse_recipe

OUTCOMES: dict[str, float] = {
    "holds": 1.0,
    "does not hold": 0.0,
    "undecided": np.nan,
    "depends on ε": np.nan,
    "depends on the data": np.nan,
}


def test_released_lists_give_the_printed_shares(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("S3-F6", "S3-F13", "S3-F14", "S3-F15"):
        found = reproduce(name)
        heads = found.isel(quantity=0)
        assert abs(float(heads["difference"])) <= 0.5, name
        mlps = found.where(found["quantity"] == "MLPs ablated", drop=True)
        assert not np.nan_to_num(mlps["difference"]).any()
    # by hand: layers 9 and 11 of Toto keep 3 and 1 of 12 heads each
    nine_and_eleven = parse_recipe(
        {"name": "x", "released": "toto-1", "layers_at": [{"layers": [9, 11]}]}
    )
    monkeypatch.setattr(lens_records, "read_recipe", lambda name: nine_and_eleven)
    share, _ = lens_records.released_share("x")
    assert share == pytest.approx(100 * (9 + 11) / 144)


def test_test_tokens_are_the_paper_s() -> None:
    """At a published size the tokens of the test are those of the paper."""
    lens = load(testing.published("chronos", "tiny"), check=False)
    found = reproduce("S3-RRT", lens)
    np.testing.assert_array_equal(found["difference"], 0)
    assert "not the paper's model" in found.attrs["note"]


@pytest.mark.parametrize("name", [item.id for item in ITEMS if not item.why])
def test_numbers_stand_beside_the_printed_ones(name: str) -> None:
    item = find_item(name)
    found = reproduce(name)
    printed = {value.quantity: value.paper for value in item.values}
    papers = [
        printed.get(str(quantity), np.nan) for quantity in found["quantity"].values
    ]
    np.testing.assert_array_equal(found["paper"], papers)
    expected = found["paper"].fillna(found["formula"])
    np.testing.assert_array_equal(found["difference"], found["ours"] - expected)
    claims = found.isel(quantity=found["unit"].values == HOLDS)
    outcomes = claims["verdict"].values.tolist()
    np.testing.assert_array_equal(
        claims["ours"], [OUTCOMES[outcome] for outcome in outcomes]
    )
    for outcome, why in zip(outcomes, claims["why"].values.tolist(), strict=True):
        assert outcome != "undecided" or why


def test_every_item_of_papers_is_known() -> None:
    """Every id of the papers is known, and those that are not run have a reason."""
    ids = [name for paper in PAPERS.values() for name in paper["ids"].split()]
    panels = ("S0-F2a", "S0-F4c", "S2-LM", "S2-F4", "S2-F4b", "S2-F13")
    assert [find_item(name).id for name in panels] == [
        "S0-F2",
        "S0-F4C",
        *["S2-LM"] * 4,
    ]
    for item in map(find_item, (*ids, *BY_ID)):
        if item.why and read_answer(item) is None:
            found = reproduce(item.id)
            row = [
                found[name].values.tolist() for name in ("quantity", "verdict", "why")
            ]
            assert row == [[item.title], ["not run"], [item.why]]
    visible = run("S2-F7")
    assert visible.exit_code == 0
    assert "500,000 steps" in " ".join(visible.stdout.split())
    assert "A claim holds" not in visible.stdout


RUNNER = CliRunner()


def run(*args: str) -> Result:
    return RUNNER.invoke(app, ["reproduce", *args])


def test_claims_have_words_and_numbers() -> None:
    """Claims are words for people and numbers for scripts."""
    visible = run("s3-f1e")
    lines = visible.stdout.splitlines()
    claim = next(
        number
        for number, line in enumerate(lines)
        if "a higher average entropic rank" in line
    )
    parts = [line for line in lines[claim:] if " - " in line]
    assert "than before" in parts[0]
    assert "than after" in parts[1]
    assert "A claim holds if all of its parts do" in " ".join(visible.stdout.split())
    found = json.loads(run("s3-f1e", "--json").stdout)
    assert found["attrs"]["kind"] == "reproduction"
    assert found["data_vars"]["paper"]["data"][0] == 1
    outcomes = found["data_vars"]["verdict"]["data"]
    ours = found["data_vars"]["ours"]["data"]
    # what is undecided is neither 0 nor 1, and a number that the paper does not print
    # is missing, not 0
    assert all(
        value is None
        for outcome, value in zip(outcomes, ours, strict=True)
        if outcome == "undecided"
    )
    assert found["data_vars"]["paper"]["data"][1] is None


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("S3-T55",), 1, "Closest: S3-T5"),
        ((), 2, "id of a table or figure"),
        (("S3-F1D", "--model", "bolt-nano"), 1, "on yours, logit_lens"),
        (("S3-T4", "--model", "bolt-nano"), 1, "on yours, sweep_recipes"),
    ],
)
def test_failures(args: tuple[str, ...], code: int, message: str) -> None:
    result = run(*args)
    assert result.exit_code == code
    assert message in " ".join(result.stderr.split())
    assert result.stdout == ""
