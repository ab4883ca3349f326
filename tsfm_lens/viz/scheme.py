"""The residual stream as a scheme: who reads from it, who writes to it, and how much of the forecast."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from tsfm_lens.viz.select import array, check, model_of, names, series_position
from tsfm_lens.viz.theme import BLUE, GREEN, GREY, INK, ORANGE, PALE, dress, mixed, number, percent, plain

__all__ = ["stream_scheme"]

_WORDS = {"self_attn": "self-attention", "cross_attn": "cross-attention", "attn": "attention", "mlp": "MLP"}
_WORDS |= {
    "embed": "embedding",
    "bias": "output biases",
    "time_attn": "time attention",
    "group_attn": "group attention",
}
_ATTENTION, _MLP, _OTHER = BLUE, ORANGE, GREEN
_STREAM, _BOX = 0.0, (1.0, 3.2)  # where the stream and the boxes stand


def stream_scheme(ds: xr.Dataset, *, series: str | int | None = None) -> go.Figure:
    """The stream from the embedding to the readout, its writers as boxes, and the share that each writes.

    Args:
        ds: of kind "stream_shares": ``share`` (writer, series), ``head_size`` (writer, head, series).
        series: id or place; the mean over all series if None.

    Returns:
        At the left the scheme, from the bottom to the top in order of writing; the arrow of a writer is as thick as
        its share. At the right the shares as bars, and those of single heads as points.

    Raises:
        InputError: ``ds`` is of another kind.
        UnknownNameError: no such series.
    """
    check(ds, "stream_shares", "share", "head_size", "size")
    picked = list(range(ds.sizes["series"])) if series is None else [series_position(ds, series)]
    share = array(ds, "share", "writer", "series")[:, picked].mean(axis=1)
    total = array(ds, "size", "writer", "series")[:, picked].sum(axis=0)
    total[total == 0] = np.nan
    heads = (array(ds, "head_size", "writer", "head", "series")[..., picked] / total).mean(axis=2)
    kinds, layers = [str(k) for k in ds["kind"].values], [int(v) for v in ds["layer_index"].values]
    count = len(kinds)
    fig = make_subplots(cols=2, shared_yaxes=True, column_widths=[0.5, 0.5], horizontal_spacing=0.02)
    _draw_layers(fig, layers)
    _draw_stream(fig, count)
    for row, (kind, amount) in enumerate(zip(kinds, share, strict=True)):
        source = str(ds["keys_from"].values[row])
        words = _WORDS.get(kind, kind.replace("_", " ")) + (f" to the {source}" if source else "")
        _draw_writer(fig, row, words, _colour(kind), float(amount), reads=layers[row] >= 0)
    _draw_shares(fig, names(ds, "writer"), kinds, share, heads)
    fig.update_xaxes(visible=False, range=[-0.95, 3.35], row=1, col=1)
    fig.update_xaxes(title_text="share of all writes (%)", rangemode="tozero", row=1, col=2)
    fig.update_yaxes(visible=False, range=[-0.7, count + 0.35])
    who = "mean of " + str(len(picked)) + " series" if len(picked) > 1 else names(ds, "series")[picked[0]]
    return dress(
        fig,
        f"What is written into the residual stream of {model_of(ds)}",
        f"direct attribution ({ds.attrs.get('decomposition', '')}), absolute, mean over "
        f"{ds.attrs.get('horizon', '')} steps, {who}; arrows as thick as the share; points: single heads",
        plot_height=max(24 if count <= 16 else 17, 9) * (count + 1),
        legend_rows=0,
        min_width=480,
    )


def _colour(kind: str) -> str:
    return _ATTENTION if "attn" in kind else _MLP if "mlp" in kind else _OTHER


def _draw_layers(fig: go.Figure, layers: list[int]) -> None:
    """A pale band behind every second layer, and the layers' names at the left."""
    for layer in sorted({each for each in layers if each >= 0}):
        rows = [row for row, each in enumerate(layers) if each == layer]
        low, high = min(rows) - 0.5, max(rows) + 0.5
        if layer % 2 == 0:
            for column in (1, 2):
                domain = "x domain" if column == 1 else "x2 domain"
                fig.add_shape(
                    type="rect",
                    x0=0,
                    x1=1,
                    xref=domain,
                    y0=low,
                    y1=high,
                    yref="y",
                    fillcolor=mixed(PALE, 0.35),
                    line={"width": 0},
                    layer="below",
                )
        fig.add_annotation(
            x=-0.9, y=(low + high) / 2, text=f"layer {layer}", xanchor="left", font={"size": 11}, row=1, col=1
        )


