"""Context parroting, and attention at the lag of the season."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import ReportPanel, measurement
from tsfm_lens.viz.attention import attention_kind, single_series
from tsfm_lens.viz.maps import HeadMap, head_maps
from tsfm_lens.viz.panels import fit, scene
from tsfm_lens.viz.select import array, forecast_series, model_of, names
from tsfm_lens.viz.sheet import Panel, sheet
from tsfm_lens.viz.tables import frame
from tsfm_lens.viz.theme import BLUE, GREY, ORANGE, VERMILION, number, percent
from tsfm_lens.viz.words import head_at, listed, num

__all__ = ["lag_attention_map", "parroting_forecast"]
_DASHES = "5px,2px"
_MAX_SERIES = 6  # series with a figure of their own

PARROTING = measurement(
    "parroting",
    theme="Behaviour",
    title="Context parroting",
    summary="how much of a forecast is a shifted copy",
    description="Whether the forecast repeats its context: it is compared with the context shifted by every lag, "
    "and with a naive parrot, which repeats what followed the most similar earlier stretch.",
    source="tsfm-lens, sections 4 and 5",
)


LAG_ATTENTION = measurement(
    "lag_attention",
    theme="Behaviour",
    title="Attention at a lag",
    summary="attention at a lag",
    description="How much of its attention each head gives to the tokens a whole number of lags before the step "
    "that is forecast. A head that copies a season reads there.",
)


def read_parroting(ds: xr.Dataset, series: int) -> list[str]:
    """Compare how near the forecast is to its copies and to the truth."""
    name = names(ds, "series")[series]
    best, copy, parrot = (float(ds[v].values[series]) for v in ("best_lag", "copy_error", "parrot_error"))
    if not np.isfinite(best):
        return [f"The context of {name} is too short or constant, so there is nothing to copy."]
    errors = array(ds, "lag_error", "lag", series=series)
    least, lag = num(np.nanmin(errors)), int(ds["lag"].values[np.nanargmin(errors)])
    others = ", less than from any other lag's"
    if least != num(copy):
        others = (
            f" (the least of all lags is {least}, at lag {lag}; taken is the shortest that chance does not rule out)"
        )
    out = [
        f"From its context repeated at lag {int(best)} the forecast of {name} is {num(copy)} standard deviations of "
        f"the context away on average{others}."
    ]
    if np.isfinite(parrot):
        back, motif = int(ds["parrot_match"].values[series]), ds.attrs.get("motif", "")
        out.append(
            f"What followed the best earlier match of the last {motif} steps, {back} steps back, is {num(parrot)} away."
        )
    truth = array(ds, "truth", "step", series=series) if "truth" in ds else np.full(ds.sizes["step"], np.nan)
    finite, spread = np.isfinite(truth), float(np.nanstd(array(ds, "context", "time", series=series)))
    if finite.any() and spread > 0:
        gap = array(ds, "forecast", "step", series=series) - truth
        error = float(np.abs(gap[finite]).mean()) / spread
        nearest = min(copy, parrot) if np.isfinite(parrot) else copy
        out.append(
            f"From the truth it is {num(error)} away: it is nearer to "
            f"{'a copy of its context than to the truth' if nearest < error else 'the truth than to either copy'}."
        )
    return out


def read_lag(ds: xr.Dataset) -> list[str]:
    """Name the heads that read at the lag more than an even spread would."""
    mass, chance = array(ds, "mass", "layer", "head"), float(ds["chance"])
    if chance > 0.9:
        return [
            f"The tokens of the forecast cover so many steps that {percent(chance)} of the context lies at this lag "
            "from one of them: the share tells nothing about the lag."
        ]
    above = [flat for flat in np.argsort(-mass.ravel(), kind="stable") if mass.flat[flat] > 2 * chance]
    even = f"Spread evenly, {percent(chance)} of the attention would be at lag {ds.attrs.get('lag', '?')}"
    if not above:
        return [f"{even}; no head pays more than twice that."]
    top = [f"{head_at(ds, flat)} ({percent(float(mass.flat[flat]))})" for flat in above[:3]]
    return [f"{even}; {len(above)} of {mass.size} heads pay more than twice that, most of all {listed(top)}."]


@PARROTING.figure(
    "The forecast beside the best shifted copy of its context.",
    variables=("forecast", "parrot", "lag_error", "best_lag", "copy_error"),
)
def parroting_forecast(ds: xr.Dataset, *, series: str | int = 0, context_steps: int | None = None) -> go.Figure:
    """Draw a forecast, the context repeated at its best lag and the naive parrot; below, the error of every lag.

    Args:
        ds: of kind "parroting".
        series: id, or place counted from 0.
        context_steps: of the context; as much as is copied, one horizon and at least 60 if None.

    Returns:
        Above: context, truth, forecast, and the two copies. Below: the mean absolute difference of the forecast from
        the context repeated at each lag, in standard deviations of the context, with the best lag and the parrot's.
    """
    at, horizon = scene(ds, series, None).place, ds.sizes["step"]
    best, parrot = float(ds["best_lag"].values[at]), float(ds["parrot_error"].values[at])
    has_lag = bool(np.isfinite(best))
    reach = max(horizon, 60, int(best) if has_lag else 0)
    view = scene(ds, series, reach if context_steps is None else context_steps)
    canvas = sheet([250, 130], titles=["", "context repeated at every lag"], row_gap=78, above=10, min_width=420)
    canvas.fig.update_annotations(x=0, xanchor="left")
    above, below = canvas
    view.draw(above)
    forecast, copy = (array(ds, name, "step", series=at) for name in ("forecast", "parrot"))
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
        f"How far {model_of(ds)} copies its context: {view.id}",
        f"off its copy at lag {int(best)} by {number(float(ds['copy_error'].values[at]))}"
        if has_lag
        else "no lag can be copied",
        f"off the naive parrot by {number(parrot)} standard deviations of the context" if np.isfinite(parrot) else "",
        "below: solid of every lag, dot the best one, dashed the naive parrot" if has_lag else "",
        view.remark,
    )


@LAG_ATTENTION.figure(
    "Attention one season before each step.", variables=("mass", "chance"), table=("mass",), sentences=read_lag
)
def lag_attention_map(ds: xr.Dataset) -> go.Figure:
    """Draw the layer × head map of the attention on tokens whole lags before the step that is forecast.

    Args:
        ds: of kind "lag_attention".

    Returns:
        One heat map in percent with the numbers in the cells; what an even spread would pay is in the subtitle.
    """
    mass = 100 * array(ds, "mass", "layer", "head")
    top = max(float(np.nanmax(mass)), 1e-9)
    lag, width = ds.attrs.get("lag", "?"), int(ds.attrs.get("width", 0))
    return head_maps(
        ds,
        [HeadMap(mass, "", "attention", "%", low=0.0, high=top, write="{:.1f}".format)],
        f"Attention of {model_of(ds)} at lag {lag} of {single_series(ds)}",
        attention_kind(ds),
        f"share on tokens {lag} steps and multiples back" + (f", give or take {width}" if width else ""),
        f"{percent(float(ds['chance']))} if it were spread evenly",
        "every token lies there, so that this says nothing" if bool(ds.get("vacuous", False)) else "",
    )


def _draw_errors(panel: Panel, ds: xr.Dataset, series: int, best: float, parrot: float) -> None:
    """Draw the lower panel: the error of every lag, the best one and the parrot's level."""
    lags, error = np.asarray(ds["lag"].values, dtype=int), array(ds, "lag_error", "lag", series=series)
    off = "<br>off by %{y:.3g} standard deviations"
    panel.line(lags, error, "", f"lag %{{x}}{off}", colour=GREY, width=1.2)
    if np.isfinite(best):
        lowest = [float(ds["copy_error"].values[series])]
        panel.dots([best], lowest, "", f"best lag %{{x}}{off}", colour=VERMILION, size=9)
    if np.isfinite(parrot):
        panel.level(parrot, colour=ORANGE, width=1.4, dash=_DASHES)
    finite = np.flatnonzero(np.isfinite(error))
    last = int(lags[finite[-1]]) if len(finite) else 1
    top = np.nanmax([np.nanmax(error) if len(finite) else 1.0, parrot])
    panel.x("lag (steps)", range=[0, last + 1], nticks=10)
    panel.y("mean error\n(sd of context)", range=[0, 1.06 * top], nticks=4)


@PARROTING.panels
def _parroting(ds: xr.Dataset) -> Iterator[ReportPanel]:
    for i in forecast_series(ds, _MAX_SERIES):
        one = ds.isel(series=[i])
        steps = frame(one, *(name for name in ("forecast", "parrot", "truth") if name in ds))
        table = pd.concat([steps, frame(one, "lag_error")], ignore_index=True)
        yield ReportPanel(parroting_forecast(ds, series=i), table, read_parroting(ds, i))
