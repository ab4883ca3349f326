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
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.weights import head_output_weights
from tsfm_lens.models import load
from tsfm_lens.models.run import Run
from tsfm_lens.probes import patching
from tsfm_lens.studies.bench.models import ARCHITECTURES, sealed_models
from tsfm_lens.studies.method_scores.series import EvaluationCase, evaluation_case

SEED = 3
MECHANISMS = (
    *("cancelling", "dead", "either", "routes", "shortcut", "sinks", "split"),
    "superposed",
)
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


def cut(left: EvaluationCase, name: str) -> tuple[Run, Run]:
    """Runs of the model and of a copy in which a head has no values, where they differ.

    Patched from the second run, a path of the head is cut.
    """
    model = copy.deepcopy(left.lens.adapter.model)
    head = Component.parse(name)
    block = getattr(model, head.stack).block[head.layer]
    values = block.layer[0].SelfAttention.v.weight
    width = model.config.d_kv
    with torch.no_grad():
        values[head.head * width : (head.head + 1) * width] = 0.0
    # without noise all periods of a season are the same, and no matter which is read
    run, without = (
        evaluation_case(lens, left.card, series=6, noise=0.3, seed=SEED).clean
        for lens in (left.lens, load(model, check=False))
    )
    moved = np.abs(without.point - run.point).max(-1)
    rows = np.flatnonzero(moved > ACTS * np.abs(run.point).max(-1)).tolist()
    return run.select(rows), without.select(rows)


def find_edges(
    case: EvaluationCase, parts: set[str], same: set[str]
) -> set[tuple[str, str]]:
    """Edges between parts that act where they alone are left.

    Senders are patched from the altered run. Those that write the same into both runs
    are patched from the clean run of a model in which they write nothing.
    """
    left = silence(case, parts)
    names = sorted(parts, key=list(map(str, case.components)).index)
    differ = [name for name in names if name not in same]
    pairs = [(left.clean, left.corrupted, differ)]
    pairs += [(*cut(left, name), [name]) for name in sorted(same & parts)]
    found = set()
    for clean, source, senders in pairs:
        data = probes.path_patching(
            clean, source, senders=senders, receivers=[*names, "output"]
        )
        acts = np.abs(data["recovered"]).max("series")
        found |= {
            (sender, receiver)
            for sender, receiver in product(senders, [*names, "output"])
            if float(acts.sel(sender=sender, receiver=receiver)) > ACTS
        }
    return found


SPARE = ("either of two", "writes 1/4")
"""What the card says of parts that make up for each other."""
SAME = ("marks ", "tells the step")
"""What it says of parts that look at places alone."""


# in the gate of Chronos, an edge acts by 5 % in one series that the card leaves out
@pytest.mark.parametrize(
    ("mechanism", "architecture"),
    sorted(set(product(MECHANISMS, ARCHITECTURES)) - {("dead", "chronos")}),
)
def test_edges_are_those_that_edits_find(
    mechanism: str, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a run of the edited model gives what a part writes once it is silent
    monkeypatch.setattr(patching, "_same_model", lambda one, other: True)
    case = sealed_models(f"{mechanism}-{architecture}", SEED)[0].case
    does = {
        part.component: part.does
        for part in case.card.parts
        if part.role == "mechanism"
    }
    spare = {name for name, text in does.items() if any(map(text.count, SPARE))}
    same = {name for name, text in does.items() if any(map(text.count, SAME))}
    # of parts of which one suffices, one is left at a time
    found: set[tuple[str, str]] = set()
    for one in spare or {""}:
        found |= find_edges(case, set(does) - spare | {one} - {""}, same)
    stated = set(case.card.edges)
    assert found == stated, f"not heard: {stated - found}; not stated: {found - stated}"
