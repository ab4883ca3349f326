"""Chapters on what a forecast takes over from its context."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import xarray as xr

from tsfm_lens.report import readings_copying as read
from tsfm_lens.report.chapter import Chapter, Plate
from tsfm_lens.report.tables import frame
from tsfm_lens.viz import lag_attention_map, parroting_forecast, season_amplitudes

_COPIED = 6  # series with a figure of their own


def _parroting(ds: xr.Dataset) -> Iterator[Plate]:
    for i in range(min(ds.sizes["series"], _COPIED)):
        one = ds.isel(series=[i])
        steps = frame(one, *(name for name in ("forecast", "parrot", "truth") if name in ds))
        table = pd.concat([steps, frame(one, "lag_error")], ignore_index=True)
        yield Plate(parroting_forecast(ds, series=i), table, read.read_parroting(ds, i))


def _lag(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(lag_attention_map(ds), frame(ds, "mass"), read.read_lag(ds))


def _seasons(ds: xr.Dataset) -> Iterator[Plate]:
    yield Plate(season_amplitudes(ds), frame(ds, "amplitude"), read.read_seasons(ds))


CHAPTERS = {
    "parroting": Chapter(
        "Context parroting",
        "Whether the forecast repeats its context: it is compared with the context shifted by every lag, and with a "
        "naive parrot, which repeats what followed the most similar earlier stretch.",
        _parroting,
    ),
    "lag_attention": Chapter(
        "Attention at a lag",
        "How much of its attention each head gives to the tokens a whole number of lags before the step that is "
        "forecast. A head that copies a season reads there.",
        _lag,
    ),
    "seasonality": Chapter(
        "Seasons",
        "How strong each period is in the forecast, against the end of the context and the truth: seasons that are "
        "kept, flattened or brought in.",
        _seasons,
    ),
}
