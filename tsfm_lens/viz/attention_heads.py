"""Attention patterns of all heads of a model, side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.attention import attention_kind, sentence_start, single_series, weight_colours
from tsfm_lens.viz.select import array, draws, layer_names, model_of, names, positions
from tsfm_lens.viz.sheet import Look, Sheet, sheet
from tsfm_lens.viz.theme import GREY, nats, number, plain
from tsfm_lens.viz.tokens import Ruler, group_for, grouped, pooled, ruler, token_axis

__all__ = ["attention_grid", "norm_weighted_map"]

_MAX_NUMBERED = 6  # columns that each have room for the numbers of their axis
_CELLS = 100_000  # in the whole figure


@draws("attention", needs=("pattern",))
def attention_grid(
    ds: xr.Dataset,
    *,
    layers: Sequence[str | int] | None = None,
    heads: Sequence[str | int] | None = None,
    zmax: float | None = None,
) -> go.Figure:
    """Draw layer × head small multiples of query × key weights, tokens as wide as the time they cover.

    Args:
        ds: of kind "attention": ``pattern`` (layer, head, query, key) with the coordinates start, stop and
            special of keys and queries, and ``entropy`` (layer, head) where known.
        layers: labels to draw, all unless given.
        heads: numbers to draw, all unless given.
        zmax: weight at which the colours end. Unless given, the 99.5 % quantile of the largest weight that
            each query gives to an ordinary key, so that neither special tokens nor sharp heads hide the others.

    Returns:
        A panel per layer (rows) and head (columns), all on the same axes and colours. Special keys stand
        right of the dotted line. In patterns with many tokens each cell is the largest weight of a few
        adjacent tokens, which the subtitle then says.

    Example:
        >>> fig = viz.attention_grid(results["attention"])
        >>> fig.layout.meta["title"]
        'Decoder cross-attention of every head of chronos-nano'
    """
    title = f"{sentence_start(ds)} of every head of {model_of(ds)}"
    return _heads(ds, "pattern", layers, heads, zmax, "attention weight", title, "")


@draws("norm_weighted", needs=("norm",))
def norm_weighted_map(
    ds: xr.Dataset,
    *,
    layers: Sequence[str | int] | None = None,
    heads: Sequence[str | int] | None = None,
    zmax: float | None = None,
) -> go.Figure:
    """Draw layer × head small multiples of how much each key contributes to each query's write.

    Args:
        ds: of kind "norm_weighted": ``norm`` (layer, head, query, key) with the coordinates start, stop and
            special of keys and queries.
        layers: labels to draw, all unless given.
        heads: numbers to draw, all unless given.
        zmax: length at which the colours end. Unless given, the 99.5 % quantile of the longest contribution of
            an ordinary key to each query.

    Returns:
        Panels as in :func:`attention_grid`; next to that one, keys that get attention but write little are pale.

    Example:
        >>> fig = viz.norm_weighted_map(results["norm_weighted"])
        >>> fig.layout.meta["title"]
        'Norm-weighted decoder cross-attention of every head of chronos-nano'
    """
    title = f"Norm-weighted {attention_kind(ds)} of every head of {model_of(ds)}"
    remark = "length of what each key adds to the residual stream"
    return _heads(ds, "norm", layers, heads, zmax, "length (residual stream units)", title, remark)


def _heads(
    ds: xr.Dataset,
    variable: str,
    layers: Sequence[str | int] | None,
    heads: Sequence[str | int] | None,
    zmax: float | None,
    word: str,
    title: str,
    remark: str,
) -> go.Figure:
    """Draw the grid of heads of a variable (layer, head, query, key); ``word``: what its values are."""
    cut = ds.isel(layer=positions(ds, "layer", layers), head=positions(ds, "head", heads))
    values = array(cut, variable, "layer", "head", "query", "key")
    rows, columns = values.shape[:2]
    x, y = ruler(token_axis(ds, "key")), ruler(token_axis(ds, "query"))
    ordinary = x.axis.timed if len(x.axis.timed) else x.axis.aside
    limit = zmax or float(np.nanquantile(np.nanmax(values[..., ordinary], axis=-1), 0.995)) or 1.0
    group = group_for(x, y, max(_CELLS // (rows * columns), 400))
    canvas = sheet(
        [int(np.clip(560 / max(rows, columns), 52, 150))] * rows,
        [1] * columns,
        row_gap=8,
        column_gap=0.08 / columns,
        min_width=max(420, 130 + (110 if columns <= _MAX_NUMBERED else 60) * columns),
        above=28,
        below=56,
        shared_xaxes="all",
        shared_yaxes="all",
    )
    entropy = array(cut, "entropy", "layer", "head") if "entropy" in cut else None
    quantity = word.split(" (")[0].removeprefix("attention ")
    row_names, column_names = layer_names(cut), names(cut, "head")
    for (row, col), panel in zip(canvas.places, canvas, strict=True):
        r, c = row - 1, col - 1
        place = f"{row_names[r]}, head {column_names[c]}"
        note = "" if entropy is None else f"<br>entropy of this head {nats(float(entropy[r, c]))}"
        z, x_edges, y_edges = pooled(values[r, c], x, y, group)
        hover = f"{plain(place)}<br>query around step %{{y}}, key around step %{{x}}<br>{quantity} %{{z:.3g}}"
        panel.cells(z, x_edges, y_edges, f"{hover}{note}", name=place, xgap=0, ygap=0)
    _label(canvas, x, y, row_names, column_names)
    canvas.colours(weight_colours(limit, word))
    marks = ", ".join(x.axis.aside_labels())
    return canvas.dress(
        title,
        single_series(ds),
        remark,
        "the same axes and colours in every panel",
        f"darkest: {number(limit)} and more" if float(np.nanmax(values)) > 1.005 * limit else "",
        f"right of the dotted line: {marks}" if marks else "",
        grouped(group),
    ).update_layout(margin_l=96)


def _label(canvas: Sheet, x: Ruler, y: Ruler, layers: list[str], heads: list[str]) -> None:
    """Put head numbers above the columns, layers beside the rows, and ticks only at the outer edge."""
    fig, rows, columns = canvas.fig, len(layers), len(heads)
    quiet: Look = {"showticklabels": False, "ticks": "", "mirror": True, "linewidth": 0.5}
    canvas.x(range=[x.edges[0], x.edges[-1]], tickvals=x.ticks(2), **quiet)
    canvas.y(range=[y.edges[-1], y.edges[0]], tickvals=y.ticks(3), **quiet)
    crowded = columns > _MAX_NUMBERED  # all panels share one axis: then one of them carries the numbers
    outer: Look = {"ticks": "outside", "tickfont_size": 10}
    for c, head in enumerate(heads, start=1):
        canvas.panel(rows, c).x(showticklabels=c == 1 or not crowded, tickangle=0, **outer)
        axis = fig.get_subplot(1, c).xaxis.plotly_name.replace("axis", "")
        above: Look = {
            "xref": f"{axis} domain",
            "x": 0.5,
            "yref": "paper",
            "y": 1,
            "yanchor": "bottom",
            "font_size": 12,
        }
        fig.add_annotation(text=plain(f"head {head}" if columns <= 8 else head), **above)
    for r, layer in enumerate(layers, start=1):
        canvas.panel(r, 1).y(layer, showticklabels=True, title_font_size=12, **outer)
    shared = {"xref": "paper", "yref": "paper", "font_size": 13}
    below = "key: time (steps from the start of the forecast)"
    fig.add_annotation(text=below, x=0.5, y=0, yshift=-26, yanchor="top", **shared)
    fig.add_annotation(text="query: time (steps)", x=0, y=0.5, xshift=-76, textangle=-90, **shared)
    if len(x.axis.aside) and len(x.axis.timed):
        line = {"color": GREY, "width": 1, "dash": "dot"}
        ends = {"type": "line", "x0": x.end, "x1": x.end, "y0": 0, "y1": 1, "line": line}
        axes = {(trace.xaxis, trace.yaxis) for trace in fig.data}
        fig.update_layout(shapes=[ends | {"xref": a, "yref": f"{b} domain"} for a, b in sorted(axes)])
