"""Context parroting, heads that copy, attention at a lag, and seasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import FigurePanel, figure, frame, panels
from tsfm_lens.viz.attention import attention_kind, single_series
from tsfm_lens.viz.findings import finding, middle_of
from tsfm_lens.viz.grid import log_axis, panel_grid, title_axes
from tsfm_lens.viz.maps import HeadMap, head_maps
from tsfm_lens.viz.panels import fit, scene
from tsfm_lens.viz.select import (
    MAX_DRAWN,
    array,
    forecast_series,
    model_of,
    names,
    series_position,
    series_rows,
    shown,
)
from tsfm_lens.viz.sheet import Panel, sheet
from tsfm_lens.viz.summary import summarize, summary
from tsfm_lens.viz.theme import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    VERMILION,
    number,
    percent,
    plain,
)
from tsfm_lens.viz.words import over_series

__all__ = [
    "head_parroting_map",
    "lag_attention_map",
    "parroting_forecast",
    "season_amplitudes",
]

_DASHES = "5px,2px"


def read_parroting(ds: xr.Dataset, series: int) -> list[str]:
    """Compare how near the forecast is to its copies and to the truth."""
    one = ds.isel(series=series)
    name = names(ds, "series")[series]
    if not np.isfinite(one["lag_error"]).any():
        return [
            f"The context of {name} is too short or constant, so there is nothing to copy."
        ]
    if not np.isfinite(one["best_lag"]):
        return [
            f"The forecast of {name} copies its context at no lag: the context's values in "
            "random order come as near."
        ]
    truth = one["truth"] if "truth" in ds else np.nan
    spread = one["context"].std()
    error = np.abs(one["forecast"] - truth).mean() / spread.where(spread > 0)
    nearest = np.fmin(one["copy_error"], one["parrot_error"])
    copies = "a copy of its context than to the truth"
    return summarize(
        ds.isel(series=[series]),
        "The forecast of {series} is {copy} standard deviations of the context away from "
        "its context repeated at lag {best_lag:whole}; the nearest of all lags is "
        "{lag_error:lowest}.",
        "The naive parrot, which repeats what followed the best match of the last {motif} "
        "steps ({parrot_match:whole} steps back), is {parrot} away.",
        "The truth is {error} away, so the forecast is nearer to {nearer}.",
        copy=one["copy_error"],
        lag_error=one["lag_error"],
        best_lag=one["best_lag"],
        parrot_match=one["parrot_match"],
        parrot=one["parrot_error"],
        error=error,
        nearer=copies if nearest < error else "the truth than to either copy",
    )


_MOST_SERIES = 6  # in a sentence


def read_lag(ds: xr.Dataset) -> list[str]:
    """Name the heads that read at the lag more than uniform attention would."""
    chance = float(ds["chance"])
    if chance > 0.9:
        return [
            f"Forecast tokens cover so many steps that {percent(chance)} of the context "
            "lies at this lag from one of them, so the share says nothing about the lag."
        ]
    above = ds["mass"] > 2 * chance
    return summarize(
        ds,
        "Uniform attention would put {chance:percent} at lag {lag}. Heads that put more "
        "than twice that there: {above:count}.",
        "Most of all: {mass:largest percent}.",
        above=above,
        mass=ds["mass"].where(above),
    )


@figure(
    "context_parroting", "The forecast beside the best shifted copy of its context."
)
def parroting_forecast(
    ds: xr.Dataset, *, series: str | int = 0, context_steps: int | None = None
) -> go.Figure:
    """Draw a forecast, the context repeated at its best lag and the naive parrot; below, the error of every lag."""
    at, horizon = scene(ds, series, None).place, ds.sizes["step"]
    best, parrot = (
        float(ds["best_lag"].values[at]),
        float(ds["parrot_error"].values[at]),
    )
    has_lag = bool(np.isfinite(best))
    reach = max(horizon, 60, int(best) if has_lag else 0)
    view = scene(ds, series, reach if context_steps is None else context_steps)
    canvas = sheet(
        [250, 130],
        titles=["", "context repeated at every lag"],
        row_gap=78,
        above=10,
        min_width=420,
    )
    canvas.fig.update_annotations(x=0, xanchor="left")
    above, below = canvas
    view.draw(above)
    forecast, copy = (
        array(ds, name, "step", series=at) for name in ("forecast", "parrot")
    )
    view.forecast(above, forecast, "forecast", BLUE, 2, words="forecast")
    copies = []
    if has_lag:
        context = array(ds, "context", "time", series=at)
        repeated = context[len(context) - int(best) + np.arange(horizon) % int(best)]
        copies = [(f"context {int(best)} back", repeated, VERMILION)]
    for name, values, colour in [*copies, ("naive parrot", copy, ORANGE)]:
        if np.isfinite(values).any():
            view.forecast(above, values, name, colour, 1.4, _DASHES, words=name)
    fit(canvas, np.append(view.observations, forecast), copy, row=1)
    view.title_axes(above)
    above.y(nticks=6)
    _draw_errors(below, ds, at, best, parrot)
    return canvas.dress(
        f"Context parroting by {model_of(ds)}: {view.id}",
        f"distance from its copy at lag {int(best)}: {number(float(ds['copy_error'].values[at]))}"
        if has_lag
        else "copies its context at no lag",
        f"from the naive parrot: {number(parrot)} standard deviations of the context"
        if np.isfinite(parrot)
        else "",
        "below: distance at every lag (line), at the best (dot), of the naive parrot (dashed)"
        if has_lag
        else "",
        view.remark,
    )


@figure(
    "lag_attention",
    "Attention one season before each step.",
    table=("mass",),
    sentences=read_lag,
)
def lag_attention_map(ds: xr.Dataset) -> go.Figure:
    """Draw the layer × head map of the attention on tokens whole lags before the step that is forecast."""
    mass = 100 * array(ds, "mass", "layer", "head")
    top = max(float(np.nanmax(mass)), 1e-9)
    lag, width = ds.attrs.get("lag", "?"), int(ds.attrs.get("width", 0))
    return head_maps(
        ds,
        [HeadMap(mass, "", "attention", "%", low=0.0, high=top, write="{:.1f}".format)],
        f"Attention of {model_of(ds)} at lag {lag} of {single_series(ds)}",
        attention_kind(ds),
        f"share on tokens {lag} steps and multiples back"
        + (f" (± {width})" if width else ""),
        f"uniform attention: {percent(float(ds['chance']))}",
        "every token lies there, so this says nothing"
        if bool(ds.get("vacuous", False))
        else "",
    )


def _draw_errors(
    panel: Panel, ds: xr.Dataset, series: int, best: float, parrot: float
) -> None:
    """Draw the lower panel: the error of every lag, the best one and the parrot's level."""
    lags, error = (
        np.asarray(ds["lag"].values, dtype=int),
        array(ds, "lag_error", "lag", series=series),
    )
    off = "<br>distance %{y:.3g} standard deviations"
    panel.line(lags, error, "", f"lag %{{x}}{off}", colour=GREY, width=1.2)
    if np.isfinite(best):
        lowest = [float(ds["copy_error"].values[series])]
        panel.dots(
            [best], lowest, "", f"best lag %{{x}}{off}", colour=VERMILION, size=9
        )
    if np.isfinite(parrot):
        panel.level(parrot, colour=ORANGE, width=1.4, dash=_DASHES)
    finite = np.flatnonzero(np.isfinite(error))
    last = int(lags[finite[-1]]) if len(finite) else 1
    top = np.nanmax([np.nanmax(error) if len(finite) else 1.0, parrot])
    panel.x("lag (steps)", range=[0, last + 1], nticks=10)
    panel.y("mean error\n(sd of context)", range=[0, 1.06 * top], nticks=4)


