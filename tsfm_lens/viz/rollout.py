"""Maps of attention along a forecast, through the layers, and between patches.

:func:`autoregressive_attention_map` follows heads along a forecast,
:func:`attention_rollout_map` tokens through the layers, and
:func:`patch_attention_grid` the heads of one layer of a patch model. Patterns of one
forward pass are in :mod:`tsfm_lens.viz.attention`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import unescape

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.registry import FigurePanel, figure, frame, panels
from tsfm_lens.viz.attention import (
    attention_kind,
    sentence_start,
    single_series,
    weight_colours,
)
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.select import array, name_model, names, position, positions
from tsfm_lens.viz.sheet import Sheet
from tsfm_lens.viz.summary import labelled, summarize, summary
from tsfm_lens.viz.tables import tokens_table
from tsfm_lens.viz.theme import number, percent, plain
from tsfm_lens.viz.tokens import (
    Ruler,
    choose_group,
    grouped,
    pooled,
    ruler,
    token_axis,
)
from tsfm_lens.viz.words import (
    format_nats,
    layer_names,
)

__all__ = [
    "attention_rollout_map",
    "autoregressive_attention_map",
    "patch_attention_grid",
]

_MAX_HEADS = 9
_MAX_CELLS = 300_000  # in the whole figure
_MAX_PANEL_CELLS = 60_000  # about as many as a panel has pixels
# tables leave out cells below this share of the largest possible value
_LEAST = 0.01


def read_rollout(ds: xr.Dataset, heads: str) -> list[str]:
    """Return a sentence on the sharpest or the most diffuse head.

    Heads that read special tokens are named too.
    """
    maps = array(ds, "attention", "layer", "head", "query", "key")
    special_keys = token_axis(ds, "key", overlaps=True).aside
    # share of each head's attention on special tokens, mean over queries: (layer, head)
    special_share = maps[..., special_keys].sum(-1).mean(-1)
    which = "Sharpest head on {series}: {entropy:lowest nats}."
    if heads != "sharp":
        which = "Most diffuse head on {series}: {entropy:highest nats}."
    return summarize(
        ds,
        which,
        "Heads that give most of their attention to special tokens: {resting:which}.",
        noun="heads",
        series=single_series(ds),
        resting=labelled(ds, special_share > 0.5, "layer", "head"),
    )


def read_flow(ds: xr.Dataset) -> list[str]:
    """Return sentences on how much a token keeps of itself.

    A sentence names the input that most of the flow comes from.
    """
    flow = array(ds, "flow", "layer", "query", "key")
    if flow.shape[-1] < 2:
        return ["There is only one token, so nothing can flow."]
    keys = token_axis(ds, "key")
    tokens = [unescape(keys.words(index)) for index in range(flow.shape[-1])]
    # what a token has of itself does not reach the others
    from_others = flow[-1] * (1 - np.eye(len(tokens)))
    return summarize(
        ds,
        "On average a token keeps of itself {kept:ends percent}.",
        "What reaches the others most, as a share of a token on average: "
        "{inflow:highest percent}; uniform would be {uniform:percent}.",
        "This follows attention patterns alone; it sees neither values nor MLPs.",
        kept=labelled(ds, np.trace(flow, axis1=1, axis2=2) / len(tokens), "layer"),
        inflow=xr.DataArray(
            from_others.sum(axis=0) / (len(tokens) - 1), {"key": tokens}, ["key"]
        ),
        uniform=1 / len(tokens),
    )


@figure(
    "autoregressive_attention", "Attention of the sharpest heads along the forecast."
)
def autoregressive_attention_map(
    ds: xr.Dataset, *, heads: str = "sharp", count: int | None = None
) -> go.Figure:
    """Draw the attention of the sharpest or most diffuse heads along the forecast.

    Each head has a panel.

    Args:
        ds: result of kind "autoregressive_attention".
        heads: "sharp" for the lowest entropies, "diffuse" for the highest.
        count: number of panels; by default nine, or half of the heads where there are
            fewer than 18, so that no head is both among the sharpest and the most
            diffuse.

    Returns:
        A context step × forecast token map for each head, on one colour scale. Each
        column sums to 1, and a panel's title has the head's entropy in nats.

    Example:
        >>> ds = probes.autoregressive_attention(run)
        >>> [panel.name for panel in viz.autoregressive_attention_map(ds, count=2).data]
        ['layer 2, head 0', 'layer 2, head 3']
    """
    if heads not in ("sharp", "diffuse"):
        raise InputError(f"heads={heads!r} is not known, choose 'sharp' or 'diffuse'")
    if count is not None and count < 1:
        raise InputError(f"count is {count}, expected 1 or more")
    ranks = array(ds, "sharpness_rank", "layer", "head")
    if count is None:
        count = count_drawn_heads(ranks.size)
    # rank 0 is the sharpest head of all layers
    sort_keys = ranks.ravel() if heads == "sharp" else -ranks.ravel()
    chosen = np.argsort(sort_keys)[:count]
    indices = [divmod(int(flat), ranks.shape[1]) for flat in chosen]
    keys, queries = (
        ruler(token_axis(ds, side, overlaps=True)) for side in ("key", "query")
    )
    maps = [
        array(ds, "attention", "query", "key", layer=row, head=col)
        for row, col in indices
    ]
    # Colours are scaled by tokens of the series, if there are any: special tokens may
    # hold much more. A quantile keeps single outliers from leaving the rest white.
    if len(keys.axis.timed):
        scaling = keys.axis.timed
    else:
        scaling = keys.axis.aside
    limit = max(
        0.1, *(float(np.nanquantile(pattern[:, scaling], 0.999)) for pattern in maps)
    )
    entropy = array(ds, "entropy", "layer", "head")
    labels = [
        f"{layer_names(ds)[row]}, head {names(ds, 'head')[col]}" for row, col in indices
    ]
    notes = [
        f"{format_nats(entropy[index])}{_special_share(pattern, keys)}"
        for index, pattern in zip(indices, maps, strict=True)
    ]
    grid = panel_grid(list(zip(labels, notes, strict=True)), row_height=150)
    hover = "query step %{x} reads context step %{y}"
    group = _draw_maps(grid, maps, labels, keys, queries, hover, upwards=True)
    grid.colours(weight_colours(limit))
    # edges lie halfway between steps: the cell of step 0, the first of the forecast,
    # begins at -0.5, and that of the last context step at -1.5
    are_forecasts = bool(len(queries.axis.timed)) and queries.edges[0] >= -1
    title_axes(
        grid,
        "forecast step" if are_forecasts else "query step",
        "context step" if are_forecasts else "key step",
    )
    word = "Most diffuse"
    if heads == "sharp":
        word = "Sharpest"
    marks = ", ".join(keys.axis.special_labels())
    return grid.finalize(
        f"{word} heads of {name_model(ds)} along the forecast of {single_series(ds)}",
        attention_kind(ds),
        "steps from the start of the forecast",
        f"darkest: {number(limit)} or more",
        f"above the dotted line: {marks}" if marks else "",
        grouped(group),
    )


def count_drawn_heads(heads: int) -> int:
    """Return how many heads are drawn as the sharpest, and as the most diffuse.

    None is drawn as both, but for the only head of a model.
    """
    return min(_MAX_HEADS, max(heads // 2, 1))


@figure(
    "attention_rollout",
    "How much of each token may have reached each other.",
    table=lambda ds: tokens_table(ds, "flow", _LEAST),
    sentences=read_flow,
)
def attention_rollout_map(
    ds: xr.Dataset, *, layers: Sequence[str | int] | None = None
) -> go.Figure:
    """Draw how much of each input token may have reached each token.

    There is a map after every layer (Abnar and Zuidema).

    Args:
        ds: result of kind "attention_rollout".
        layers: labels or numbers of the layers, all if None.

    Returns:
        A token × input token map after each layer, on one colour scale. Axes are in
        steps, and each row sums to 1.

    Example:
        >>> fig = viz.attention_rollout_map(probes.attention_rollout(run))
        >>> [panel.name for panel in fig.data]
        ['after layer 0', 'after layer 1', 'after layer 2']
    """
    rows = positions(ds, "layer", layers)
    flow = list(array(ds, "flow", "layer", "query", "key")[rows])
    keys = ruler(token_axis(ds, "key"))
    queries = ruler(token_axis(ds, "query"))
    # What a token keeps of itself is large and would leave the rest white, so the
    # diagonal does not count. A single token that takes nearly all from another would,
    # too, so the limit is a quantile of each token's largest share from others.
    from_others = [
        np.where(np.eye(*shares.shape) > 0, 0.0, shares).max(axis=-1) for shares in flow
    ]
    limit = float(np.quantile(from_others, 0.99)) or 1.0
    labels = [f"after {label}" for label in layer_names(ds, rows)]
    grid = panel_grid([(label,) for label in labels], row_height=190)
    group = _draw_maps(
        grid,
        flow,
        labels,
        keys,
        queries,
        "of step %{x} in the token of step %{y}",
        upwards=False,
    )
    grid.colours(weight_colours(limit, "share"))
    title_axes(grid, "input token (step)", "token (step)")
    marks = ", ".join(keys.axis.special_labels())
    stack = ""
    if ds.attrs.get("stack"):
        stack = f"the {ds.attrs['stack']} of "
    return grid.finalize(
        f"Attention rollout through {stack}{name_model(ds)}",
        single_series(ds),
        "mean over heads and half a residual stream, multiplied layer by layer",
        f"darkest: {number(limit)} or more",
        f"right of the dotted line: {marks}" if marks else "",
        grouped(group),
    )


def _draw_maps(
    grid: Sheet,
    maps: list[np.ndarray],
    labels: list[str],
    keys: Ruler,
    queries: Ruler,
    hover: str,
    *,
    upwards: bool,
) -> tuple[int, int]:
    """Draw maps (query, key), and return how many keys and queries share a cell.

    With ``upwards``, keys are on the y axis, and otherwise on the x axis.

    Returns:
        How many keys and queries share a cell.
    """
    # the maps share the cells of the figure, and none needs more than its panel shows
    most_cells = min(_MAX_CELLS // len(maps), _MAX_PANEL_CELLS)
    group = choose_group(keys, queries, most_cells)
    for panel, pattern, label in zip(grid, maps, labels, strict=True):
        z, x, y = pooled(pattern, keys, queries, group)
        if upwards:
            z = z.T
            x, y = y, x
        panel.cells(
            z,
            x,
            y,
            f"{plain(label)}<br>{hover}<br>%{{z:.3g}}",
            name=label,
            xgap=0,
            ygap=0,
        )
        if keys.timed and len(keys.axis.aside):
            draw_line = panel.hline if upwards else panel.vline
            draw_line(keys.end, dash="dot")
    across, up = (queries, keys) if upwards else (keys, queries)
    columns = max(col for _, col in grid.positions)
    # the more columns, the narrower each panel
    most_ticks = {1: 8, 2: 6}.get(columns, 4)
    grid.x(
        tickvals=across.ticks(most_ticks),
        range=[across.edges[0], across.edges[-1]],
    )
    # queries go downwards, as the rows of a matrix do
    bounds = [up.edges[0], up.edges[-1]]
    grid.y(tickvals=up.ticks(), range=bounds if upwards else bounds[::-1])
    return group


def _special_share(weights: np.ndarray, keys: Ruler) -> str:
    """Return how much of a head's attention goes to special tokens.

    It is "" below 1 %.
    """
    share = float(weights[:, keys.axis.aside].sum(axis=1).mean())
    if share < 0.01:
        return ""
    tokens = sorted(set(keys.axis.special[keys.axis.aside]))
    return f", {percent(round(share, 2))} on {' and '.join(tokens)}"


generic_figure(
    "norm_weighted_attention",
    "norm",
    "Norm of what each key contributes to each query, of one head.",
    options={"layer": 0, "head": 0},
    table=lambda ds: tokens_table(
        ds, "norm", _LEAST * float(np.nanmax(ds["norm"].values))
    ),
    sentences=summary(
        "The contributions of all keys to a query are longest, on average, in "
        "{total:highest} and shortest in {total:lowest}, in residual stream units.",
        noun="heads",
        total=lambda ds: ds["norm"].sum("key").mean("query"),
    ),
)


@panels("autoregressive_attention")
def _rollout(ds: xr.Dataset) -> Iterator[FigurePanel]:
    # the table is of the heads that are drawn; those without a value have no row in it
    attention = ds[["attention"]].where(
        ds["sharpness_rank"] < count_drawn_heads(ds["sharpness_rank"].size)
    )
    weights = tokens_table(attention, "attention", _LEAST)
    entropies = frame(ds, "entropy", "sharpness_rank")
    for heads, table in (("sharp", weights), ("diffuse", entropies)):
        yield FigurePanel(
            autoregressive_attention_map(ds, heads=heads),
            table,
            read_rollout(ds, heads),
        )


@figure("patch_attention", "Attention matrices of the first layer, head by head.")
def patch_attention_grid(ds: xr.Dataset, *, layer: str | int = 0) -> go.Figure:
    """Draw every head of a layer as a matrix.

    Forecast tokens go downwards, context tokens to the right.

    Args:
        ds: result of kind "patch_attention".
        layer: label or number; a negative number that is no label counts from the last.

    Returns:
        A query × key map for each head, on one colour scale; tokens are as wide as the
        time that they cover. Its title has the head's stable rank.

    Example:
        >>> fig = viz.patch_attention_grid(probes.patch_attention(run), layer=1)
        >>> len(fig.data)  # heads
        4
    """
    at = position(ds, "layer", layer)
    everything = array(ds, "attention", "layer", "head", "query", "key")
    # over all layers, so that figures of two layers can be compared by colour
    limit = float(np.nanquantile(everything, 0.999)) or 1.0
    ranks = array(ds, "stable_rank", "layer", "head")[at]
    heads = [f"head {head}" for head in names(ds, "head")]
    notes = [f"stable rank {number(rank)}" for rank in ranks]
    grid = panel_grid(list(zip(heads, notes, strict=True)), row_height=130)
    keys, queries = (
        ruler(token_axis(ds, side, overlaps=True)) for side in ("key", "query")
    )
    hover = "query around step %{y}, key around step %{x}"
    maps = list(everything[at])
    group = _draw_maps(grid, maps, heads, keys, queries, hover, upwards=False)
    title_axes(grid, "key (step)", "query (step)")
    grid.colours(weight_colours(limit))
    marks = ", ".join(keys.axis.special_labels())
    return grid.finalize(
        f"{sentence_start(ds)} of {layer_names(ds)[at]} of {name_model(ds)}",
        f"{names(ds, 'series')[0]}, {ds.sizes['step']} steps ahead",
        f"darkest: {number(limit)} or more",
        f"right of the dotted line: {marks}" if marks else "",
        grouped(group),
    )


@panels("patch_attention")
def _panels(ds: xr.Dataset) -> Iterator[FigurePanel]:
    table = frame(ds, "stable_rank", "entropy", "argmax_start", "argmax_weight")
    text = summarize(
        ds,
        "Heads that give more than half of their attention to one token over time: "
        "{strong:which}.",
        "Most of it on one: {argmax_weight:highest percent}, from step {start:whole}"
        " on.",
        noun="heads",
        strong=ds["argmax_weight"] > 0.5,
        start=ds["argmax_start"].values.flat[ds["argmax_weight"].values.argmax()],
    )
    yield FigurePanel(patch_attention_grid(ds, layer=-1), table, text)
