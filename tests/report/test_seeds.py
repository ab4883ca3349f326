"""What a report says of components does not depend on the seed of its draws."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from tsfm_lens.data import bundled
from tsfm_lens.models import load
from tsfm_lens.report.build import find_measurement
from tsfm_lens.report.pipeline import analyse

SEEDS = range(5)
# a sentence that names a part of the model, or ranks parts
NAMED = re.compile(
    r"\b(encoder|decoder|embed|layer|head|heads|MLP|MLPs|component|components)\b"
)


def sentences(name: str, seed: int) -> list[str]:
    lens = load(name, check=False)
    if lens.adapter.readout == "token":
        options = {"num_samples": 3}
    else:
        options = {}
    run = lens.run(
        bundled("co2", "pedestrians").tail(120), 6, holdout=True, seed=seed, **options
    )
    found = []
    for step, result in analyse(run).items():
        for panel in find_measurement(result, step).draw_panels(result):
            found += [
                f"{step}: {sentence}"
                for sentence in panel.sentences
                if NAMED.search(sentence)
            ]
    return found


@pytest.mark.parametrize(
    "seeds", [SEEDS[:2], pytest.param(SEEDS, marks=pytest.mark.campaign)], ids=len
)
@pytest.mark.parametrize(
    "name",
    # without sample paths the seed chooses resamples alone, as it does with them
    ["chronos-nano", pytest.param("bolt-nano", marks=pytest.mark.exhaustive)],
)
def test_seeds_change_no_component_sentence(name: str, seeds: Sequence[int]) -> None:
    """No sentence on a component changes between seeds."""
    first, *rest = (sentences(name, seed) for seed in seeds)
    assert len(first) > 10
    assert any("decoder." in sentence for sentence in first)
    for other in rest:
        assert other == first
