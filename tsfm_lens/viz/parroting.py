"""Context parroting, heads that copy, attention at a lag, and seasons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import FigurePanel, figure, frame, panels
from tsfm_lens.viz.findings import judged
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
from tsfm_lens.viz.theme import (
    BLUE,
    GREEN,
    GREY,
    INK,
    percent,
    plain,
)
from tsfm_lens.viz.words import head_at, listed, num, signed

__all__ = [
    "season_amplitudes",
]
_MAX_NAMES = 3  # heads in a sentence


def read_parroting(ds: xr.Dataset, series: int) -> list[str]:
    """Compare how near the forecast is to its copies and to the truth."""
    name = names(ds, "series")[series]
    best, copy, parrot = (
        float(ds[v].values[series]) for v in ("best_lag", "copy_error", "parrot_error")
    )
    errors = array(ds, "lag_error", "lag", series=series)
    if not np.isfinite(errors).any():
        return [
            f"The context of {name} is too short or constant, so there is nothing to copy."
        ]
    if not np.isfinite(best):
        return [
            f"The forecast of {name} copies its context at no lag: the context's values in random order come as near."
        ]
    least, lag = num(np.nanmin(errors)), int(ds["lag"].values[np.nanargmin(errors)])
    others = ", less than at any other lag"
    if least != num(copy):
        others = f" (the minimum is {least} at lag {lag}; without the trend, or within chance, this is the nearest)"
    out = [
        f"The forecast of {name} is {num(copy)} standard deviations of the context away from its context repeated at "
        f"lag {int(best)}{others}."
    ]
    if np.isfinite(parrot):
        back, motif = int(ds["parrot_match"].values[series]), ds.attrs.get("motif", "")
        out.append(
            f"The naive parrot, which repeats what followed the best match of the last {motif} steps ({back} steps "
            f"back), is {num(parrot)} away."
        )
    truth = (
        array(ds, "truth", "step", series=series)
        if "truth" in ds
        else np.full(ds.sizes["step"], np.nan)
    )
    finite, spread = (
        np.isfinite(truth),
        float(np.nanstd(array(ds, "context", "time", series=series))),
    )
    if finite.any() and spread > 0:
        gap = array(ds, "forecast", "step", series=series) - truth
        error = float(np.abs(gap[finite]).mean()) / spread
        nearest = min(copy, parrot) if np.isfinite(parrot) else copy
        out.append(
            f"The truth is {num(error)} away, so the forecast is nearer to "
            f"{'a copy of its context than to the truth' if nearest < error else 'the truth than to either copy'}."
        )
    return out


def read_lag(ds: xr.Dataset) -> list[str]:
    """Name the heads that read at the lag more than uniform attention would."""
    mass, chance = array(ds, "mass", "layer", "head"), float(ds["chance"])
    if chance > 0.9:
        return [
            f"Forecast tokens cover so many steps that {percent(chance)} of the context lies at this lag from one of "
            "them, so the share says nothing about the lag."
        ]
    above = [
        flat
        for flat in np.argsort(-mass.ravel(), kind="stable")
        if mass.flat[flat] > 2 * chance
    ]
    even = f"Uniform attention would put {percent(chance)} at lag {ds.attrs.get('lag', '?')}"
    if not above:
        return [f"{even}; no head puts more than twice that there."]
    top = [
        f"{head_at(ds, flat)} ({percent(float(mass.flat[flat]))})" for flat in above[:3]
    ]
    return [
        f"{even}; {len(above)} of {mass.size} heads put more than twice that there, most of all {listed(top)}."
    ]


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


def read_heads(ds: xr.Dataset) -> list[str]:
    """Count the heads that look at the copied lag, and those that the copy needs."""
    mass, change = (
        judged(ds, name, "layer", "head") for name in ("mass", "copy_error_change")
    )
    labels = [head_at(ds, flat) for flat in range(mass.size.size)]
    out = []
    for effect, words, write in (
        (mass, "Most attention to the copied lag", percent),
        (
            change,
            "Heads whose ablation moves the forecast furthest from the copy, in standard deviations",
            num,
        ),
    ):
        most = [
            f"{labels[flat]} ({effect.told(flat, write)})"
            for flat in effect.named(_MAX_NAMES, effect.size > 0)
        ]
        out.append(f"{words}: {listed(most) if most else 'none of 0.01 or more'}.")
    out += change.standing(labels, "heads", change.size > 0)
    if "vacuous" in ds and ds["vacuous"].values.any():
        out.append(
            "For some series forecast tokens cover so many steps that the share says nothing."
        )
    return out


_PARTS: dict[str, dict[str, Any]] = {
    "context": {"colour": GREY, "width": 1.2},
    "truth": {"colour": INK, "width": 1.4, "dash": "2px,2px"},
    "forecast": {"colour": BLUE, "width": 2},
}


def read_seasons(ds: xr.Dataset) -> list[str]:
    """Describe which series keep their season, which lose it, and what the patch length adds."""
    ids = names(ds, "series")
    ratio, spread = (
        array(ds, v, "series") for v in ("amplitude_ratio", "spread_ratio")
    )
    rows = np.flatnonzero(np.isfinite(ratio))
    out = []
    if not len(rows):
        out.append(
            "Every horizon is shorter than its context's strongest period, so no season can be compared."
        )
    else:
        parts = [
            f"{ids[i]} {percent(float(ratio[i]))} (period {num(float(ds['period'].values[i]))})"
            for i in rows[:6]
        ]
        out.append(
            f"Amplitude of the forecast as a share of the context's, at its strongest period: {listed(parts)}."
        )
        truth = (
            array(ds, "truth_amplitude", "series")[rows]
            if "truth_amplitude" in ds
            else np.array([np.nan])
        )
        if np.isfinite(truth).any():
            weaker, both = (
                (array(ds, "forecast_amplitude", "series")[rows] < truth).sum(),
                np.isfinite(truth).sum(),
            )
            out.append(f"It is weaker than the truth's in {weaker} of {both} series.")
    flat = [ids[i] for i in np.flatnonzero(spread < 0.25)]
    if flat:
        out.append(
            f"The forecast varies less than a quarter as much as the context for {listed(flat[:6])}."
        )
    if "patch_pull" in ds and np.isfinite(ds["patch_pull"].values).any():
        pull = array(ds, "patch_pull", "series")
        at = int(np.nanargmax(np.abs(pull)))
        out.append(
            f"At the patch length of {ds.attrs.get('patch', '?')} steps it differs most from the context in {ids[at]}, "
            f"by {signed(pull[at])} standard deviations."
        )
    return out


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
    sentences=read_heads,
)
generic_figure(
    "head_parroting",
    "mass",
    "Attention of each head to the copied lag.",
)
