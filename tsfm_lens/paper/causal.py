"""Figures of causes and of behaviour: patching, effects, circuits, parroting heads, lines of thought."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens import probes, viz
from tsfm_lens.data import SeriesBatch, shift_phase
from tsfm_lens.errors import InputError
from tsfm_lens.models.run import Run
from tsfm_lens.paper.plain import Compute, of_one, plain
from tsfm_lens.paper.registry import Entry, Plate, first_item


def contrasted(probe: Callable[..., xr.Dataset], **options: Any) -> Compute:
    """A probe between the first series and itself with its season half a period later."""

    def compute(run: Run) -> xr.Dataset:
        one = first_item(run)
        season = one.batch.seasonalities[0]
        if season < 2:
            raise InputError(f"series {one.batch.ids[0]!r} has no season that could be shifted")
        clean, missing = _filled(one.batch)
        how: dict[str, Any] = {"num_samples": one.num_samples, "seed": one.seed}
        pair = [one.lens.run(each, one.horizon, **how) for each in (clean, shift_phase(clean, season // 2))]
        ds = probe(*pair, **options)
        return ds.assign_attrs(shifted_by=season // 2, season=season, missing_steps_filled=missing)

    return compute


def _filled(batch: SeriesBatch) -> tuple[SeriesBatch, int]:
    """The series with straight lines over their gaps, since a season is taken apart only of complete ones."""
    whole = tuple(pd.Series(values).interpolate(limit_direction="both").to_numpy() for values in batch.values)
    return replace(batch, values=whole), int(sum(np.isnan(values).sum() for values in batch.values))


def _motif(run: Run) -> xr.Dataset:
    return probes.repeated_motif(run.lens, seed=run.seed)


def _circuit_graph(run: Run) -> list[Plate]:
    circuit = _CIRCUIT[1](run)
    nodes = [str(name) for name in circuit["component"].values]
    edges = contrasted(probes.edge_attribution, nodes=nodes)(run)
    return [Plate("", viz.circuit_graph(circuit, edges), (circuit, edges))]


_SHIFTED = "the first series against itself with its season half a period later"
_EXACT = (f"activation_patching of the stream, {_SHIFTED}", contrasted(probes.activation_patching))
_GRADIENT = (f"attribution_patching of the stream, {_SHIFTED}", contrasted(probes.attribution_patching))
_PATHS = (f"path_patching between all heads and MLPs, {_SHIFTED}", contrasted(probes.path_patching))
_EFFECTS = ("causal_effects on all series", probes.causal_effects)
_CIRCUIT = (f"minimal_circuit, {_SHIFTED}", contrasted(probes.minimal_circuit))
_THOUGHT = ("lines_of_thought on the first series", of_one(probes.lines_of_thought))

ENTRIES = [
    plain("patching_map", *_EXACT, "Where the season is: what a patched stream brings back."),
    plain("patched_forecasts", *_EXACT, "Forecasts after single patches."),
    plain("attribution_patching_scatter", *_GRADIENT, "Gradient estimates of patching against the exact values."),
    plain("path_map", *_PATHS, "What flows between single components."),
    plain("effects_scatter", *_EFFECTS, "Direct against total effect of every component."),
    plain("self_repair_bars", *_EFFECTS, "What later layers repair after an ablation."),
    plain("circuit_curve", *_CIRCUIT, "What is lost as a circuit gets smaller."),
    plain("circuit_forecasts", *_CIRCUIT, "Forecasts of a minimal circuit and of its complement."),
    Entry(
        "circuit_graph",
        "A minimal circuit and the edges between its components.",
        f"minimal_circuit and edge_attribution, {_SHIFTED}",
        ("circuit_graph",),
        _circuit_graph,
    ),
    plain(
        "head_parroting_map",
        "head_parroting on all series",
        probes.head_parroting,
        "What every head adds to the copy of the context.",
    ),
    plain("repeated_motif_map", "repeated_motif", _motif, "Attention to the last instance of a repeated motif."),
    plain("thought_lines", *_THOUGHT, "Modes of the lens distribution through depth."),
    plain("thought_counts", *_THOUGHT, "How many lines of thought there are, and which die out."),
]
