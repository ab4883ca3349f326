"""Learned scores of units, and of the weights that a fine-tuning changed.

:func:`generic_figure` draws what lists of every length keep. They are measured in
:mod:`tsfm_lens.probes.learned_scores` and :mod:`tsfm_lens.probes.tuned_weights`.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import xarray as xr

from tsfm_lens.core.registry import measurement
from tsfm_lens.viz.generic import generic_figure, with_range
from tsfm_lens.viz.ratios import signed_percent
from tsfm_lens.viz.select import name_model
from tsfm_lens.viz.theme import percent

__all__ = []

_ENOUGH = 0.9
_SOURCE = "Matryoshka Attribution, arXiv:2609.25518"

measurement(
    "learned_scores",
    title="Learned scores",
    theme="Causes",
    summary="heads, MLPs, hidden units or edges, scored by a mask trained over budgets",
    description=(
        "A soft mask keeps the best units of a random number in every step, and its "
        "scores follow the gradient of what the forecast loses. Series that were held "
        "out choose among its steps and rankings without training, and show what the "
        "best units keep."
    ),
    source=_SOURCE,
    needs="gradients",
    maker="made of a run: `tsfm_lens.probes.learned_scores` makes it",
)
measurement(
    "tuned_weights",
    title="Weights that carry a fine-tuning",
    theme="Causes",
    summary="how few of the weights that a fine-tuning changed carry its gain",
    description=(
        "Every row of every changed matrix is scored by a trained mask between the "
        "base's weights and the tuned ones. The best rows are kept and all others set "
        "back, on series by which nothing was chosen."
    ),
    source=_SOURCE,
    needs="gradients",
    maker="made of two models and a run: `tsfm_lens.probes.tuned_weights` makes it",
)


def read_scores(ds: xr.Dataset) -> list[str]:
    """State how few units keep the forecast, and which ranking chose them."""
    units = ds["score"].dims[0]
    kept = ds["kept"].mean("series").values
    short = np.flatnonzero(kept < _ENOUGH)
    # the first size from which on all circuits keep enough
    size = int(ds["size"].values[short.max() + 1])
    when = "which is not trained"
    if ds.attrs["best_step"]:
        when = f"after {ds.attrs['best_step']} of {ds.attrs['steps']} steps"
    # flat series have no share to keep
    count = int(ds["kept"].notnull().any("size").sum())
    return [
        f"The best {size} of {ds.sizes[units]} {units}s keep {percent(_ENOUGH)} or more"
        f" of the forecast on {count} held-out series, with all others"
        " replaced.",
        f"Of {ds.sizes['check']} rankings, held-out series lose least by that of the"
        f" {ds.attrs['best_method']}, {when}.",
    ]


def read_weights(ds: xr.Dataset) -> list[str]:
    """State which share of the changed weights carries the gain, and at what cost."""
    rows = ds.attrs["rows"]
    gain = float(ds["gain"].sel(size=rows))
    name = "gain in accuracy"
    if ds.attrs["gain_of"] == "forecast":
        name = "change of the forecast"
    sentences = [
        f"{percent(ds.attrs['weights'])} of the changed weights of {name_model(ds)},"
        f" {rows:,} of {ds.sizes['row']:,} rows, were chosen to carry"
        f" {percent(ds.attrs['carried'])} of the {name}. With all others set back, they"
        f" keep {percent(gain)} of it on {ds.sizes['series']} series by which nothing"
        " was chosen."
    ]
    if "cost_size" in ds:
        low, size, high = (
            signed_percent(float(np.exp(ds[f"cost_{part}"])) - 1)
            for part in ("low", "size", "high")
        )
        sentences.append(
            f"Setting the others back changes the error by {size} ({low} to {high} over"
            " series)."
        )
    return sentences


def curve(ds: xr.Dataset, axis: str) -> xr.Dataset:
    """Return what lists of every length keep, with its range over series."""
    kept = ds["kept"]
    if axis != "size":
        kept = kept.swap_dims(size=axis)
    kept.attrs["long_name"] = "share kept"
    return with_range(ds, kept)


generic_figure(
    "learned_scores",
    "kept",
    "Share of the forecast that the best units keep, by their number.",
    prepare=partial(curve, axis="size"),
    table=["score"],
    sentences=read_scores,
)
generic_figure(
    "tuned_weights",
    "kept",
    "Share of the change by fine-tuning that the best rows keep, by their weights.",
    prepare=partial(curve, axis="share"),
    table=["kept", "gain"],
    sentences=read_weights,
)
