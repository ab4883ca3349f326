"""Attention pattern of one head over time, under the series it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.panels import mark_start, value_hover
from tsfm_lens.viz.select import array, draws, kind_word, layer_names, model_of, names, position, unit_of, value_title
from tsfm_lens.viz.sheet import Look, Panel, sheet
from tsfm_lens.viz.theme import BLUE, INK, nats
from tsfm_lens.viz.timeline import Timeline, timeline
from tsfm_lens.viz.tokens import TokenAxis, group_for, grouped, pool, ruler, token_axis

__all__ = ["attention_map"]

_CELLS = 60_000  # more would be narrower than a dot
_MAX_TEXTS = 20_000  # up to so many cells, each names its tokens when hovered


@dataclass(frozen=True)
class _Side:
    """Run of tokens on one side: over time, or the special ones."""

    axis: TokenAxis
    timed: bool

    @property
    def owner(self) -> np.ndarray:
        return self.axis.cells()[1] if self.timed else self.axis.aside

    def starts(self, group: int) -> np.ndarray:
        """Return the first token of every cell of ``group`` tokens; special tokens have a cell each."""
        return np.arange(0, len(self.owner), group if self.timed else 1)

    def coordinates(self, time: Timeline, group: int = 1) -> np.ndarray:
        """Return the edges of the cells in time, or 0, 1, … for special tokens."""
        if not self.timed:
            return np.arange(len(self.axis.aside))
        edges = self.axis.cells()[0]
        return time.at(np.append(edges[:-1][self.starts(group)], edges[-1]))


def _sides(axis: TokenAxis) -> list[_Side]:
    return [_Side(axis, timed) for timed in (True, False) if len(axis.timed if timed else axis.aside)]


def attention_kind(ds: xr.Dataset) -> str:
    """Name stack and kind of the attention, such as "decoder cross-attention"."""
    return f"{ds.attrs.get('stack', '')} {kind_word(str(ds.attrs.get('attention', 'attention')))}".strip()


def sentence_start(ds: xr.Dataset) -> str:
    """Name stack and kind with a capital letter."""
    kind = attention_kind(ds)
    return f"{kind[:1].upper()}{kind[1:]}"


def weight_colours(limit: float, word: str = "attention weight") -> dict[str, Any]:
    """Return the colour axis of attention weights, or of what ``word`` says, from 0 to ``limit``."""
    return colour_scale(word, low=0.0, high=limit)


def single_series(ds: xr.Dataset) -> str:
    """Return the id of the one series of an attention Dataset."""
    return str(ds.attrs.get("series", "")) or (names(ds, "series") or ["the series"])[0]


@draws("attention", needs=("pattern",))
def attention_map(ds: xr.Dataset, *, layer: str | int = 0, head: int = 0, zmax: float | None = None) -> go.Figure:
    """Draw the steps that a head reads: query × key weights, tokens as wide as the time they cover.

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

    Example:
        >>> fig = viz.attention_map(results["attention"], layer=-1)
        >>> fig.layout.meta["title"]
        'Decoder cross-attention, layer 2, head 0 of chronos-nano'
    """
    at = {"layer": position(ds, "layer", layer), "head": position(ds, "head", head)}
    weights = array(ds, "pattern", "query", "key", **at)
    keys, queries, time = token_axis(ds, "key"), token_axis(ds, "query"), timeline(ds)
    columns, rows = _sides(keys), _sides(queries)
    # keys of the forecast alone have no values above them but those of a forecast
    past = columns[0].timed and bool(columns[0].axis.cells()[0][0] < -0.5)
    with_series = columns[0].timed and (("context" in ds and past) or "forecast" in ds)
    heights = [110.0] * with_series + [_height(side, alone=len(rows) == 1) for side in rows]
    special = sum(len(side.owner) for side in columns if not side.timed)
    strip = float(np.clip(0.045 * special, 0.045, 0.25))
    widths = [1 - strip if side.timed else strip for side in columns] if len(columns) > 1 else [1.0]
    canvas = sheet(heights, widths, row_gap=8, column_gap=0.012, above=12, min_width=520)
    group = group_for(ruler(keys), ruler(queries), _CELLS)
    for r, row_side in enumerate(rows, start=1 + with_series):
        for c, column_side in enumerate(columns, start=1):
            panel = canvas.panel(r, c)
            _draw_cells(panel, weights, row_side, column_side, time, group)
            _label_axes(panel, row_side, column_side, time, last=r == len(heights), first=canvas.panel(r, 1))
    if with_series:
        _draw_series(canvas.panel(), ds, time, columns[0])
    canvas.colours(weight_colours(zmax or float(np.nanmax(weights)) or 1.0))
    canvas.fig.update_layout(showlegend=False)
    entropy = f"entropy {nats(float(ds['entropy'].isel(at)))}, mean over queries" if "entropy" in ds else ""
    place = f"{layer_names(ds)[at['layer']]}, head {names(ds, 'head')[at['head']]}"
    return canvas.dress(
        f"{sentence_start(ds)}, {place} of {model_of(ds)}",
        single_series(ds),
        entropy,
        "each row sums to 1",
        grouped(group) or "tokens as wide as the time they cover",
    )


def _height(side: _Side, *, alone: bool) -> float:
    """Return the height in pixels of the rows of one side's tokens."""
    if side.timed:
        return float(np.clip(90 + 7 * len(side.owner), 120, 380))
    return max(20.0 * len(side.owner), 120.0 if alone else 0.0)


