"""Residual-stream diagram: who writes how much of the forecast."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import measurement
from tsfm_lens.viz.room import text_width
from tsfm_lens.viz.select import array, kind_word, model_of, names, over_series, series_rows
from tsfm_lens.viz.sheet import Look, Panel, sheet
from tsfm_lens.viz.theme import BLUE, GREEN, GREY, INK, ORANGE, PALE, mixed, number, percent, plain
from tsfm_lens.viz.words import listed

__all__ = ["stream_scheme"]
_STREAM, _BOX, _ENDS = 0.0, (0.8, 3.25), (-0.95, 3.35)  # where the stream and the boxes stand, and where all ends
_WIDTHS, _TYPE = (0.6, 0.4), 11  # of scheme and bars; pixels: type in the boxes
_SHARE = 0.59 * (_BOX[1] - _BOX[0]) / (_ENDS[1] - _ENDS[0])  # of a box in the width of all panels

STREAM_SHARES = measurement(
    "stream_shares",
    theme="Activations",
    title="Writers of the residual stream",
    summary="who writes to the residual stream, and how much of the forecast",
    description="Every attention and MLP adds to one stream; a box is the larger the more of the forecast it writes.",
    source="tsfm-lens, section 2 and figure 1B",
)


def read_shares(ds: xr.Dataset) -> list[str]:
    """State how much of what is written heads and MLPs write."""
    share, kinds = array(ds, "share", "writer", "series").mean(-1), ds["kind"].values.astype(str)
    words = {kind: kind_word(kind) for kind in kinds} | {"mlp": "the MLPs", "embed": "the embedding"}
    parts = [f"{percent(float(share[kinds == kind].sum()))} by {words[kind]}" for kind in dict.fromkeys(kinds)]
    return [f"Of the sizes of all contributions to the forecast, these shares are written: {listed(parts)}."]


@STREAM_SHARES.figure(
    "Who writes to the residual stream.",
    variables=("share", "head_size", "size"),
    table=("size", "share"),
    sentences=read_shares,
)
def stream_scheme(ds: xr.Dataset, *, series: str | int | None = None) -> go.Figure:
    """Draw the stream from the embedding to the readout, its writers as boxes, and the share that each writes.

    Args:
        ds: of kind "stream_shares": ``share`` (writer, series), ``head_size`` (writer, head, series).
        series: id or place; the mean over all series if None.

    Returns:
        At the left the scheme, upwards in order of writing; arrows are as thick as the share. At the right the shares
        as bars, and those of single heads as points.
    """
    rows = series_rows(ds, series)
    share = array(ds, "share", "writer", "series")[:, rows].mean(axis=1)
    total = array(ds, "size", "writer", "series")[:, rows].sum(axis=0)
    total[total == 0] = np.nan
    heads = (array(ds, "head_size", "writer", "head", "series")[..., rows] / total).mean(axis=2)
    kinds, layers = [str(k) for k in ds["kind"].values], [int(v) for v in ds["layer_index"].values]
    count = len(kinds)
    height = (24 if count <= 16 else 17) * (count + 1)
    labels = [
        f"{kind_word(k)} to the {s}" if s else kind_word(k) for k, s in zip(kinds, ds["keys_from"].values, strict=True)
    ]
    # words stand in the boxes
    least = 84 + round(max(text_width(words, _TYPE) for words in labels) / _SHARE)
    canvas = sheet([height], _WIDTHS, column_gap=0.02, min_width=max(480, least), shared_yaxes=True)
    scheme, shares = canvas
    _draw_layers(scheme, shares, layers)
    scheme.arrow((_STREAM, -0.6), (_STREAM, count - 0.15), GREY, 3)
    scheme.note("readout → forecast", _STREAM, count, xanchor="left", yanchor="bottom")
    for row, (kind, words, amount) in enumerate(zip(kinds, labels, share, strict=True)):
        _draw_writer(scheme, row, words, kind, amount, layers[row] >= 0)
    _draw_shares(shares, names(ds, "writer"), kinds, share, heads)
    scheme.x(visible=False, range=list(_ENDS))
    canvas.y(visible=False, range=[-0.7, count + 0.35])
    return canvas.dress(
        f"What is written into the residual stream of {model_of(ds)}",
        f"direct attribution ({ds.attrs.get('decomposition', '')}), absolute, mean over "
        f"{ds.attrs.get('horizon', '')} steps, {over_series(ds, rows, 'mean')}",
        "grey arrow: the stream; other arrows: writes, as thick as their share",
        "dotted: what is read; circles: single heads",
    )


def _colour(kind: str) -> str:
    return BLUE if "attn" in kind else ORANGE if kind == "mlp" else GREEN


def _draw_layers(scheme: Panel, shares: Panel, layers: list[int]) -> None:
    """Draw a pale band behind every second layer, and the layers' names at the left."""
    for layer in sorted({each for each in layers if each >= 0}):
        rows = [row for row, each in enumerate(layers) if each == layer]
        low, high = min(rows) - 0.5, max(rows) + 0.5
        if layer % 2 == 0:
            for panel in (scheme, shares):
                panel.stripe(low, high, mixed(PALE, 0.35))
        scheme.note(f"layer {layer}", -0.9, (low + high) / 2, xanchor="left")


def _draw_writer(panel: Panel, row: int, words: str, kind: str, share: float, reads: bool) -> None:
    """Draw a box, the thin line by which it reads, and the arrow by which it writes."""
    left, right = _BOX
    colour = _colour(kind)
    box = {"fillcolor": mixed(colour, 0.18), "line": {"color": colour, "width": 1}}
    panel.shape("rect", _BOX, (row - 0.36, row + 0.36), **box)
    panel.note(plain(words), (left + right) / 2, row, colour=INK, size=_TYPE)
    if reads:
        thin = {"color": GREY, "width": 0.8, "dash": "2px,2px"}
        panel.shape("line", (_STREAM, left), (row - 0.26, row - 0.26), line=thin)
    panel.arrow((left, row + 0.12), (_STREAM + 0.04, row + 0.12), colour, 0.8 + 9 * share, head=0.6)


def _draw_shares(panel: Panel, writers: list[str], kinds: list[str], share: np.ndarray, heads: np.ndarray) -> None:
    rows, finite = np.arange(len(writers)), np.isfinite(heads)
    words = [f"{plain(name)}: {number(100 * value)} %" for name, value in zip(writers, share, strict=True)]
    colours = [mixed(_colour(kind), 0.55) for kind in kinds]
    panel.bars(rows, 100 * share, "", "%{customdata}", colour=colours, across=True, width=0.62, customdata=words)
    where, which = np.nonzero(finite)
    words = [f"{plain(writers[w])}.{h}: {number(100 * heads[w, h])} %" for w, h in zip(where, which, strict=True)]
    look: Look = {"size": 4, "symbol": "circle-open", "legend": False, "customdata": words}
    panel.dots(100 * heads[finite], where, "single heads", "%{customdata}", **look)
    # numbers stand right of bar and points
    ends = 100 * np.maximum(share, np.where(finite, heads, 0.0).max(axis=1))
    look = {"mode": "text", "textposition": "middle right", "textfont": {"size": 10}}
    panel.dots(ends + 0.03 * ends.max(), rows, text=[percent(float(value)) for value in share], **look)
    panel.x("share of all writes (%)", range=[0, (float(ends.max()) or 1.0) * 1.35])
