"""Forecasts over the series they continue: one fan, or one per layer of the lens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.panels import draw_bands, draw_scene, fitted_range, scene, value_hover
from tsfm_lens.viz.select import (
    array,
    as_dataset,
    check,
    layer_name,
    model_of,
    names,
    positions,
    series_position,
    statistic_of,
    unit_of,
    value_title,
)
from tsfm_lens.viz.theme import BLUE, dress, mixed, plain

__all__ = ["forecast_fan", "lens_forecast"]


def forecast_fan(
    ds: Any,
    *,
    series: str | int = 0,
    context_steps: int | None = None,
    samples: int = 0,
) -> go.Figure:
    """A forecast's quantile bands and median over context and truth.

    Args:
        ds: a run, a forecast, or a dataset of kind "forecast": ``quantile_forecast`` (series, quantile, step),
            ``context`` (series, time), and, where there are any, ``truth`` (series, step) and ``sample`` (series,
            sample, step).
        series: id, or place counted from 0.
        context_steps: how much of the context is drawn; five horizons (at least 60 steps) unless given.
        samples: how many of the sampled paths are drawn in place of the bands.

    Returns:
        Traces: two per band, widest first (its lower edge, its upper edge), or the paths; the median;
        context and truth.

    Raises:
        InputError: ``ds`` is of another kind.
        UnknownNameError: no such series.
    """
    ds = as_dataset(ds)
    check(ds, "forecast", "quantile_forecast")
    at = series_position(ds, series)
    view = scene(ds, at, context_steps)
    unit = unit_of(ds, at)
    fig = go.Figure()
    values = array(ds, "quantile_forecast", "quantile", "step", series=at)
    paths = np.empty((0, len(view.future)))
    if samples and "sample" in ds:
        paths = array(ds, "sample", "sample", "step", series=at)[:samples]
    for i, path in enumerate(paths):
        fig.add_trace(
            go.Scatter(
                x=view.time.at(view.future),
                y=path,
                mode="lines",
                name="sampled paths",
                legendgroup="samples",
                showlegend=i == 0,
                line={"color": mixed(BLUE, 0.35), "width": 0.8},
                hovertemplate=value_hover(f"sampled path {i + 1}", view.time, unit),
            )
        )
    draw_bands(fig, view, ds["quantile"].values, values, unit=unit, bands=not len(paths))
    draw_scene(fig, view, unit=unit)
    fig.update_xaxes(title_text=plain(view.time.title))
    fig.update_yaxes(title_text=plain(value_title(ds, at)))
    return dress(
        fig,
        f"Forecast of {names(ds, 'series')[at]} by {model_of(ds)}",
        f"{len(view.future)} steps ahead from {view.remark}; "
        + ("sampled paths" if len(paths) else "bands: central intervals of the forecast distribution"),
        plot_height=300,
        legend_rows=1,
    )


def lens_forecast(
    ds: xr.Dataset,
    *,
    series: str | int = 0,
    layers: Sequence[str | int] | None = None,
    context_steps: int | None = None,
) -> go.Figure:
    """What each layer would forecast: the head applied to its residual stream, one fan per layer.

    Args:
        ds: of kind "logit_lens" with ``quantile_forecast`` (layer, series, quantile, step).
        series: id, or place counted from 0.
        layers: labels to draw, all unless given.
        context_steps: how much of the context is drawn; two horizons (at least 24 steps) unless given.

    Returns:
        Panels with shared axes in the order of the layers. The value axis follows the data and the last
        layer; what an earlier layer forecasts far beyond is cut, and the subtitle says so.

    Raises:
        InputError: ``ds`` is of another kind.
        UnknownNameError: no such series or layer.
    """
    check(ds, "logit_lens", "quantile_forecast")
    at, chosen = series_position(ds, series), positions(ds, "layer", layers)
    horizon = ds.sizes["step"]
    view = scene(ds, at, max(2 * horizon, 24) if context_steps is None else context_steps)
    unit = unit_of(ds, at)
    grid = panel_grid([(layer_name(names(ds, "layer")[i]),) for i in chosen], row_height=140)
    fig = grid.fig
    values = array(ds, "quantile_forecast", "layer", "quantile", "step", series=at)[chosen]
    for panel, (row, col) in enumerate(grid.places):
        where: dict[str, Any] = {"row": row, "col": col}
        shown: dict[str, Any] = {"unit": unit, "legend": panel == 0, "statistic": statistic_of(ds)}
        draw_bands(fig, view, ds["quantile"].values, values[panel], **shown, **where)
        draw_scene(fig, view, unit=unit, legend=panel == 0, **where)
    core = np.concatenate([view.context, view.truth, values[-1].ravel()])
    bounds, cut = fitted_range(core, values.ravel())
    fig.update_yaxes(range=bounds, nticks=5)
    title_axes(grid, view.time.short_title, value_title(ds, at))
    remark = view.time.remark + ("; what leaves the axis is cut off" if cut else "")
    return dress(
        fig,
        f"Forecast of {names(ds, 'series')[at]} read from each layer of {model_of(ds)}",
        f"the head applied to the residual stream after each layer; {view.remark}{remark}",
        legend_rows=1,
        **grid.room,
    )
