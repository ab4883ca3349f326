"""Context parroting: how much of a forecast is a shifted copy of its context."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from scipy.stats import norm

from tsfm_lens.data import SeriesBatch
from tsfm_lens.errors import InputError
from tsfm_lens.models.noise import noise_floor
from tsfm_lens.models.run import Run
from tsfm_lens.probes.findings import judge
from tsfm_lens.probes.rollout import autoregressive_attention
from tsfm_lens.registry import probe

__all__ = ["context_parroting", "lag_attention"]

_LEVEL = 0.01  # chance, over all lags, that noise alone makes one look worse
_DEVIATION = float(np.sqrt(np.pi / 2 - 1))  # standard deviation of a normal's absolute value, over its mean


@probe("parroting")
def context_parroting(run: Run, *, motif: int = 16) -> xr.Dataset:
    """Measure how close a forecast is to repeating its context at a lag, and to the naive parrot.

    Args:
        run: the forecast to explain; the median of the library's own is used.
        motif: length of the last stretch that the naive parrot looks for in the context.

    Returns:
        Dataset of kind "parroting": ``lag_error`` (series, lag), the mean absolute difference of the forecast from the
        context repeated at a lag, in standard deviations of the context; ``best_lag`` and ``copy_error`` (series), the
        shortest lag at which the forecast is as good a copy as at any within noise (see :func:`best_lag`), and its
        error; ``parrot_error`` (series), the same difference from what followed the best earlier match of the last
        ``motif`` steps, and ``parrot_match`` (series), how many steps back that begins; ``forecast`` and ``parrot``
        (series, step). NaN where a context is too short or constant. For both errors what
        :func:`tsfm_lens.probes.findings.judge` adds. The floor is the distance of two forecasts of the unchanged model:
        a forecast whose error does not stand out of it is a copy but for noise.

    Source:
        tsfm-lens paper, sections 4 and 5, for parroting by sharp heads; the naive parrot copies what followed
        the nearest neighbour of the last steps, as in analogue forecasting.

    Raises:
        InputError: motif below 2.

    Example:
        >>> probes.context_parroting(run)["best_lag"].dims
        ('series',)
    """
    if motif < 2:
        raise InputError(f"motif is {motif}, expected 2 or more steps")
    batch, steps, forecast = run.batch, run.horizon, run.forecast.median
    longest = max(len(values) for values in batch.values)
    errors = np.full((len(batch), longest - 1), np.nan)
    parrots, matches = naive_parrots(batch, steps, motif)
    scales = np.array([spread_of(values) for values in batch.values])
    for row, values in enumerate(batch.values):
        errors[row, : len(values) - 1] = lag_errors(values, forecast[row]) / scales[row]
    best = np.array([best_lag(values, row) for values, row in zip(batch.values, forecast, strict=True)])
    copy_errors = np.array([row[lag - 1] if lag else np.nan for row, lag in zip(errors, best, strict=True)])
    data = run.dataset().assign_coords(lag=np.arange(1, longest))
    data["forecast"] = (("series", "step"), forecast)
    data["parrot"] = (("series", "step"), parrots)
    data["lag_error"] = (("series", "lag"), errors)
    data["best_lag"] = (("series",), np.where(best > 0, best, np.nan).astype(float))
    data["copy_error"] = (("series",), copy_errors)
    data["parrot_error"] = (("series",), np.abs(forecast - parrots).mean(axis=-1) / scales)
    data["parrot_match"] = (("series",), matches)
    source = "tsfm-lens paper, sections 4 and 5"
    data.attrs = {**run.describe("parroting", "Context parroting", source, motif=motif), "statistic": "median"}
    floor = noise_floor(run.rolled_out(), lambda other, plain: np.abs(other - plain).mean(-1) / scales)
    for name in ("copy_error", "parrot_error"):
        data = judge(data, name, floor=floor)
    return data


@probe(
    "lag_attention",
    "first",
    words="lag_attention at the season of the first series",
    options=lambda results: {"lag": results.season},
)
def lag_attention(run: Run, lag: int, *, width: int = 1, **options: Any) -> xr.Dataset:
    """Measure every head's attention to the tokens that lie a lag, or a multiple of it, before its forecast.

    Args:
        run: the forecast to explain, of exactly one series.
        lag: steps.
        width: steps on either side that still count.
        options: see :func:`tsfm_lens.probes.rollout.autoregressive_attention`.

    Returns:
        Dataset of kind "lag_attention" over (layer, head): ``mass``, the mean share of attention on such tokens;
        ``chance``, the mass of an even spread: such tokens' share of the context's tokens that a query may see, mean
        over queries; ``vacuous``, whether all of them are such tokens, so that the mass says nothing, as where one
        token forecasts as many steps as the lag or more (Chronos-Bolt).

    Raises:
        InputError: lag below 1 or width below 0.

    Example:
        >>> probes.lag_attention(run, 12)["mass"].dims
        ('layer', 'head')
    """
    if lag < 1 or width < 0:
        raise InputError(f"lag {lag} and width {width}: expected a lag of 1 or more and a width of 0 or more")
    maps = autoregressive_attention(run, **options)
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
    vacuous = bool((on_band == usable).all())
    data = xr.Dataset(
        {
            "mass": (("layer", "head"), (attention * on_band).sum(axis=2).mean(axis=-1)),
            "chance": ((), chance),
            "vacuous": ((), vacuous),
        },
        coords={"layer": maps["layer"], "head": maps["head"]},
    )
    facts = {"kind": "lag_attention", "title": f"Attention at lag {lag}", "lag": lag, "width": width}
    data.attrs = {**maps.attrs, **facts}
    return data


def lag_errors(context: np.ndarray, forecast: np.ndarray) -> np.ndarray:
    """Compute the mean absolute difference of a forecast from the context repeated at every lag.

    Args:
        context: (time,), NaN where missing.
        forecast: (step,).

    Returns:
        (time - 1,), for lags 1, 2, …; NaN where all values to copy are missing.
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
        motif: steps to match; matches are compared after subtracting each stretch's mean.

    Returns:
        The forecast (step,), and the number of steps before the end at which the copy begins; None if the context has
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