@panels("context_parroting")
def _parroting(ds: xr.Dataset) -> Iterator[FigurePanel]:
    for i in forecast_series(ds, MAX_DRAWN):
        one = ds.isel(series=[i])
        steps = frame(
            one, *(name for name in ("forecast", "parrot", "truth") if name in ds)
        )
        table = pd.concat([steps, frame(one, "lag_error")], ignore_index=True)
        words, of = read_parroting(ds, i), names(ds, "series")[i]
        yield FigurePanel(parroting_forecast(ds, series=i), table, words, series=of)


_CHANGES = {
    "copy_error_change": ("from the copied lag", "change of distance"),
    "parrot_error_change": ("from the naive parrot", "change of distance"),
    "truth_error_change": ("from the truth", "change of error"),
}


@figure(
    "head_parroting",
    ("Attention to the copied lag, and change of the copy without each head."),
    table=("mass", "copy_error_change", "parrot_error_change"),
    sentences=summary(
        "Most attention to the copied lag{mass:basis}: {mass:largest percent}.",
        "Heads whose ablation moves the forecast furthest from the copy, in standard "
        "deviations: {copy_error_change:largest}.",
        "Forecast tokens of {vacuous:count} series cover so many steps that the share says "
        "nothing.",
        effect="copy_error_change",
        noun="heads",
        side=1,
    ),
)
def head_parroting_map(ds: xr.Dataset, *, series: str | int | None = None) -> go.Figure:
    """Draw where each head looks, and how the forecast without it departs from copying."""
    at = series_rows(ds, series)
    # what is significant is so over all series
    noise = {
        name: finding(ds, name, "layer", "head") if series is None else None
        for name in ("mass", *_CHANGES)
    }
    values = {
        name: middle_of(each, array(ds, name, "layer", "head", "series")[..., at])
        for name, each in noise.items()
        if name in ds
    }
    maps = [
        HeadMap(
            values["mass"],
            "attention at the lag",
            "share of attention",
            low=0.0,
            noise=noise["mass"],
        )
    ]
    for name, (title, word) in _CHANGES.items():
        # nothing is known of a parrot where no context is long enough for one
        if name in values and np.isfinite(values[name]).any():
            maps.append(
                HeadMap(
                    values[name], title, word, "std", diverging=True, noise=noise[name]
                )
            )
    lags = ds["lag"].values[at]
    distinct = list(dict.fromkeys(lags[np.isfinite(lags)]))
    chance = ds["chance"].values[at]
    words = ", ".join(f"{lag:.0f}" for lag in distinct[:6]) + (
        " …" if len(distinct) > 6 else ""
    )
    even = number(float(np.nanmean(chance))) if np.isfinite(chance).any() else "unknown"
    blind = int(ds["vacuous"].values[at].sum()) if "vacuous" in ds else 0
    even += (
        f" (every token lies at the lag in {blind} of {len(at)} series, which says nothing)"
        if blind
        else ""
    )
    return head_maps(
        ds,
        maps,
        f"Parroting by the heads of {model_of(ds)}",
        over_series(ds, at),
        f"lag {words or 'unknown'}; uniform attention: {even}; ablated one by one, brown: further away without it",
    )


