"""One attention pattern over time, under the series it reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from tsfm_lens.viz.panels import mark_start, value_hover
from tsfm_lens.viz.select import array, check, layer_name, model_of, names, position, unit_of, value_title
from tsfm_lens.viz.theme import BLUE, INK, SEQUENTIAL, dress, number, plain
from tsfm_lens.viz.timeline import Timeline, timeline
from tsfm_lens.viz.tokens import TokenAxis, group_for, grouped, ruler, token_axis

__all__ = ["attention_map"]

_CELLS = 60_000  # more would be narrower than a dot
_WORDED = 20_000  # up to so many cells, each names its tokens when hovered
_KINDS = {"self_attn": "self-attention", "cross_attn": "cross-attention", "attn": "attention"}


@dataclass(frozen=True)
class _Side:
    """A run of tokens on one side: over time, or the special ones."""

    axis: TokenAxis
    timed: bool

    @property
    def owner(self) -> np.ndarray:
        return self.axis.cells()[1] if self.timed else self.axis.aside

    def starts(self, group: int) -> np.ndarray:
        """The first token of every cell of ``group`` tokens; special tokens have a cell each."""
        return np.arange(0, len(self.owner), group if self.timed else 1)

    def coordinates(self, time: Timeline, group: int = 1) -> np.ndarray:
        """Where the cells stand: edges in time, or 0, 1, … for special tokens."""
        if not self.timed:
            return np.arange(len(self.axis.aside))
        edges = self.axis.cells()[0]
        return time.at(np.append(edges[:-1][self.starts(group)], edges[-1]))


def _sides(axis: TokenAxis) -> list[_Side]:
    return [_Side(axis, timed) for timed in (True, False) if len(axis.timed if timed else axis.aside)]


def attention_kind(ds: xr.Dataset) -> str:
    """Stack and kind of the attention in words, such as "decoder cross-attention"."""
    kind = str(ds.attrs.get("attention", "attention"))
    return f"{ds.attrs.get('stack', '')} {_KINDS.get(kind, kind)}".strip()


def weight_colours(limit: float) -> dict[str, object]:
    """The colour axis of attention weights from 0 to ``limit``."""
    bar = {"title": {"text": "attention weight", "side": "right"}}
    return {"colorscale": SEQUENTIAL, "cmin": 0.0, "cmax": limit, "colorbar": bar}


def single_series(ds: xr.Dataset) -> str:
    """The id of the one series of an attention Dataset."""
    return str(ds.attrs.get("series", "")) or (names(ds, "series") or ["the series"])[0]


def attention_map(ds: xr.Dataset, *, layer: str | int = 0, head: int = 0, zmax: float | None = None) -> go.Figure:
    """Which steps a head reads: query × key weights, tokens as wide as the time they cover.

    Args:
        ds: of kind "attention": ``pattern`` (layer, head, query, key) with the coordinates start, stop and
            special of keys and queries; ``context`` (time) and ``forecast`` (step) are drawn above.
        layer: label; a negative integer counts from the last.
        head: number; negative counts from the last.
        zmax: weight at which the colours end, the largest of this pattern unless given.

    Returns:
        The heat map over time, special tokens in strips at the right (keys) and the foot (queries), and
        the series on the same time axis. Of long patterns a cell is the largest weight of several tokens, which
        the subtitle then says.

    Raises:
        InputError: ``ds`` is of another kind, or its tokens cannot be laid out on one time axis.
        UnknownNameError: no such layer or head.
    """
    check(ds, "attention", "pattern")
    at = {"layer": position(ds, "layer", layer), "head": position(ds, "head", head)}
    weights = array(ds, "pattern", "query", "key", **at)
    keys, queries = token_axis(ds, "key"), token_axis(ds, "query")
    time = timeline(ds)
    columns, rows = _sides(keys), _sides(queries)
    with_series = columns[0].timed and "context" in ds
    fig, total = _grid(rows, columns, with_series)
    group = group_for(ruler(keys), ruler(queries), _CELLS)
    limit = zmax or float(np.nanmax(weights)) or 1.0
    for r, row_side in enumerate(rows, start=1 + with_series):
        for c, column_side in enumerate(columns, start=1):
            fig.add_trace(_cells(weights, row_side, column_side, time, group), row=r, col=c)
            last = r == len(rows) + with_series
            _label_axes(fig, row_side, column_side, time, r, c, last=last)
    if with_series:
        _draw_series(fig, ds, time, columns[0])
    fig.update_layout(coloraxis=weight_colours(limit))
    label, number_of_head = names(ds, "layer")[at["layer"]], names(ds, "head")[at["head"]]
    entropy = f"entropy {number(float(ds['entropy'].isel(at)))} nats, mean over queries; " if "entropy" in ds else ""
    kind = attention_kind(ds)
    remark = grouped(group) or "tokens as wide as the time they cover"
    fig = dress(
        fig,
        f"{kind[:1].upper() + kind[1:]}, {layer_name(label)}, head {number_of_head} of {model_of(ds)}",
        f"{single_series(ds)}; {entropy}each row sums to 1; {remark}",
        plot_height=total,
        above=12,
        min_width=520,
    )
    return fig.update_layout(margin_r=96, showlegend=False)


def _grid(rows: list[_Side], columns: list[_Side], with_series: bool) -> tuple[go.Figure, int]:
    """Subplots: the series above, tokens over time, strips for special tokens; and their height."""
    queries = max((len(side.owner) for side in rows if side.timed), default=0)
    heights = [110.0] if with_series else []
    for side in rows:
        heights.append(
            float(np.clip(90 + 7 * queries, 120, 380))
            if side.timed
            else max(20.0 * len(side.owner), 120.0 if len(rows) == 1 else 0.0)
        )
    gap = 8
    total = int(sum(heights) + gap * (len(heights) - 1))
    special = sum(len(side.owner) for side in columns if not side.timed)
    strip = float(np.clip(0.045 * special, 0.045, 0.25))
    widths = [1 - strip if side.timed else strip for side in columns] if len(columns) > 1 else [1.0]
    fig = make_subplots(
        rows=len(heights),
        cols=len(columns),
        row_heights=heights,
        column_widths=widths,
        vertical_spacing=gap / total if len(heights) > 1 else 0,
        horizontal_spacing=0.012 if len(columns) > 1 else 0,
    )
    return fig, total


def _cells(weights: np.ndarray, rows: _Side, columns: _Side, time: Timeline, group: tuple[int, int]) -> go.Heatmap:
    z = weights[np.ix_(rows.owner, columns.owner)].astype(np.float32)
    z[rows.owner < 0, :] = np.nan
    z[:, columns.owner < 0] = np.nan
    z = np.fmax.reduceat(np.fmax.reduceat(z, columns.starts(group[0]), axis=1), rows.starts(group[1]), axis=0)
    trace = go.Heatmap(
        x=columns.coordinates(time, group[0]),
        y=rows.coordinates(Timeline(steps=time.steps, stamps=None), group[1]),
        z=z,
        coloraxis="coloraxis",
        hoverongaps=False,
        hovertemplate="query around step %{y}<br>key around %{x}<br>weight %{z:.3g}<extra></extra>",
    )
    if z.size <= _WORDED and group == (1, 1):
        q, k = rows.axis, columns.axis
        asking = [q.words(i) if i >= 0 else "" for i in rows.owner]
        asked = [k.words(i) if i >= 0 else "" for i in columns.owner]
        trace.update(
            text=[[f"{a}<br>attends to {b}" for b in asked] for a in asking],
            hovertemplate="query %{text}<br>with weight %{z:.3g}<extra></extra>",
        )
    return trace


def _label_axes(fig: go.Figure, rows: _Side, columns: _Side, time: Timeline, r: int, c: int, *, last: bool) -> None:
    where = {"row": r, "col": c}
    if columns.timed:
        fig.update_xaxes(title_text=f"key: {time.title}" if last else "", showticklabels=last, **where)
        edges = columns.coordinates(time)
        fig.update_xaxes(range=[edges[0], edges[-1]], matches="x" if r > 1 else None, **where)
    else:
        labels = columns.axis.aside_labels()
        fig.update_xaxes(tickvals=np.arange(len(labels)), ticktext=labels, tickangle=-90, showticklabels=last, **where)
        fig.update_xaxes(title_text="special" if last else "", **where)
    if rows.timed:
        edges = rows.axis.cells()[0]
        fig.update_yaxes(range=[edges[-1], edges[0]], showticklabels=c == 1, **where)
        first = fig.get_subplot(r, 1).yaxis.plotly_name.replace("axis", "")
        fig.update_yaxes(title_text="query: time (steps)" if c == 1 else "", matches=first if c > 1 else None, **where)
    else:
        labels = rows.axis.aside_labels()
        fig.update_yaxes(
            tickvals=np.arange(len(labels)),
            ticktext=labels,
            autorange="reversed",
            showticklabels=c == 1,
            **where,
        )


def _draw_series(fig: go.Figure, ds: xr.Dataset, time: Timeline, keys: _Side) -> None:
    """The values under the keys, on the time axis of the map below."""
    unit = unit_of(ds, 0)
    lines = [("context", "time", INK, "observed, given to the model")]
    if "forecast" in ds and set(ds["forecast"].dims) <= {"series", "step"}:
        lines.append(("forecast", "step", BLUE, "the model's forecast"))
    for variable, dim, colour, words in lines:
        fig.add_trace(
            go.Scatter(
                x=time.at(np.array([int(v) for v in names(ds, dim)])),
                y=array(ds, variable, dim, series=0),
                mode="lines",
                name=variable,
                line={"color": colour, "width": 1.3},
                hovertemplate=value_hover(words, time, unit),
            ),
            row=1,
            col=1,
        )
    edges = keys.coordinates(time)
    fig.update_xaxes(range=[edges[0], edges[-1]], showticklabels=False, row=1, col=1)
    fig.update_yaxes(title_text=plain(value_title(ds, 0)).replace(" (", "<br>("), nticks=4, row=1, col=1)
    if edges_reach_forecast(keys):
        mark_start(fig, time, row=1, col=1)


def edges_reach_forecast(keys: _Side) -> bool:
    """Whether keys stand on both sides of the start of the forecast."""
    edges = keys.axis.cells()[0]
    return bool(edges[0] < -0.5 < edges[-1])
