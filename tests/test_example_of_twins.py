"""The notebook on untrained twins: what it calls learned is missing in all of them."""

from __future__ import annotations

import tsfm_lens
from executing import EXAMPLES, executed, figures, frames, prose, states
from tsfm_lens import probes


def test_heads_are_learned_and_a_readable_period_is_not() -> None:
    notebook = executed(EXAMPLES / "5-was-it-learned.ipynb")
    text = prose(notebook)
    heads, accuracy = frames(notebook)
    found = heads.loc["induction heads"]
    assert f"has {found['trained']:.0f} induction heads, and 19 untrained" in text
    assert found["twins, highest"] == 0
    last = accuracy.loc["layer 2"]
    assert states(text, last["trained"], 2)
    assert states(text, last["twins, lowest"], 2)
    assert states(text, last["values alone"], 2)
    assert last["twins, lowest"] > last["values alone"] > last["labels shuffled"]
    assert figures(notebook) == 3


def test_fewer_heads_pass_if_attention_divides() -> None:
    """The same tokens, shown four times and not twice."""
    lens = tsfm_lens.load("chronos-nano")
    scores = probes.induction_scores(
        lens, decoding="forced", positions="all", repeats=4
    )
    assert int(scores["induction"].sum()) == 1