_PARTS: dict[str, dict[str, Any]] = {
    "context": {"colour": GREY, "width": 1.2},
    "truth": {"colour": INK, "width": 1.4, "dash": "2px,2px"},
    "forecast": {"colour": BLUE, "width": 2},
}


def read_seasons(ds: xr.Dataset) -> list[str]:
    """Describe which series keep their season, which lose it, and what the patch length adds."""
    ratio = ds["amplitude_ratio"]
    if not np.isfinite(ratio).any():
        lead = (
            "Every horizon is shorter than its context's strongest period, so no season can "
            "be compared."
        )
    else:
        lead = (
            "Amplitude of the forecast as a share of the context's, at its strongest period: "
            "{ratio:each percent}; periods: {periods:each}."
        )
    known = ds.get("truth_amplitude", ratio * np.nan).where(np.isfinite(ratio))
    weaker = (ds["forecast_amplitude"] < known).where(np.isfinite(known))
    return summarize(
        ds,
        lead,
        "It is weaker than the truth's in {weaker:count} series.",
        "Series whose forecast varies less than a quarter as much as the context: "
        "{steady:which}.",
        "At the patch length of {patch} steps the forecast differs from the context, in "
        "standard deviations, most in {pull:largest signed}.",
        ratio=ratio[:_MOST_SERIES],
        periods=ds["period"].where(np.isfinite(ratio))[:_MOST_SERIES],
        weaker=weaker,
        steady=ds["spread_ratio"] < 0.25,
        pull=ds.get("patch_pull"),
    )


@figure(
    "seasonality_bias",
    ("Seasonal amplitude of the forecast against that of context and truth."),
    table=("amplitude",),
    sentences=read_seasons,
)
def season_amplitudes(
    ds: xr.Dataset, *, series: Sequence[str | int] | None = None
) -> go.Figure:
    """Draw how strong each period is in the end of the context, the forecast and the truth, a panel per series."""
    rows = [
        series_position(ds, one)
        for one in (range(min(ds.sizes["series"], 9)) if series is None else series)
    ]
    trial, parts = np.asarray(ds["trial_period"].values, dtype=float), names(ds, "part")
    amplitude = array(ds, "amplitude", "part", "series", "trial_period")
    period, ratio = (
        array(ds, name, "series") for name in ("period", "amplitude_ratio")
    )
    patch, ids = int(ds.attrs.get("patch", 0)), names(ds, "series")
    ratios = ["–" if np.isnan(value) else f"{value:.2f}" for value in ratio]
    grid = panel_grid(
        [(ids[i], f"period {period[i]:.3g}: {ratios[i]} × context") for i in rows],
        row_height=160,
    )
    for panel, i in zip(grid, rows, strict=True):
        for part in filter(parts.__contains__, _PARTS):
            hover = f"{plain(ids[i])}, {part}<br>period %{{x:.3g}} steps<br>amplitude %{{y:.3g}} standard deviations"
            name = "end of the context" if part == "context" else part
            panel.line(
                trial, amplitude[parts.index(part), i], name, hover, **_PARTS[part]
            )
        for where, colour, dash in (
            (period[i], GREEN, "dash"),
            (float(patch), GREY, "dot"),
        ):
            if trial[0] <= where <= trial[-1]:
                panel.upright(where, colour=colour, width=1.2, dash=dash)
    grid.y(rangemode="tozero", nticks=5)
    title_axes(grid, "period (steps)", "amplitude (sd of the context)")
    grid.x(**log_axis(trial))
    return grid.dress(
        f"Seasons in the forecasts of {model_of(ds)}",
        f"amplitude of the best sine of each period over {ds.sizes['step']} steps",
        "dashed: the context's strongest period",
        f"dotted: the patch length, {patch} steps" if patch > 1 else "",
        shown([ids[i] for i in rows]),
    )
