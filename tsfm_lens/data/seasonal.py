"""The seasonal naive forecast of one series, and its error.

Errors of forecasts are scaled by that error.
"""

from __future__ import annotations

import numpy as np
import pandas as pd


def known_values(values: np.ndarray) -> np.ndarray:
    """Copy values as float64 with infinite ones missing too, as gluonts masks both."""
    floats = values.astype(np.float64)
    floats[np.isinf(floats)] = np.nan
    return floats


def seasonal_error(series: np.ndarray, season: int) -> float:
    """Compute the mean absolute seasonal difference.

    A series shorter than its season is compared at a distance of one step.

    Returns:
        The difference in data units, NaN if it is 0 or there is no pair of values.
    """
    # as in ``gluonts.ev.ts_stats``: a series as long as its season has no pair, and
    # gives NaN
    if not (season <= len(series)):
        season = 1
    values = known_values(series)
    change = np.abs(values[season:] - values[:-season])
    valid = change[~np.isnan(change)]
    # a constant series has differences, and all are 0: an error cannot be scaled by
    # that
    if valid.any():
        return float(valid.mean())
    return np.nan


def filled(series: np.ndarray) -> np.ndarray:
    """Fill the gaps of a context.

    A gap takes the last value before it, at the start of the series the first value
    after it, and 0 if there is no value at all.

    Returns:
        The series without NaN, (time,).
    """
    values = known_values(series)
    if not np.isnan(values).any():
        return values
    # forward first, since a forecast must not see a later value where an earlier one is
    # known
    return pd.Series(values).ffill().bfill().fillna(0.0).to_numpy()


def last_season(
    series: np.ndarray, season: int, horizon: int
) -> tuple[np.ndarray, float]:
    """Repeat the last season over the horizon.

    Returns:
        The forecast (step,), and the root mean square of the seasonal differences, 0
        without any.
    """
    length = len(series)
    last: np.ndarray = series[-season:]
    if length < season:
        # the part of a season that was never seen takes the first value
        last = np.concatenate([np.full(season - length, series[0]), series])
    change = series[season:] - series[:-season]
    deviation = 0.0
    if length > season:
        deviation = float(np.sqrt(np.sum(change**2) / (length - season)))
    # ``np.resize`` repeats the array, unlike the method ``resize``, which pads with 0
    return np.resize(last, horizon), deviation
