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
from tsfm_lens.viz.summary import summarize, summary
from tsfm_lens.viz.theme import BLUE, GREY, mixed, plain
from tsfm_lens.viz.words import layer_names

__all__ = ["kernel_bandwidths", "tilt_map"]


def read_bound(ds: xr.Dataset) -> list[str]:
    """State where the bound holds, where it says something, and how close it comes."""
    usable = ds["applicable"].astype(bool)
    if not usable.any():
        return [
            "The conditions of the proposition hold for no head, so it gives no bound here."
        ]
    informative = usable & (ds["bound"] < 1)
    ratio = ds["bound"] / np.maximum(ds["missing"], 1e-16)
    exceeded = usable & (ds["missing"] > ds["bound"] * (1 + 1e-6) + 1e-9)
    return summarize(
        ds,
        "The conditions hold for {applicable:count} heads and queries, and the bound is "
        "below 1 for {informative:whole} of them. Elsewhere it is vacuous: no attention "
        "could exceed it.",
        "Where it is below 1, it is {ratio:median} times the measured value (median).",
        "It is exceeded {exceeded:whole} times, and must never be.",
        "Weakest tilt: {tilt_share:lowest}; strongest: {tilt_share:highest}. It varies at "
        "least as much as the scores in {strong:count} heads.",
        informative=informative.sum(),
        ratio=ratio.where(informative),
        exceeded=exceeded.sum(),
        strong=ds["tilt_share"] >= 1,
    )


@figure(
    "kernel_regression",
    "Kernel bandwidths of each head.",
    table=("bandwidth",),
    sentences=summary(
        "Narrowest kernel, by the bandwidth along its first direction: {narrow:lowest}. In "
        "the median head the widest direction has {ratio:median} times that bandwidth.",
        narrow=lambda ds: ds["bandwidth"].min("mode"),
        ratio=lambda ds: ds["bandwidth"].max("mode") / ds["bandwidth"].min("mode"),
    ),
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
    sentences=read_bound,
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
