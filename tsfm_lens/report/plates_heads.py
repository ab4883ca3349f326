"""Chapters on where heads look along a forecast."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr

from tsfm_lens.report import readings_heads as read
from tsfm_lens.report.chapter import Chapter, Plate
from tsfm_lens.report.tables import frame, tokens_table
from tsfm_lens.viz import attention_flow_map, head_entropy_map, norm_weighted_map, rollout_panels

_DRAWN = 9  # heads
_LEAST = 0.01  # of the largest possible value: cells below are in no table


def _head_entropy(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(head_entropy_map(ds), frame(ds, "entropy", "normalised", "sharp"), read.read_head_entropy(ds))


def _rollout(ds: xr.Dataset) -> Iterator[Plate]:
    drawn = ds[["attention"]].where(ds["sharpness_rank"] < _DRAWN)
    weights, entropies = tokens_table(drawn, "attention", _LEAST), frame(ds, "entropy", "sharpness_rank")
    for heads, table in (("sharp", weights), ("diffuse", entropies)):
        yield Plate(rollout_panels(ds, heads=heads, count=_DRAWN), table, read.read_rollout(ds, heads))


def _flow(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(attention_flow_map(ds), tokens_table(ds, "flow", _LEAST), read.read_flow(ds))


def _norm_weighted(ds: xr.Dataset) -> Iterator[Plate]:
    table = tokens_table(ds, "norm", _LEAST * float(np.nanmax(ds["norm"].values)))
    yield Plate(norm_weighted_map(ds), table, read.read_norm_weighted(ds))


CHAPTERS = {
    "head_entropy": Chapter(
        "Attention entropy",
        "How widely each head spreads its attention along the forecast: a sharp head reads few places, a diffuse one "
        "averages over many.",
        _head_entropy,
    ),
    "rollout": Chapter(
        "Roll-out maps",
        "What each head reads in the context for every token of the forecast, side by side. A diagonal band reads at a "
        "fixed lag, a horizontal one the same steps throughout.",
        _rollout,
    ),
    "attention_flow": Chapter(
        "Attention flow",
        "How much of each input token may have reached each token after a layer: the attention of all layers "
        "multiplied, with half of each token staying in place.",
        _flow,
    ),
    "norm_weighted": Chapter(
        "Norm-weighted attention",
        "The attention weight times the length of what it brings. A token can be much attended to and bring little.",
        _norm_weighted,
    ),
}
