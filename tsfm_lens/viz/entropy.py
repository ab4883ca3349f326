"""How sharply heads look: their attention entropy as a map."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.attention import attention_kind
from tsfm_lens.viz.maps import head_map
from tsfm_lens.viz.select import array, check, model_of
from tsfm_lens.viz.theme import VERMILION, dress, number

__all__ = ["head_entropy_map"]


def head_entropy_map(ds: xr.Dataset) -> go.Figure:
    """Layer × head map of the attention entropy: dark heads are sharp, light ones diffuse.

    Args:
        ds: of kind "head_entropy".

    Returns:
        One heat map in nats with the numbers in the cells; heads below the threshold are outlined.

    Raises:
        InputError: ``ds`` is of another kind.
    """
    check(ds, "head_entropy", "entropy", "normalised", "sharp")
    entropy = array(ds, "entropy", "layer", "head")
    normalised, sharp = array(ds, "normalised", "layer", "head"), array(ds, "sharp", "layer", "head") > 0
    notes = [
        [f"<br>normalised {value:.2f}{', sharp' if mark else ''}" for value, mark in zip(*row, strict=True)]
        for row in zip(normalised, sharp, strict=True)
    ]
    fig, height = head_map(ds, entropy, "entropy", unit="nats", write="{:.2f}".format, notes=notes, dark_low=True)
    for layer, head in np.argwhere(sharp):
        # a category's cell reaches half a place to both sides
        ends = {"x0": head - 0.46, "x1": head + 0.46, "y0": layer - 0.42, "y1": layer + 0.42}
        fig.add_shape(type="rect", line={"color": VERMILION, "width": 2}, **ends)
    least = number(float(ds.attrs.get("sharp_below", np.nan)))
    return dress(
        fig,
        f"Attention entropy of the heads of {model_of(ds)}",
        f"{attention_kind(ds)}, mean over forecast steps and series; outlined: {int(sharp.sum())} of {sharp.size} "
        f"heads are sharp, below {least} of the range over all heads",
        plot_height=height,
    )
