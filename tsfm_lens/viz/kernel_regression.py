"""Attention as kernel regression: bandwidths and tilt, and the concentration bound in words."""

from __future__ import annotations

import numpy as np
import xarray as xr

from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.select import array
from tsfm_lens.viz.words import extremes, head_at, num


def read_bandwidths(ds: xr.Dataset) -> list[str]:
    """Describe how narrow kernels are, and how much they differ between directions."""
    widths = array(ds, "bandwidth", "layer", "head", "mode")
    narrow, wide = np.nanmin(widths, axis=-1), np.nanmax(widths, axis=-1)
    at = int(np.nanargmin(narrow))
    return [
        f"The narrowest kernel is that of {head_at(ds, at)} (bandwidth {num(narrow.flat[at])} along its first "
        f"direction). In the median head the widest one is {num(np.nanmedian(wide / narrow))} times the narrowest."
    ]


def read_tilt(ds: xr.Dataset) -> list[str]:
    """Count the heads in which keys draw attention by their length alone."""
    share = array(ds, "tilt_share", "layer", "head")
    low, high = extremes(share)
    strong = int((share >= 1).sum())
    return [
        f"The tilt is weakest in {head_at(ds, low)} ({num(share.flat[low])}) and strongest in {head_at(ds, high)} "
        f"({num(share.flat[high])}). It varies at least as much as the scores in {strong} of {share.size} heads."
    ]


def read_bound(ds: xr.Dataset) -> list[str]:
    """State where the bound holds, where it says something, and how close it comes."""
    missing, bound = (
        array(ds, name, "layer", "head", "query") for name in ("missing", "bound")
    )
    usable = array(ds, "applicable", "layer", "head", "query") > 0
    if not usable.any():
        return [
            "The conditions of the proposition hold for no head, so it gives no bound here."
        ]
    informative = usable & (bound < 1)
    out = [
        f"The conditions hold for {int(usable.sum())} of {usable.size} heads and queries, and the bound is below 1 for "
        f"{int(informative.sum())} of them. Elsewhere it is vacuous: no attention could exceed it."
    ]
    if informative.any():
        ratio = float(
            np.median(bound[informative] / np.maximum(missing[informative], 1e-16))
        )
        out.append(
            f"Where it is below 1, it is {num(ratio)} times the measured value (median)."
        )
    violations = int((missing[usable] > bound[usable] * (1 + 1e-6) + 1e-9).sum())
    return [
        *out,
        f"It is exceeded {violations} times, which must not happen."
        if violations
        else "It is never exceeded.",
    ]


generic_figure(
    "kernel_regression",
    "tilt_share",
    "Share of tilt in the attention of each head.",
    table=("tilt_share", "identity_error"),
    sentences=lambda ds: read_tilt(ds) + read_bound(ds),
)
generic_figure(
    "kernel_regression",
    "bandwidth",
    "Kernel bandwidths of the heads of the last layer.",
    table=("bandwidth",),
    sentences=read_bandwidths,
    options={"layer": -1},
)
