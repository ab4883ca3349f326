"""A small version of the trial of the verdict: a drawn forecast, true and wrong
explanations of it.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from benchmarks import trial


# a planted model of patches; one that takes covariates has four times as many segments
@pytest.fixture(
    scope="module", params=[3, pytest.param(2, marks=pytest.mark.exhaustive)]
)
def rows(request: pytest.FixtureRequest) -> pd.DataFrame:
    return trial.trial(1, 5, first=request.param)


def test_only_true_explanations_are_accepted(rows: pd.DataFrame) -> None:
    """True explanations are accepted, and wrong ones fail."""
    table = (
        trial.accepted(rows)["all: hold or in part"]
        .str.split(" of ", expand=True)
        .astype(int)
    )
    share = table[0] / table[1]
    assert len(share) == 7
    assert share.pop("true") >= 0.85
    assert (share == 0).all(), share


def test_verdicts_join_inputs_and_routes(rows: pd.DataFrame) -> None:
    """A verdict is that of inputs and routes together."""
    fails, holds = ((rows[["inputs", "routes"]] == word) for word in ("fails", "holds"))
    assert ((rows["verdict"] == "fails") == fails.any(axis=1)).all()
    assert (
        (rows["verdict"] == "holds")
        == (holds | rows[["inputs", "routes"]].isna()).all(axis=1)
    ).all()
    # in part where the routes of a wider model recover less than the whole effect
    true = rows[rows["explanation"] == "true"]
    assert true["routes"].isin(["holds", "holds in part"]).all()
    # what claims the opposite effect claims it of the routes, too
    assert (rows[rows["explanation"] == "signs flipped"]["routes"] == "fails").all()


def test_an_ended_trial_goes_on(
    rows: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page of two commands is that of one."""
    monkeypatch.setattr(
        trial,
        "trial",
        lambda cases, seed, first: pd.concat(
            [rows.assign(case=number) for number in range(first, first + cases)]
        ),
    )
    pages = [tmp_path / "whole.md", tmp_path / "parts.md"]
    for page in pages:
        page.write_text(f"# Trial\n\n{trial.START}{trial.STOP}\n")
    trial.main(pages[0], cases=2, seed=5)
    for first in range(2):
        trial.main(pages[1], cases=1, first=first, seed=5)
    assert pages[0].read_text() == pages[1].read_text()
    assert (
        pages[0].with_suffix(".csv").read_bytes()
        == pages[1].with_suffix(".csv").read_bytes()
    )
    assert "| true |" in pages[0].read_text()
