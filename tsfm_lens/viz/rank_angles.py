"""Figures of angles: between embedded tokens, and between rows of attention matrices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.layers import few_ticks
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.select import array, draws, kind_word, layer_names, model_of, names, positions
from tsfm_lens.viz.sheet import Panel, blank
from tsfm_lens.viz.theme import BLUE, GREY, INK, VERMILION, plain

__all__ = ["head_closeness", "row_angle_map", "token_angle_map"]


@draws("embedding_ranks", needs=("angle",))
def token_angle_map(ds: xr.Dataset, *, families: Sequence[str] | None = None) -> go.Figure:
    """Draw angles between embedded tokens, a panel per family: dark where two tokens lie on one line.

    Args:
        ds: of kind "embedding_ranks".
        families: to draw, all unless given.

    Returns:
        Heat maps from 0 to 90 degrees.

    Example:
        >>> fig = viz.token_angle_map(results["embedding_ranks"], families=["sinusoids", "white noise"])
        >>> fig.layout.meta["title"]
        'Angles between tokens that chronos-nano embeds'
    """
    rows = positions(ds, "family", families)
    labels = [names(ds, "family")[place] for place in rows]
    grid = panel_grid([(label,) for label in labels], row_height=190)
    for panel, values, label in zip(
        grid, array(ds, "angle", "family", "token", "other_token")[rows], labels, strict=True
    ):
        _angles(panel, values, f"{plain(label)}<br>tokens %{{y}} and %{{x}}: %{{z:.1f}}°")
    title_axes(grid, "token", "token")
    grid.y(autorange="reversed")
    grid.colours(colour_scale("angle (degrees)", low=0.0, high=90.0, dark_low=True))
    return grid.dress(
        f"Angles between tokens that {model_of(ds)} embeds",
        "tokens before the first layer, as lines",
        f"dark: on one line; random lines lie {float(ds.attrs['random_angle']):.0f}° apart",
        "empty: tokens that are zero, or fewer of them",
    )


@draws("row_angles", needs=("angle",))
def row_angle_map(ds: xr.Dataset, *, layers: Sequence[str | int] | None = None) -> go.Figure:
    """Draw angles between the rows of an attention matrix, a panel per layer: heads that read alike are dark blocks.

    Args:
        ds: of kind "row_angles".
        layers: labels to draw, the first one unless given.

    Returns:
        Heat maps from 0 to 90 degrees, with a frame around the rows of each head.

    Example:
        >>> fig = viz.row_angle_map(results["row_angles"])
        >>> fig.layout.meta["title"]
        'Angles between the rows of W_Q of chronos-nano'
    """
    places = positions(ds, "layer", [names(ds, "layer")[0]] if layers is None else layers)
    heads, dimensions = ds["row_head"].values, ds["row_dimension"].values
    words = [f"head {head}, dimension {place}" for head, place in zip(heads, dimensions, strict=True)]
    edges = np.flatnonzero(np.diff(heads, prepend=heads[0] - 1, append=heads[-1] + 1)) - 0.5
    grid = panel_grid(
        [(label,) for label in layer_names(ds, places)], row_height=340 if len(places) == 1 else 220, most=3
    )
    texts = [[f"{row}<br>{column}" for column in words] for row in words]
    for panel, values in zip(grid, array(ds, "angle", "layer", "row", "other_row")[places], strict=True):
        _angles(panel, values, "%{customdata}<br>%{z:.1f}°", customdata=texts)
        for low, high in pairwise(edges):
            panel.shape("rect", (low, high), (low, high), line={"color": VERMILION, "width": 1.5})
    title_axes(grid, "row, head by head", "row, head by head")
    middles = ((edges[:-1] + edges[1:]) / 2).tolist()
    labels = [str(head) for head in dict.fromkeys(heads.tolist())]
    step = -(-len(labels) // 12)
    ticks = {"tickvals": middles[::step], "ticktext": labels[::step], "ticks": ""}
    grid.x(**ticks)
    grid.y(autorange="reversed", **ticks)
    grid.colours(colour_scale("angle (degrees)", low=0.0, high=90.0, dark_low=True))
    return grid.dress(
        f"Angles between the rows of {ds.attrs.get('part', 'W_Q')} of {model_of(ds)}",
        _where(ds),
        f"dark: on one line; random lines lie {float(ds.attrs['random_angle']):.0f}° apart",
    )


@draws("row_angles", needs=("within", "between", "closer_floor"))
def head_closeness(ds: xr.Dataset) -> go.Figure:
    """Draw the mean angle between rows of one head and of different heads, layer by layer.

    Args:
        ds: of kind "row_angles".

    Returns:
        Two lines; a stripe of each layer down to what rows shuffled among the heads reach, and a dotted line at the
        angle of random lines.

    Example:
        >>> fig = viz.head_closeness(results["row_angles"])
        >>> fig.layout.meta["title"]
        'Rows of one head and of different heads of chronos-nano'
    """
    labels, canvas = layer_names(ds), blank(280)
    within, between, floor = (array(ds, name, "layer") for name in ("within", "between", "closer_floor"))
    panel, hover = canvas.panel(), "%{x}<br>%{y:.3g}°"
    panel.line(labels, between, "rows of different heads", f"rows of different heads, {hover}", colour=GREY, dots=6)
    shuffled = f"least angle that shuffling gives, {hover}"
    panel.line(labels, between - floor, "what shuffled rows reach", shuffled, colour=INK, dash="dash", width=1)
    panel.line(labels, within, "rows of one head", f"rows of one head, {hover}", colour=BLUE, dots=6, width=2.5)
    random = float(ds.attrs["random_angle"])
    panel.level(random, dash="dot")
    panel.note("random lines", 1, random, xref="domain", colour=GREY, xanchor="right", yanchor="bottom")
    panel.x("layer", type="category")
    few_ticks(canvas, labels)
    panel.y("mean angle (degrees)")
    return canvas.dress(
        f"Rows of one head and of different heads of {model_of(ds)}",
        f"{ds.attrs.get('part', 'W_Q')}, {_where(ds)}",
        "below the dashed line: closer than chance",
    )


def _angles(panel: Panel, values: np.ndarray, hover: str, **more: Any) -> None:
    places = np.arange(len(values))
    panel.cells(values, places, places, hover, xgap=0, ygap=0, **more)


def _where(ds: xr.Dataset) -> str:
    stack = str(ds.attrs.get("stack", ""))
    return f"{kind_word(str(ds.attrs.get('attention', 'attn')))}{f' of the {stack}' if stack else ''}"
