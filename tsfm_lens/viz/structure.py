"""Figures of what is in a model's weights and streams: spectra, stable and entropic rank, similarity."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.viz.grid import panel_grid
from tsfm_lens.viz.select import array, check, layer_name, model_of, names, position, positions
from tsfm_lens.viz.theme import BLUE, DIVERGING, GREY, SEQUENTIAL, dress, mixed, number, plain

_PRODUCTS = {"QK": "query–key product W_Q W_Kᵀ", "OV": "value–output product W_V W_O"}
_PRINTED = 500  # cells that still have room for their number


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
    layers = [layer_name(name) for name in names(ds, "layer")]
    fig = _map(
        values,
        layers,
        [f"{head}" for head in names(ds, "head")],
        "stable rank",
        "%{y}, head %{x}<br>stable rank %{z:.4g}<extra></extra>",
    )
    fig.update_xaxes(title_text="head", type="category", constrain="domain")
    fig.update_yaxes(title_text="", autorange="reversed")
    return dress(
        fig,
        f"Stable rank of the heads of {model_of(ds)}",
        f"{_PRODUCTS.get(product, product)}; 1 is one direction, {ds.sizes['mode']} all of the head's",
        plot_height=max(26 * len(layers), 160),
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
    grid = panel_grid([(layer_name(names(ds, "layer")[i]),) for i in chosen], row_height=150)
    modes = np.arange(1, shares.shape[-1] + 1)
    for panel, (row, col) in enumerate(grid.places):
        for head, share in zip(names(ds, "head"), shares[panel], strict=True):
            grid.fig.add_trace(
                go.Scatter(
                    x=modes,
                    y=share,
                    mode="lines",
                    name="a head",
                    legendgroup="head",
                    showlegend=panel == 0 and head == names(ds, "head")[0],
                    line={"color": mixed(GREY, 0.55), "width": 1},
                    hovertemplate=f"head {plain(head)}, mode %{{x}}<br>%{{y:.3g}} of the largest<extra></extra>",
                ),
                row=row,
                col=col,
            )
        grid.fig.add_trace(
            go.Scatter(
                x=modes,
                y=np.nanmedian(shares[panel], axis=0),
                mode="lines",
                name="median over heads",
                legendgroup="median",
                showlegend=panel == 0,
                line={"color": BLUE, "width": 2},
                hovertemplate="median over heads, mode %{x}<br>%{y:.3g} of the largest<extra></extra>",
            ),
            row=row,
            col=col,
        )
    grid.fig.update_yaxes(type="log", exponentformat="power")
    grid.fig.update_xaxes(title_text="mode", row=max(row for row, _ in grid.places))
    grid.fig.update_yaxes(title_text="singular value / largest", col=1)
    return dress(
        grid.fig,
        f"Spectra of the heads of {model_of(ds)}",
        _PRODUCTS.get(product, product),
        legend_rows=1,
        **grid.room,
    )


def entropic_rank_line(ds: xr.Dataset) -> go.Figure:
    """Entropic rank layer by layer: how many directions the heads of a layer write in.

    Args:
        ds: of kind "entropic_rank".

    Returns:
        One line; a dotted one marks the number of heads, the largest possible value.

    Raises:
        InputError: ``ds`` is of another kind.
    """
    check(ds, "entropic_rank", "rank")
    labels = [layer_name(name) for name in names(ds, "layer")]
    heads = int(ds.attrs.get("heads", 0))
    fig = go.Figure(
        go.Scatter(
            x=labels,
            y=array(ds, "rank", "layer"),
            mode="lines+markers",
            name="entropic rank",
            line={"color": BLUE, "width": 2},
            hovertemplate="%{x}<br>entropic rank %{y:.3g}<extra></extra>",
        )
    )
    if heads:
        fig.add_hline(y=heads, line={"color": GREY, "dash": "dot", "width": 1})
        fig.add_annotation(
            x=1, xref="paper", y=heads, text=f"{heads} heads", showarrow=False, xanchor="right", yanchor="bottom"
        )
    fig.update_xaxes(title_text="layer", type="category")
    fig.update_yaxes(title_text="entropic rank (directions)", rangemode="tozero")
    count = len(names(ds, "series"))
    return dress(
        fig,
        f"Entropic rank of the heads of {model_of(ds)}",
        f"{ds.attrs.get('attention', 'attention')}; entropy averaged over tokens and {count} series",
        plot_height=280,
    )


def similarity_map(ds: xr.Dataset, *, measure: str = "cka") -> go.Figure:
    """How alike the layers of a stack are, each against each.

    Args:
        ds: of kind "layer_similarity".
        measure: "cka" of the residual streams, or "update_cosine" of what the layers add.

    Returns:
        A square heat map; cosines in two colours around 0.

    Raises:
        InputError: ``ds`` is of another kind, or the measure is neither.
    """
    check(ds, "layer_similarity")
    if measure not in ("cka", "update_cosine"):
        raise InputError(f"measure {measure!r} is not known, choose 'cka' or 'update_cosine'")
    axis = "stream" if measure == "cka" else "layer"
    labels = [layer_name(name) for name in names(ds, axis)]
    word = "linear CKA" if measure == "cka" else "cosine"
    fig = _map(
        array(ds, measure, axis, f"other_{axis}"),
        labels,
        labels,
        word,
        f"%{{y}} and %{{x}}<br>{word} %{{z:.3g}}<extra></extra>",
        diverging=measure != "cka",
        bounds=(0.0, 1.0) if measure == "cka" else (-1.0, 1.0),
    )
    fig.update_xaxes(type="category", constrain="domain")
    fig.update_yaxes(autorange="reversed", scaleanchor="x")
    what = "residual streams after each layer" if measure == "cka" else "what each layer adds to the stream"
    return dress(
        fig,
        f"Similarity of the layers of {model_of(ds)}",
        f"{word} of {what}, over all tokens",
        plot_height=max(30 * len(labels), 240),
    )


def _map(
    values: np.ndarray,
    rows: list[str],
    columns: list[str],
    title: str,
    hover: str,
    *,
    diverging: bool = False,
    bounds: tuple[float, float] | None = None,
) -> go.Figure:
    """A heat map with a titled colour bar, and numbers in the cells while they fit."""
    low, high = bounds if bounds is not None else (float(np.nanmin(values)), float(np.nanmax(values)))
    text = [[number(float(value)) for value in row] for row in values] if values.size <= _PRINTED else None
    return go.Figure(
        go.Heatmap(
            x=columns,
            y=rows,
            z=values,
            zmin=low,
            zmax=high,
            colorscale=DIVERGING if diverging else SEQUENTIAL,
            text=text,
            texttemplate="%{text}" if text is not None else None,
            textfont={"size": 10},
            colorbar={"title": {"text": title, "side": "right"}},
            hovertemplate=hover,
        )
    )
