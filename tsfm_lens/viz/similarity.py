"""Similarity of layers, and entropic rank of heads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import FigurePanel, check, figure, frame, panels
from tsfm_lens.errors import InputError
from tsfm_lens.viz.generic import draw_variable
from tsfm_lens.viz.maps import colour_scale, two_digits
from tsfm_lens.viz.select import array, layer_name, model_of, names
from tsfm_lens.viz.sheet import blank
from tsfm_lens.viz.words import extremes, layers, listed, num, signed

__all__ = ["entropic_rank_line", "similarity_map"]


def read_layer_similarity(ds: xr.Dataset, measure: str) -> list[str]:
    """Describe where the stream changes most, or which updates are alike."""
    axis = "stream" if measure == "cka" else "layer"
    values, words = array(ds, measure, axis, f"other_{axis}"), layers(ds, axis)
    if len(words) < 2:
        return ["There is only one layer, so there is nothing to compare."]
    if measure == "cka":
        steps = np.diag(values, 1)
        if not np.isfinite(steps).any():
            return [
                "The stream is the same for all tokens after every layer, so the CKA is undefined."
            ]
        at = int(np.nanargmin(steps))
        same = [
            word
            for word, value in zip(words, np.diag(values), strict=True)
            if not np.isfinite(value)
        ]
        out = f"The stream changes most between {words[at]} and {words[at + 1]} "
        alike = (
            [
                f"At {listed(same)} the stream is the same for all tokens, so the CKA is undefined."
            ]
            if same
            else []
        )
        return [f"{out}(CKA {num(steps[at])}).", *alike]
    rows, columns = np.triu_indices(len(words), 1)
    pairs = values[rows, columns]
    low, high = extremes(pairs)
    return [
        f"The updates most alike are those of {words[rows[high]]} and {words[columns[high]]} "
        f"(cosine {signed(pairs[high])}), the least alike those of {words[rows[low]]} and {words[columns[low]]} "
        f"({signed(pairs[low])})."
    ]


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


def read_entropic_rank(ds: xr.Dataset) -> list[str]:
    """Describe where the heads write most apart."""
    rank, words, heads = (
        array(ds, "rank", "layer"),
        layers(ds),
        int(ds.attrs.get("heads", 0)),
    )
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
        out.append(
            f"The series differ most in {words[at]}: from {num(each[at].min())} to {num(each[at].max())}."
        )
    return out


@figure(
    "entropic_rank",
    "Directions that the heads of a layer write in.",
    table=lambda ds: frame(ds, "entropy").merge(frame(ds, "rank"), on="layer"),
    sentences=read_entropic_rank,
)
def entropic_rank_line(ds: xr.Dataset) -> go.Figure:
    """Draw the entropic rank layer by layer: how many directions the heads of a layer write in."""
    each = np.exp(ds["entropy"])
    ranged = ds.assign(rank_low=each.min("series"), rank_high=each.max("series"))
    title = f"Entropic rank of the heads of {model_of(ds)}, and its range over series"
    return draw_variable(ranged, "rank", title=title)
