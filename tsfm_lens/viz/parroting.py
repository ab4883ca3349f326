"""Context parroting, heads that copy, attention at a lag, and seasons.

To copy at a lag is to repeat the last so many steps of the context; to parrot is to
repeat what followed the best earlier match of its latest steps.
:func:`generic_figure` makes the figures; :func:`read_parroting`, :func:`read_lag` and
:func:`read_seasons` describe them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.core.registry import FigurePanel, frame, panels
from tsfm_lens.viz.generic import draw_variable, generic_figure
from tsfm_lens.viz.select import (
    MAX_DRAWN,
    forecast_series,
    names,
)
from tsfm_lens.viz.summary import summarize, summary
from tsfm_lens.viz.theme import (
    percent,
)


def read_parroting(ds: xr.Dataset, series: int) -> list[str]:
    """Compare how near the forecast is to its copies and to the truth."""
    one = ds.isel(series=series)
    name = names(ds, "series")[series]
    if not np.isfinite(one["lag_error"]).any():
        return [
            f"The context of {name} is too short or constant, so there is nothing to"
            " copy."
        ]
    # the probe gives no best lag where shuffled values of the context come as near
    if not np.isfinite(one["best_lag"]):
        return [
            f"The forecast of {name} copies its context at no lag: the context's values"
            " in random order come as near."
        ]
    truth = one["truth"] if "truth" in ds else np.nan
    spread = one["context"].std()
    # in standard deviations of the context, as both errors of copies are
    error = np.abs(one["forecast"] - truth).mean() / spread.where(spread > 0)
    # where there was no match to parrot, its error is NaN, and fmin ignores it
    nearest = np.fmin(one["copy_error"], one["parrot_error"])
    if nearest < error:
        comparison = "a copy of its context than to the truth"
    else:
        comparison = "the truth than to either copy"
    return summarize(
        ds.isel(series=[series]),
        "The forecast of {series} is {copy} standard deviations of the context away"
        " from its context repeated at lag {best_lag:whole}; the nearest of all lags is"
        " {lag_error:lowest}.",
        "The naive parrot, which repeats what followed the best match of the last"
        " {motif} steps ({parrot_match:whole} steps back), is {parrot} away.",
        "The truth is {error} away, so the forecast is nearer to {nearer}.",
        copy=one["copy_error"],
        lag_error=one["lag_error"],
        best_lag=one["best_lag"],
        parrot_match=one["parrot_match"],
        parrot=one["parrot_error"],
        error=error,
        nearer=comparison,
    )


# most series whose amplitudes and periods one sentence lists
_MOST_SERIES = 6


def read_lag(ds: xr.Dataset) -> list[str]:
    """Name the heads that read at the lag more than uniform attention would."""
    chance = float(ds["chance"])
    # where uniform attention alone has nearly all its mass at the lag, a head's mass
    # there cannot tell whether the head prefers the lag
    if chance > 0.9:
        return [
            f"Forecast tokens cover so many steps that {percent(chance)} of the context"
            " lies at this lag from one of them, so the share says nothing about the"
            " lag."
        ]
    above = ds["mass"] > 2 * chance
    return summarize(
        ds,
        "Uniform attention would put {chance:percent} at lag {lag}. Heads that put more"
        " than twice that there: {above:count}.",
        "Most of all: {mass:largest percent}.",
        above=above,
        mass=ds["mass"].where(above),
    )


@panels("context_parroting")
def _parroting(ds: xr.Dataset) -> Iterator[FigurePanel]:
    for i in forecast_series(ds, MAX_DRAWN):
        one = ds.isel(series=[i])
        forecasts = [name for name in ("forecast", "parrot", "truth") if name in ds]
        # rows by step, then rows by lag
        table = pd.concat(
            [frame(one, *forecasts), frame(one, "lag_error")], ignore_index=True
        )
        text = read_parroting(ds, i)
        label = names(ds, "series")[i]
        errors = draw_variable(ds, "lag_error", series=i)
        yield FigurePanel(errors, table, text, series=label)


def read_seasons(ds: xr.Dataset) -> list[str]:
    """Return sentences on which series keep their season, and which lose it.

    A sentence says what the patch length adds.
    """
    ratio = ds["amplitude_ratio"]
    if not np.isfinite(ratio).any():
        lead = (
            "Every horizon is shorter than its context's strongest period, so no season"
            " can be compared."
        )
    else:
        lead = (
            "Amplitude of the forecast as a share of the context's, at its strongest"
            " period: {ratio:each percent}; periods: {periods:each}."
        )
    # masked, since a comparison with NaN is False: a series without a truth would count
    # as one whose forecast is not weaker
    known = ds.get("truth_amplitude", ratio * np.nan).where(np.isfinite(ratio))
    weaker = (ds["forecast_amplitude"] < known).where(np.isfinite(known))
    return summarize(
        ds,
        lead,
        "It is weaker than the truth's in {weaker:count} series.",
        "Series whose forecast varies less than a quarter as much as the context: "
        "{steady:which}.",
        "At the patch length of {patch} steps the forecast differs from the context, in"
        " standard deviations, most in {pull:largest signed}.",
        ratio=ratio[:_MOST_SERIES],
        periods=ds["period"].where(np.isfinite(ratio))[:_MOST_SERIES],
        weaker=weaker,
        steady=ds["spread_ratio"] < 0.25,
        pull=ds.get("patch_pull"),
    )


def _amplitudes(ds: xr.Dataset) -> xr.Dataset:
    """Say what amplitudes and periods are measured in."""
    # the generic drawing takes titles of axes from the attributes
    period = ds["trial_period"].assign_attrs(long_name="period", units="steps")
    ds = ds.assign_coords(trial_period=period)
    metadata = {"units": "standard deviations of the context"}
    return ds.assign(amplitude=ds["amplitude"].assign_attrs(metadata))


draw_amplitudes = generic_figure(
    "seasonality_bias",
    "amplitude",
    "Amplitude of each period in the context, the forecast and the truth.",
    prepare=_amplitudes,
    options={"series": 0},
    table=("amplitude",),
    sentences=read_seasons,
)


@panels("seasonality_bias")
def _seasons(ds: xr.Dataset) -> Iterator[FigurePanel]:
    for i in forecast_series(ds, MAX_DRAWN):
        one = ds.isel(series=[i])
        table = frame(one, "amplitude")
        text = read_seasons(one)
        drawn = draw_amplitudes(ds, series=i)
        yield FigurePanel(drawn, table, text, series=names(ds, "series")[i])


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
        "Forecast tokens of {vacuous:count} series cover so many steps that the share"
        " says nothing.",
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
