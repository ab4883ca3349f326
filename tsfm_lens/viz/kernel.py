"""Cross-attention as kernel regression: bandwidths, tilt, and how much of the attention one key can take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.attention import single_series
from tsfm_lens.viz.grid import log_axis, title_axes
from tsfm_lens.viz.maps import head_map
from tsfm_lens.viz.select import array, check, layer_name, model_of, names, positions
from tsfm_lens.viz.structure import head_lines
from tsfm_lens.viz.theme import CATEGORICAL, GREY, PALE, SEQUENTIAL, dress, number, percent, plain

__all__ = ["concentration_bound_plot", "kernel_bandwidths", "tilt_map"]

LEAST = 1e-16  # a weight or bound below is drawn here: double precision ends


def kernel_bandwidths(ds: xr.Dataset, *, layers: Sequence[str | int] | None = None) -> go.Figure:
    """How wide each head's Gaussian kernel is along each of its singular directions, a panel a layer.

    Args:
        ds: of kind "kernel_regression".
        layers: labels to draw, all unless given.

    Returns:
        A thin line a head over the modes, on a logarithmic axis, and the median over heads.

    Raises:
        InputError: ``ds`` is of another kind.
        UnknownNameError: no such layer.
    """
    check(ds, "kernel_regression", "bandwidth")
    chosen = positions(ds, "layer", layers)
    widths = array(ds, "bandwidth", "layer", "head", "mode")[chosen]
    grid = head_lines(ds, chosen, widths, "bandwidth %{y:.3g}")
    grid.fig.update_yaxes(**log_axis(widths))
    title_axes(grid, "mode", "bandwidth (residual stream units)")
    return dress(
        grid.fig,
        f"Kernel bandwidths of the cross-attention of {model_of(ds)}",
        "standard deviation 1/√σ of the Gaussian kernel along each singular direction of W_Q W_Kᵀ; "
        "narrow: queries and keys must agree",
        legend_rows=1,
        **grid.room,
    )


def tilt_map(ds: xr.Dataset) -> go.Figure:
    """Layer × head map of the tilt: what keys get by their length alone, against all that tells keys apart.

    Args:
        ds: of kind "kernel_regression".

    Returns:
        One heat map with the numbers in the cells; dark heads prefer some keys whatever is asked.

    Raises:
        InputError: ``ds`` is of another kind.
    """
    check(ds, "kernel_regression", "tilt_share")
    values = array(ds, "tilt_share", "layer", "head")
    fig, height = head_map(ds, values, "tilt factor", write="{:.2g}".format, bounds=(0.0, float(np.nanmax(values))))
    return dress(
        fig,
        f"Tilt of the cross-attention kernels of {model_of(ds)}",
        f"{single_series(ds)}; variance over keys of the tilt, relative to tilt and kernel together: near 0 the "
        "query decides, from 1 on the keys do",
        plot_height=height,
    )


def concentration_bound_plot(ds: xr.Dataset) -> go.Figure:
    """The bound on the attention outside one key against the attention measured there, a dot a head and query.

    Args:
        ds: of kind "kernel_regression".

    Returns:
        Dots below the diagonal, on logarithmic axes; right of the dotted line the bound is above 1 and says nothing.

    Raises:
        InputError: ``ds`` is of another kind.
    """
    check(ds, "kernel_regression", "missing", "bound", "applicable")
    missing = np.clip(array(ds, "missing", "layer", "head", "query"), LEAST, 1)
    bound = np.clip(array(ds, "bound", "layer", "head", "query"), LEAST, None)
    usable = array(ds, "applicable", "layer", "head", "query") > 0
    layers, heads = names(ds, "layer"), names(ds, "head")
    fig = go.Figure()
    queries = np.broadcast_to(np.arange(bound.shape[-1]), bound.shape[1:])
    which = np.broadcast_to(np.array(heads)[:, None], bound.shape[1:])
    for row, label in enumerate(layers):
        at = usable[row]
        fig.add_trace(
            go.Scatter(
                x=bound[row][at],
                y=missing[row][at],
                mode="markers",
                name=layer_name(label),
                marker={"color": _colour(row, len(layers)), "size": 6, "opacity": 0.75},
                customdata=np.stack([which[at], queries[at].astype(str)], axis=-1),
                hovertemplate=f"{plain(layer_name(label))}, head %{{customdata[0]}}, query %{{customdata[1]}}"
                "<br>bound %{x:.3g}<br>measured %{y:.3g}<extra></extra>",
            )
        )
    known = bound[usable]
    ends = (float(known.min()), float(known.max())) if len(known) else (LEAST, 1.0)
    low, high = np.log10(min(ends[0], 1e-1)) - 0.3, np.log10(max(ends[1], 1.0)) + 0.3
    lowest = np.log10(missing[usable].min()) - 0.3 if len(known) else low
    line: dict[str, Any] = {"type": "line", "line": {"color": GREY, "width": 1}}
    dotted: dict[str, Any] = {"type": "line", "line": {"color": GREY, "width": 1, "dash": "dot"}}
    # on logarithmic axes shapes stand at the values, not at their logarithms
    fig.add_shape(**line, x0=10**low, x1=1, y0=10**low, y1=1)
    fig.add_shape(**dotted, x0=1, x1=1, y0=0, y1=1, yref="y domain")
    dtick = max(1, int(np.ceil((high - low) / 8)))
    fig.update_xaxes(type="log", range=[low, high], exponentformat="power", dtick=dtick)
    down = max(1, int(np.ceil((0.3 - lowest) / 6)))
    fig.update_yaxes(type="log", range=[min(lowest, -1), 0.15], exponentformat="power", dtick=down, gridcolor=PALE)
    fig.update_xaxes(title_text="bound on the attention outside the top key")
    fig.update_yaxes(title_text="measured attention<br>outside the top key")
    telling = float((known < 1).mean()) if len(known) else 0.0
    remarks = [
        f"{single_series(ds)}, a dot a head and query; {int(usable.sum())} of {usable.size} meet the conditions",
        f"the bound is below 1 and says something for {percent(round(telling, 3))}; on the line it is exact",
        f"below {number(LEAST)}: drawn there" if min(ends[0], missing.min()) <= LEAST else "",
    ]
    return dress(
        fig,
        f"Concentration of the cross-attention of {model_of(ds)} and its bound",
        "; ".join(remark for remark in remarks if remark),
        plot_height=320,
        legend_rows=1 if len(layers) <= 8 else 2,
    )


def _colour(row: int, rows: int) -> str:
    """A colour of its own for each of few layers, from pale to dark for many."""
    if rows <= len(CATEGORICAL):
        return CATEGORICAL[row]
    from plotly.colors import sample_colorscale

    return str(sample_colorscale([list(pair) for pair in SEQUENTIAL], [0.25 + 0.75 * row / (rows - 1)])[0])