def _draw_stream(fig: go.Figure, count: int) -> None:
    fig.add_annotation(
        x=_STREAM,
        y=count - 0.15,
        ax=_STREAM,
        ay=-0.6,
        axref="x",
        ayref="y",
        xref="x",
        yref="y",
        text="",
        showarrow=True,
        arrowhead=2,
        arrowwidth=3,
        arrowcolor=GREY,
    )
    fig.add_annotation(
        x=_STREAM, y=count, text="readout → forecast", xanchor="left", yanchor="bottom", font={"size": 11}, row=1, col=1
    )


def _draw_writer(fig: go.Figure, row: int, words: str, colour: str, share: float, *, reads: bool) -> None:
    """A box, the thin line by which it reads, and the arrow by which it writes."""
    left, right = _BOX
    fig.add_shape(
        type="rect",
        x0=left,
        x1=right,
        y0=row - 0.36,
        y1=row + 0.36,
        fillcolor=mixed(colour, 0.18),
        line={"color": colour, "width": 1},
        row=1,
        col=1,
    )
    fig.add_annotation(x=(left + right) / 2, y=row, text=plain(words), font={"size": 11, "color": INK}, row=1, col=1)
    if reads:
        fig.add_shape(
            type="line",
            x0=_STREAM,
            x1=left,
            y0=row - 0.26,
            y1=row - 0.26,
            line={"color": GREY, "width": 0.8, "dash": "2px,2px"},
            row=1,
            col=1,
        )
    fig.add_annotation(
        x=_STREAM + 0.04,
        ax=left,
        y=row + 0.12,
        ay=row + 0.12,
        axref="x",
        ayref="y",
        xref="x",
        yref="y",
        text="",
        showarrow=True,
        arrowhead=2,
        arrowsize=0.6,
        arrowwidth=0.8 + 9 * share,
        arrowcolor=colour,
    )


def _draw_shares(fig: go.Figure, writers: list[str], kinds: list[str], share: np.ndarray, heads: np.ndarray) -> None:
    rows = np.arange(len(writers))
    fig.add_trace(
        go.Bar(
            x=100 * share,
            y=rows,
            orientation="h",
            width=0.62,
            marker={"color": [mixed(_colour(kind), 0.55) for kind in kinds]},
            hovertext=[f"{plain(name)}: {number(100 * value)} %" for name, value in zip(writers, share, strict=True)],
            hoverinfo="text",
            showlegend=False,
        ),
        row=1,
        col=2,
    )
    known = np.isfinite(heads)
    where, which = np.nonzero(known)
    fig.add_trace(
        go.Scatter(
            x=100 * heads[known],
            y=where,
            mode="markers",
            name="single heads",
            showlegend=False,
            marker={"color": INK, "size": 4, "symbol": "circle-open"},
            hovertext=[
                f"{plain(writers[w])}.{h}: {number(100 * heads[w, h])} %" for w, h in zip(where, which, strict=True)
            ],
            hoverinfo="text",
        ),
        row=1,
        col=2,
    )
    # numbers stand right of bar and points
    ends = 100 * np.maximum(share, np.where(known, heads, 0.0).max(axis=1))
    fig.add_trace(
        go.Scatter(
            x=ends + 0.012 * ends.max(),
            y=rows,
            mode="text",
            text=[percent(float(value)) for value in share],
            textposition="middle right",
            textfont={"size": 10},
            hoverinfo="skip",
            showlegend=False,
        ),
        row=1,
        col=2,
    )
    fig.update_xaxes(range=[0, (float(ends.max()) or 1.0) * 1.2], row=1, col=2)
