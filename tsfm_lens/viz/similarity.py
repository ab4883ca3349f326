"""Similarity of layers, and entropic rank of heads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import FigurePanel, check, figure, frame, panels
from tsfm_lens.errors import InputError
from tsfm_lens.viz.generic import draw_variable
from tsfm_lens.viz.select import array, model_of
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
    word = "streams" if measure == "cka" else "updates"
    title = f"Similarity of the layers' {word} in {model_of(ds)}"
    return draw_variable(ds, measure, title=title)


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
    entropy = ds["entropy"]
    each = entropy.copy(data=np.exp(entropy.values))
    ranged = ds.assign(rank_low=each.min("series"), rank_high=each.max("series"))
    title = f"Entropic rank of the heads of {model_of(ds)}, and its range over series"
    return draw_variable(ranged, "rank", title=title)
