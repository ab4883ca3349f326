"""Figures of what is in a model's weights and streams: spectra, stable and entropic rank, similarity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.viz.attention import attention_kind
from tsfm_lens.viz.grid import log_axis, panel_grid, title_axes
from tsfm_lens.viz.layers import few_ticks
from tsfm_lens.viz.maps import HeadMap, colour_scale, head_maps, two_digits
from tsfm_lens.viz.panels import medians
from tsfm_lens.viz.select import array, check, draws, layer_name, layer_names, model_of, names, position, positions
from tsfm_lens.viz.sheet import Look, Sheet, blank
from tsfm_lens.viz.theme import BLUE, GREY, mixed, plain

__all__ = ["entropic_rank_line", "head_similarity_map", "similarity_map", "spectrum_lines", "stable_rank_map"]

_MAX_NUMBERED = 36  # cells of a panel that still have room for their number
_PRODUCTS = {"QK": "query–key product W_Q W_Kᵀ", "OV": "value–output product W_V W_O"}


@draws("spectra", needs=("stable_rank",))
def stable_rank_map(ds: xr.Dataset, *, product: str = "QK") -> go.Figure:
    """Draw the layer × head map of the stable rank: dark heads spread their spectrum, light ones use few directions.

    Args:
        ds: of kind "spectra".
        product: "QK" or "OV".

    Returns:
        One heat map, with the numbers in the cells where there is room.

    Example:
        >>> fig = viz.stable_rank_map(results["spectra"])
        >>> fig.layout.meta["title"]
        'Stable rank of the query–key products of chronos-nano'
    """
    values = array(ds, "stable_rank", "layer", "head", product=position(ds, "product", product))
    return head_maps(
        ds,
        [HeadMap(values, "", "stable rank", write="{:.3g}".format)],
        f"Stable rank of the {_short(product)} products of {model_of(ds)}",
        f"{_PRODUCTS.get(product, product)}{_attention(ds)}",
        f"1 is one direction, {ds.sizes['mode']} all of the head's",
    )


@draws("spectra", needs=("singular_value",))
def spectrum_lines(ds: xr.Dataset, *, product: str = "QK", layers: Sequence[str | int] | None = None) -> go.Figure:
    """Draw singular values of every head, a panel per layer, each spectrum relative to its largest value.

    Args:
        ds: of kind "spectra".
        product: "QK" or "OV".
        layers: labels to draw, all unless given.

    Returns:
        A thin line per head on a logarithmic axis, and the median over heads.

    Example:
        >>> fig = viz.spectrum_lines(results["spectra"])
        >>> fig.layout.meta["title"]
        'Spectra of the query–key products of chronos-nano'
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
        f"{_PRODUCTS.get(product, product)}{_attention(ds)}",
        "each spectrum relative to its largest value",
    )


def head_lines(ds: xr.Dataset, layers: list[int], values: np.ndarray, measure: str) -> Sheet:
    """Draw a panel per layer: a thin line per head over the modes on a logarithmic axis, and the median over heads.

    Args:
        layers: places of the layers of ``values``, (layer, head, mode).
        measure: the hover box's words for a value.
    """
    grid = panel_grid([(label,) for label in layer_names(ds, layers)], row_height=150)
    modes, several = np.arange(1, values.shape[-1] + 1), "median over heads"
    for panel, lines in zip(grid, values, strict=True):
        for head, line in zip(names(ds, "head"), lines, strict=True):
            hover = f"head {plain(head)}, mode %{{x}}<br>{measure}"
            panel.line(modes, line, "one head", hover, colour=mixed(GREY, 0.55), width=1)
        panel.line(modes, medians(lines.T), several, f"{several}, mode %{{x}}<br>{measure}", colour=BLUE, width=2)
    grid.y(**log_axis(values))
    return grid


@draws("entropic_rank", needs=("rank", "entropy"))
def entropic_rank_line(ds: xr.Dataset) -> go.Figure:
    """Draw the entropic rank layer by layer: how many directions the heads of a layer write in.

    Args:
        ds: of kind "entropic_rank".

    Returns:
        A bold line over all series and a thin one each; a dotted line marks the number of heads, the largest
        possible value.

    Example:
        >>> fig = viz.entropic_rank_line(results["entropic_rank"])
        >>> fig.layout.meta["title"]
        'Entropic rank of the heads of chronos-nano'
    """
    labels, ids = layer_names(ds), names(ds, "series")
    heads, canvas = int(ds.attrs.get("heads", 0)), blank(280)
    panel, hover = canvas.panel(), "%{text}<br>entropic rank %{y:.3g}"
    for name, line in zip(ids, np.exp(array(ds, "entropy", "layer", "series")).T, strict=True):
        look: Look = {"colour": mixed(GREY, 0.55), "width": 1, "text": labels}
        panel.line(labels, line, "one series each", f"{plain(name)}, {hover}", **look)
    rank = array(ds, "rank", "layer")
    bold: Look = {"colour": BLUE, "width": 2.5, "mode": "lines+markers", "text": labels}
    panel.line(labels, rank, "all series", f"all series, {hover}", **bold)
    if heads:
        panel.level(heads, dash="dot")
        side: Look = {"xref": "domain", "xanchor": "right", "yanchor": "bottom"}
        panel.note(f"{heads} heads: no two share a direction", 1, heads, colour=GREY, **side)
        panel.y(range=[0.9, heads + 0.12 * (heads - 0.9)])
    panel.x("layer", type="category")
    few_ticks(canvas, labels)
    panel.y("entropic rank (directions)")
    return canvas.dress(
        f"Entropic rank of the heads of {model_of(ds)}",
        attention_kind(ds),
        f"entropy averaged over tokens and {len(ids)} series",
        "1: all heads write along one line",
    )


