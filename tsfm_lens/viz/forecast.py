"""Forecasts: median, quantiles and truth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import ReportPanel, measurement
from tsfm_lens.viz.panels import draw_bands, scene
from tsfm_lens.viz.select import array, forecast_series, median_position, model_of, names, unit_of
from tsfm_lens.viz.sheet import blank
from tsfm_lens.viz.tables import add_quantiles, steps_table
from tsfm_lens.viz.theme import BLUE, mixed
from tsfm_lens.viz.words import measured

__all__ = ["forecast_fan"]
_MAX_SERIES = 24  # series with a figure of their own


FORECAST = measurement(
    "forecast",
    theme="Activations",
    title="Forecast",
    summary="the forecast, over context and truth",
    description="What the model expects, as a distribution: half of it lies above the median, and a band holds the "
    "stated share of it.",
)


def read_forecast(ds: xr.Dataset, series: int) -> list[str]:
    """Describe course and width of the forecast of one series, and how it met the truth where that is known."""
    name, amount = names(ds, "series")[series], measured(unit_of(ds, series))
    levels = np.asarray(ds["quantile"].values, dtype=float)
    values = array(ds, "quantile_forecast", "quantile", "step", series=series)
    median = values[median_position(levels)]
    out = [
        f"The median forecast of {name} starts at {amount(median[0])} and ends at {amount(median[-1])} "
        f"after {len(median)} steps."
    ]
    low, high = int(levels.argmin()), int(levels.argmax())
    share = levels[high] - levels[low]
    if abs(levels[low] + levels[high] - 1) < 1e-6 and share > 0:
        width = values[high] - values[low]
        out.append(
            f"Its {100 * share:.3g} % band is {amount(width[0])} wide at the first step and "
            f"{amount(width[-1])} at the last."
        )
    truth = array(ds, "truth", "step", series=series) if "truth" in ds else np.full(len(median), np.nan)
    finite = np.isfinite(truth)
    if finite.any():
        inside = (truth >= values[low]) & (truth <= values[high])
        context = array(ds, "context", "time", series=series) if "context" in ds else np.array([])
        history, naive = context[np.isfinite(context)], ""
        if len(history):
            error = amount(float(np.abs(history[-1] - truth)[finite].mean()))
            naive = f"; repeating the last observed value would have missed it by {error}"
        out.append(
            f"The truth lies within the band in {int(inside[finite].sum())} of {int(finite.sum())} steps "
            f"(a calibrated band would hold about {100 * share:.3g} % of many such steps), and the median misses "
            f"it by {amount(float(np.abs(median - truth)[finite].mean()))} on average{naive}."
        )
    return out


def forecast_table(ds: xr.Dataset, series: int) -> pd.DataFrame:
    """Tabulate date, quantiles and truth, a row per step."""
    table = steps_table(ds, series)
    add_quantiles(table, ds, array(ds, "quantile_forecast", "quantile", "step", series=series))
    if "truth" in ds:
        table["truth"] = array(ds, "truth", "step", series=series)
    return table


@FORECAST.figure("A forecast over context and truth.", variables=("quantile_forecast",))
def forecast_fan(ds: Any, *, series: str | int = 0, context_steps: int | None = None, samples: int = 0) -> go.Figure:
    """Draw a forecast's quantile bands and median over context and truth.

    Args:
        ds: a run, a forecast, or a dataset of kind "forecast": ``quantile_forecast`` (series, quantile, step),
            ``context`` (series, time), where known ``truth`` (series, step) and ``sample`` (series, draw, step).
        series: id, or place counted from 0.
        context_steps: how much of the context is drawn; five horizons (at least 60 steps) unless given.
        samples: how many of the sampled paths are drawn in place of the bands.

    Returns:
        Two traces per band, the widest first, or the paths; the median; context and truth.
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


@FORECAST.panels
def _forecast(ds: xr.Dataset) -> Iterator[ReportPanel]:
    for i in forecast_series(ds, _MAX_SERIES):
        yield ReportPanel(forecast_fan(ds, series=i), forecast_table(ds, i), read_forecast(ds, i))
