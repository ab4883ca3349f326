"""Entropic rank of the residual stream by layer."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import measurement
from tsfm_lens.viz.attention import attention_kind
from tsfm_lens.viz.logit_lens import few_ticks
from tsfm_lens.viz.select import array, layer_names, model_of, names
from tsfm_lens.viz.sheet import Look, blank
from tsfm_lens.viz.tables import frame
from tsfm_lens.viz.theme import BLUE, GREY, mixed, plain
from tsfm_lens.viz.words import extremes, layers, num

__all__ = ["entropic_rank_line"]

ENTROPIC_RANK = measurement(
    "entropic_rank",
    theme="Activations",
    title="Entropic rank",
    summary="entropic rank of the heads of a layer",
    description="How many different directions the heads of a layer write in. As many as heads: none repeats another.",
    source="tsfm-lens, appendix E",
    paper=("S3-F1E",),
)


def read_entropic_rank(ds: xr.Dataset) -> list[str]:
    """Describe where the heads write most apart."""
    rank, words, heads = array(ds, "rank", "layer"), layers(ds), int(ds.attrs.get("heads", 0))
    low, high = extremes(rank)
    most = f" of at most {heads}" if heads else ""
    out = [
        f"The heads write in most directions in {words[high]} ({num(rank[high])}{most}) and in fewest in "
        f"{words[low]} ({num(rank[low])})."
    ]
    each = np.exp(array(ds, "entropy", "layer", "series"))
    if each.shape[1] > 1:
        reach = np.ptp(each, axis=1)
        at = int(reach.argmax())
        out.append(f"The series differ most in {words[at]}: from {num(each[at].min())} to {num(each[at].max())}.")
    return out


@ENTROPIC_RANK.figure(
    "Directions that the heads of a layer write in.",
    variables=("rank", "entropy"),
    table=lambda ds: frame(ds, "entropy").merge(frame(ds, "rank"), on="layer"),
    sentences=read_entropic_rank,
)
def entropic_rank_line(ds: xr.Dataset) -> go.Figure:
    """Draw the entropic rank layer by layer: how many directions the heads of a layer write in.

    Args:
        ds: of kind "entropic_rank".

    Returns:
        A bold line over all series and a thin one each; the number of heads, the largest possible value, is dotted.
    """
    labels, ids = layer_names(ds), names(ds, "series")
    heads, canvas = int(ds.attrs.get("heads", 0)), blank(280)
    panel, hover = canvas.panel(), "%{text}<br>entropic rank %{y:.3g}"
    thin: Look = {"colour": mixed(GREY, 0.55), "width": 1, "text": labels}
    for name, line in zip(ids, np.exp(array(ds, "entropy", "layer", "series")).T, strict=True):
        panel.line(labels, line, "one series each", f"{plain(name)}, {hover}", **thin)
    bold: Look = {"colour": BLUE, "width": 2.5, "mode": "lines+markers", "text": labels}
    panel.line(labels, array(ds, "rank", "layer"), "all series", f"all series, {hover}", **bold)
    if heads:
        panel.level(heads, dash="dot")
        words = f"{heads} heads: no two share a direction"
        panel.note(words, 1, heads, colour=GREY, xref="domain", xanchor="right", yanchor="bottom")
        panel.y(range=[0.9, heads + 0.12 * (heads - 0.9)])
    panel.x("layer", type="category")
    few_ticks(canvas, labels)
    panel.y("entropic rank (directions)")
    return canvas.dress(
        f"Entropic rank of the heads of {model_of(ds)}",
        attention_kind(ds),
        f"entropy averaged over tokens and {len(ids)} series",
        "1: all heads write along one line",
    )