@draws("layer_similarity")
def similarity_map(ds: xr.Dataset, *, measure: str = "cka") -> go.Figure:
    """Draw how alike the layers of a stack are, each against each.

    Args:
        ds: of kind "layer_similarity".
        measure: "cka" of the residual streams, or "update_cosine" of what the layers add.

    Returns:
        A heat map; cosines in two colours around 0.

    Example:
        >>> fig = viz.similarity_map(results["layer_similarity"])
        >>> fig.layout.meta["title"]
        "Similarity of the layers' streams in chronos-nano"
    """
    if measure not in ("cka", "update_cosine"):
        raise InputError(f"measure {measure!r} is not known, choose 'cka' or 'update_cosine'")
    check(ds, "layer_similarity", measure)
    cka = measure == "cka"
    axis, word = ("stream", "linear CKA") if cka else ("layer", "cosine")
    labels = [layer_name(name) for name in names(ds, axis)]
    canvas = blank(min(max(34 * len(labels), 200), 560))
    panel, hover = canvas.panel(), f"%{{y}} and %{{x}}<br>{word} %{{z:.3f}}"
    values = array(ds, measure, axis, f"other_{axis}")
    panel.cells(values, labels, labels, hover, write=two_digits)
    alike = [label for label, row in zip(labels, values, strict=True) if not np.isfinite(row).any()]
    canvas.colours(colour_scale(word, low=0.0, high=1.0, diverging=not cka))
    panel.x(type="category", ticks="", nticks=12)
    panel.y(type="category", autorange="reversed", ticks="", nticks=24)
    what = "residual streams after each layer" if cka else "what each layer adds to the residual stream"
    return canvas.dress(
        f"Similarity of the layers' {'streams' if cka else 'updates'} in {model_of(ds)}",
        f"{word} of {what}, over all tokens",
        "1: alike" + ("" if cka else ", −1: opposite"),
        f"empty: the {' and '.join(alike)}, the same at every token" if alike else "",
    )


@draws("head_similarity", needs=("cosine",))
def head_similarity_map(ds: xr.Dataset, *, layers: Sequence[str | int] | None = None) -> go.Figure:
    """Draw how alike the heads of a layer write, each against each, a panel per layer.

    Args:
        ds: of kind "head_similarity".
        layers: labels to draw, all unless given.

    Returns:
        Heat maps of the cosines, in two colours around 0; 1 on the diagonal.

    Example:
        >>> fig = viz.head_similarity_map(results["head_similarity"])
        >>> fig.layout.meta["title"]
        'Similarity of the heads of chronos-nano'
    """
    rows, heads = positions(ds, "layer", layers), names(ds, "head")
    labels = layer_names(ds, rows)
    grid = panel_grid([(label,) for label in labels], row_height=max(150, 16 * min(len(heads), 16)))
    hover = "heads %{y} and %{x}<br>cosine %{z:.3f}"
    cosines = array(ds, "cosine", "layer", "head", "other_head")[rows]
    for panel, value, label in zip(grid, cosines, labels, strict=True):
        panel.cells(value, heads, heads, f"{plain(label)}, {hover}", write=two_digits, printed=_MAX_NUMBERED)
    title_axes(grid, "head", "head")
    grid.x(type="category", ticks="")
    grid.y(type="category", ticks="", autorange="reversed")
    grid.colours(colour_scale("cosine", high=1.0, diverging=True))
    return grid.dress(
        f"Similarity of the heads of {model_of(ds)}",
        attention_kind(ds),
        "cosine between what two heads of a layer write at a token, mean over tokens and series",
    )


def _short(product: str) -> str:
    """Name a product without its matrices."""
    return _PRODUCTS.get(product, product).split(" product")[0]


def _attention(ds: xr.Dataset) -> str:
    return f" of {attention_kind(ds)}" if "attention" in ds.attrs else ""
