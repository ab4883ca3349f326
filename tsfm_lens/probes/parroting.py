"""Context parroting: how much of a forecast is a shifted copy of its context."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.data import as_series
from tsfm_lens.errors import InputError
from tsfm_lens.models.forecast import context_dataset
from tsfm_lens.models.lens import Lens
from tsfm_lens.probes.rollout import rollout_maps
from tsfm_lens.probes.trajectory import describe


def context_parroting(
    lens: Lens,
    series: Any,
    horizon: int | None = None,
    *,
    truth: Any = None,
    motif: int = 16,
    num_samples: int | None = None,
    seed: int = 0,
) -> xr.Dataset:
    """How close a forecast is to repeating its context at a lag, and to the naive parrot.

    Args:
        lens: the model.
        series: one or more series.
        horizon: forecast steps; the model's prediction length if None.
        truth: (series, step) what came, where known.
        motif: length of the last stretch that the naive parrot looks for in the context.
        num_samples, seed: of the forecast, whose median is used.

    Returns:
        Dataset of kind "parroting": ``lag_error`` (series, lag), the mean absolute difference of the forecast from
        the context repeated at a lag, in standard deviations of the context; ``best_lag`` and ``copy_error``
        (series), the shortest lag within 1 % of the smallest error, and its error; ``parrot_error`` (series), the
        same difference from what followed the best earlier match of the last ``motif`` steps, and ``parrot_match``
        (series), how many steps back that match begins; ``forecast`` and ``parrot`` (series, step). NaN where a
        context is too short or constant.

    Source:
        tsfm-lens paper, sections 4 and 5, for parroting by sharp heads; the naive parrot copies what followed
        the nearest neighbour of the last steps, as in analogue forecasting.

    Raises:
        InputError: motif below 2.
    """
    if motif < 2:
        raise InputError(f"motif is {motif}, expected 2 or more steps")
    batch = as_series(series)
    steps = lens.adapter.prediction_length if horizon is None else int(horizon)
    forecast = lens.forecast(batch, steps, num_samples=num_samples, seed=seed).median
    longest = max(len(values) for values in batch.values)
    errors = np.full((len(batch), longest - 1), np.nan)
    parrots = np.full_like(forecast, np.nan)
    matches = np.full(len(batch), np.nan)
    scales = np.array([spread_of(values) for values in batch.values])
    for row, values in enumerate(batch.values):
        errors[row, : len(values) - 1] = lag_errors(values, forecast[row]) / scales[row]
        found = naive_parrot(values, steps, motif)
        if found is not None:
            parrots[row], matches[row] = found
    best = np.array([shortest_best(row) for row in errors])
    copied = np.array([row[lag - 1] if lag else np.nan for row, lag in zip(errors, best, strict=True)])
    data = context_dataset(batch, steps, truth).assign_coords(lag=np.arange(1, longest))
    data["forecast"] = (("series", "step"), forecast)
    data["parrot"] = (("series", "step"), parrots)
    data["lag_error"] = (("series", "lag"), errors)
    data["best_lag"] = (("series",), np.where(best > 0, best, np.nan).astype(float))
    data["copy_error"] = (("series",), copied)
    data["parrot_error"] = (("series",), np.abs(forecast - parrots).mean(axis=-1) / scales)
    data["parrot_match"] = (("series",), matches)
    source = "tsfm-lens paper, sections 4 and 5"
    data.attrs = describe(lens, "parroting", "Context parroting", source, motif=motif, seed=seed, horizon=steps)
    return data


def lag_attention(
    lens: Lens, series: Any, lag: int, horizon: int | None = None, *, width: int = 1, **options: Any
) -> xr.Dataset:
    """How much attention every head pays to the tokens that lie a lag, or a multiple of it, before what it forecasts.

    Args:
        lens: the model.
        series: exactly one series.
        lag: steps.
        horizon: forecast steps.
        width: steps on either side that still count.
        options: see :func:`tsfm_lens.probes.rollout.rollout_maps`.

    Returns:
        Dataset of kind "lag_attention" over (layer, head): ``mass``, the mean share of attention on such tokens;
        ``chance``, the share of the context's tokens that a query may see that are such, averaged over queries,
        which an even spread would pay.

    Raises:
        InputError: lag below 1 or width below 0.
    """
    if lag < 1 or width < 0:
        raise InputError(f"lag {lag} and width {width}: expected a lag of 1 or more and a width of 0 or more")
    maps = rollout_maps(lens, series, horizon, **options)
    ordinary = np.array([not str(word) for word in maps["key_special"].values])
    starts, stops = maps["key_start"].values, maps["key_stop"].values
    on_band = np.zeros((len(starts), maps.sizes["query"]), dtype=bool)
    for query, (first, last) in enumerate(zip(maps["query_start"].values, maps["query_stop"].values, strict=True)):
        for key in np.flatnonzero(ordinary & (stops <= 0)):
            # distances between a step of the query and a step of the key
            near, far = first - (stops[key] - 1) - width, last - 1 - starts[key] + width
            on_band[key, query] = far // lag * lag >= max(near, 1)
    attention = maps["attention"].values
    # a key that no head gives weight is masked for that query
    usable = (ordinary & (stops <= 0))[:, None] & (attention.max(axis=(0, 1)) > 0)
    on_band &= usable
    shares = on_band.sum(0)[usable.any(0)] / usable.sum(0)[usable.any(0)]
    chance = float(shares.mean()) if len(shares) else 0.0
    data = xr.Dataset(
        {"mass": (("layer", "head"), (attention * on_band).sum(axis=2).mean(axis=-1)), "chance": ((), chance)},
        coords={"layer": maps["layer"], "head": maps["head"]},
    )
    own = {"kind": "lag_attention", "title": f"Attention at lag {lag}", "lag": lag, "width": width}
    data.attrs = {**maps.attrs, **own}
    return data


def lag_errors(context: np.ndarray, forecast: np.ndarray) -> np.ndarray:
    """Mean absolute difference of a forecast from the context repeated at every lag.

    Args:
        context: (time,), NaN where missing.
        forecast: (step,).

    Returns:
        (time - 1,), for lags 1, 2, …; NaN where all that would be copied is missing.
    """
    steps = np.arange(len(forecast))
    out = np.full(len(context) - 1, np.nan)
    for lag in range(1, len(context)):
        gap = np.abs(forecast - context[len(context) - lag + steps % lag])
        if np.isfinite(gap).any():
            out[lag - 1] = np.nanmean(gap)
    return out


def naive_parrot(context: np.ndarray, horizon: int, motif: int) -> tuple[np.ndarray, int] | None:
    """Repeat what followed the best earlier match of the last steps.

    Args:
        context: (time,).
        horizon: steps.
        motif: steps to match; matches are compared after taking off each stretch's mean.

    Returns:
        The forecast (step,), and how many steps before the end the copied part begins; None if the context has
        no earlier stretch of that length.
    """
    latest = len(context) - motif
    if latest < motif:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(context, motif)[: latest - motif + 1]
    centred = windows - windows.mean(axis=1, keepdims=True)
    target = context[latest:] - context[latest:].mean()
    distance = np.square(centred - target).mean(axis=1)
    if not np.isfinite(distance).any():
        return None
    # of equally good matches the latest
    best = len(distance) - 1 - int(np.nanargmin(distance[::-1]))
    follows = context[best + motif :]
    return follows[np.arange(horizon) % len(follows)], len(follows)


def shortest_best(errors: np.ndarray) -> int:
    """The shortest lag whose error is within 1 % of the smallest, 0 if there is none."""
    if not np.isfinite(errors).any():
        return 0
    lowest = np.nanmin(errors)
    return int(np.flatnonzero(errors <= lowest * 1.01 + 1e-12)[0]) + 1


def spread_of(context: np.ndarray) -> float:
    """Standard deviation of a context, NaN if it is constant."""
    spread = float(np.nanstd(context))
    return spread if spread > 0 else np.nan
