"""The notebook on untrained twins: what it calls learned is missing in all of them."""

from __future__ import annotations

from typing import Any

import nbformat
import pytest

import tsfm_lens
from executing import EXAMPLES, executed, figures, frames, prose, states
from tsfm_lens import probes

NOTEBOOK = EXAMPLES / "5-was-it-learned.ipynb"


def test_heads_are_learned_and_a_readable_period_is_undecided() -> None:
    notebook = executed(NOTEBOOK)
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
    # at the ceiling: none of sixty series is left to read better than the best twin
    assert last["twins, highest"] == last["trained"] == 1
    assert figures(notebook) == 3


@pytest.mark.parametrize(
    ("options", "count", "words"),
    [
        ({"decoding": "forced", "positions": "all"}, 1, "and 1 head passes"),
        # the paper's definition is the default
        ({}, 0, "By that definition 0 of 12 heads pass"),
    ],
    ids=["four times", "paper"],
)
def test_the_count_belongs_to_the_definition(
    options: dict[str, Any], count: int, words: str
) -> None:
    lens = tsfm_lens.load("chronos-nano")
    scores = probes.induction_scores(lens, repeats=4, **options)
    assert int(scores["induction"].sum()) == count
    assert words in prose(nbformat.read(NOTEBOOK, as_version=4))
