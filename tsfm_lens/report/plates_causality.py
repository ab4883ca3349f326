"""Chapters on interventions: what a forecast depends on, shown by changing it."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import xarray as xr

from tsfm_lens.report import readings_causality as read
from tsfm_lens.report.chapter import Chapter, Plate
from tsfm_lens.report.tables import frame
from tsfm_lens.viz import (
    attribution_patching_scatter,
    circuit_curve,
    circuit_forecasts,
    circuit_graph,
    effects_scatter,
    patched_forecasts,
    patching_map,
    path_map,
    self_repair_bars,
)

_PATCHED, _CIRCUITS = 3, 3  # series with figures of their own
_POSITION = ("position_start", "position_stop", "position_special")


def _patching(ds: xr.Dataset) -> Iterator[Plate]:
    for i in range(min(ds.sizes["series"], _PATCHED)):
        table = _cells(ds.isel(series=[i]), "recovered", "effect")
        yield Plate(patching_map(ds, series=i), table, read.read_patching(ds, i))
        yield Plate(patched_forecasts(ds, series=i), table, read.read_patched_forecasts(ds, i))


def _attribution(ds: xr.Dataset) -> Iterator[Plate]:
    known = [name for name in ("first_order", "recovered", "error") if name in ds]
    if "recovered" in known:
        words = read.read_attribution_patching(ds)
        yield Plate(attribution_patching_scatter(ds), _cells(ds, *known), words)
    for i in range(min(ds.sizes["series"], _PATCHED)):
        table = _cells(ds.isel(series=[i]), *known)
        yield Plate(patching_map(ds, value="first_order", series=i), table, read.read_estimate(ds, i))


def _paths(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(path_map(ds), frame(ds, "recovered", "effect").dropna(ignore_index=True), read.read_paths(ds))


def _edges(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(path_map(ds), frame(ds, "score").query("score != 0"), read.read_paths(ds))


def _effects(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(effects_scatter(ds), frame(ds, "direct", "total", "indirect"), read.read_effects(ds))
    yield Plate(self_repair_bars(ds), frame(ds, "self_repair"), read.read_self_repair(ds))


def _circuit(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(circuit_graph(ds), frame(ds, "in_circuit", "taken"), read.read_circuit(ds))
    for i in range(min(ds.sizes["series"], _CIRCUITS)):
        table = frame(ds.isel(series=[i]), "forecast")
        yield Plate(circuit_forecasts(ds, series=i), table, read.read_circuit_forecasts(ds, i))
    yield Plate(circuit_curve(ds), frame(ds, "curve").dropna(ignore_index=True), read.read_curve(ds))


def _cells(ds: xr.Dataset, *variables: str) -> pd.DataFrame:
    """A row per place, group of positions and series, with the steps that the group covers."""
    steps = frame(ds.reset_coords(list(_POSITION)), *_POSITION)
    return frame(ds, *variables).merge(steps, on="position")


CHAPTERS = {
    "patching": Chapter(
        "Activation patching",
        "The model runs on two versions of a series, one with something taken away. Activations of one run are put "
        "into the other, place by place; where the forecast follows, what was taken away is carried.",
        _patching,
    ),
    "attribution_patching": Chapter(
        "Attribution patching",
        "The same to first order, from one gradient: an estimate for all places at once, held against patching itself "
        "where that was done.",
        _attribution,
    ),
    "paths": Chapter(
        "Path patching",
        "What one component does through one other, with every other path held: who reads what from whom.",
        _paths,
    ),
    "edges": Chapter(
        "Edge attribution",
        "The same for every pair of components, with what the forecast makes of a change taken from its gradient.",
        _edges,
    ),
    "effects": Chapter(
        "Direct and total effects",
        "Each component is taken out twice: with everything behind it held as it was, and with everything free to "
        "respond. Where later components undo part of the loss, the model repairs itself.",
        _effects,
    ),
    "circuit": Chapter(
        "Minimal circuit",
        "As few heads and MLPs as keep the forecast within a tolerance while everything else is taken out.",
        _circuit,
    ),
}
