"""Attention as kernel regression: bandwidths, tilt and the concentration bound.

:func:`generic_figure` makes the figures; :func:`read_bound` states in words where the
bound holds.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.summary import summarize, summary


def read_bound(ds: xr.Dataset) -> list[str]:
    """State where the bound holds, where it says something, and how close it comes."""
    usable = ds["applicable"].astype(bool)
    if not usable.any():
        return [
            "The conditions of the proposition hold for no head, so it gives no bound"
            " here."
        ]
    informative = usable & (ds["bound"] < 1)
    # what is missing may be 0 by rounding
    ratio = ds["bound"] / np.maximum(ds["missing"], 1e-16)
    # beyond what rounding of weights may do to a bound that is reached exactly
    exceeded = usable & (ds["missing"] > ds["bound"] * (1 + 1e-6) + 1e-9)
    return summarize(
        ds,
        "The conditions hold for {applicable:count} heads and queries, and the bound is"
        " below 1 for {informative:whole} of them. Elsewhere it is vacuous: no"
        " attention could exceed it.",
        "Where it is below 1, it is {ratio:median} times the measured value (median).",
        "It is exceeded {exceeded:whole} times, and must never be.",
        "Weakest tilt: {tilt_share:lowest}; strongest: {tilt_share:highest}. It varies"
        " at least as much as the scores in {strong:count} heads.",
        informative=informative.sum(),
        ratio=ratio.where(informative),
        exceeded=exceeded.sum(),
        strong=ds["tilt_share"] >= 1,
    )


generic_figure(
    "kernel_regression",
    "tilt_share",
    "Share of tilt in the attention of each head.",
    table=("tilt_share", "identity_error"),
    sentences=read_bound,
)
generic_figure(
    "kernel_regression",
    "bandwidth",
    "Kernel bandwidths of the heads of the last layer.",
    table=("bandwidth",),
    sentences=summary(
        "Narrowest kernel, by the bandwidth along its first direction: {narrow:lowest}."
        " In the median head the widest direction has {ratio:median} times that"
        " bandwidth.",
        narrow=lambda ds: ds["bandwidth"].min("mode"),
        ratio=lambda ds: ds["bandwidth"].max("mode") / ds["bandwidth"].min("mode"),
    ),
    options={"layer": -1},
)
