"""All attention patterns of a model side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from tsfm_lens.viz.attention import attention_kind, single_series, weight_colours
from tsfm_lens.viz.select import array, check, layer_name, model_of, names, positions
from tsfm_lens.viz.theme import GREY, dress, number, plain
from tsfm_lens.viz.tokens import Ruler, group_for, grouped, pooled, ruler, token_axis

__all__ = ["attention_grid", "norm_weighted_map"]

_CELLS = 100_000  # in the whole figure


def attention_grid(
    ds: xr.Dataset,
    *,
    layers: Sequence[str | int] | None = None,
    heads: Sequence[str | int] | None = None,
    zmax: float | None = None,
) -> go.Figure:
    """Layer × head small multiples of query × key weights, tokens as wide as the time they cover.

    Args:
        ds: of kind "attention": ``pattern`` (layer, head, query, key) with the coordinates start, stop and
            special of keys and queries, and ``entropy`` (layer, head) where known.
        layers: labels to draw, all unless given.
        heads: numbers to draw, all unless given.
        zmax: weight at which the colours end. Unless given, the 99.5 % quantile of the largest weight of
            every query, so that heads that spread their attention stay visible.

    Returns:
        A panel per layer (rows) and head (columns), all on the same axes and colours. Special keys stand
        right of the dotted line. In patterns with many tokens each cell is the largest weight of a few
        adjacent tokens, which the subtitle then says.

    Raises:
        InputError: ``ds`` is of another kind, or its tokens cannot be laid out on one time axis.
        UnknownNameError: no such layer or head.
    """
    check(ds, "attention", "pattern")
    rows, columns = positions(ds, "layer", layers), positions(ds, "head", heads)
    cut = ds.isel(layer=rows, head=columns)
    pattern = array(cut, "pattern", "layer", "head", "query", "key")
    limit = zmax or float(np.nanquantile(np.nanmax(pattern, axis=-1), 0.995)) or 1.0
    kind = attention_kind(ds)
    return _heads(
        cut,
        pattern,
        weight_colours(limit),
        "weight",
        f"{kind[:1].upper() + kind[1:]} of every head of {model_of(ds)}",
        "the same axes and colours in every panel",
    )


def norm_weighted_map(
    ds: xr.Dataset,
    *,
    layers: Sequence[str | int] | None = None,
    heads: Sequence[str | int] | None = None,
    zmax: float | None = None,
) -> go.Figure:
    """Layer × head small multiples of how much each key contributes to each query's write.

    Args:
        ds: of kind "norm_weighted": ``norm`` (layer, head, query, key) with the coordinates start, stop and
            special of keys and queries.
        layers: labels to draw, all unless given.
        heads: numbers to draw, all unless given.
        zmax: length at which the colours end. Unless given, the 99.5 % quantile of the longest contribution to
            every query.

    Returns:
        Panels as in :func:`attention_grid`; next to that one, keys that get attention but write little are pale.

    Raises:
        InputError: ``ds`` is of another kind, or its tokens cannot be laid out on one time axis.
        UnknownNameError: no such layer or head.
    """
    check(ds, "norm_weighted", "norm")
    cut = ds.isel(layer=positions(ds, "layer", layers), head=positions(ds, "head", heads))
    norms = array(cut, "norm", "layer", "head", "query", "key")
    limit = zmax or float(np.nanquantile(np.nanmax(norms, axis=-1), 0.995)) or 1.0
    colours = weight_colours(limit)
    colours["colorbar"] = {"title": {"text": "length (residual stream units)", "side": "right"}}
    return _heads(
        cut,
        norms,
        colours,
        "length",
        f"Norm-weighted {attention_kind(ds)} of every head of {model_of(ds)}",
        "length of what each key adds to the residual stream; the same axes and colours in every panel",
    )


def _heads(
    ds: xr.Dataset, values: np.ndarray, colours: dict[str, object], word: str, title: str, remark: str
) -> go.Figure:
    """The grid of heads. ``values``: (layer, head, query, key) of ``ds``; ``word``: what they are when hovered."""
    rows, columns = values.shape[:2]
    x, y = ruler(token_axis(ds, "key")), ruler(token_axis(ds, "query"))
    group = group_for(x, y, max(_CELLS // (rows * columns), 400))
    fig, height = _grid(rows, columns)
    entropy = array(ds, "entropy", "layer", "head") if "entropy" in ds else None
    layers, heads = [layer_name(v) for v in names(ds, "layer")], names(ds, "head")
    places = [(r, c) for r in range(rows) for c in range(columns)]
    traces = []
    for r, c in places:
        place = f"{layers[r]}, head {heads[c]}"
        note = "" if entropy is None else f"<br>entropy of this head {number(entropy[r, c])} nats"
        z, x_edges, y_edges = pooled(values[r, c], x, y, group)
        traces.append(
            go.Heatmap(
                x=x_edges,
                y=y_edges,
                z=z,
                coloraxis="coloraxis",
                hoverongaps=False,
                name=place,
                hovertemplate=f"{plain(place)}<br>query around step %{{y}}, key around step %{{x}}"
                f"<br>{word} %{{z:.3g}}{note}<extra></extra>",
            )
        )
    fig.add_traces(traces, rows=[r + 1 for r, _ in places], cols=[c + 1 for _, c in places])
    _label(fig, x, y, layers, heads, rows, columns)
    fig.update_layout(coloraxis=colours)
    marks = ", ".join(x.axis.aside_labels())
    remarks = [
        f"{single_series(ds)}; {remark}",
        f"right of the dotted line: {marks}" if marks else "",
        grouped(group),
    ]
    fig = dress(
        fig,
        title,
        "; ".join(r for r in remarks if r),
        plot_height=height,
        above=28,
        below=56,
        min_width=max(420, 130 + 52 * columns),
    )
    return fig.update_layout(margin={"l": 96, "r": 96})


def _grid(rows: int, columns: int) -> tuple[go.Figure, int]:
    gap = 8
    panel = int(np.clip(560 / max(rows, columns), 52, 150))
    height = rows * panel + (rows - 1) * gap
    fig = make_subplots(
        rows=rows,
        cols=columns,
        shared_xaxes="all",
        shared_yaxes="all",
        horizontal_spacing=0.08 / columns,
        vertical_spacing=gap / height if rows > 1 else 0,
    )
    return fig, height


def _label(fig: go.Figure, x: Ruler, y: Ruler, layers: list[str], heads: list[str], rows: int, columns: int) -> None:
    """Head numbers above the columns, layers beside the rows, ticks only at the outer edge."""
    fig.update_xaxes(range=[x.edges[0], x.edges[-1]], showticklabels=False, ticks="", nticks=3)
    fig.update_yaxes(range=[y.edges[-1], y.edges[0]], showticklabels=False, ticks="", nticks=3)
    fig.update_xaxes(mirror=True, linewidth=0.5)
    fig.update_yaxes(mirror=True, linewidth=0.5)
    crowded = columns > 6  # all panels share one axis: then one of them carries the numbers
    for c in range(1, columns + 1):
        fig.update_xaxes(
            showticklabels=c == 1 or not crowded,
            ticks="outside",
            tickfont_size=10,
            tickangle=0,
            nticks=2 if crowded else 4,
            row=rows,
            col=c,
        )
        axis = fig.get_subplot(1, c).xaxis.plotly_name.replace("axis", "")
        fig.add_annotation(
            text=plain(f"head {heads[c - 1]}" if columns <= 8 else heads[c - 1]),
            xref=f"{axis} domain",
            x=0.5,
            yref="paper",
            y=1,
            yanchor="bottom",
            font_size=12,
        )
    for r in range(1, rows + 1):
        fig.update_yaxes(
            showticklabels=True,
            ticks="outside",
            tickfont_size=10,
            title={"text": plain(layers[r - 1]), "font": {"size": 12}},
            row=r,
            col=1,
        )
    shared = {"xref": "paper", "yref": "paper", "font_size": 13}
    fig.add_annotation(
        text="key: time (steps from the start of the forecast)", x=0.5, y=0, yshift=-26, yanchor="top", **shared
    )
    fig.add_annotation(text="query: time (steps)", x=0, y=0.5, xshift=-76, textangle=-90, **shared)
    if len(x.axis.aside) and len(x.axis.timed):
        line = {"color": GREY, "width": 1, "dash": "dot"}
        ends = {"type": "line", "x0": x.end, "x1": x.end, "y0": 0, "y1": 1, "line": line}
        axes = {(trace.xaxis, trace.yaxis) for trace in fig.data}
        fig.update_layout(shapes=[ends | {"xref": a, "yref": f"{b} domain"} for a, b in sorted(axes)])
