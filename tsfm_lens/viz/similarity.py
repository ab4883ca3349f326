"""Similarity of layers, and entropic rank of heads.

:func:`generic_figure` makes the figures; :func:`read_layer_similarity` describes the
maps.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xarray as xr

from tsfm_lens.core.registry import FigurePanel, frame, panels
from tsfm_lens.viz.generic import draw_variable, generic_figure
from tsfm_lens.viz.select import array
from tsfm_lens.viz.summary import labelled, summarize, summary
from tsfm_lens.viz.words import layers


def read_layer_similarity(ds: xr.Dataset, measure: str) -> list[str]:
    """Return sentences on which layers are least and most alike by a measure.

    "cka" compares neighbours in the stream, "update_cosine" the updates of any two
    layers.
    """
    axis = "layer"
    if measure == "cka":
        axis = "stream"
    values = array(ds, measure, axis, f"other_{axis}")
    labels = layers(ds, axis)
    rows, columns = np.triu_indices(len(labels), 1)
    subject = "updates, by their cosine"
    if measure == "cka":
        neighbours = columns == rows + 1
        rows = rows[neighbours]
        columns = columns[neighbours]
        subject = "neighbours in the stream, by the CKA"
    pairs = [
        " and ".join([labels[a], labels[b]]) for a, b in zip(rows, columns, strict=True)
    ]
    # a representation with a CKA has that of 1 with itself
    undefined = labelled(ds, ~np.isfinite(np.diag(values)), axis)
    alike = xr.DataArray(values[rows, columns], {"pair": pairs}, ["pair"])
    return summarize(
        ds,
        "Least alike of {what}: {alike:lowest signed}; most alike: {alike:highest"
        " signed}.",
        "The CKA is undefined where the stream is the same for all tokens: "
        "{undefined:which}.",
        what=subject,
        alike=alike,
        undefined=undefined if undefined.any() else None,
    )


generic_figure(
    "layer_similarity",
    "cka",
    "Similarity of the residual stream after each layer.",
)
generic_figure(
    "layer_similarity",
    "update_cosine",
    "Similarity of what the layers add to the residual stream.",
)


@panels("layer_similarity")
def _panels(ds: xr.Dataset) -> Iterator[FigurePanel]:
    for measure in ("cka", "update_cosine"):
        yield FigurePanel(
            draw_variable(ds, measure),
            frame(ds, measure),
            read_layer_similarity(ds, measure),
        )


def _add_rank_range(ds: xr.Dataset) -> xr.Dataset:
    """Add the lowest and the highest rank over series."""
    entropy = ds["entropy"]
    # the rank of a series is the exponential of its entropy
    ranks = entropy.copy(data=np.exp(entropy.values))
    return ds.assign(rank_low=ranks.min("series"), rank_high=ranks.max("series"))


generic_figure(
    "entropic_rank",
    "rank",
    "Directions that the heads of a layer write in, and their range over series.",
    prepare=_add_rank_range,
    table=lambda ds: frame(ds, "entropy").merge(frame(ds, "rank"), on="layer"),
    sentences=summary(
        "The heads write in most directions in {rank:highest} and in fewest in "
        "{rank:lowest}.",
        "There are {heads} heads, and as many directions are possible.",
        "From the series with the lowest to that with the highest rank, the difference"
        " is largest in {spans:highest}.",
        spans=lambda ds: (
            _add_rank_range(ds)["rank_high"] - _add_rank_range(ds)["rank_low"]
        ),
    ),
)
