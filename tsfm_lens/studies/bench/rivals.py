"""Methods that compete on the benchmark, from a random order to exact searches.

:data:`RIVALS` holds them by name; each scores nodes, and some of them edges or inputs,
too. They answer as strangers do, through files of scores.
"""

from __future__ import annotations

import zlib
from functools import partial

import numpy as np
from torch import Tensor

from tsfm_lens.hooks.component import Component
from tsfm_lens.probes.circuits import make_bench
from tsfm_lens.probes.learned_scores import learned_scores
from tsfm_lens.studies.bench.models import CANDIDATES, list_nodes
from tsfm_lens.studies.method_scores.methods import (
    ARROW,
    EDGES,
    INPUTS,
    METHODS,
    PARTS,
    Method,
    Rank,
    Ranking,
    add_method,
)
from tsfm_lens.studies.method_scores.series import EvaluationCase

ORDERS = 16
"""Orders of the components that Shapley values are sampled from."""

RIVALS: dict[str, list[Method]] = {}

_rival = partial(add_method, RIVALS)


def _draw(case: EvaluationCase, level: str) -> Ranking:
    names = CANDIDATES[level](case)
    # the same draw again for the same card
    seed = zlib.crc32(f"{case.card.name} {level}".encode())
    return Ranking(names, np.random.default_rng(seed).random(len(names)))


def _order(case: EvaluationCase, level: str) -> Ranking:
    """Score by place: later parts and later tokens are nearer to the forecast."""
    names = CANDIDATES[level](case)
    return Ranking(names, np.arange(len(names), dtype=float))


def _record(
    case: EvaluationCase, of_heads: str, of_branches: str = ""
) -> dict[Component, Tensor]:
    """Record a hook of each head, and another of each MLP if it is named."""
    points = {}
    for component in case.components:
        prefix = case.lens.wiring.stack(component.stack).prefix
        hook = of_branches if component.head is None else of_heads
        if hook:
            points[component] = f"{prefix}.{component.layer}.{component.kind}.{hook}"
    recorded = case.clean.record(sorted(set(points.values())))
    return {component: recorded[point] for component, point in points.items()}


def _norm(case: EvaluationCase) -> Ranking:
    """Score by the mean length of what a part writes."""
    lengths = []
    for component, written in _record(case, "hook_result", "hook_out").items():
        if component.head is not None:
            written = written[..., component.head, :]
        lengths.append(float(written.norm(dim=-1).mean()))
    return Ranking(list_nodes(case), np.array(lengths))


def _attention(case: EvaluationCase) -> Ranking:
    """Score heads by the mean of the largest attention of a query."""
    peaks = {
        component: float(pattern[:, component.head].amax(dim=-1).mean())
        for component, pattern in _record(case, "hook_pattern").items()
    }
    scores = [peaks.get(component, np.nan) for component in case.components]
    return Ranking(list_nodes(case), np.array(scores))


def _by_edges(case: EvaluationCase, rank: Rank) -> Ranking:
    """Score parts by the largest score of an edge that leaves them."""
    edges = rank(case)
    largest = dict.fromkeys(list_nodes(case), 0.0)
    for name, score in zip(edges.names, edges.scores, strict=True):
        sender = name.split(ARROW)[0]
        largest[sender] = max(largest[sender], float(score))
    return Ranking(tuple(largest), np.array(list(largest.values())))


def _shapley(case: EvaluationCase) -> Ranking:
    """Score by the mean share that a part adds, in random orders of all parts."""
    bench = make_bench(case.clean, case.corrupted, nodes=case.components)
    components = list(bench.ablations)
    rng = np.random.default_rng(case.card.seed)
    orders = [rng.permutation(len(components)) for _ in range(ORDERS)]
    ablated = [
        {components[at] for at in order[kept:]}
        for order in orders
        for kept in range(1, len(components))
    ]
    inner = bench.forecasts(ablated, None)
    inner = inner.reshape(len(orders), len(components) - 1, *bench.full.shape)
    values = np.zeros(len(components))
    for order, forecasts in zip(orders, inner, strict=True):
        curve = np.stack([bench.nothing, *forecasts, bench.full])
        share = np.nanmean(bench.recovered(curve), axis=-1)
        values[order] += np.diff(share)
    return Ranking(tuple(map(str, components)), np.abs(values) / len(orders))


def _learned(case: EvaluationCase, units: str) -> Ranking:
    """Score by masks that are trained where the altered run replaces what is masked."""
    data = learned_scores(
        case.clean, case.corrupted, units=units, nodes=case.components
    )
    scores = data["score"]
    names = tuple(map(str, data[scores.dims[0]].values))
    return Ranking(names, scores.values.astype(float))


for _level in (PARTS, EDGES, INPUTS):
    _rival("random", _level, partial(_draw, level=_level))
for _level in (PARTS, INPUTS):
    _rival("recency", _level, partial(_order, level=_level))
_rival("norm", PARTS, _norm)
_rival("attention", PARTS, _attention)
for _name, _level, _known in (
    ("attention", INPUTS, "attention, mean over heads"),
    ("zero ablation", PARTS, "zero ablation"),
    ("attribution", PARTS, "attribution patching, noise"),
    ("attribution", INPUTS, "attribution patching of tokens"),
    ("activation patching", PARTS, "activation patching, noise"),
    ("edge attribution", EDGES, "edge attribution"),
    ("exact path patching", EDGES, "path patching"),
    ("greedy with pairs", PARTS, "circuit, greedy, patched"),
):
    _rival(_name, _level, METHODS[_known].rank)
for _name, _known in (
    ("edge attribution", "edge attribution"),
    ("exact path patching", "path patching"),
):
    _rival(_name, PARTS, partial(_by_edges, rank=METHODS[_known].rank))
_rival("Shapley values", PARTS, _shapley)
for _level, _units in ((PARTS, "components"), (EDGES, "edges")):
    _rival("learned masks", _level, partial(_learned, units=_units))
