"""What README says in numbers and tables is what the package and its records say."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from tsfm_lens.models.architecture import architectures

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def words(text: str) -> str:
    return " ".join(text.split())


def test_readme_is_read_in_a_minute() -> None:
    assert len(README.splitlines()) <= 120


def test_table_of_models_says_who_takes_covariates() -> None:
    """A tick under covariates stands for the models that take them."""
    rows = re.findall(r"^\| (\w.+?) \| (✓?) ?\| (✓?) ?\|$", README, re.MULTILINE)
    ticked = {
        model: bool(tick)
        for models, tick, _ in rows
        if not models.startswith("your own")
        for model in models.split(", ")
    }
    taking = {
        re.sub(r"\.0|-R|\(.*\)", "", architecture.title).strip(): bool(
            architecture.covariates
        )
        for architecture in architectures().values()
    }
    assert ticked == taking


def test_shares_of_accepted_explanations_are_recorded() -> None:
    """The shares of true and wrong explanations are those of the shipped cases."""
    table = pd.read_csv(ROOT / "docs" / "howto" / "verdict.csv")
    accepted = table["verdict"].ne("fails").groupby(table["explanation"]).mean()
    true, wrong = re.search(
        r"(\d+) % of true explanations are accepted .*? at most (\d+) % of each kind"
        r" that is wrong as a whole",
        words(README),
    ).groups()
    assert round(100 * accepted.pop("true")) == int(true)
    verdicts = table.loc[table["explanation"] == "true", "verdict"].value_counts()
    # the half of them that README says
    part = verdicts["holds in part"] / (verdicts["holds in part"] + verdicts["holds"])
    assert round(part, 1) == 0.5
    assert 100 * accepted.max() <= int(wrong)


def test_shares_with_one_wrong_input_are_those_of_the_table() -> None:
    """README and the page say the largest share of the wrong kinds."""
    page = (ROOT / "docs" / "howto" / "verdict.md").read_text(encoding="utf-8")
    _, section = page.split("## When one input alone is wrong")
    rows = re.findall(r"^\| (.*?) \|(.*)\|$", section.split("\n## ")[0], re.MULTILINE)
    shares = [
        int(held) / int(cases)
        for label, cells in rows
        if label != "true"
        for held, cases in re.findall(r"(\d+) of (\d+)", cells)
    ]
    assert f"up to {max(shares):.0%}".replace("%", " %") in words(README)
    assert f"up to {max(shares):.0%}".replace("%", " %") in words(page)


def test_share_of_untrained_pages_is_recorded() -> None:
    """The range of false claims of untrained models is that of the calibration."""
    table = pd.read_csv(ROOT / "docs" / "calibration.learned.csv")
    shares = table.filter(like="weights")
    low, high = re.search(r"(\d+) to (\d+) % of pages", words(README)).groups()
    assert (shares.min().min(), shares.max().max()) == (int(low), int(high))
