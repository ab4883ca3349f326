"""Counts of attention sinks on the page about them follow from its file."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from benchmarks import sinks

DOCS = Path(sinks.__file__).parents[1] / "docs"


def test_the_page_shows_the_counts_of_the_file() -> None:
    rows = pd.read_csv(DOCS / "sinks.csv", index_col="of")
    text = " ".join((DOCS / "howto" / "sinks.md").read_text().split())
    planted = rows[rows["condition"] == sinks.PLANTED]
    assert (planted["right"] == planted["planted"]).all()
    assert f"all {planted['planted'].sum():g} such heads of" in text
    assert f"seeds 0 to {len(planted) - 1}" in text
    copies = rows[rows["condition"] == sinks.SHUFFLED]
    assert f"{copies['sinks'].sum()} of {copies['heads'].sum()} heads" in text
    kinds = copies["named"].dropna().str.split().str[-1]
    assert sorted(kinds) == ["bias", "broadcast"]
    draws = rows.loc[rows["condition"] == sinks.DRAWN, "named"]
    assert draws.str.contains("encoder.0.self_attn.3 bias").sum() == len(draws) == 10
    assert draws.str.contains("decoder.0.self_attn.3 nop").sum() == 9
    assert draws.str.contains("decoder.2.self_attn.1 broadcast").sum() == 2
