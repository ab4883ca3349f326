"""Angles between the rows of query matrices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import measurement
from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.logit_lens import few_ticks
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.select import array, kind_word, layer_names, model_of, names, positions
from tsfm_lens.viz.sheet import Panel, blank
from tsfm_lens.viz.theme import BLUE, GREY, INK, VERMILION
from tsfm_lens.viz.words import layers, num

__all__ = ["head_closeness", "row_angle_map"]

ROW_ANGLES = measurement(
    "row_angles",
    theme="Weights alone",
    title="Angles of queries",
    summary="angles between the rows of W_Q, and whether those of a head lie closer together",
    description="A row of W_Q is a line in the stream that one dimension of a head looks along. Where the rows of a"
    " head lie close together, the head looks along few lines, and the map has dark blocks on its "
    "diagonal.",
    source="Flow of ranks, equation 2 and figures 9 and 12",
    paper=("S0-ANG", "S0-F9"),
)


def read_row_angles(ds: xr.Dataset) -> list[str]:
    """Count the layers in which rows of a head are closer than chance."""
    within, between, closer = (array(ds, name, "layer") for name in ("within", "between", "closer"))
    if not np.isfinite(closer).any():
        return ["There is only one head, or no rows but zeros, so nothing can be closer."]
    words, part = layers(ds), str(ds.attrs["part"])
    stands = np.flatnonzero(array(ds, "closer_stands_out", "layer") > 0)
    if not len(stands):
        return [
            f"In no layer are the rows of {part} of one head closer to each other than shuffled ones are by chance."
        ]
    most = int(stands[np.argmax(closer[stands])])
    return [
        f"Rows of {part} of one head are closer to each other than shuffled ones are by chance in {len(stands)} of "
        f"{len(words)} layers; most in {words[most]}, {num(within[most])}° against {num(between[most])}°."
    ]


@ROW_ANGLES.figure(
    "Angles between the rows of W_Q, with the blocks of the heads.",
    variables=("angle",),
    table=("block_angle",),
    sentences=read_row_angles,
)
def row_angle_map(ds: xr.Dataset, *, layers: Sequence[str | int] | None = None) -> go.Figure:
    """Draw angles between the rows of an attention matrix, a panel per layer: heads that read alike are dark blocks.

    Args:
        ds: of kind "row_angles".
        layers: labels to draw, the first one unless given.

    Returns:
        Heat maps from 0 to 90 degrees, with a frame around the rows of each head.
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
        angle_map(panel, values, "%{customdata}<br>%{z:.1f}°", customdata=texts)
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


@ROW_ANGLES.figure(
    "How much closer rows of one head lie than rows of different heads.",
    variables=("within", "between", "closer_floor"),
    table=("within", "between", "closer", "closer_floor", "closer_stands_out"),
)
def head_closeness(ds: xr.Dataset) -> go.Figure:
    """Draw the mean angle between rows of one head and of different heads, layer by layer.

    Args:
        ds: of kind "row_angles".

    Returns:
        Two lines; a stripe of each layer down to what rows shuffled among the heads reach, and a dotted line at the
        angle of random lines.
    """
    labels, canvas = layer_names(ds), blank(280)
    within, between, floor = (array(ds, name, "layer") for name in ("within", "between", "closer_floor"))
    panel, hover, random = canvas.panel(), "%{x}<br>%{y:.3g}°", float(ds.attrs["random_angle"])
    panel.line(labels, between, "rows of different heads", f"rows of different heads, {hover}", colour=GREY, dots=6)
    shuffled = f"least angle that shuffling gives, {hover}"
    panel.line(labels, between - floor, "what shuffled rows reach", shuffled, colour=INK, dash="dash", width=1)
    panel.line(labels, within, "rows of one head", f"rows of one head, {hover}", colour=BLUE, dots=6, width=2.5)
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


def angle_map(panel: Panel, values: np.ndarray, hover: str, **more: Any) -> None:
    places = np.arange(len(values))
    panel.cells(values, places, places, hover, xgap=0, ygap=0, **more)


def _where(ds: xr.Dataset) -> str:
    stack = str(ds.attrs.get("stack", ""))
    return f"{kind_word(str(ds.attrs.get('attention', 'attn')))}{f' of the {stack}' if stack else ''}"
