"""Figures of what is in a model's weights and streams: spectra, stable and entropic rank, similarity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.viz.attention import attention_kind
from tsfm_lens.viz.grid import Grid, log_axis, panel_grid, title_axes
from tsfm_lens.viz.layers import few_ticks
from tsfm_lens.viz.maps import cells, colour_axis, head_map
from tsfm_lens.viz.panels import medians
from tsfm_lens.viz.select import array, check, layer_name, model_of, names, position, positions
from tsfm_lens.viz.theme import BLUE, GREY, dress, mixed, plain

__all__ = ["entropic_rank_line", "head_similarity_map", "similarity_map", "spectrum_lines", "stable_rank_map"]

_PRODUCTS = {"QK": "query–key product W_Q W_Kᵀ", "OV": "value–output product W_V W_O"}


def stable_rank_map(ds: xr.Dataset, *, product: str = "QK") -> go.Figure:
    """Layer × head map of the stable rank: dark heads spread their spectrum, light ones act along few directions.

    Args:
        ds: of kind "spectra".
        product: "QK" or "OV".

    Returns:
        One heat map, with the numbers in the cells where there is room.

    Raises:
        InputError: ``ds`` is of another kind.
        UnknownNameError: the result holds no such product.
    """
    check(ds, "spectra", "stable_rank")
    values = array(ds, "stable_rank", "layer", "head", product=position(ds, "product", product))
    fig, height = head_map(ds, values, "stable rank")
    return dress(
        fig,
        f"Stable rank of the {_short(product)} products of {model_of(ds)}",
        f"{_PRODUCTS.get(product, product)}{_attention(ds)}; 1 is one direction, {ds.sizes['mode']} all of the head's",
        plot_height=height,
    )


def spectrum_lines(ds: xr.Dataset, *, product: str = "QK", layers: Sequence[str | int] | None = None) -> go.Figure:
    """Singular values of every head, a panel a layer, each spectrum relative to its largest value.

    Args:
        ds: of kind "spectra".
        product: "QK" or "OV".
        layers: labels to draw, all unless given.

    Returns:
        A thin line a head on a logarithmic axis, and the median over heads.

    Raises:
        InputError: ``ds`` is of another kind.
        UnknownNameError: no such product or layer.
    """
    check(ds, "spectra", "singular_value")
    chosen = positions(ds, "layer", layers)
    values = array(ds, "singular_value", "layer", "head", "mode", product=position(ds, "product", product))[chosen]
    top = values[..., :1]
    shares = np.divide(values, top, out=np.full_like(values, np.nan), where=top > 0)
    # what rounding leaves of a zero is no singular value
    shares[shares < 1e-12] = np.nan
    grid = head_lines(ds, chosen, shares, "%{y:.3g} of the largest")
    grid.fig.update_yaxes(**log_axis(shares))
    title_axes(grid, "mode", "singular value / largest")
    return dress(
        grid.fig,
        f"Spectra of the {_short(product)} products of {model_of(ds)}",
        f"{_PRODUCTS.get(product, product)}{_attention(ds)}; each spectrum relative to its largest value",
        legend_rows=1,
        **grid.room,
    )


def head_lines(ds: xr.Dataset, layers: list[int], values: np.ndarray, measure: str) -> Grid:
    """A panel a layer: a thin line a head over the modes, and the median over heads.

    Args:
        layers: places of the layers of ``values``, (layer, head, mode).
        measure: the hover box's words for a value.
    """
    grid = panel_grid([(layer_name(names(ds, "layer")[i]),) for i in layers], row_height=150)
    modes = np.arange(1, values.shape[-1] + 1)
    median = {"name": "median over heads", "line": {"color": BLUE, "width": 2}}
    single = {"name": "a head", "line": {"color": mixed(GREY, 0.55), "width": 1}}
    for panel, (row, col) in enumerate(grid.places):
        lines = [(f"head {head}", line, single) for head, line in zip(names(ds, "head"), values[panel], strict=True)]
        lines.append(("median over heads", medians(values[panel].T), median))
        for place, (words, line, look) in enumerate(lines):
            grid.fig.add_trace(
                go.Scatter(
                    x=modes,
                    y=line,
                    mode="lines",
                    legendgroup=look["name"],
                    showlegend=panel == 0 and place in (0, len(lines) - 1),
                    hovertemplate=f"{plain(words)}, mode %{{x}}<br>{measure}<extra></extra>",
                    **look,
                ),
                row=row,
                col=col,
            )
    return grid


def entropic_rank_line(ds: xr.Dataset) -> go.Figure:
    """Entropic rank layer by layer: how many directions the heads of a layer write in.

    Args:
        ds: of kind "entropic_rank".

    Returns:
        A bold line over all series and a thin one each; a dotted line marks the number of heads, the largest
        possible value.

    Raises:
        InputError: ``ds`` is of another kind.
    """
    check(ds, "entropic_rank", "rank", "entropy")
    labels = [layer_name(name) for name in names(ds, "layer")]
    heads = int(ds.attrs.get("heads", 0))
    each = np.exp(array(ds, "entropy", "layer", "series"))
    ids = names(ds, "series")
    lines: list[tuple[str, np.ndarray, dict]] = [
        ("one series each", each[:, i], {"color": mixed(GREY, 0.55), "width": 1}) for i in range(len(ids))
    ]
    lines.append(("all series", array(ds, "rank", "layer"), {"color": BLUE, "width": 2.5}))
    fig = go.Figure()
    for place, (word, line, look) in enumerate(lines):
        words = plain(ids[place]) if place < len(ids) else word
        fig.add_trace(
            go.Scatter(
                x=labels,
                y=line,
                mode="lines" if place < len(ids) else "lines+markers",
                name=word,
                legendgroup=word,
                showlegend=place in (0, len(ids)),
                line=look,
                text=labels,
                hovertemplate=f"{words}, %{{text}}<br>entropic rank %{{y:.3g}}<extra></extra>",
            )
        )
    if heads:
        note: dict[str, object] = {
            "text": f"{heads} heads: no two share a direction",
            "font": {"size": 11, "color": GREY},
        }
        side = {"showarrow": False, "xanchor": "right", "yanchor": "bottom"}
        fig.add_hline(y=heads, line={"color": GREY, "dash": "dot", "width": 1}, annotation=note | side)
        fig.update_yaxes(range=[0.9, heads + 0.12 * (heads - 0.9)])
    fig.update_xaxes(title_text="layer", type="category")
    few_ticks(fig, labels)
    fig.update_yaxes(title_text="entropic rank (directions)")
    return dress(
        fig,
        f"Entropic rank of the heads of {model_of(ds)}",
        f"{attention_kind(ds)}; entropy averaged over tokens and {len(ids)} series; 1: all heads write along one line",
        plot_height=280,
        legend_rows=1,
    )


def similarity_map(ds: xr.Dataset, *, measure: str = "cka") -> go.Figure:
    """How alike the layers of a stack are, each against each.

    Args:
        ds: of kind "layer_similarity".
        measure: "cka" of the residual streams, or "update_cosine" of what the layers add.

    Returns:
        A heat map; cosines in two colours around 0.

    Raises:
        InputError: ``ds`` is of another kind, or the measure is neither.
    """
    check(ds, "layer_similarity")
    if measure not in ("cka", "update_cosine"):
        raise InputError(f"measure {measure!r} is not known, choose 'cka' or 'update_cosine'")
    cka = measure == "cka"
    axis = "stream" if cka else "layer"
    labels = [layer_name(name) for name in names(ds, axis)]
    word = "linear CKA" if cka else "cosine"
    values = array(ds, measure, axis, f"other_{axis}")
    hover = f"%{{y}} and %{{x}}<br>{word} %{{z:.3f}}<extra></extra>"
    fig = go.Figure(cells(values, labels, labels, hover, write=_signed))
    bounds = (0.0, 1.0) if cka else (-1.0, 1.0)
    fig.update_layout(coloraxis=colour_axis(values, word, bounds=bounds, diverging=not cka))
    fig.update_xaxes(type="category", ticks="", nticks=12)
    fig.update_yaxes(type="category", autorange="reversed", ticks="", nticks=24)
    what = "residual streams after each layer" if cka else "what each layer adds to the residual stream"
    return dress(
        fig,
        f"Similarity of the layers' {'streams' if cka else 'updates'} in {model_of(ds)}",
        f"{word} of {what}, over all tokens; 1: alike" + ("" if cka else ", −1: opposite"),
        plot_height=min(max(34 * len(labels), 200), 560),
    )


def head_similarity_map(ds: xr.Dataset, *, layers: Sequence[str | int] | None = None) -> go.Figure:
    """How alike the heads of a layer write, each against each, a panel a layer.

    Args:
        ds: of kind "head_similarity".
        layers: labels to draw, all unless given.

    Returns:
        Heat maps of the cosines, in two colours around 0; 1 on the diagonal.

    Raises:
        InputError: ``ds`` is of another kind.
        UnknownNameError: no such layer.
    """
    check(ds, "head_similarity", "cosine")
    chosen = positions(ds, "layer", layers)
    values = array(ds, "cosine", "layer", "head", "other_head")[chosen]
    labels, heads = [layer_name(names(ds, "layer")[i]) for i in chosen], names(ds, "head")
    grid = panel_grid([(label,) for label in labels], row_height=max(150, 16 * min(len(heads), 16)))
    hover = "heads %{y} and %{x}<br>cosine %{z:.3f}<extra></extra>"
    for value, label, (row, col) in zip(values, labels, grid.places, strict=True):
        trace = cells(value, heads, heads, f"{plain(label)}, {hover}", write=_signed, printed=36)
        grid.fig.add_trace(trace, row=row, col=col)
    title_axes(grid, "head", "head")
    grid.fig.update_xaxes(type="category", ticks="")
    grid.fig.update_yaxes(type="category", ticks="", autorange="reversed")
    fig = dress(
        grid.fig,
        f"Similarity of the heads of {model_of(ds)}",
        f"{attention_kind(ds)}; cosine between what two heads of a layer write at a token, mean over tokens and series",
        **grid.room,
    )
    axis = colour_axis(values, "cosine", bounds=(-1.0, 1.0), diverging=True, len=min(1.0, 300 / grid.plot_height))
    return fig.update_layout(coloraxis=axis, margin_r=90)


def _short(product: str) -> str:
    """A product's name without its matrices."""
    return _PRODUCTS.get(product, product).split(" product")[0]


def _attention(ds: xr.Dataset) -> str:
    return f" of {attention_kind(ds)}" if "attention" in ds.attrs else ""


def _signed(value: float) -> str:
    """Two decimals, with a true minus and no minus zero."""
    return f"{value + 0.0:.2f}".replace("-0.00", "0.00").replace("-", "−")
