"""The forecast of a run as a result, for figures and reports."""

from __future__ import annotations

import xarray as xr

from tsfm_lens.core.registry import probe
from tsfm_lens.models.run import Run

__all__ = ["forecast"]


@probe(
    title="Forecast",
    theme="Activations",
    summary="the forecast, over context and truth",
    description=(
        "The forecast distribution: its median, and bands that hold the stated "
        "share of it."
    ),
    computes="the forecast of all series",
)
def forecast(run: Run) -> xr.Dataset:
    """Return the run's forecast, with the truth where there is one.

    It also holds the steps of each series' season.

    Args:
        run: what was forecast.

    Returns:
        Dataset of kind "forecast", in data units:

        - ``quantile_forecast`` (series, quantile, step): levels in ascending order.
        - ``sample`` (series, draw, step): where it draws sample paths.
        - ``context`` (series, time), and ``truth`` (series, step) where known.

    Example:
        >>> probes.forecast(run).attrs["kind"]
        'forecast'
    """
    return run.forecast.to_dataset(run.truth)
