"""Attention along a forecast: roll-out maps, and attention flow through the layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.viz.attention import attention_kind, single_series, weight_colours
from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.select import array, draws, layer_names, model_of, names, positions
from tsfm_lens.viz.sheet import Sheet
from tsfm_lens.viz.theme import number, percent, plain
from tsfm_lens.viz.tokens import Ruler, group_for, grouped, pooled, ruler, token_axis

__all__ = ["attention_flow_map", "rollout_panels"]

_GREYS = [(0.0, "#ffffff"), (1.0, "#000000")]
_HEADS = 9
_CELLS = 300_000  # in the whole figure
_PANEL = 60_000  # in a panel, which has no more dots to show them


@draws("rollout", needs=("attention", "entropy", "sharpness_rank"))
def rollout_panels(
    ds: xr.Dataset, *, heads: str = "sharp", count: int | None = None, zmax: float | None = None
) -> go.Figure:
    """Draw the roll-out maps of the sharpest or the most diffuse heads, each head a panel.

    A diagonal band is a head that reads at a fixed lag; a horizontal one reads the same steps throughout.

    Args:
        ds: of kind "rollout".
        heads: "sharp" for the lowest entropies, "diffuse" for the highest.
        count: panels, at most the heads that there are; nine unless given, of few heads half, so that no head is
            among both the sharpest and the most diffuse.
        zmax: weight at which the grey ends in black; 0.1 or the 99.9 % quantile, whichever is larger, if None.

    Returns:
        Small multiples on shared axes: queries to the right, keys upwards, tokens as wide as the steps that they
        cover; special keys stand above the dotted line. Of long maps a cell is the largest weight of several
        tokens, which the subtitle then says.

    Example:
        >>> fig = viz.rollout_panels(results["rollout"])
        >>> fig.layout.meta["title"]
        'Sharpest heads of chronos-nano along the forecast of co2'
    """
    if heads not in ("sharp", "diffuse"):
        raise InputError(f"heads={heads!r} is not known, choose 'sharp' or 'diffuse'")
    if count is not None and count < 1:
        raise InputError(f"count is {count}, expected 1 or more")
    ranks = array(ds, "sharpness_rank", "layer", "head")
    count = heads_shown(ranks.size) if count is None else count
    order = np.argsort(ranks.ravel() if heads == "sharp" else -ranks.ravel())[:count]
    places = [divmod(int(flat), ranks.shape[1]) for flat in order]
    keys, queries = (ruler(token_axis(ds, side, overlaps=True)) for side in ("key", "query"))
    maps = [array(ds, "attention", "query", "key", layer=row, head=col) for row, col in places]
    limit = zmax or _black(maps, keys)
    entropy = array(ds, "entropy", "layer", "head")
    labels = [f"{layer_names(ds)[row]}, head {names(ds, 'head')[col]}" for row, col in places]
    notes = [f"{_nats(entropy[row, col])}{_aside(one, keys)}" for (row, col), one in zip(places, maps, strict=True)]
    grid = panel_grid(list(zip(labels, notes, strict=True)), row_height=150)
    hover = "query step %{x} reads context step %{y}"
    group = _draw(grid, maps, labels, keys, queries, hover, upwards=True)
    grid.colours(weight_colours(limit) | {"colorscale": _GREYS})
    forecasts = bool(len(queries.axis.timed)) and queries.edges[0] >= -1
    title_axes(grid, "forecast step" if forecasts else "query step", "context step" if forecasts else "key step")
    word = "Sharpest" if heads == "sharp" else "Most diffuse"
    marks = ", ".join(keys.axis.aside_labels())
    return grid.dress(
        f"{word} heads of {model_of(ds)} along the forecast of {single_series(ds)}",
        attention_kind(ds),
        "steps from the start of the forecast",
        f"black: {number(limit)} and more",
        f"above the dotted line: {marks}" if marks else "",
        grouped(group),
    )


def heads_shown(heads: int) -> int:
    """Return how many heads are shown as the sharpest, and as many as the most diffuse, none as both."""
    return min(_HEADS, max(heads // 2, 1))


@draws("attention_flow", needs=("flow",))
def attention_flow_map(
    ds: xr.Dataset, *, layers: Sequence[str | int] | None = None, zmax: float | None = None
) -> go.Figure:
    """Draw how much of each input token may have reached each token after every layer (Abnar and Zuidema).

    Args:
        ds: of kind "attention_flow".
        layers: labels to draw, all unless given.
        zmax: share at which the colours end. Unless given, the 99 % quantile of the largest share of every token
            but its own, so that the diagonal does not hide the rest.

    Returns:
        A panel per layer, all on the same axes and colours; special keys stand right of the dotted line.

    Example:
        >>> fig = viz.attention_flow_map(results["attention_flow"])
        >>> fig.layout.meta["title"]
        'Attention flow through the decoder of chronos-nano'
    """
    rows = positions(ds, "layer", layers)
    flow = list(array(ds, "flow", "layer", "query", "key")[rows])
    keys, queries = ruler(token_axis(ds, "key")), ruler(token_axis(ds, "query"))
    others = [np.where(np.eye(*one.shape) > 0, 0.0, one).max(axis=-1) for one in flow]
    limit = zmax or float(np.quantile(others, 0.99)) or 1.0
    labels = [f"after {label}" for label in layer_names(ds, rows)]
    grid = panel_grid([(label,) for label in labels], row_height=190)
    group = _draw(grid, flow, labels, keys, queries, "of step %{x} in the token of step %{y}", upwards=False)
    grid.colours(weight_colours(limit, "share"))
    title_axes(grid, "input token (step)", "token (step)")
    marks = ", ".join(keys.axis.aside_labels())
    stack = f"the {ds.attrs['stack']} of " if ds.attrs.get("stack") else ""
    return grid.dress(
        f"Attention flow through {stack}{model_of(ds)}",
        single_series(ds),
        "mean over heads and half a residual stream, multiplied layer by layer",
        f"darkest: {number(limit)} and more",
        f"right of the dotted line: {marks}" if marks else "",
        grouped(group),
    )


def _draw(
    grid: Sheet,
    maps: list[np.ndarray],
    labels: list[str],
    keys: Ruler,
    queries: Ruler,
    hover: str,
    *,
    upwards: bool,
) -> tuple[int, int]:
    """Draw a heat map a panel: keys upwards and queries to the right, or keys to the right and queries downwards.

    Args:
        maps: (query, key) each.

    Returns:
        How many keys and queries share a cell.
    """
    group = group_for(keys, queries, min(_CELLS // len(maps), _PANEL))
    for panel, one, label in zip(grid, maps, labels, strict=True):
        z, x, y = pooled(one, keys, queries, group)
        if upwards:
            z, x, y = z.T, y, x
        panel.cells(z, x, y, f"{plain(label)}<br>{hover}<br>%{{z:.3g}}", name=label, xgap=0, ygap=0)
        if keys.timed and len(keys.axis.aside):
            (panel.level if upwards else panel.upright)(keys.end, dash="dot")
    across, up = (queries, keys) if upwards else (keys, queries)
    columns = max(col for _, col in grid.places)
    most = {1: 8, 2: 6}.get(columns, 4)
    grid.x(tickvals=across.ticks(most), range=[across.edges[0], across.edges[-1]])
    ends = [up.edges[0], up.edges[-1]]
    grid.y(tickvals=up.ticks(), range=ends if upwards else ends[::-1])
    return group


def _black(maps: list[np.ndarray], keys: Ruler) -> float:
    """Return where grey ends: 0.1, or the 99.9 % quantile of the weights on ordinary keys."""
    ordinary = keys.axis.timed if len(keys.axis.timed) else keys.axis.aside
    return max(0.1, *(float(np.nanquantile(one[:, ordinary], 0.999)) for one in maps))


def _nats(entropy: float) -> str:
    return "0 nats" if entropy < 5e-4 else f"{entropy:.3g} nats"


def _aside(weights: np.ndarray, keys: Ruler) -> str:
    """Write how much of a head's attention goes to special tokens, where that is 1 % and more."""
    rest = float(weights[:, keys.axis.aside].sum(axis=1).mean())
    return f", {percent(round(rest, 2))} on {' and '.join(sorted(set(keys.axis.special[keys.axis.aside])))}" * (
        rest >= 0.01
    )
