"""Methods that name edges, and methods that name what repairs itself."""

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
    """A candidate's name."""
    return f"{sender} > {receiver}"


def ends_of(edge: str) -> list[str]:
    """Sender and receiver of a candidate."""
    return edge.split(" > ")


def pair_name(one: str, other: str) -> str:
    """A candidate's name, whichever comes first."""
    return " + ".join(sorted((one, other)))


def _edges(data: xr.Dataset, name: str) -> Found:
    """Edges that there are, by the size of their estimate over series."""
    estimate = data[f"{name}_estimate"].transpose("sender", "receiver").values
    stands_out = data[f"{name}_stands_out"].transpose("sender", "receiver").values
    places = [(int(row), int(column)) for row, column in np.argwhere(np.isfinite(estimate))]
    senders, receivers = (list(map(str, data[dim].values)) for dim in ("sender", "receiver"))
    names = tuple(edge_name(senders[row], receivers[column]) for row, column in places)
    rows, columns = zip(*places, strict=True)
    return Found(names, np.abs(estimate[rows, columns]), stands_out[rows, columns])


@method("path patching", EDGES)
def _paths(bench: Bench) -> Found:
    every = [*map(str, bench.components)]
    data = probes.path_patching(bench.clean, bench.corrupted, senders=every, receivers=[*every, "output"])
    return _edges(data, "recovered")


@method("edge attribution", EDGES, applies=differentiable)
def _attributed(bench: Bench) -> Found:
    return _edges(probes.edge_attribution(bench.clean, bench.corrupted, nodes=bench.components), "score")


@method("self-repair", REPAIRED)
def _repaired(bench: Bench) -> Found:
    data = probes.causal_effects(bench.clean, components=bench.components)
    repair = data["self_repair_estimate"].values
    claims = data["self_repair_stands_out"].values & (repair > 0)
    return Found(tuple(map(str, data["component"].values)), repair, claims)


@method("ablation of pairs", PAIRS)
def _pairs(bench: Bench) -> Found:
    """How much more two components together move the forecast than both alone."""
    every = bench.components
    both = list(combinations(range(len(every)), 2))
    variants = [Variant.zero(each) for each in every] + [Variant.zero(every[a], every[b]) for a, b in both]
    later = slice(bench.clean.steps_from, None)
    shift = np.abs(point_forecasts(bench.clean, variants) - bench.clean.point)[..., later].mean(-1)
    alone, together = shift[: len(every)], shift[len(every) :]
    more = np.array([two - alone[a] - alone[b] for two, (a, b) in zip(together, both, strict=True)]).mean(-1)
    return Found(tuple(pair_name(str(every[a]), str(every[b])) for a, b in both), more)
