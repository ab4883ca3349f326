"""Edges on the cards of variants are those that edits find: the mechanism alone is
left, and one edge is cut at a time.
"""

from __future__ import annotations

import copy
from itertools import product

import numpy as np
import pytest
import torch

from tsfm_lens import probes
from tsfm_lens.hooks.weights import head_output_weights
from tsfm_lens.models import load
from tsfm_lens.studies.bench.models import ARCHITECTURES, sealed_models
from tsfm_lens.studies.method_scores.series import EvaluationCase, evaluation_case

SEED = 3
ACTS = 0.01
"""Share of the way to the altered forecast from which a cut edge acts: cut edges give
all of it, a fair share of it, or rounding.
"""


def silence(case: EvaluationCase, kept: set[str]) -> EvaluationCase:
    """The same case on a model in which all other parts write nothing."""
    model = copy.deepcopy(case.lens.adapter.model)
    wiring = load(model, check=False).wiring
    with torch.no_grad():
        for component in case.components:
            if str(component) in kept:
                continue
            if component.head is None:
                block = getattr(model, component.stack).block[component.layer]
                block.layer[-1].DenseReluDense.wo.weight.zero_()
                continue
            stack = wiring.stack(component.stack)
            out = head_output_weights(model, stack, component.layer, component.kind)
            out[component.head] = 0.0
    lens = load(model, check=False)
    return evaluation_case(lens, case.card, series=6, seed=SEED)


def find_edges(case: EvaluationCase, parts: set[str]) -> set[tuple[str, str]]:
    """Edges between parts that act where they alone are patched."""
    left = silence(case, parts)
    names = sorted(parts, key=list(map(str, case.components)).index)
    data = probes.path_patching(
        left.clean, left.corrupted, senders=names, receivers=[*names, "output"]
    )
    acts = np.abs(data["recovered"]).max("series")
    return {
        (sender, receiver)
        for sender, receiver in product(names, [*names, "output"])
        if float(acts.sel(sender=sender, receiver=receiver)) > ACTS
    }


PAIRS = set(product(("cancelling", "either", "split", "routes"), ARCHITECTURES))


# no quarter alone is missed in Chronos, so that no single edge is either
@pytest.mark.parametrize(
    ("mechanism", "architecture"), sorted(PAIRS - {("split", "chronos")})
)
def test_edges_are_those_that_edits_find(mechanism: str, architecture: str) -> None:
    case = sealed_models(f"{mechanism}-{architecture}", SEED)[0].case
    parts = set(case.card.components("mechanism"))
    spare = {part.component for part in case.card.parts if "either of two" in part.does}
    # of two that suffice alone, one is silent at a time
    found: set[tuple[str, str]] = set()
    for silent in spare or {""}:
        found |= find_edges(case, parts - {silent})
    # what looks at places alone writes the same into both runs, and cannot be patched
    fixed = {
        part.component
        for part in case.card.parts
        if part.does.startswith(("marks ", "tells the step"))
    }
    stated = {edge for edge in case.card.edges if edge[0] not in fixed}
    assert found == stated, f"not heard: {stated - found}; not stated: {found - stated}"
