"""Similarity of layers, and entropic rank of heads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.registry import FigurePanel, check, figure, frame, panels
from tsfm_lens.viz.generic import draw_variable
from tsfm_lens.viz.select import array, model_of
from tsfm_lens.viz.summary import labelled, summarize, summary
from tsfm_lens.viz.words import layers

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
    entropy = ds["entropy"]
    each = entropy.copy(data=np.exp(entropy.values))
    ranged = ds.assign(rank_low=each.min("series"), rank_high=each.max("series"))
    title = f"Entropic rank of the heads of {model_of(ds)}, and its range over series"
    return draw_variable(ranged, "rank", title=title)
