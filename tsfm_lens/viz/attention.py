"""Attention patterns of single heads and whole layers, and their entropies.

:func:`attention_map` draws one head of one series, :func:`attention_grid` all heads;
:func:`head_entropy_map` compares their entropies over series. Attention along a whole
forecast is in :mod:`tsfm_lens.viz.rollout`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import FigurePanel, figure, panels
from tsfm_lens.viz.generic import draw_variable
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.panels import Timeline, mark_start, timeline, value_hover
from tsfm_lens.viz.select import (
    array,
    find_unit,
    kind_word,
    name_model,
    names,
    position,
    positions,
    value_title,
)
from tsfm_lens.viz.sheet import Panel, Style, sheet
from tsfm_lens.viz.summary import labelled, summarize, summary
from tsfm_lens.viz.tables import tokens_table
from tsfm_lens.viz.theme import BLUE, GREY, INK, TEAL, nats, number, percent, plain
from tsfm_lens.viz.tokens import Ruler, choose_group, grouped, pooled, ruler, token_axis
from tsfm_lens.viz.words import (
    capital,
    layer_names,
    num,
)

__all__ = ["attention_grid", "attention_map", "head_entropy_map"]

_CELLS = 60_000  # of one map; more would be narrower than a pixel
_MAX_TEXTS = 20_000  # cells of a map up to which each names its tokens when hovered
_MAX_NUMBERED = 6  # columns up to which the panels are wide enough for tick labels
_GRID_CELLS = 100_000  # in all maps of a figure of many heads
_ALIKE = 1e-6  # relative difference below which weights count as equal
_LEAST = 1e-4  # smallest weight of a pair of tokens that a table lists
# share of its attention above which a head is said to rest on special tokens, which
# stand for no step
_RESTING = 0.5
_WORTH_A_BAR = 0.05  # least share on special tokens that a curve's panel shows
_SEEN = 0.01  # least attention that is drawn, as a share of the largest


def read_attention(ds: xr.Dataset) -> list[str]:
    """Name the sharpest and the most diffuse head, and those on special tokens."""
    pattern = array(ds, "pattern", "layer", "head", "query", "key")
    entropy = head_entropy(pattern)
    # The largest possible entropy of a query is the log of the number of keys that it
    # may see. These are the keys that any head of the layer gives a weight to, since
    # the weights of masked keys are exactly 0.
    layer_of_diffuse = int(entropy.argmax()) // pattern.shape[1]
    can_see = (pattern[layer_of_diffuse] > 0).any(axis=0)
    n_visible = np.maximum(can_see.sum(axis=-1), 1)
    special = pattern[..., token_axis(ds, "key").aside].sum(-1).mean(-1)
    return summarize(
        ds,
        "Sharpest on {series}: {entropies:lowest nats}; most diffuse: "
        "{entropies:highest nats}, of at most {limit:nats}.",
        "Heads that give more than half of their attention to special tokens: "
        "{resting:which}.",
        "Attention shows what a head reads; only an ablation shows whether it matters.",
        noun="heads",
        series=single_series(ds),
        entropies=labelled(ds, entropy, "layer", "head"),
        limit=np.log(n_visible).mean(),
        resting=labelled(ds, special > _RESTING, "layer", "head"),
    )


def read_attention_map(ds: xr.Dataset, layer: int, head: int) -> list[str]:
    """State the lag and the token at which most queries have their largest weight."""
    weights = array(ds, "pattern", "query", "key", layer=layer, head=head)
    keys = token_axis(ds, "key")
    queries = token_axis(ds, "query")
    # weights between tokens that stand for steps
    between_steps = weights[np.ix_(queries.timed, keys.timed)]
    if not between_steps.size:
        return []
    resting = 1.0 - float(between_steps.sum(axis=1).mean())
    if resting > _RESTING:
        # the small weights that are left for steps do not show where the head looks
        return [
            f"Its queries give {percent(resting)} of their attention to special tokens,"
            " which stand for no step."
        ]
    largest = between_steps.max(axis=1, keepdims=True)
    # only queries with one largest weight count, not those that give it to several keys
    clear = (between_steps >= (1 - _ALIKE) * largest).sum(axis=1) == 1
    if not clear.any():
        return ["None of its queries has a single largest weight."]
    peak = keys.timed[between_steps.argmax(axis=1)[clear]]
    lags = queries.start[queries.timed][clear] - keys.start[peak]
    lag, at_lag = _commonest(lags)
    token, at_token = _commonest(peak)
    token_label = keys.words(token)
    time = timeline(ds, 0)
    if time.stamps is not None:
        token_label = f"{token_label} (from {time.date(int(keys.start[token]))})"
    count = len(between_steps)
    return [
        f"Most queries with their largest weight at one lag: {at_lag} of {count}, at"
        f" {lag}; at one token: {at_token} of {count}, at {token_label}. The largest"
        f" weight is {num(float(largest.mean()))} on average."
    ]


def _commonest(values: np.ndarray) -> tuple[int, int]:
    """Return the most frequent value and its count."""
    distinct, counts = np.unique(values, return_counts=True)
    return int(distinct[counts.argmax()]), int(counts.max())


def head_entropy(pattern: np.ndarray) -> np.ndarray:
    """Return the entropy in nats of every head, mean over queries.

    ``pattern`` is (layer, head, query, key).
    """
    # 0 log 0 counts as 0, its limit
    products = pattern * np.log(np.where(pattern > 0, pattern, 1.0))
    # a plain minus would write the entropy of a single key as -0
    result: np.ndarray = 0.0 - products.sum(axis=-1).mean(axis=-1)
    return result


def heads_table(ds: xr.Dataset) -> pd.DataFrame:
    """Return entropy, largest weight and weight on special tokens, a row per head.

    All are means over queries.
    """
    pattern = array(ds, "pattern", "layer", "head", "query", "key")
    layers = names(ds, "layer")
    heads = names(ds, "head")
    table = pd.DataFrame(
        {"layer": np.repeat(layers, len(heads)), "head": np.tile(heads, len(layers))}
    )
    table["entropy_nats"] = head_entropy(pattern).ravel()
    table["largest_weight"] = pattern.max(axis=-1).mean(axis=-1).ravel()
    table["special_weight"] = (
        pattern[..., token_axis(ds, "key").aside].sum(axis=-1).mean(axis=-1).ravel()
    )
    return table


def attention_kind(ds: xr.Dataset) -> str:
    """Name stack and kind of the attention, such as "decoder cross-attention"."""
    return (
        f"{ds.attrs.get('stack', '')}"
        f" {kind_word(str(ds.attrs.get('attention', 'attention')))}".strip()
    )


def sentence_start(ds: xr.Dataset) -> str:
    """Name stack and kind with a capital letter."""
    return capital(attention_kind(ds))


def _tell_head(ds: xr.Dataset, layer: str, head: str, steps: bool) -> dict[str, Any]:
    """Return what a page needs to mark a head, as the ``meta`` of its trace.

    ``steps`` is whether both axes are in steps from the forecast's start.
    """
    parts = [ds.attrs.get("stack", ""), layer, ds.attrs.get("attention", ""), head]
    return {"component": ".".join(part for part in parts if part), "steps": steps}


def weight_colours(limit: float, word: str = "attention weight") -> dict[str, Any]:
    """Return the colour axis of attention weights, from 0 to ``limit``.

    ``word`` is its title.
    """
    return colour_scale(word, low=0.0, high=limit, root=True)


def single_series(ds: xr.Dataset) -> str:
    """Return the id of the one series of an attention Dataset."""
    return str(ds.attrs.get("series", "")) or (names(ds, "series") or ["the series"])[0]


@figure(
    "attention_patterns",
    "Attention of one head of the last layer.",
    options={"layer": -1},
)
def attention_map(ds: xr.Dataset, *, layer: str | int = 0, head: int = 0) -> go.Figure:
    """Draw which steps a head reads: its weights, query × key.

    Tokens are as wide as the time that they cover.

    Args:
        ds: result of kind "attention_patterns".
        layer: label or number; a negative number that is no label counts from the last.
        head: number of the head.

    Returns:
        Two panels on one time axis: the context in data units, and the map of weights
        below it. Each row of the map sums to 1.

    Example:
        >>> fig = viz.attention_map(probes.attention_patterns(run), head=2)
        >>> fig.layout.meta["title"]
        'Decoder cross-attention, layer 0, head 2 of chronos-nano'
    """
    at = {"layer": position(ds, "layer", layer), "head": position(ds, "head", head)}
    weights = array(ds, "pattern", "query", "key", **at)
    keys, queries = (ruler(token_axis(ds, side)) for side in ("key", "query"))
    group = choose_group(keys, queries, _CELLS)
    z, x, y = pooled(weights, keys, queries, group)
    # The series is drawn above the keys if keys cover the part of it that is known: the
    # context where some lie in the past (before -0.5), or else the forecast.
    has_past = bool(keys.timed) and bool(keys.edges[0] < -0.5)
    with_series = bool(keys.timed) and (
        ("context" in ds and has_past) or "forecast" in ds
    )
    height = float(np.clip(90 + 7 * len(queries.owner), 120, 380))
    canvas = sheet(
        [110.0, height] if with_series else [height],
        row_gap=8,
        above=12,
        min_width=400,
        shared_xaxes="all" if with_series else False,
    )
    # the map is the lower one of two panels, or alone
    panel = canvas.panel(1 + with_series)
    texts = None
    hover = "query around step %{y}<br>key around step %{x}<br>weight %{z:.3g}"
    if z.size <= _MAX_TEXTS and group == (1, 1):
        query_labels, key_labels = (
            [side.axis.words(token) if token >= 0 else "" for token in side.owner]
            for side in (queries, keys)
        )
        texts = [[f"{a}<br>attends to {b}" for b in key_labels] for a in query_labels]
        hover = "query %{text}<br>with weight %{z:.3g}"
    label = names(ds, "layer")[at["layer"]]
    own = _tell_head(ds, label, names(ds, "head")[at["head"]], steps=True)
    panel.cells(z, x, y, hover, text=texts, xgap=0, ygap=0, meta=own)
    marks = []
    for side, draw_line, location in (
        (keys, panel.vline, "right of"),
        (queries, panel.hline, "under"),
    ):
        if side.timed and len(side.axis.aside):
            draw_line(side.end, dash="dot")
            marks.append(
                f"{location} the dotted line: {', '.join(side.axis.special_labels())}"
            )
    panel.x(
        "key (steps from the forecast's start)",
        tickvals=keys.ticks(8),
        range=[x[0], x[-1]],
    )
    panel.y("query (steps)", tickvals=queries.ticks(), range=[y[-1], y[0]])
    if with_series:
        _draw_series(canvas.panel(), ds, keys)
    canvas.colours(weight_colours(float(np.nanmax(weights)) or 1.0))
    canvas.fig.update_layout(showlegend=False)
    entropy = ""
    if "entropy" in ds:
        entropy = f"entropy {nats(float(ds['entropy'].isel(at)))}, mean over queries"
    head_label = f"{layer_names(ds)[at['layer']]}, head {names(ds, 'head')[at['head']]}"
    title = f"{sentence_start(ds)}, {head_label} of {name_model(ds)}"
    cells = "tokens as wide as the time they cover"
    return canvas.finalize(
        title,
        single_series(ds),
        entropy,
        "each row sums to 1",
        grouped(group) or cells,
        *marks,
    )


def _draw_series(panel: Panel, ds: xr.Dataset, keys: Ruler) -> None:
    """Draw the values under the keys, on the time axis of the map below."""
    # in steps even where dates are known, since the map below has an axis of steps
    time = Timeline(steps=timeline(ds).steps, stamps=None)
    lines = [("context", "time", INK, "observed, given to the model")]
    if "forecast" in ds and set(ds["forecast"].dims) <= {"series", "step"}:
        lines.append(("forecast", "step", BLUE, "the model's forecast"))
    for variable, dim, colour, text in lines:
        steps = np.array([int(v) for v in names(ds, dim)])
        values = array(ds, variable, dim, series=0)
        panel.line(
            steps,
            values,
            variable,
            value_hover(text, time, find_unit(ds, 0)),
            colour=colour,
            width=1.3,
        )
    panel.y(value_title(ds, 0).replace(" (", "\n("), nticks=4)
    if keys.edges[0] < -0.5 < keys.end:
        mark_start(panel, time)


@figure(
    "attention_patterns",
    "Attention of every head.",
    table=partial(tokens_table, variable="pattern", least=_LEAST),
)
def attention_grid(
    ds: xr.Dataset,
    *,
    layers: Sequence[str | int] | None = None,
    heads: Sequence[str | int] | None = None,
) -> go.Figure:
    """Draw the attention of every layer and head as small multiples.

    Where tokens cover one step each, they are maps of the weights, query × key. A
    patch model has few queries: its panels are curves of the attention against the
    distance back, mean over the steps of the forecast.

    Args:
        ds: result of kind "attention_patterns".
        layers: labels or numbers of the layers, all if None.
        heads: numbers of the heads, all if None.

    Returns:
        A row of panels for each layer, with a panel for each head. Axes are in steps
        from the forecast's start, and weights have one colour scale.

    Example:
        >>> fig = viz.attention_grid(probes.attention_patterns(run), layers=[0, 1])
        >>> len(fig.data)  # 2 layers × 4 heads
        8
    """
    selected = ds.isel(
        layer=positions(ds, "layer", layers), head=positions(ds, "head", heads)
    )
    keys = token_axis(ds, "key")
    if len(keys.timed) and (keys.stop - keys.start)[keys.timed].max() > 1:
        return _draw_curves(selected)
    return _draw_maps(selected)


def _draw_curves(ds: xr.Dataset) -> go.Figure:
    """Draw the attention of heads against the distance back."""
    lags, weights, aside = attention_by_lag(ds)
    rows, columns, _ = weights.shape
    row_names = layer_names(ds)
    canvas = sheet(
        [int(np.clip(560 / max(rows, columns), 64, 110))] * rows,
        [1] * columns,
        row_gap=12,
        column_gap=0.08 / columns,
        min_width=max(420, 110 + 60 * columns),
        above=28,
        below=56,
        shared_xaxes="all",
        shared_yaxes="all",
        column_titles=[f"head {head}" for head in names(ds, "head")],
        row_titles=row_names,
        x_title="steps before the forecast step",
    )
    word = " and ".join(dict.fromkeys(token_axis(ds, "key").special_labels()))
    for (row, col), panel in zip(canvas.positions, canvas, strict=True):
        at = (row - 1, col - 1)
        label = f"{row_names[at[0]]}, head {names(ds, 'head')[at[1]]}"
        panel.line(
            lags,
            weights[at],
            "",
            f"{plain(label)}<br>%{{x}} steps before the step<br>%{{y:.1%}} of its"
            " attention",
            colour=TEAL,
            fill="tozeroy",
            meta=_tell_head(
                ds, names(ds, "layer")[at[0]], names(ds, "head")[at[1]], steps=False
            ),
        )
        if aside[at] >= _WORTH_A_BAR:
            refs = {"xref": "x domain", "yref": "y domain"}
            panel.shape(
                "rect",
                (0, aside[at]),
                (0.94, 1),
                fillcolor=GREY,
                line_width=0,
                **refs,
            )
            panel.note(
                f"{word} {aside[at]:.0%}",
                0,
                0.92,
                xref="domain",
                yref="domain",
                xanchor="left",
                yanchor="top",
                colour=GREY,
            )
    canvas.fig.update_annotations(font_size=12)
    # distances at which no head has any attention worth seeing are left out
    seen = lags[(weights >= _SEEN * weights.max()).any((0, 1))]
    far, near = float(seen.max()), float(seen.min())
    ticks = _lag_ticks(far, _season(ds), 2 + (columns <= 3))
    pad = 0.03 * (far - near or 1.0)
    canvas.x(range=[far + pad, near - pad], tickvals=ticks, tickangle=0)
    # a third is left above the curves for the bars and their words
    canvas.y(range=[0, 1.35 * weights.max()], tickformat=".0%", nticks=4)
    remark = ""
    if word:
        remark = f"grey: share on the {word} token"
    return canvas.finalize(
        f"{sentence_start(ds)} of every head of {name_model(ds)}, by distance back",
        single_series(ds),
        "curve: mean over the steps of the forecast",
        remark,
    ).update_layout(margin_l=64)


def attention_by_lag(ds: xr.Dataset) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the attention at each distance back, and on special tokens.

    Returns distances (lag,), means over forecast steps (layer, head, lag), and means on
    special tokens (layer, head). A distance is from the first step of a token of
    the forecast to that of the key; where the queries are of the context alone, from
    the start of the forecast.
    """
    pattern = array(ds, "pattern", "layer", "head", "query", "key")
    queries, keys = (token_axis(ds, side) for side in ("query", "key"))
    ahead = queries.timed[
        (queries.start[queries.timed] >= 0)
        & (queries.start[queries.timed] < ds.sizes["step"])
    ]
    if not len(ahead):
        ahead = queries.timed[-1:]
    begin = np.maximum(queries.start[ahead], 0)
    # a query weighs as many steps as it forecasts
    steps = np.diff(np.append(begin, ds.sizes["step"]))
    share = pattern[:, :, ahead] * (steps / steps.sum())[:, None]
    distance = begin[:, None] - keys.start[keys.timed]
    lags, place = np.unique(distance, return_inverse=True)
    heads = share[..., keys.timed].reshape(pattern.shape[0] * pattern.shape[1], -1)
    # of each head the sum over the pairs of query and key at each distance
    sums = [np.bincount(place.ravel(), head, len(lags)) for head in heads]
    weights = np.reshape(sums, (*pattern.shape[:2], len(lags)))
    return lags, weights, share[..., keys.aside].sum((-1, -2))


