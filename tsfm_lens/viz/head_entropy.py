"""Entropy of attention, head by head."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import measurement
from tsfm_lens.viz.attention import attention_kind
from tsfm_lens.viz.maps import HeadMap, head_maps
from tsfm_lens.viz.select import array, model_of
from tsfm_lens.viz.theme import number
from tsfm_lens.viz.words import extremes, is_head, layers, listed, nats_of

__all__ = ["head_entropy_map"]

HEAD_ENTROPY = measurement(
    "head_entropy",
    theme="Activations",
    title="Attention entropy",
    summary="entropy of heads; sharp and diffuse ones",
    description="How widely each head spreads its attention along the forecast: a sharp head reads few places, a "
    "diffuse one averages over many.",
    source="tsfm-lens, section 4",
    paper=("S3-HENT",),
)


def read_head_entropy(ds: xr.Dataset) -> list[str]:
    """Describe the sharpest and the most diffuse head, and the layers with most sharp heads."""
    entropy, sharp = array(ds, "entropy", "layer", "head"), array(ds, "sharp", "layer", "head") > 0
    low, high = extremes(entropy)
    sharpest, widest = (f"{is_head(ds, entropy, at, nats_of)} ({nats_of(entropy.flat[at])})" for at in (low, high))
    out = [f"Over all series the sharpest {sharpest}, the most diffuse {widest}."]
    counts = sharp.sum(axis=1)
    if counts.any():
        most = [word for word, count in zip(layers(ds), counts, strict=True) if count == counts.max()]
        out.append(
            f"{int(counts.sum())} of {sharp.size} heads are sharp; most of them, {int(counts.max())}, "
            f"{'in' if len(most) == 1 else 'each in'} {listed(most)}."
        )
    out.append("The threshold is relative to this model's own heads, so it compares no two models.")
    return out


@HEAD_ENTROPY.figure(
    "How widely every head spreads its attention.",
    variables=("entropy", "normalised", "sharp"),
    table=("entropy", "normalised", "sharp"),
    sentences=read_head_entropy,
)
def head_entropy_map(ds: xr.Dataset) -> go.Figure:
    """Draw the layer × head map of the attention entropy: dark heads are sharp, light ones diffuse.

    Args:
        ds: of kind "head_entropy".

    Returns:
        One heat map in nats with the numbers in the cells; heads below the threshold are outlined.
    """
    normalised, sharp = array(ds, "normalised", "layer", "head"), array(ds, "sharp", "layer", "head") > 0
    notes = [
        [f"<br>normalised {value:.2f}{', sharp' if mark else ''}" for value, mark in zip(*row, strict=True)]
        for row in zip(normalised, sharp, strict=True)
    ]
    least = number(float(ds.attrs.get("sharp_below", np.nan)))
    return head_maps(
        ds,
        [HeadMap(array(ds, "entropy", "layer", "head"), "", "entropy", "nats", reverse=True, notes=notes)],
        f"Attention entropy of the heads of {model_of(ds)}",
        f"{attention_kind(ds)}, mean over forecast steps and series",
        f"outlined: {int(sharp.sum())} of {sharp.size} heads are sharp, below {least} of the range over all heads",
        outlined=sharp,
    )