def naive_parrots(batch: SeriesBatch, horizon: int, motif: int) -> tuple[np.ndarray, np.ndarray]:
    """Return forecasts (series, step) of :func:`naive_parrot`, and where copies begin (series,); NaN for None."""
    parrots, matches = np.full((len(batch), horizon), np.nan), np.full(len(batch), np.nan)
    for row, values in enumerate(batch.values):
        if parrot := naive_parrot(values, horizon, motif):
            parrots[row], matches[row] = parrot
    return parrots, matches


def best_lag(context: np.ndarray, forecast: np.ndarray) -> int:
    """Find the shortest lag at which a forecast copies its context as well as at any, within chance.

    Every multiple of a period gives a copy as good as the period, and of many noisy copies some long one is the best by
    chance. So the search has three steps:

    1. Candidates are lags whose last copy is worse than the best one by no more than noise of that size explains.
    2. The best candidate is the one at which the mean of all earlier copies comes closest to both the forecast and the
       later half of the context, each less a straight line through the context. That mean blurs unless the lag is a
       period.
    3. The result is the best candidate's shortest divisor that is not significantly worse, step by step.

    Args:
        context: (time,), NaN where missing.
        forecast: (step,).

    Returns:
        The lag; 0 if the context is constant or has no value to copy. Where only lags above half of the context
        remain, the one with the smallest error.

    Source:
        Stellingwerf 1978 (folding at trial periods); de Cheveigne and Kawahara 2002 (the shortest period of equals).
    """
    errors = lag_errors(context, forecast)
    if np.isnan(spread_of(context)) or not np.isfinite(errors).any():
        return 0
    lags = np.arange(1, len(context))
    rare = _LEVEL / len(context)
    lengths = np.minimum(lags, len(forecast))
    # the best is the smallest of many, and each is compared with it
    tolerance = norm.isf(rare / len(context)) * _DEVIATION * np.sqrt(2 / lengths)
    rounding = 64 * np.finfo(float).eps * np.nanmax(np.abs(context))
    alike = lags[errors <= np.nanmin(errors) * (1 + tolerance) + rounding]
    alike = alike[alike <= len(context) // 2]
    if not len(alike):
        return int(np.nanargmin(errors)) + 1
    gaps = _folded_gaps(*_without_line(context, forecast), alike)
    best = int(np.nanmean(gaps, axis=1).argmin())
    excess = gaps - gaps[best]
    doubt = norm.isf(rare) * np.nanstd(excess, axis=1) / np.sqrt(np.isfinite(excess).sum(axis=1))
    equal = alike[np.nanmean(excess, axis=1) <= doubt + rounding]
    divisors = np.round(alike[best] / np.arange(1, alike[best] + 1))
    return int(equal[np.isin(equal, divisors)][0])


def _without_line(context: np.ndarray, forecast: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Subtract from both the straight line that fits the context best."""
    times = np.flatnonzero(np.isfinite(context))
    line = np.polyfit(times, context[times], 1)
    time = np.arange(len(context) + len(forecast))
    straight = np.polyval(line, time)
    return context - straight[: len(context)], forecast - straight[len(context) :]


def _folded_gaps(context: np.ndarray, forecast: np.ndarray, lags: np.ndarray) -> np.ndarray:
    """Compute distances of later half and forecast from the mean of all earlier copies, (lag, time)."""
    length, half = len(context), len(context) // 2
    whole = np.concatenate([context, forecast])
    out = np.full((len(lags), len(whole) - half), np.nan)
    for row, lag in enumerate(lags):
        # a forecast longer than the lag goes round the same copy
        at = np.concatenate([np.arange(half, length), length + np.arange(len(forecast)) % lag])
        total, count = np.zeros(len(at)), np.zeros(len(at))
        for back in range(int(lag), length + int(lag), int(lag)):
            usable = (at >= back) & (at - back < length)
            copy = np.where(usable, context[np.where(usable, at - back, 0)], np.nan)
            finite = np.isfinite(copy)
            total[finite] += copy[finite]
            count += finite
        mean = np.divide(total, count, out=np.full(len(at), np.nan), where=count > 0)
        out[row] = np.abs(whole[half:] - mean)
    return out


def spread_of(context: np.ndarray) -> float:
    """Compute the standard deviation of a context, NaN if it is constant or has no value."""
    spread = float(np.nanstd(context)) if np.isfinite(context).any() else 0.0
    return spread if spread > 0 else np.nan
