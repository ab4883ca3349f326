"""Context parroting, heads that copy, attention at a lag, and seasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import FigurePanel, figure, frame, panels
from tsfm_lens.viz.generic import draw_variable, generic_figure
from tsfm_lens.viz.grid import log_axis, panel_grid, title_axes
from tsfm_lens.viz.select import (
    MAX_DRAWN,
    array,
    forecast_series,
    model_of,
    names,
    series_position,
    shown,
)
from tsfm_lens.viz.summary import summarize, summary
from tsfm_lens.viz.theme import (
    BLUE,
    GREEN,
    GREY,
    INK,
    percent,
    plain,
)

__all__ = [
    "season_amplitudes",
]


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


@panels("context_parroting")
def _parroting(ds: xr.Dataset) -> Iterator[FigurePanel]:
    for i in forecast_series(ds, MAX_DRAWN):
        one = ds.isel(series=[i])
        steps = frame(
            one, *(name for name in ("forecast", "parrot", "truth") if name in ds)
        )
        table = pd.concat([steps, frame(one, "lag_error")], ignore_index=True)
        words, of = read_parroting(ds, i), names(ds, "series")[i]
        errors = draw_variable(ds, "lag_error", series=i)
        yield FigurePanel(errors, table, words, series=of)


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


generic_figure(
    "context_parroting",
    "lag_error",
    "Distance of the forecast from its context repeated at every lag.",
)
generic_figure(
    "lag_attention",
    "mass",
    "Attention one season before each step.",
    table=("mass",),
    sentences=read_lag,
)
generic_figure(
    "head_parroting",
    "copy_error_change",
    "Change of the distance from the copied context without each head.",
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
generic_figure(
    "head_parroting",
    "mass",
    "Attention of each head to the copied lag.",
)
