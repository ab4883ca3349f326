"""Attention as kernel regression: bandwidths and tilt, and the concentration bound in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import figure
from tsfm_lens.viz.attention import single_series
from tsfm_lens.viz.grid import log_axis, panel_grid, title_axes
from tsfm_lens.viz.maps import HeadMap, head_maps, two_digits
from tsfm_lens.viz.select import array, medians, model_of, names, positions
from tsfm_lens.viz.sheet import Sheet
from tsfm_lens.viz.theme import BLUE, GREY, mixed, plain
from tsfm_lens.viz.words import extremes, head_at, layer_names, num

__all__ = ["kernel_bandwidths", "tilt_map"]


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


@figure(
    "kernel_regression",
    "Kernel bandwidths of each head.",
    table=("bandwidth",),
    sentences=read_bandwidths,
)
def kernel_bandwidths(
    ds: xr.Dataset, *, layers: Sequence[str | int] | None = None
) -> go.Figure:
    """Draw how wide each head's Gaussian kernel is along each of its singular directions, a panel per layer."""
    rows = positions(ds, "layer", layers)
    grid = _head_lines(
        ds,
        rows,
        array(ds, "bandwidth", "layer", "head", "mode")[rows],
        "bandwidth %{y:.3g}",
    )
    title_axes(grid, "mode", "bandwidth (residual stream units)")
    title = f"Kernel bandwidths of the cross-attention of {model_of(ds)}"
    width = "standard deviation 1/√σ of the Gaussian kernel along each singular direction of W_Q W_Kᵀ"
    return grid.dress(title, width, "narrow: queries and keys must agree")


def _head_lines(
    ds: xr.Dataset, layers: list[int], values: np.ndarray, measure: str
) -> Sheet:
    """Draw ``values`` (layer, head, mode), a panel per layer: a thin line per head, and the median over heads."""
    grid = panel_grid([(label,) for label in layer_names(ds, layers)], row_height=150)
    modes, several, tail = (
        np.arange(1, values.shape[-1] + 1),
        "median over heads",
        f", mode %{{x}}<br>{measure}",
    )
    for panel, lines in zip(grid, values, strict=True):
        for head, line in zip(names(ds, "head"), lines, strict=True):
            panel.line(
                modes,
                line,
                "one head",
                f"head {plain(head)}{tail}",
                colour=mixed(GREY, 0.55),
                width=1,
            )
        panel.line(
            modes, medians(lines.T), several, several + tail, colour=BLUE, width=2
        )
    grid.y(**log_axis(values))
    return grid


@figure(
    "kernel_regression",
    "Share of tilt in the attention of each head.",
    table=("tilt_share", "identity_error"),
    sentences=lambda ds: read_tilt(ds) + read_bound(ds),
)
def tilt_map(ds: xr.Dataset) -> go.Figure:
    """Draw the layer × head map of the tilt: what keys get by their length alone, against all that tells them apart."""
    values = array(ds, "tilt_share", "layer", "head")
    return head_maps(
        ds,
        [
            HeadMap(
                values,
                "",
                "tilt factor",
                low=0.0,
                high=float(np.nanmax(values)),
                write=two_digits,
            )
        ],
        f"Tilt of the cross-attention kernels of {model_of(ds)}",
        single_series(ds),
        "variance over keys of the tilt, relative to tilt and kernel together: near 0 the query decides, from 1 on "
        "the keys do",
    )