def _draw_cells(
    panel: Panel, weights: np.ndarray, rows: _Side, columns: _Side, time: Timeline, group: tuple[int, int]
) -> None:
    z = pool(weights, rows.owner, columns.owner, rows.starts(group[1]), columns.starts(group[0]))
    words, hover = None, "query around step %{y}<br>key around %{x}<br>weight %{z:.3g}"
    if z.size <= _MAX_TEXTS and group == (1, 1):
        query_words, key_words = (
            [side.axis.words(i) if i >= 0 else "" for i in side.owner] for side in (rows, columns)
        )
        words = [[f"{a}<br>attends to {b}" for b in key_words] for a in query_words]
        hover = "query %{text}<br>with weight %{z:.3g}"
    steps = Timeline(steps=time.steps, stamps=None)
    x, y = columns.coordinates(time, group[0]), rows.coordinates(steps, group[1])
    panel.cells(z, x, y, hover, text=words, xgap=0, ygap=0)


def _label_axes(panel: Panel, rows: _Side, columns: _Side, time: Timeline, *, last: bool, first: Panel) -> None:
    if columns.timed:
        edges = columns.coordinates(time)
        matches = "x" if panel.at["row"] > 1 else None
        title = f"key: {time.title}" if last else ""
        panel.x(title, showticklabels=last, range=[edges[0], edges[-1]], matches=matches)
    else:
        labels = columns.axis.aside_labels()
        ticks: Look = {"tickvals": np.arange(len(labels)), "ticktext": labels, "tickangle": -90}
        panel.x("special" if last else "", showticklabels=last, **ticks)
    leftmost = panel.at["col"] == 1
    if rows.timed:
        edges = rows.axis.cells()[0]
        panel.y("query: time (steps)" if leftmost else "", range=[edges[-1], edges[0]], showticklabels=leftmost)
        axis = panel.sheet.fig.get_subplot(first.at["row"], 1).yaxis.plotly_name.replace("axis", "")
        panel.y(matches=None if leftmost else axis)
    else:
        labels = rows.axis.aside_labels()
        ticks = {"tickvals": np.arange(len(labels)), "ticktext": labels, "autorange": "reversed"}
        panel.y(showticklabels=leftmost, **ticks)


def _draw_series(panel: Panel, ds: xr.Dataset, time: Timeline, keys: _Side) -> None:
    """Draw the values under the keys, on the time axis of the map below."""
    lines = [("context", "time", INK, "observed, given to the model")]
    if "forecast" in ds and set(ds["forecast"].dims) <= {"series", "step"}:
        lines.append(("forecast", "step", BLUE, "the model's forecast"))
    for variable, dim, colour, words in lines:
        x, values = time.at(np.array([int(v) for v in names(ds, dim)])), array(ds, variable, dim, series=0)
        panel.line(x, values, variable, value_hover(words, time, unit_of(ds, 0)), colour=colour, width=1.3)
    edges = keys.coordinates(time)
    panel.x(range=[edges[0], edges[-1]], showticklabels=False)
    panel.y(value_title(ds, 0).replace(" (", "\n("), nticks=4)
    if edges_reach_forecast(keys):
        mark_start(panel, time)


def edges_reach_forecast(keys: _Side) -> bool:
    """Return whether keys stand on both sides of the start of the forecast."""
    edges = keys.axis.cells()[0]
    return bool(edges[0] < -0.5 < edges[-1])
