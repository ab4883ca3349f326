"""Similarity of layers, and entropic rank of heads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import FigurePanel, check, figure, frame, panels
from tsfm_lens.errors import InputError
from tsfm_lens.viz.attention import attention_kind
from tsfm_lens.viz.logit_lens import layer_axis
from tsfm_lens.viz.maps import colour_scale, two_digits
from tsfm_lens.viz.panels import fitted_range
from tsfm_lens.viz.select import array, layer_name, model_of, names
from tsfm_lens.viz.sheet import Look, blank
from tsfm_lens.viz.summary import labelled, summarize, summary
from tsfm_lens.viz.theme import BLUE, GREY, mixed, plain
from tsfm_lens.viz.words import layer_names, layers

__all__ = ["entropic_rank_line", "similarity_map"]


def read_layer_similarity(ds: xr.Dataset, measure: str) -> list[str]:
    """Describe between which layers the stream changes most, or which updates are alike."""
    axis = "stream" if measure == "cka" else "layer"
    values, labels = array(ds, measure, axis, f"other_{axis}"), layers(ds, axis)
    rows, columns = np.triu_indices(len(labels), 1)
    what = "updates, by their cosine"
    if measure == "cka":
        neighbours = columns == rows + 1
        rows, columns = rows[neighbours], columns[neighbours]
        what = "neighbours in the stream, by the CKA"
    pairs = [
        " and ".join([labels[a], labels[b]]) for a, b in zip(rows, columns, strict=True)
    ]
    undefined = labelled(ds, ~np.isfinite(np.diag(values)), axis)
    alike = xr.DataArray(values[rows, columns], {"pair": pairs}, ["pair"])
    return summarize(
        ds,
        "Least alike of {what}: {alike:lowest signed}; most alike: {alike:highest signed}.",
        "The CKA is undefined where the stream is the same for all tokens: "
        "{undefined:which}.",
        what=what,
        alike=alike,
        undefined=undefined if undefined.any() else None,
    )


@figure("layer_similarity", "Similarity of the residual stream after each layer.")
def similarity_map(ds: xr.Dataset, *, measure: str = "cka") -> go.Figure:
    """Draw how alike the layers of a stack are, each against each.

    Args:
        measure: "cka" of the residual streams, or "update_cosine" of what the layers add.
    """
    if measure not in ("cka", "update_cosine"):
        raise InputError(
            f"measure {measure!r} is not known, choose 'cka' or 'update_cosine'"
        )
    check(ds, "layer_similarity", measure)
    cka = measure == "cka"
    axis, word = ("stream", "linear CKA") if cka else ("layer", "cosine")
    labels = [layer_name(name) for name in names(ds, axis)]
    canvas = blank(min(max(34 * len(labels), 200), 560))
    panel, hover = canvas.panel(), f"%{{y}} and %{{x}}<br>{word} %{{z:.3f}}"
    values = array(ds, measure, axis, f"other_{axis}")
    panel.cells(values, labels, labels, hover, write=two_digits)
    alike = [
        label
        for label, row in zip(labels, values, strict=True)
        if not np.isfinite(row).any()
    ]
    canvas.colours(colour_scale(word, low=0.0, high=1.0, diverging=not cka))
    panel.x(type="category", ticks="", nticks=12)
    panel.y(type="category", autorange="reversed", ticks="", nticks=24)
    what = (
        "residual streams after each layer"
        if cka
        else "what each layer adds to the residual stream"
    )
    return canvas.dress(
        f"Similarity of the layers' {'streams' if cka else 'updates'} in {model_of(ds)}",
        f"{word} of {what}, over all tokens",
        "1: alike" if cka else "1: alike, −1: opposite",
        f"empty: the {' and '.join(alike)}, the same at every token" if alike else "",
    )


@panels("layer_similarity")
def _panels(ds: xr.Dataset) -> Iterator[FigurePanel]:
    for each in ("cka", "update_cosine"):
        yield FigurePanel(
            similarity_map(ds, measure=each),
            frame(ds, each),
            read_layer_similarity(ds, each),
        )


@figure(
    "entropic_rank",
    "Directions that the heads of a layer write in.",
    table=lambda ds: frame(ds, "entropy").merge(frame(ds, "rank"), on="layer"),
    sentences=summary(
        "The heads write in most directions in {rank:highest} and in fewest in "
        "{rank:lowest}.",
        "There are {heads} heads, and as many directions are possible.",
        "From the series with the lowest to that with the highest rank, the difference is "
        "largest in {spans:highest}.",
        spans=lambda ds: (
            np.exp(ds["entropy"]).max("series") - np.exp(ds["entropy"]).min("series")
        ),
    ),
)
def entropic_rank_line(ds: xr.Dataset) -> go.Figure:
    """Draw the entropic rank layer by layer: how many directions the heads of a layer write in."""
    labels, ids = layer_names(ds), names(ds, "series")
    heads, canvas = int(ds.attrs.get("heads", 0)), blank(280)
    panel, hover = canvas.panel(), "%{text}<br>entropic rank %{y:.3g}"
    thin: Look = {"colour": mixed(GREY, 0.55), "width": 1, "text": labels}
    each = np.exp(array(ds, "entropy", "layer", "series"))
    for name, line in zip(ids, each.T, strict=True):
        panel.line(labels, line, "one series each", f"{plain(name)}, {hover}", **thin)
    bold: Look = {"colour": BLUE, "width": 2.5, "mode": "lines+markers", "text": labels}
    panel.line(
        labels, array(ds, "rank", "layer"), "all series", f"all series, {hover}", **bold
    )
    panel.y(range=fitted_range(np.append(each, heads or np.nan), np.empty(0))[0])
    if heads:
        panel.level(heads, dash="dot")
        words = f"{heads} heads: no two share a direction"
        panel.note(
            words,
            1,
            heads,
            colour=GREY,
            xref="domain",
            xanchor="right",
            yanchor="bottom",
        )
    layer_axis(canvas, labels)
    panel.y("entropic rank (directions)")
    over = f"entropy averaged over tokens and {len(ids)} series"
    title = f"Entropic rank of the heads of {model_of(ds)}"
    return canvas.dress(
        title, attention_kind(ds), over, "1: all heads write along one line"
    )
