"""Methods that compete on the benchmark, from a random order to exact searches.

:data:`RIVALS` holds them by name; each scores nodes, and some of them edges or inputs,
too. They answer as strangers do, through files of scores.
"""

from __future__ import annotations

import zlib
from functools import partial

import numpy as np
import pandas as pd
from torch import Tensor

from tsfm_lens.hooks.component import Component
from tsfm_lens.probes.circuits import make_bench
from tsfm_lens.probes.learned_scores import learned_scores
from tsfm_lens.studies.bench.models import CANDIDATES
from tsfm_lens.studies.method_scores.methods import (
    ARROW,
    EDGES,
    INPUTS,
    METHODS,
    PARTS,
    Methods,
    Rank,
    Ranking,
    method,
)
from tsfm_lens.studies.method_scores.series import EvaluationCase

ORDERS = 16
"""Orders of the components that Shapley values are sampled from."""

RIVALS: Methods = {}

_rival = partial(method, known=RIVALS)


def _draw(case: EvaluationCase, level: str) -> Ranking:
    names = CANDIDATES[level](case)
    # the same draw again for the same card
    seed = zlib.crc32(f"{case.card.name} {level}".encode())
    return Ranking(names, np.random.default_rng(seed).random(len(names)))


def _order(case: EvaluationCase, level: str) -> Ranking:
    """Score by place: later parts and later tokens are nearer to the forecast."""
    names = CANDIDATES[level](case)
    return Ranking(names, np.arange(len(names), dtype=float))


def _record(case: EvaluationCase, **hooks: str) -> dict[Component, Tensor]:
    """Record a hook of each component, named by level, "head" or "branch"."""
    points = {}
    for part in case.components:
        if part.level in hooks:
            branch = f"{case.lens.wiring.stack(part.stack).prefix}.{part.layer}"
            points[part] = f"{branch}.{part.kind}.{hooks[part.level]}"
    recorded = case.clean.record(sorted(set(points.values())))
    return {part: recorded[point] for part, point in points.items()}


def _norm(case: EvaluationCase) -> Ranking:
    """Score by the mean length of what a part writes."""
    lengths = []
    writes = _record(case, head="hook_result", branch="hook_out")
    for component, written in writes.items():
        if component.head is not None:
            written = written[..., component.head, :]
        lengths.append(float(written.norm(dim=-1).mean()))
    return Ranking(case.nodes, np.array(lengths))


def _attention(case: EvaluationCase) -> Ranking:
    """Score heads by the mean of the largest attention of a query."""
    peaks = {
        component: float(pattern[:, component.head].amax(dim=-1).mean())
        for component, pattern in _record(case, head="hook_pattern").items()
    }
    scores = [peaks.get(component, np.nan) for component in case.components]
    return Ranking(case.nodes, np.array(scores))


def _by_edges(case: EvaluationCase, rank: Rank) -> Ranking:
    """Score parts by the largest score of an edge that leaves them."""
    edges = rank(case)
    senders = [name.split(ARROW)[0] for name in edges.names]
    largest = pd.Series(edges.scores).groupby(senders).max()
    scores = largest.reindex(case.nodes, fill_value=0.0).clip(lower=0.0)
    return Ranking(case.nodes, np.asarray(scores))


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
    values = np.zeros(len(components))
    inner = np.split(bench.forecasts(ablated, None), ORDERS)
    for order, forecasts in zip(orders, inner, strict=True):
        curve = np.stack([bench.nothing, *forecasts, bench.full])
        share = np.nanmean(bench.recovered(curve), axis=-1)
        values[order] += np.diff(share)
    return Ranking(tuple(map(str, components)), np.abs(values) / ORDERS)


def _learned(case: EvaluationCase, units: str) -> Ranking:
    """Score by masks that are trained where the altered run replaces what is masked."""
    data = learned_scores(
        case.clean, case.corrupted, units=units, nodes=case.components
    )
    scores = data["score"]
    names = tuple(map(str, data[scores.dims[0]].values))
    return Ranking(names, scores.values.astype(float))


for _level in (PARTS, EDGES, INPUTS):
    _rival("random", _level)(partial(_draw, level=_level))
for _level in (PARTS, INPUTS):
    _rival("recency", _level)(partial(_order, level=_level))
_rival("norm")(_norm)
_rival("attention")(_attention)
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
    _rank = METHODS[_known][0].rank
    _rival(_name, _level)(_rank)
    if _level == EDGES:
        _rival(_name)(partial(_by_edges, rank=_rank))
_rival("Shapley values")(_shapley)
for _level, _units in ((PARTS, "components"), (EDGES, "edges")):
    _rival("learned masks", _level)(partial(_learned, units=_units))