def _season(ds: xr.Dataset) -> int:
    """Return the steps of the season of the series; 1 where none is known."""
    if "season" in ds.coords:
        return int(np.atleast_1d(ds["season"].values)[0])
    return 1


def _lag_ticks(far: float, season: int, most: int) -> np.ndarray:
    """Return multiples of the season, or round numbers, up to ``far``."""
    least = max(far / most, season, 1.0)
    if season > 1:
        return np.arange(0, far + 1, season * np.ceil(least / season))
    size = 10.0 ** np.floor(np.log10(least))
    factor = next(factor for factor in (1, 2, 5, 10) if size * factor >= least)
    return np.arange(0, far + 1, size * factor)


def _draw_maps(ds: xr.Dataset) -> go.Figure:
    """Draw the weights of heads as maps, tokens as wide as the time they cover."""
    values = array(ds, "pattern", "layer", "head", "query", "key")
    rows, columns = values.shape[:2]
    x = ruler(token_axis(ds, "key"))
    y = ruler(token_axis(ds, "query"))
    # Colours end at a quantile of the largest weight of each query, or a few outliers
    # would leave the rest white. Special tokens count only where there are no others,
    # as they often get most of the attention.
    if len(x.axis.timed):
        counted = x.axis.timed
    else:
        counted = x.axis.aside
    largest = np.nanmax(values[..., counted], axis=-1)
    limit = float(np.nanquantile(largest, 0.995)) or 1.0
    group = choose_group(x, y, max(_GRID_CELLS // (rows * columns), 400))
    row_names = layer_names(ds)
    column_names = names(ds, "head")
    height = int(np.clip(560 / max(rows, columns), 52, 150))
    panel_width = 70 if columns <= _MAX_NUMBERED else 60
    room: Style = {
        "row_gap": 8,
        "column_gap": 0.08 / columns,
        "min_width": max(420, 130 + panel_width * columns),
    }
    canvas = sheet(
        [height] * rows,
        [1] * columns,
        above=28,
        below=56,
        shared_xaxes="all",
        shared_yaxes="all",
        column_titles=[
            f"head {head}" if columns <= 8 else head for head in column_names
        ],
        row_titles=row_names,
        x_title="key (steps from the forecast's start)",
        y_title="query (steps)",
        **room,
    )
    entropy = None
    if "entropy" in ds:
        entropy = array(ds, "entropy", "layer", "head")
    for (row, col), panel in zip(canvas.positions, canvas, strict=True):
        r = row - 1
        c = col - 1
        head_label = f"{row_names[r]}, head {column_names[c]}"
        if entropy is None:
            note = ""
        else:
            note = f"<br>entropy of this head {nats(float(entropy[r, c]))}"
        z, x_edges, y_edges = pooled(values[r, c], x, y, group)
        hover = (
            f"{plain(head_label)}<br>query around step %{{y}}, key around step"
            " %{x}<br>weight %{z:.3g}"
        )
        panel.cells(
            z,
            x_edges,
            y_edges,
            f"{hover}{note}",
            name=head_label,
            xgap=0,
            ygap=0,
            meta=_tell_head(ds, names(ds, "layer")[r], column_names[c], steps=True),
        )
        if len(x.axis.aside) and len(x.axis.timed):
            panel.vline(x.end, dash="dot")
    # make_subplots() writes titles in 16 pixels
    canvas.fig.update_annotations(font_size=12)
    canvas.x(range=[x.edges[0], x.edges[-1]], tickvals=x.ticks(2), tickangle=0)
    canvas.y(range=[y.edges[-1], y.edges[0]], tickvals=y.ticks(3))
    canvas.colours(weight_colours(limit))
    marks = ", ".join(x.axis.special_labels())
    darkest = ""
    if float(np.nanmax(values)) > 1.005 * limit:
        darkest = f"darkest: {number(limit)} or more"
    return canvas.finalize(
        f"{sentence_start(ds)} of every head of {name_model(ds)}",
        single_series(ds),
        "the same axes and colours in every panel",
        darkest,
        f"right of the dotted line: {marks}" if marks else "",
        grouped(group),
        # the common title of vertical axes is an annotation, for which plotly leaves no
        # margin
    ).update_layout(margin_l=96)


@panels("attention_patterns")
def _attention(ds: xr.Dataset) -> Iterator[FigurePanel]:
    yield FigurePanel(attention_grid(ds), heads_table(ds), read_attention(ds))
    entropy = head_entropy(array(ds, "pattern", "layer", "head", "query", "key"))
    indices = {
        "The sharpest head.": int(entropy.argmin()),
        "The most diffuse head.": int(entropy.argmax()),
    }
    for text, index in indices.items():
        layer, head = (int(v) for v in np.unravel_index(index, entropy.shape))
        fig = attention_map(
            ds, layer=names(ds, "layer")[layer], head=int(names(ds, "head")[head])
        )
        pattern = ds.isel(layer=layer, head=head).assign(
            weight=lambda one: one["pattern"].astype(float)
        )
        yield FigurePanel(
            fig,
            tokens_table(pattern, "weight", _LEAST),
            [text, *read_attention_map(ds, layer, head)],
        )


@figure(
    "head_entropy",
    "Attention entropy of every head.",
    table=("entropy", "normalised", "sharp"),
    sentences=summary(
        "Sharpest over all series: {entropy:lowest nats}; most diffuse: "
        "{entropy:highest nats}.",
        "Sharp heads: {sharp:count}. The threshold is relative to this model's heads, "
        "so counts of two models do not compare.",
        noun="heads",
    ),
)
def head_entropy_map(ds: xr.Dataset) -> go.Figure:
    """Draw the layer × head map of the attention entropy, dark where it is low.

    Args:
        ds: result of kind "head_entropy".

    Returns:
        One map, layer × head, of entropies in nats. Sharp heads are outlined.

    Example:
        >>> fig = viz.head_entropy_map(probes.head_entropy(run))
        >>> fig.data[0].z.shape  # 3 layers × 4 heads
        (3, 4)
    """
    sharp = array(ds, "sharp", "layer", "head") > 0
    threshold = number(float(ds.attrs.get("sharp_below", np.nan)))
    fig = draw_variable(
        ds,
        "entropy",
        title=f"Attention entropy of the heads of {name_model(ds)}",
        remarks=[
            f"{attention_kind(ds)}, mean over forecast steps and series",
            f"outlined: the {int(sharp.sum())} of {sharp.size} heads that are sharp"
            f" (below {threshold} of the heads' range)",
        ],
        outlined="sharp",
    )
    return fig.update_layout(coloraxis_reversescale=True)
