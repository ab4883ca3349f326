"""Forecasts over the series they continue: one fan, or one per layer of the lens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.panels import draw_bands, fit, scene
from tsfm_lens.viz.select import array, draws, layer_names, model_of, positions
from tsfm_lens.viz.sheet import blank
from tsfm_lens.viz.theme import BLUE, mixed

__all__ = ["forecast_fan", "lens_forecast"]


@draws("forecast", needs=("quantile_forecast",))
def forecast_fan(ds: Any, *, series: str | int = 0, context_steps: int | None = None, samples: int = 0) -> go.Figure:
    """Draw a forecast's quantile bands and median over context and truth.

    Args:
        ds: a run, a forecast, or a dataset of kind "forecast": ``quantile_forecast`` (series, quantile, step),
            ``context`` (series, time), and, where there are any, ``truth`` (series, step) and ``sample`` (series,
            draw, step).
        series: id, or place counted from 0.
        context_steps: how much of the context is drawn; five horizons (at least 60 steps) unless given.
        samples: how many of the sampled paths are drawn in place of the bands.

    Returns:
        Traces: two per band, widest first (its lower edge, its upper edge), or the paths; the median;
        context and truth.

    Example:
        >>> fig = viz.forecast_fan(results["forecast"])
        >>> fig.layout.meta["title"]
        'Forecast of co2 by chronos-nano'
    """
    view, sheet = scene(ds, series, context_steps), blank()
    panel = sheet.panel()
    values = array(ds, "quantile_forecast", "quantile", "step", series=view.place)
    paths = np.empty((0, len(view.future)))
    if samples and "sample" in ds:
        paths = array(ds, "sample", "draw", "step", series=view.place)[:samples]
    for i, path in enumerate(paths):
        view.forecast(panel, path, "sampled paths", mixed(BLUE, 0.35), 0.8, words=f"sampled path {i + 1}")
    draw_bands(panel, view, ds["quantile"].values, values, bands=not len(paths), statistic="median")
    view.draw(panel)
    view.title_axes(panel)
    return sheet.dress(
        f"Forecast of {view.id} by {model_of(ds)}",
        f"{len(view.future)} steps ahead from {view.remark}",
        "sampled paths" if len(paths) else "bands: central intervals of the forecast distribution",
    )


@draws("logit_lens", needs=("quantile_forecast",))
def lens_forecast(
    ds: xr.Dataset,
    *,
    series: str | int = 0,
    layers: Sequence[str | int] | None = None,
    context_steps: int | None = None,
) -> go.Figure:
    """Draw what each layer would forecast: the head applied to its residual stream, one fan per layer.

    Args:
        ds: of kind "logit_lens" with ``quantile_forecast`` (layer, series, quantile, step).
        series: id, or place counted from 0.
        layers: labels to draw, all unless given.
        context_steps: how much of the context is drawn; two horizons (at least 24 steps) unless given.

    Returns:
        Panels with shared axes in the order of the layers. The value axis follows the data and the last
        layer; what an earlier layer forecasts far beyond is cut, and the subtitle says so.

    Example:
        >>> fig = viz.lens_forecast(results["logit_lens"])
        >>> fig.layout.meta["title"]
        'Forecast of co2 read from each layer of chronos-nano'
    """
    view, rows = scene(ds, series, context_steps, least=24), positions(ds, "layer", layers)
    grid = panel_grid([(label,) for label in layer_names(ds, rows)], row_height=140)
    values = array(ds, "quantile_forecast", "layer", "quantile", "step", series=view.place)[rows]
    for panel, each in zip(grid, values, strict=True):
        draw_bands(panel, view, ds["quantile"].values, each)
        view.draw(panel)
    cut = fit(grid, np.append(view.observations, values[-1]), values.ravel())
    grid.y(nticks=5)
    title_axes(grid, view.time.short_title, view.title)
    return grid.dress(
        f"Forecast of {view.id} read from each layer of {model_of(ds)}",
        "the head applied to the residual stream after each layer",
        view.remark,
        view.time.remark,
        cut,
    )
