"""All attention patterns of a model side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from tsfm_lens.viz.attention import attention_kind, single_series, weight_colours
from tsfm_lens.viz.select import array, check, layer_name, model_of, names, positions
from tsfm_lens.viz.theme import GREY, dress, number, plain
from tsfm_lens.viz.tokens import TokenAxis, token_axis

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
    x, y = _ruler(token_axis(ds, "key")), _ruler(token_axis(ds, "query"))
    budget = max(_CELLS // (len(rows) * len(columns)), 400)
    group = max(int(np.ceil(np.sqrt(len(x.owner) * len(y.owner) / budget))), 1)
    limit = zmax or float(np.nanquantile(np.nanmax(pattern, axis=-1), 0.995)) or 1.0
    fig, height = _grid(len(rows), len(columns))
    entropy = array(cut, "entropy", "layer", "head") if "entropy" in ds else None
    layer_words = [layer_name(v) for v in names(cut, "layer")]
    traces = []
    for r in range(len(rows)):
        for c in range(len(columns)):
            place = f"{layer_words[r]}, head {names(cut, 'head')[c]}"
            note = "" if entropy is None else f"<br>entropy of this head {number(entropy[r, c])} nats"
            z, x_edges, y_edges = pooled(pattern[r, c], x, y, group)
            traces.append(
                go.Heatmap(
                    x=x_edges,
                    y=y_edges,
                    z=z,
                    coloraxis="coloraxis",
                    hoverongaps=False,
                    name=place,
                    hovertemplate=f"{plain(place)}<br>query around step %{{y}}, key around step %{{x}}"
                    f"<br>weight %{{z:.3g}}{note}<extra></extra>",
                )
            )
    places = [(r + 1, c + 1) for r in range(len(rows)) for c in range(len(columns))]
    fig.add_traces(traces, rows=[r for r, _ in places], cols=[c for _, c in places])
    _label(fig, x, y, layer_words, names(cut, "head"), len(rows), len(columns))
    fig.update_layout(coloraxis=weight_colours(limit))
    kind = attention_kind(ds)
    marks = ", ".join(x.axis.aside_labels())
    remarks = [
        f"{single_series(ds)}; the same axes and colours in every panel",
        f"right of the dotted line: {marks}" if marks else "",
        f"a cell: the largest weight of {group} × {group} tokens" if group > 1 else "",
    ]
    fig = dress(
        fig,
        f"{kind[:1].upper() + kind[1:]} of every head of {model_of(ds)}",
        "; ".join(r for r in remarks if r),
        plot_height=height,
        above=28,
        below=56,
        min_width=max(420, 130 + 52 * len(columns)),
    )
    return fig.update_layout(margin={"l": 96, "r": 96})


@dataclass(frozen=True)
class _Ruler:
    """Cells along one side: tokens over time first, then, after a gap, the special ones at a fixed width.

    Attributes:
        edges: (cell + 1,), in steps; owner: the token in each cell, -1 for a gap, (cell,).
        timed: how many cells, gaps between them included, stand over time.
        end: where time ends.
    """

    axis: TokenAxis
    edges: np.ndarray
    owner: np.ndarray
    timed: int
    end: float


def _ruler(axis: TokenAxis) -> _Ruler:
    edges, owner = axis.cells()
    timed, count = len(owner), len(axis.aside)
    end = float(edges[-1]) if timed else 0.0
    span = float(edges[-1] - edges[0]) if timed else 1.0
    if not timed:
        edges = np.zeros(1)
    elif count:
        edges, owner = np.append(edges, end + 0.04 * span), np.append(owner, -1)
    aside = edges[-1] + 0.06 * span * np.arange(1, count + 1)
    return _Ruler(
        axis=axis,
        edges=np.concatenate([edges, aside]),
        owner=np.concatenate([owner, axis.aside]).astype(int),
        timed=timed,
        end=end,
    )


def pooled(weights: np.ndarray, x: _Ruler, y: _Ruler, group: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cells of one pattern, the largest of ``group`` × ``group`` adjacent tokens over time.

    Returns:
        ``z`` (query cell, key cell), and the edges of the cells on both axes.
    """
    z = weights[np.ix_(y.owner, x.owner)].astype(np.float32)
    z[y.owner < 0, :] = np.nan
    z[:, x.owner < 0] = np.nan
    x_starts, y_starts = (_starts(ruler, group) for ruler in (x, y))
    z = np.fmax.reduceat(np.fmax.reduceat(z, x_starts, axis=1), y_starts, axis=0)
    return z, np.append(x.edges[x_starts], x.edges[-1]), np.append(y.edges[y_starts], y.edges[-1])


def _starts(ruler: _Ruler, group: int) -> np.ndarray:
    """Where pooled cells begin: every ``group``-th token over time, every special token alone."""
    every = np.arange(0, ruler.timed, group)
    return np.concatenate([every, np.arange(ruler.timed, len(ruler.owner))]).astype(int)


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


def _label(fig: go.Figure, x: _Ruler, y: _Ruler, layers: list[str], heads: list[str], rows: int, columns: int) -> None:
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
