"""Attention entropy of heads as a map."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.attention import attention_kind
from tsfm_lens.viz.maps import HeadMap, head_maps
from tsfm_lens.viz.select import array, draws, model_of
from tsfm_lens.viz.theme import number

__all__ = ["head_entropy_map"]


@draws("head_entropy", needs=("entropy", "normalised", "sharp"))
def head_entropy_map(ds: xr.Dataset) -> go.Figure:
    """Draw the layer × head map of the attention entropy: dark heads are sharp, light ones diffuse.

    Args:
        ds: of kind "head_entropy".

    Returns:
        One heat map in nats with the numbers in the cells; heads below the threshold are outlined.

    Example:
        >>> fig = viz.head_entropy_map(results["head_entropy"])
        >>> fig.layout.meta["title"]
        'Attention entropy of the heads of chronos-nano'
    """
    normalised, sharp = array(ds, "normalised", "layer", "head"), array(ds, "sharp", "layer", "head") > 0
    notes = [
        [f"<br>normalised {value:.2f}{', sharp' if mark else ''}" for value, mark in zip(*row, strict=True)]
        for row in zip(normalised, sharp, strict=True)
    ]
    return head_maps(
        ds,
        [HeadMap(array(ds, "entropy", "layer", "head"), "", "entropy", "nats", reverse=True, notes=notes)],
        f"Attention entropy of the heads of {model_of(ds)}",
        f"{attention_kind(ds)}, mean over forecast steps and series",
        f"outlined: {int(sharp.sum())} of {sharp.size} heads are sharp, below "
        f"{number(float(ds.attrs.get('sharp_below', np.nan)))} of the range over all heads",
        outlined=sharp,
    )
