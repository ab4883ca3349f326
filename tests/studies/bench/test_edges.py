"""Edges on the cards of variants are those that edits find: the mechanism alone is
left, and one edge is cut at a time.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import chain, product
from typing import Any

import numpy as np
import pytest
import torch

from edited_weights import silenced
from tiny_lenses import tiny
from tsfm_lens import probes
from tsfm_lens.ablation import Variant, point_forecasts
from tsfm_lens.hooks import PatchFrom
from tsfm_lens.hooks.component import Component
from tsfm_lens.models import load
from tsfm_lens.probes.path_patching import heard_in_groups, sender_contrast
from tsfm_lens.probes.sites import later_branches, parse_sites
from tsfm_lens.studies.bench.models import ARCHITECTURES, sealed_models
from tsfm_lens.studies.method_scores.series import EvaluationCase, evaluation_case
from tsfm_lens.zoo.planted.variants import head_views

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
    others = [part for part in case.components if str(part) not in kept]
    lens = silenced(case.lens, others)
    return evaluation_case(lens, case.card, series=6, seed=SEED)


def cut_edges(
    left: EvaluationCase, name: str, parts: list[str]
) -> set[tuple[str, str]]:
    """Edges of a head that act, found by cutting each.

    What the head writes is patched from a copy of the model in which it has no values.
    """
    head = Component.parse(name)
    valueless = load(copy.deepcopy(left.lens.native), check=False)
    with torch.no_grad():
        head_views(valueless, head)[2].zero_()
    # without noise all periods of a season are the same, and no matter which is read
    noisy, without = (
        evaluation_case(lens, left.card, series=6, noise=0.3, seed=SEED)
        for lens in (left.lens, valueless)
    )
    # where the head does something
    moved = np.abs(without.clean.point - noisy.clean.point).max(-1)
    least = ACTS * np.abs(noisy.clean.point).max(-1)
    rows = np.flatnonzero(moved > least).tolist()
    run, altered, source = (
        one.select(rows) for one in (noisy.clean, noisy.corrupted, without.clean)
    )
    senders = parse_sites(left.lens, [name])
    later = later_branches(left.lens.wiring, head)
    receivers = [site for site in parse_sites(left.lens, parts) if site.branch in later]
    pair = sender_contrast(run, altered, senders)
    acts = source.record([site.point for site in senders])
    pair = replace(pair, source=source, source_acts=acts)
    ((_, direct, heard),) = (
        one for group in heard_in_groups(pair, senders, receivers) for one in group
    )
    paths = [
        Variant(str(site.target), (PatchFrom(site.target, heard),))
        for site in receivers
    ]
    forecasts = [*point_forecasts(run, paths), direct]
    acting = np.abs(pair.recovered(np.array(forecasts))).max(-1) > ACTS
    names = [*(str(site.target) for site in receivers), "output"]
    return {(name, names[at]) for at in np.flatnonzero(acting)}


def find_edges(
    case: EvaluationCase, parts: set[str], same: set[str]
) -> set[tuple[str, str]]:
    """Edges between parts that act where they alone are left.

    Senders are patched from the altered run, but for those that write the same into
    both runs.
    """
    left = silence(case, parts)
    names = sorted(parts, key=list(map(str, case.components)).index)
    senders = [name for name in names if name not in same]
    receivers = [*names, "output"]
    data = probes.path_patching(
        left.clean, left.corrupted, senders=senders, receivers=receivers
    )
    acts = np.abs(data["recovered"]).max("series")
    found = {
        (sender, receiver)
        for sender, receiver in product(senders, receivers)
        if float(acts.sel(sender=sender, receiver=receiver)) > ACTS
    }
    for name in same & parts:
        found |= cut_edges(left, name, names)
    return found


SPARE = ("either of two", "writes 1/4")
"""What the card says of parts that make up for each other."""
SAME = ("marks ", "tells the step")
"""What it says of parts that look at places alone."""


def in_turn(mechanism: str, architecture: str) -> Any:
    """A mechanism in one architecture, in turn; in the other by `make exhaustive`."""
    turn = MECHANISMS.index(mechanism) % len(ARCHITECTURES)
    marks = () if architecture == ARCHITECTURES[turn] else pytest.mark.exhaustive
    return pytest.param(mechanism, architecture, marks=marks)


# in the gate of Chronos, an edge acts by 5 % in one series that the card leaves out
PAIRS = sorted(set(product(MECHANISMS, ARCHITECTURES)) - {("dead", "chronos")})
OTHERS = [
    *product(("backup", "decoys", "local-mean"), ("chronos-bolt",)),
    *product(("decoys", "seasonal-copy"), ("chronos-2", "moirai-2")),
]


@pytest.mark.parametrize(
    ("mechanism", "architecture"), [*(in_turn(*pair) for pair in PAIRS), *OTHERS]
)
def test_edges_are_those_that_edits_find(mechanism: str, architecture: str) -> None:
    tiny(architecture)  # skips where the library is missing
    case = sealed_models(f"{mechanism}-{architecture}", SEED)[0].case
    does = {
        part.component: part.does
        for part in case.card.parts
        if part.role in ("mechanism", "backup")
    }
    pairs = [
        (str(part.stands_in_for), part.component)
        for part in case.card.parts
        if part.role == "backup"
    ]
    spare = {name for name, text in does.items() if any(map(text.count, SPARE))}
    spare |= set(chain(*pairs))
    same = {name for name, text in does.items() if any(map(text.count, SAME))}
    # of parts of which one suffices, one is left at a time
    found: set[tuple[str, str]] = set()
    for one in spare or {""}:
        found |= find_edges(case, set(does) - spare | {one} - {""}, same)
    # what a backup hears of its primary is that it is there
    for primary, backup in pairs:
        found |= cut_edges(silence(case, set(does)), primary, [backup])
    stated = set(case.card.edges)
    assert found == stated, f"not heard: {stated - found}; not stated: {found - stated}"
