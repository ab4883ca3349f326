"""Counting of what pages claim beyond their draws, and the table of the counts."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import xarray as xr

from benchmarks import nulls
from tsfm_lens.studies.method_scores.page import markdown

DOCS = Path(nulls.__file__).parents[1] / "docs"


def page(**flags: list[bool]) -> xr.Dataset:
    """Result of four members, of which the flags are given."""
    return xr.Dataset({f"x_{name}": ("member", flag) for name, flag in flags.items()})


@pytest.mark.parametrize("twins", [False, True])
def test_claims_are_counted_with_and_without_twins(twins: bool) -> None:
    """Each count is of members that meet every test before it."""
    data = page(
        significant=[True, True, False, True], exceeds_nulls=[True, False, True, True]
    )
    expected = {"claims": 2, "planted": 3, "significant": 2, "beyond": 1}
    if twins:
        data = data.merge(page(learned=[False, True, True, True]))
        expected |= {"claims_twins": 1, "learned": 0}
    planted = xr.DataArray([True, True, True, False], dims="member")
    assert nulls.count_claims(data, "x", planted) == expected


def test_the_page_shows_the_counts_of_the_file() -> None:
    """Its table, and the sums of it that are in the text, follow from the rows."""
    rows = pd.read_csv(DOCS / "nulls.csv", index_col="of")
    text = " ".join((DOCS / "concepts" / "findings.md").read_text().split())
    assert " ".join(markdown(nulls.table(rows)).split()) in text
    components = rows[rows["what"] != nulls.DIRECTION]
    planted = components["condition"] == "planted"
    untrained = components[~planted]
    assert f"{nulls.share_of_pages(untrained['claims'])} have one" in text
    assert not untrained["claims_twins"].any()
    learned, significant = components.loc[planted, ["learned", "significant"]].sum()
    assert f"{learned:g} of {significant:g} significant planted parts" in text
    # in an untrained copy nothing was planted
    assert not rows.loc[rows["condition"] != "planted", "planted"].any()
