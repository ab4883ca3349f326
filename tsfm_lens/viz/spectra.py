"""Spectra and stable ranks of the heads' matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import ReportPanel, measurement
from tsfm_lens.viz.attention import attention_kind
from tsfm_lens.viz.grid import log_axis, panel_grid, title_axes
from tsfm_lens.viz.maps import HeadMap, head_maps
from tsfm_lens.viz.panels import medians
from tsfm_lens.viz.select import array, layer_names, model_of, names, position, positions
from tsfm_lens.viz.sheet import Sheet
from tsfm_lens.viz.tables import frame
from tsfm_lens.viz.theme import BLUE, GREY, mixed, plain
from tsfm_lens.viz.words import extremes, head_at, layers, num

__all__ = ["spectrum_lines", "stable_rank_map"]
_PRODUCTS = {"QK": "query–key product W_Q W_Kᵀ", "OV": "value–output product W_V W_O"}

SPECTRA = measurement(
    "spectra",
    theme="Weights alone",
    title="Spectra of the heads",
    summary="stable rank and singular spectra of W_Q W_Kᵀ and W_V W_O",
    description="The singular values of each head's two products, from the weights alone: query–key says what a head "
    "matches, value–output what it moves. Few large ones mean that it acts along few directions.",
    source="tsfm-lens, definition 5.1 (S3-SRANK)",
)


def read_stable_rank(ds: xr.Dataset, product: str) -> list[str]:
    """Describe which heads act along few directions, and how the layers differ."""
    ranks = array(ds, "stable_rank", "layer", "head", product=position(ds, "product", product))
    if not np.isfinite(ranks).any():
        return ["All these products are zero."]
    low, high = extremes(ranks)
    out = [
        f"The stable rank goes from {num(ranks.flat[low])} ({head_at(ds, low)}) to {num(ranks.flat[high])} "
        f"({head_at(ds, high)}); the largest possible is {ds.sizes['mode']}."
    ]
    means = np.nanmean(ranks, axis=1)
    if len(means) > 1:
        words = layers(ds)
        out.append(
            f"On average over heads it is lowest in {words[int(np.nanargmin(means))]} ({num(np.nanmin(means))}) and "
            f"highest in {words[int(np.nanargmax(means))]} ({num(np.nanmax(means))})."
        )
    return out


def read_spectra(ds: xr.Dataset, product: str) -> list[str]:
    """State in how many directions most of a head's strength lies."""
    values = array(ds, "singular_value", "layer", "head", "mode", product=position(ds, "product", product))
    energy = np.square(values).reshape(-1, values.shape[-1])
    energy = energy[energy.sum(axis=1) > 0]
    if not len(energy):
        return ["All these products are zero."]
    shares = np.cumsum(energy, axis=1) / energy.sum(axis=1, keepdims=True)
    few = (shares < 0.9 - 1e-12).sum(axis=1) + 1
    return [
        f"Nine tenths of the sum of squared singular values lie in {int(np.median(few))} of {values.shape[-1]} "
        f"directions for the median head, {int(few.min())} to {int(few.max())} over all heads."
    ]


@SPECTRA.figure("Stable rank of every head.", variables=("stable_rank",))
def stable_rank_map(ds: xr.Dataset, *, product: str = "QK") -> go.Figure:
    """Draw the layer × head map of the stable rank: dark heads spread their spectrum, light ones use few directions.

    Args:
        ds: of kind "spectra".
        product: "QK" or "OV".

    Returns:
        One heat map, with the numbers in the cells where there is room.
    """
    values = array(ds, "stable_rank", "layer", "head", product=position(ds, "product", product))
    return head_maps(
        ds,
        [HeadMap(values, "", "stable rank", write="{:.3g}".format)],
        f"Stable rank of the {_short(product)} products of {model_of(ds)}",
        _in_full(ds, product),
        f"1 is one direction, {ds.sizes['mode']} all of the head's",
    )


@SPECTRA.figure("Singular values of every head.", variables=("singular_value",))
def spectrum_lines(ds: xr.Dataset, *, product: str = "QK", layers: Sequence[str | int] | None = None) -> go.Figure:
    """Draw singular values of every head, a panel per layer, each spectrum relative to its largest value.

    Args:
        ds: of kind "spectra".
        product: "QK" or "OV".
        layers: labels to draw, all unless given.

    Returns:
        A thin line per head on a logarithmic axis, and the median over heads.
    """
    rows = positions(ds, "layer", layers)
    values = array(ds, "singular_value", "layer", "head", "mode", product=position(ds, "product", product))[rows]
    top = values[..., :1]
    shares = np.divide(values, top, out=np.full_like(values, np.nan), where=top > 0)
    # what rounding leaves of a zero is no singular value
    shares[shares < 1e-12] = np.nan
    grid = head_lines(ds, rows, shares, "%{y:.3g} of the largest")
    title_axes(grid, "mode", "singular value / largest")
    return grid.dress(
        f"Spectra of the {_short(product)} products of {model_of(ds)}",
        _in_full(ds, product),
        "each spectrum relative to its largest value",
    )


def head_lines(ds: xr.Dataset, layers: list[int], values: np.ndarray, measure: str) -> Sheet:
    """Draw ``values`` (layer, head, mode), a panel per layer: a thin line per head, and the median over heads.

    ``layers`` are places, ``measure`` is the hover box's word for a value.
    """
    grid = panel_grid([(label,) for label in layer_names(ds, layers)], row_height=150)
    modes, several, tail = np.arange(1, values.shape[-1] + 1), "median over heads", f", mode %{{x}}<br>{measure}"
    for panel, lines in zip(grid, values, strict=True):
        for head, line in zip(names(ds, "head"), lines, strict=True):
            panel.line(modes, line, "one head", f"head {plain(head)}{tail}", colour=mixed(GREY, 0.55), width=1)
        panel.line(modes, medians(lines.T), several, several + tail, colour=BLUE, width=2)
    grid.y(**log_axis(values))
    return grid


def _short(product: str) -> str:
    """Name a product without its matrices."""
    return _PRODUCTS.get(product, product).split(" product")[0]


def _in_full(ds: xr.Dataset, product: str) -> str:
    return _PRODUCTS.get(product, product) + (f" of {attention_kind(ds)}" if "attention" in ds.attrs else "")


@SPECTRA.panels
def _spectra(ds: xr.Dataset) -> Iterator[ReportPanel]:
    for each in names(ds, "product"):
        one = ds.sel(product=each)
        yield ReportPanel(
            stable_rank_map(ds, product=each), frame(one, "stable_rank", "order"), read_stable_rank(ds, each)
        )
        yield ReportPanel(spectrum_lines(ds, product=each), frame(one, "singular_value"), read_spectra(ds, each))
