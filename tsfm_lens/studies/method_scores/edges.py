"""Methods that score edges, self-repair and pairs of components."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import xarray as xr

from tsfm_lens import probes
from tsfm_lens.ablation import Variant, point_forecasts
from tsfm_lens.studies.method_scores.methods import Found, differentiable, method
from tsfm_lens.studies.method_scores.series import Bench

EDGES, REPAIRED, PAIRS = "edges", "repaired", "pairs"


def edge_name(sender: str, receiver: str) -> str:
    """Name the edge of a sender and a receiver."""
    return f"{sender} > {receiver}"


def ends_of(edge: str) -> list[str]:
    """Split the name of an edge into sender and receiver."""
    return edge.split(" > ")


def pair_name(one: str, other: str) -> str:
    """Name the pair of two components, in either order."""
    return " + ".join(sorted((one, other)))


def _edges(data: xr.Dataset, name: str) -> Found:
    """Score the existing edges by the size of their estimate over series."""
    estimate = data[f"{name}_estimate"].transpose("sender", "receiver").values
    stands_out = data[f"{name}_stands_out"].transpose("sender", "receiver").values
    places = [(int(row), int(column)) for row, column in np.argwhere(np.isfinite(estimate))]
    senders, receivers = (list(map(str, data[dim].values)) for dim in ("sender", "receiver"))
    names = tuple(edge_name(senders[row], receivers[column]) for row, column in places)
    rows, columns = zip(*places, strict=True)
    return Found(names, np.abs(estimate[rows, columns]), stands_out[rows, columns])


@method("path patching", EDGES)
def _paths(bench: Bench) -> Found:
    names = [*map(str, bench.components)]
    data = probes.path_patching(bench.clean, bench.corrupted, senders=names, receivers=[*names, "output"])
    return _edges(data, "recovered")


@method("edge attribution", EDGES, applies=differentiable)
def _attribution(bench: Bench) -> Found:
    return _edges(probes.edge_attribution(bench.clean, bench.corrupted, nodes=bench.components), "score")


@method("self-repair", REPAIRED)
def _self_repair(bench: Bench) -> Found:
    data = probes.causal_effects(bench.clean, components=bench.components)
    repair = data["self_repair_estimate"].values
    claims = data["self_repair_stands_out"].values & (repair > 0)
    return Found(tuple(map(str, data["component"].values)), repair, claims)


@method("ablation of pairs", PAIRS)
def _pairs(bench: Bench) -> Found:
    """Score pairs by how much more both together move the forecast than each alone."""
    components = bench.components
    pairs = list(combinations(range(len(components)), 2))
    variants = [Variant.zero(each) for each in components] + [
        Variant.zero(components[a], components[b]) for a, b in pairs
    ]
    later = slice(bench.clean.steps_from, None)
    shift = np.abs(point_forecasts(bench.clean, variants) - bench.clean.point)[..., later].mean(-1)
    alone, together = shift[: len(components)], shift[len(components) :]
    more = np.array([two - alone[a] - alone[b] for two, (a, b) in zip(together, pairs, strict=True)]).mean(-1)
    return Found(tuple(pair_name(str(components[a]), str(components[b])) for a, b in pairs), more)
