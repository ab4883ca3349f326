"""Forecasts: median, quantiles and truth.

:func:`forecast_fan` draws the forecast of one series, :func:`read_forecast` describes
it beside the naive one of :func:`naive_forecast`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import FigurePanel, as_dataset, figure, panels
from tsfm_lens.viz.panels import draw_bands, series_window
from tsfm_lens.viz.select import (
    array,
    forecast_series,
    median_position,
    name_model,
    names,
    shown,
)
from tsfm_lens.viz.sheet import blank
from tsfm_lens.viz.summary import summarize
from tsfm_lens.viz.tables import quantile_table
from tsfm_lens.viz.theme import BLUE, mixed

__all__ = ["forecast_fan"]


_ROUNDING = 1e-6  # change of a forecast, as a share of its size, that is none
_MAX_SERIES = 24  # series with a figure of their own


def read_forecast(ds: xr.Dataset, series: int) -> list[str]:
    """Return sentences on direction and width of the forecast of one series.

    Its error is stated, beside the naive one, where the truth is known.
    """
    one = ds.isel(series=[series])
    levels = np.asarray(ds["quantile"].values, dtype=float)
    values = array(ds, "quantile_forecast", "quantile", "step", series=series)
    median = values[median_position(levels)]
    low = values[levels.argmin()]
    high = values[levels.argmax()]
    share = levels.max() - levels.min()
    # only levels at equal distances from 0 and 1 enclose a central band
    is_band = abs(levels.min() + levels.max() - 1) < 1e-6 and share > 0
    # where no truth is known it is NaN, (step,), and sentences on it are left out
    truth = one.get("truth", 0 * one["quantile_forecast"][:, 0] + np.nan)[0]
    covered = (truth >= low) & (truth <= high)
    label, repeated = naive_forecast(ds, series)
    change = median[-1] - median[0]
    direction = None
    # a difference by rounding is no direction
    if abs(change) > _ROUNDING * np.abs(median).max():
        direction = "falls" if change < 0 else "rises"
    is_single = len(median) == 1
    error = np.abs(median - truth).mean()
    naive = None
    comparison = "less than"
    if len(repeated):
        naive = np.abs(repeated - truth).mean()
        if error > naive:
            comparison = "more than"
    return summarize(
        one,
        "The median forecast of {series} {direction} by {change:unit} over {steps}"
        " steps, from {first:unit} to {last:unit}.",
        "The median forecast of {series} begins and ends at {same:unit}.",
        "The median forecast of {series} is {single:unit}.",
        "Its {band:percent} band is {first_width:unit} wide at the first step and "
        "{last_width:unit} at the last.",
        "Its {band:percent} band is {single_width:unit} wide.",
        "The band holds the observed value at {covered:count} steps (calibrated: about "
        "{band:percent}).",
        "The median misses by {error:unit} a step, {comparison} the {naive:unit} of the"
        " {label}.",
        "The median misses by {alone:unit} a step.",
        direction=direction,
        change=abs(change),
        first=median[0],
        last=median[-1],
        same=None if direction or is_single else median[0],
        single=median[0] if is_single else None,
        steps=len(median),
        band=share if is_band else None,
        first_width=high[0] - low[0],
        last_width=None if is_single else high[-1] - low[-1],
        single_width=high[0] - low[0] if is_single else None,
        covered=covered.where(truth.notnull()),
        error=error,
        comparison=comparison,
        label=label,
        naive=naive,
        alone=error if naive is None else None,
    )


def naive_forecast(ds: xr.Dataset, series: int) -> tuple[str, np.ndarray]:
    """Return the name and the values (step,) of the naive forecast of a page.

    It is the last season repeated.

    It is the last value where no season is known or the context is shorter; there is no
    forecast without a context.
    """
    if "context" in ds:
        context = array(ds, "context", "time", series=series)
    else:
        context = np.empty(0)
    season = 1
    if "season" in ds.coords:
        season = int(ds["season"].values[series])
    # a season of the context is to be whole, but may have gaps
    if not (season <= len(context) and np.isfinite(context[-season:]).any()):
        season = 1
    last_season = context[-season:]
    known = context[np.isfinite(context)]
    if not len(known):
        return "last value repeated", np.empty(0)
    if season == 1:
        return "last value repeated", np.full(ds.sizes["step"], known[-1])
    # a gap of the last season is filled by its mean
    filled = np.where(
        np.isfinite(last_season),
        last_season,
        last_season[np.isfinite(last_season)].mean(),
    )
    # np.resize repeats, where the method of an array would fill up with zeros
    return f"last season repeated ({season} steps)", np.resize(filled, ds.sizes["step"])


@figure("forecast", "A forecast over context and truth.")
def forecast_fan(
    ds: Any,
    *,
    series: str | int = 0,
    context_steps: int | None = None,
    samples: int = 0,
) -> go.Figure:
    """Draw a forecast's quantile bands and median, and what was observed.

    Args:
        ds: a run, a forecast, or a dataset of kind "forecast": ``quantile_forecast``
            (series, quantile, step), ``context`` (series, time), where known ``truth``
            (series, step) and ``sample`` (series, draw, step).
        series: id of the series, or its place counted from 0.
        context_steps: steps of the context that are drawn, a few horizons if None.
        samples: number of sample paths that are drawn.

    Returns:
        One panel in data units by step: the end of the context, the median with its
        quantile bands, and the truth where known.

    Example:
        >>> viz.forecast_fan(run, samples=2).layout.meta["title"]
        'Forecast of co2 by chronos-nano'
    """
    view = series_window(ds, series, context_steps)
    sheet = blank()
    panel = sheet.panel()
    values = array(ds, "quantile_forecast", "quantile", "step", series=view.index)
    paths = np.empty((0, len(view.future)))
    if samples and "sample" in ds:
        paths = array(ds, "sample", "draw", "step", series=view.index)[:samples]
    # paths first, so that the median lies over them
    for i, path in enumerate(paths):
        view.forecast(
            panel,
            path,
            "sampled paths",
            mixed(BLUE, 0.35),
            0.8,
            words=f"sampled path {i + 1}",
        )
    draw_bands(
        panel,
        view,
        ds["quantile"].values,
        values,
        bands=not len(paths),
        statistic="median",
    )
    view.draw(panel)
    view.title_axes(panel)
    remarks = [f"{len(view.future)}-step forecast", f"shown: {view.remark}"]
    return sheet.finalize(f"Forecast of {view.id} by {name_model(ds)}", *remarks)


@panels("forecast")
def _forecast(ds: xr.Dataset) -> Iterator[FigurePanel]:
    positions = forecast_series(ds)
    # on the first panel alone, as it is about the whole page
    if len(positions) > _MAX_SERIES:
        remarks = [f"The first {_MAX_SERIES} of {len(positions)} series are drawn."]
    else:
        remarks = []
    for i in positions[:_MAX_SERIES]:
        table = quantile_table(ds, i)
        if "truth" in ds:
            table["truth"] = array(ds, "truth", "step", series=i)
        sentences = [*remarks, *read_forecast(ds, i)]
        label = names(ds, "series")[i]
        yield FigurePanel(forecast_fan(ds, series=i), table, sentences, series=label)
        remarks = []


def as_html(thing: Any) -> str:
    """Return the fan of the first series of a run or forecast, as HTML.

    A line above it says what it is.
    """
    data = as_dataset(thing)
    attrs = data.attrs
    ids = [str(name) for name in data["series"].values]
    parts = [str(attrs.get("model", "")), shown(ids), f"{data.sizes['step']} steps"]
    if data.sizes.get("draw"):
        parts.append(f"{data.sizes['draw']} sample paths, seed {attrs.get('seed', 0)}")
    if "truth" not in data:
        parts.append("truth unknown")
    seconds = sum(
        float(value)
        for name, value in attrs.items()
        if str(name).startswith("seconds_")
    )
    if seconds:
        parts.append(f"{seconds:.1f} s")
    # plotly would have every cell fetch MathJax, which no figure here needs
    html = re.sub(
        r"<script src=\S+[Mm]ath[Jj]ax\S+</script>",
        "",
        forecast_fan(data)._repr_html_(),
    )
    return f"<p>{escape(' · '.join(part for part in parts if part))}</p>{html}"
