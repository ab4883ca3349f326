"""Forecasts over context and truth."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.catalogue.computing import Compute
from tsfm_lens.catalogue.entry import Figure, Measurement, Plate
from tsfm_lens.catalogue.tables import add_quantiles, steps_table
from tsfm_lens.catalogue.words import measured
from tsfm_lens.viz import forecast_fan
from tsfm_lens.viz.select import array, forecast_series, median_position, names, unit_of

_MAX_SERIES = 24  # series with a figure of their own


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
    low, high = int(np.argmin(levels)), int(np.argmax(levels))
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
        error = float(np.abs(median - truth)[finite].mean())
        out.append(
            f"The truth lies within the band in {int(inside[finite].sum())} of {int(finite.sum())} steps "
            f"(a calibrated band would hold about {100 * share:.3g} % of many such steps), and the median misses "
            f"it by {amount(error)} on average"
        )
        context = array(ds, "context", "time", series=series) if "context" in ds else np.array([])
        history = context[np.isfinite(context)]
        if len(history):
            naive = float(np.abs(history[-1] - truth)[finite].mean())
            out[-1] += f"; repeating the last observed value would have missed it by {amount(naive)}"
        out[-1] += "."
    return out


def forecast_table(ds: xr.Dataset, series: int) -> pd.DataFrame:
    """Tabulate date, quantiles and truth, a row per step."""
    table = steps_table(ds, series)
    add_quantiles(table, ds, array(ds, "quantile_forecast", "quantile", "step", series=series))
    if "truth" in ds:
        table["truth"] = array(ds, "truth", "step", series=series)
    return table


def _forecast(ds: xr.Dataset) -> Iterator[Plate]:
    for i in forecast_series(ds, _MAX_SERIES):
        yield Plate(forecast_fan(ds, series=i), forecast_table(ds, i), read_forecast(ds, i))


MEASUREMENTS = (
    Measurement(
        kind="forecast",
        theme="Activations",
        about="the forecast, over context and truth",
        heading="Forecast",
        guide="What the model expects, as a distribution: half of it lies above the median, and a band holds the "
        "stated share of it.",
        compute=Compute(
            "", "the forecast of all series", lambda work, more: work.run.forecast.to_dataset(work.run.truth)
        ),
        plates=_forecast,
        figures=(Figure("forecast_fan", "A forecast over context and truth."),),
    ),
)
