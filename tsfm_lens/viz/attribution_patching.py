"""Attribution patching's estimates against what patching recovers."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.contrast import way, when
from tsfm_lens.viz.panels import fitted_range
from tsfm_lens.viz.places import places_in
from tsfm_lens.viz.select import array, check, model_of, names, series_position
from tsfm_lens.viz.theme import GREY, PALE, SEQUENTIAL, dress, number, plain

__all__ = ["attribution_patching_scatter"]


def attribution_patching_scatter(ds: xr.Dataset, *, series: str | int | None = None) -> go.Figure:
    """Attribution patching's estimate against what patching recovers, a dot a place, position and series.

    Args:
        ds: of kind "attribution_patching", made with ``exact=True``.
        series: id, or place counted from 0; all unless given.

    Returns:
        Dots coloured by layer, and the line on which the estimate is exact. The subtitle has mean absolute error and
        rank correlation over all cells, as the result has them.

    Raises:
        InputError: ``ds`` is of another kind, or has no exact values.
        UnknownNameError: no such series.
    """
    check(ds, "attribution_patching", "first_order", "recovered")
    ids = names(ds, "series")
    rows = list(range(len(ids))) if series is None else [series_position(ds, series)]
    places = places_in(ds)
    estimate, exact = (
        array(ds, name, "component", "position", "series")[places.order][..., rows]
        for name in ("first_order", "recovered")
    )
    moments = [when(ds, col) for col in range(ds.sizes["position"])]
    words = [
        plain(", ".join(part for part in (label, time, ids[row] if len(rows) > 1 else "") if part))
        for label in places.labels
        for time in moments
        for row in rows
    ]
    layer = np.repeat(places.layer, estimate[0].size)
    fig = go.Figure(_identity(exact.ravel(), estimate.ravel()))
    fig.add_trace(
        go.Scatter(
            x=exact.ravel(),
            y=estimate.ravel(),
            mode="markers",
            name="a place and position",
            marker={"color": layer, "coloraxis": "coloraxis", "size": 7, "line": {"color": "#FFFFFF", "width": 0.5}},
            text=words,
            hovertemplate="%{text}<br>estimate %{y:.3g}, exact %{x:.3g}<extra></extra>",
            showlegend=False,
        )
    )
    fig.update_layout(coloraxis=layer_colours(places.layer))
    fig.update_xaxes(title_text="share recovered by patching", range=fitted_range(exact.ravel(), np.empty(0))[0])
    fig.update_yaxes(title_text="estimated share", range=fitted_range(estimate.ravel(), np.empty(0))[0])
    fig.update_xaxes(zeroline=True, zerolinecolor=PALE)
    fig.update_yaxes(zeroline=True, zerolinecolor=PALE)
    attrs = ds.attrs
    quality = [
        f"{word} {number(float(attrs[name]))}"
        for name, word in (("mean_absolute_error", "mean absolute error"), ("rank_correlation", "rank correlation"))
        if name in attrs
    ]
    base, source = way(ds)
    fig = dress(
        fig,
        f"Attribution patching of {model_of(ds)} against patching",
        "; ".join(
            [
                ", ".join(quality) or "each dot a place, position and series",
                f"{places.what()}, {', '.join(ids[row] for row in rows) if len(rows) <= 3 else f'{len(rows)} series'}",
                f"1 is the {source} forecast, 0 the {base}",
            ]
        ),
        plot_height=360,
        legend_rows=1,
    )
    return fig.update_layout(margin_r=96)


def layer_colours(layer: np.ndarray) -> dict[str, Any]:
    """A colour axis over layer numbers, the first one dark enough to be seen."""
    low, high = int(layer.min()), int(layer.max())
    stops = [(0.0, "#E8CF5A"), *((0.3 + 0.7 * (at - 0.4) / 0.6, colour) for at, colour in SEQUENTIAL if at >= 0.4)]
    ticks = list(range(low, high + 1, -(-(high - low + 1) // 8)))
    bar = {"title": {"text": "layer", "side": "right"}, "tickvals": ticks}
    return {"colorscale": stops, "cmin": low, "cmax": max(high, low + 1), "colorbar": bar}


def _identity(x: np.ndarray, y: np.ndarray) -> go.Scatter:
    both = np.concatenate([x, y])
    ends = [float(np.nanmin(both)), float(np.nanmax(both))]
    return go.Scatter(
        x=ends,
        y=ends,
        mode="lines",
        name="estimate = exact",
        line={"color": GREY, "width": 1, "dash": "dash"},
        hoverinfo="skip",
    )
