"""Context parroting: a forecast beside the copies of its context, and the heads that read at a lag."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from tsfm_lens.viz.attention import attention_kind, single_series
from tsfm_lens.viz.maps import head_map
from tsfm_lens.viz.panels import draw_scene, fitted_range, scene, value_hover
from tsfm_lens.viz.select import array, check, model_of, names, series_position, unit_of, value_title
from tsfm_lens.viz.theme import BLUE, GREY, ORANGE, VERMILION, dress, number, percent, plain

__all__ = ["lag_attention_map", "parroting_forecast"]

_FORECAST, _ERROR, _GAP = 250, 130, 78  # pixels


def parroting_forecast(ds: xr.Dataset, *, series: str | int = 0, context_steps: int | None = None) -> go.Figure:
    """A forecast, the context repeated at its best lag and the naive parrot; below, the error of every lag.

    Args:
        ds: of kind "parroting".
        series: id, or place counted from 0.
        context_steps: how much of the context is drawn; unless given, as much as is copied, one horizon and at
            least 60 steps.

    Returns:
        Above: context, truth where known, forecast, and the two copies. Below: the mean absolute difference of the
        forecast from the context repeated at each lag, in standard deviations of the context; the best lag and the
        parrot's error are marked.

    Raises:
        InputError: ``ds`` is of another kind.
        UnknownNameError: no such series.
    """
    check(ds, "parroting", "forecast", "parrot", "lag_error", "best_lag", "copy_error")
    at = series_position(ds, series)
    best = float(ds["best_lag"].values[at])
    known = np.isfinite(best)
    horizon = ds.sizes["step"]
    reach = max(horizon, 60, int(best) if known else 0)
    view = scene(ds, at, reach if context_steps is None else context_steps)
    unit = unit_of(ds, at)
    total = _FORECAST + _GAP + _ERROR
    fig = make_subplots(
        rows=2,
        row_heights=[_FORECAST, _ERROR],
        vertical_spacing=_GAP / total,
        subplot_titles=["", "context repeated at every lag"],
    )
    fig.update_annotations(font={"size": 12}, x=0, xanchor="left")
    draw_scene(fig, view, unit=unit, row=1, col=1)
    curves: list[tuple[str, np.ndarray, dict[str, Any]]] = [
        ("forecast", array(ds, "forecast", "step", series=at), {"color": BLUE, "width": 2})
    ]
    if known:
        curves.append((f"context {int(best)} back", _copy(ds, at, int(best)), {"color": VERMILION, "width": 1.4}))
    curves.append(("naive parrot", array(ds, "parrot", "step", series=at), {"color": ORANGE, "width": 1.4}))
    for name, values, look in curves:
        if np.isfinite(values).any():
            style = look if name == "forecast" else look | {"dash": "5px,2px"}
            hover = value_hover(name, view.time, unit)
            x = view.time.at(view.future)
            fig.add_trace(
                go.Scatter(x=x, y=values, mode="lines", name=name, line=style, hovertemplate=hover), row=1, col=1
            )
    bounds, _ = fitted_range(np.concatenate([view.context, view.truth, curves[0][1]]), curves[-1][1])
    fig.update_yaxes(range=bounds, title_text=plain(value_title(ds, at)), nticks=6, row=1, col=1)
    fig.update_xaxes(title_text=plain(view.time.title), row=1, col=1)
    _draw_errors(fig, ds, at)
    copy, parrot = float(ds["copy_error"].values[at]), float(ds["parrot_error"].values[at])
    remarks = [
        f"off its copy at lag {int(best)} by {number(copy)}" if known else "no lag can be copied",
        f"off the naive parrot by {number(parrot)} standard deviations of the context" if np.isfinite(parrot) else "",
        view.remark,
    ]
    return dress(
        fig,
        f"How far {model_of(ds)} copies its context: {names(ds, 'series')[at]}",
        "; ".join(remark for remark in remarks if remark),
        plot_height=total,
        legend_rows=1,
        min_width=420,
    )


def lag_attention_map(ds: xr.Dataset) -> go.Figure:
    """Layer × head map of the attention on tokens one lag, two lags … before the step that is forecast.

    Args:
        ds: of kind "lag_attention".

    Returns:
        One heat map in percent with the numbers in the cells; what an even spread would pay is in the subtitle.

    Raises:
        InputError: ``ds`` is of another kind.
    """
    check(ds, "lag_attention", "mass", "chance")
    mass = 100 * array(ds, "mass", "layer", "head")
    top = max(float(np.nanmax(mass)), 1e-9)
    fig, height = head_map(ds, mass, "attention", unit="%", write="{:.1f}".format, bounds=(0.0, top))
    lag, width = ds.attrs.get("lag", "?"), int(ds.attrs.get("width", 0))
    return dress(
        fig,
        f"Attention of {model_of(ds)} at lag {lag} of {single_series(ds)}",
        f"{attention_kind(ds)}; share on tokens {lag} steps and multiples back"
        + (f", give or take {width}" if width else "")
        + f"; {percent(float(ds['chance']))} if it were spread evenly"
        + ("; every token lies there, so that this says nothing" if bool(ds.get("vacuous", False)) else ""),
        plot_height=height,
    )


def _copy(ds: xr.Dataset, series: int, lag: int) -> np.ndarray:
    """The end of the context, repeated at a lag over the horizon."""
    context = array(ds, "context", "time", series=series)
    return context[len(context) - lag + np.arange(ds.sizes["step"]) % lag]


def _draw_errors(fig: go.Figure, ds: xr.Dataset, series: int) -> None:
    """The lower panel: the error of every lag, the best one and the parrot's level."""
    where = {"row": 2, "col": 1}
    lags = np.asarray(ds["lag"].values, dtype=int)
    error = array(ds, "lag_error", "lag", series=series)
    best, copy = float(ds["best_lag"].values[series]), float(ds["copy_error"].values[series])
    parrot = float(ds["parrot_error"].values[series])
    fig.add_trace(
        go.Scatter(
            x=lags,
            y=error,
            mode="lines",
            showlegend=False,
            line={"color": GREY, "width": 1.2},
            hovertemplate="lag %{x}<br>off by %{y:.3g} standard deviations<extra></extra>",
        ),
        **where,
    )
    if np.isfinite(best):
        fig.add_trace(
            go.Scatter(
                x=[best],
                y=[copy],
                mode="markers",
                showlegend=False,
                marker={"color": VERMILION, "size": 9},
                hovertemplate="best lag %{x}<br>off by %{y:.3g} standard deviations<extra></extra>",
            ),
            **where,
        )
    if np.isfinite(parrot):
        fig.add_hline(y=parrot, line={"color": ORANGE, "width": 1.4, "dash": "5px,2px"}, **where)
    known = np.flatnonzero(np.isfinite(error))
    last = int(lags[known[-1]]) if len(known) else 1
    top = np.nanmax([np.nanmax(error) if len(known) else 1.0, parrot])
    fig.update_xaxes(title_text="lag (steps)", range=[0, last + 1], nticks=10, **where)
    fig.update_yaxes(title_text="mean error<br>(sd of context)", range=[0, 1.06 * top], nticks=4, **where)
