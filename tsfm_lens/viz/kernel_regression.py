"""Attention as kernel regression: bandwidths, tilt, and the concentration bound."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.colors import sample_colorscale

from tsfm_lens.registry import measurement
from tsfm_lens.viz.attention import single_series
from tsfm_lens.viz.grid import log_axis, title_axes
from tsfm_lens.viz.maps import HeadMap, head_maps, two_digits
from tsfm_lens.viz.needs import CROSS_ATTENTION
from tsfm_lens.viz.select import array, model_of, names, positions
from tsfm_lens.viz.sheet import Look, blank
from tsfm_lens.viz.theme import CATEGORICAL, GREY, PALE, SEQUENTIAL, number, percent, plain
from tsfm_lens.viz.weights import head_lines
from tsfm_lens.viz.words import extremes, head_at, layer_names, num

__all__ = ["concentration_bound_plot", "kernel_bandwidths", "tilt_map"]


LEAST = 1e-16  # a weight or bound below is drawn here: double precision ends

KERNEL_REGRESSION = measurement("kernel_regression", needs=CROSS_ATTENTION)


def read_bandwidths(ds: xr.Dataset) -> list[str]:
    """Describe how narrow kernels are, and how much they differ between directions."""
    widths = array(ds, "bandwidth", "layer", "head", "mode")
    narrow, wide = np.nanmin(widths, axis=-1), np.nanmax(widths, axis=-1)
    at = int(np.nanargmin(narrow))
    return [
        f"The narrowest kernel is that of {head_at(ds, at)}, with a bandwidth of {num(narrow.flat[at])} along its "
        f"first direction; in the median head the widest direction is {num(np.nanmedian(wide / narrow))} times as "
        "wide as the narrowest."
    ]


def read_tilt(ds: xr.Dataset) -> list[str]:
    """Count the heads in which keys draw attention by their length alone."""
    share = array(ds, "tilt_share", "layer", "head")
    low, high = extremes(share)
    strong = int((share >= 1).sum())
    return [
        f"The tilt is weakest in {head_at(ds, low)} ({num(share.flat[low])}) and strongest in {head_at(ds, high)} "
        f"({num(share.flat[high])}); it varies as much as the scores themselves, or more, in {strong} of "
        f"{share.size} heads."
    ]


def read_bound(ds: xr.Dataset) -> list[str]:
    """State where the bound holds, where it says something, and how close it comes."""
    missing, bound = (array(ds, name, "layer", "head", "query") for name in ("missing", "bound"))
    usable = array(ds, "applicable", "layer", "head", "query") > 0
    if not usable.any():
        return ["The conditions of the proposition hold nowhere, so it bounds nothing here."]
    informative = usable & (bound < 1)
    out = [
        f"The conditions hold for {int(usable.sum())} of {usable.size} heads and queries, and the bound is below 1 for "
        f"{int(informative.sum())} of them; everywhere else it is vacuous: no attention could exceed it."
    ]
    if informative.any():
        ratio = float(np.median(bound[informative] / np.maximum(missing[informative], 1e-16)))
        out.append(f"There it is {num(ratio)} times what is measured, in the median.")
    violations = int((missing[usable] > bound[usable] * (1 + 1e-6) + 1e-9).sum())
    excess = f"{violations} times, which it must not be" if violations else "nowhere"
    return [*out, f"It is exceeded {excess}."]


@KERNEL_REGRESSION.figure(table=("bandwidth",), sentences=read_bandwidths)
def kernel_bandwidths(ds: xr.Dataset, *, layers: Sequence[str | int] | None = None) -> go.Figure:
    """Draw how wide each head's Gaussian kernel is along each of its singular directions, a panel per layer."""
    rows = positions(ds, "layer", layers)
    grid = head_lines(ds, rows, array(ds, "bandwidth", "layer", "head", "mode")[rows], "bandwidth %{y:.3g}")
    title_axes(grid, "mode", "bandwidth (residual stream units)")
    title = f"Kernel bandwidths of the cross-attention of {model_of(ds)}"
    width = "standard deviation 1/√σ of the Gaussian kernel along each singular direction of W_Q W_Kᵀ"
    return grid.dress(title, width, "narrow: queries and keys must agree")


@KERNEL_REGRESSION.figure(table=("tilt_share", "identity_error"), sentences=read_tilt)
def tilt_map(ds: xr.Dataset) -> go.Figure:
    """Draw the layer × head map of the tilt: what keys get by their length alone, against all that tells them apart."""
    values = array(ds, "tilt_share", "layer", "head")
    top = float(np.nanmax(values))
    return head_maps(
        ds,
        [HeadMap(values, "", "tilt factor", low=0.0, high=top, write=two_digits)],
        f"Tilt of the cross-attention kernels of {model_of(ds)}",
        single_series(ds),
        "variance over keys of the tilt, relative to tilt and kernel together: near 0 the query decides, from 1 on "
        "the keys do",
    )


@KERNEL_REGRESSION.figure(table=("missing", "bound", "applicable"), sentences=read_bound)
def concentration_bound_plot(ds: xr.Dataset) -> go.Figure:
    """Draw the bound on the attention outside one key against what is measured, a dot per head and query."""
    missing = np.clip(array(ds, "missing", "layer", "head", "query"), LEAST, 1)
    bound = np.clip(array(ds, "bound", "layer", "head", "query"), LEAST, None)
    usable = array(ds, "applicable", "layer", "head", "query") > 0
    layers, canvas = layer_names(ds), blank(320)
    panel = canvas.panel()
    queries = np.broadcast_to(np.arange(bound.shape[-1]), bound.shape[1:])
    which = np.broadcast_to(np.array(names(ds, "head"))[:, None], bound.shape[1:])
    colours = CATEGORICAL[: len(layers)]
    if len(layers) > len(CATEGORICAL):
        # from pale to dark for many
        shades = [0.25 + 0.75 * row / (len(layers) - 1) for row in range(len(layers))]
        colours = sample_colorscale([list(pair) for pair in SEQUENTIAL], shades)
    hover = ", head %{customdata[0]}, query %{customdata[1]}<br>bound %{x:.3g}<br>measured %{y:.3g}"
    for row, (label, at, colour) in enumerate(zip(layers, usable, colours, strict=True)):
        look: Look = {
            "marker": {"opacity": 0.75},
            "customdata": np.stack([which[at], queries[at].astype(str)], axis=-1),
        }
        panel.dots(bound[row][at], missing[row][at], label, plain(label) + hover, colour=colour, size=6, **look)
    values = bound[usable]
    ends = (float(values.min()), float(values.max())) if len(values) else (LEAST, 1.0)
    low, high = np.log10(min(ends[0], 1e-1)) - 0.3, np.log10(max(ends[1], 1.0)) + 0.3
    lowest = np.log10(missing[usable].min()) - 0.3 if len(values) else low
    # on logarithmic axes shapes stand at the values, not at their logarithms
    panel.shape("line", (10**low, 1), (10**low, 1), line={"color": GREY, "width": 1})
    panel.shape("line", (1, 1), (0, 1), yref="y domain", line={"color": GREY, "width": 1, "dash": "dot"})
    up = [min(lowest, -1), 0.15]
    across, upwards = (log_axis(10.0 ** np.array(axis)) for axis in ((low, high), up))
    panel.x("bound on the attention outside the top key", range=[low, high], **across)
    panel.y("measured attention\noutside the top key", range=up, gridcolor=PALE, **upwards)
    informative = float((values < 1).mean()) if len(values) else 0.0
    return canvas.dress(
        f"Concentration of the cross-attention of {model_of(ds)} and its bound",
        f"{single_series(ds)}, a dot per head and query; {int(usable.sum())} of {usable.size} meet the conditions",
        f"the bound is below 1 and says something for {percent(round(informative, 3))}; on the line it is exact",
        f"below {number(LEAST)}: drawn there" if min(ends[0], missing.min()) <= LEAST else "",
    )
