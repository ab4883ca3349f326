"""Seasonality bias: whether a forecast keeps the season of its context, flattens it, or brings in one of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.models.noise import noise_floor
from tsfm_lens.models.run import Run
from tsfm_lens.probes.findings import judge
from tsfm_lens.registry import probe

__all__ = ["seasonality_bias"]

_FINENESS = 4  # trial frequencies in the width of a peak, which is one cycle over the horizon


@probe("seasonality")
def seasonality_bias(run: Run, *, periods: Any = None) -> xr.Dataset:
    """Measure amplitudes of the forecast at the context's period and at the model's patch length.

    Args:
        run: the forecast to explain; the median of the library's own is used.
        periods: (series,) periods in steps; the strongest of each context if None.

    Returns:
        Dataset of kind "seasonality" over ``series``: ``period``; ``context_amplitude``, ``forecast_amplitude`` and,
        with a truth, ``truth_amplitude`` of the sine at that period, in data units; ``amplitude_ratio``, forecast over
        context, and ``amplitude_change``, that less 1; ``spread_ratio``, standard deviation of the forecast over the
        context's; for models that read patches ``patch_amplitude`` and ``patch_pull``, the forecast's amplitude at the
        patch length less the context's, in standard deviations of the context; for change and pull what
        :func:`tsfm_lens.probes.findings.judge` adds. ``amplitude`` (part, series, trial_period), at periods from 3
        steps to the horizon, in standard deviations of the context, of the end of the context, the forecast, the truth.
        NaN where a stretch is shorter than the period.

    Source:
        tsfm-lens paper, section 5 and figure 20 (S3-F20), for mean regression and periods tied to the patch.

    Raises:
        InputError: periods are not one number above 1 per series.

    Example:
        >>> probes.seasonality_bias(run)["period"].round().values.tolist()
        [12.0]
    """
    batch, steps, forecast = run.batch, run.horizon, run.forecast.median
    period = np.array([dominant_period(values) for values in batch.values]) if periods is None else np.asarray(periods)
    if period.shape != (len(batch),) or (np.asarray(period, dtype=float) <= 1).any():
        raise InputError(f"periods {period.tolist()}: expected a number above 1 for each of {len(batch)} series")
    data = run.dataset()
    context, ahead = amplitudes(batch.values, period), amplitudes(forecast, period)
    spread = np.array([np.nanstd(values) for values in batch.values])
    spread = np.where(spread > 0, spread, np.nan)
    ratio = ahead / np.where(context > 0, context, np.nan)
    columns = {
        "period": period.astype(float),
        "context_amplitude": context,
        "forecast_amplitude": ahead,
        "amplitude_ratio": ratio,
        "amplitude_change": ratio - 1,
        "spread_ratio": forecast.std(axis=1) / spread,
    }
    if "truth" in data:
        columns["truth_amplitude"] = amplitudes(data["truth"].values, period)
    spans = run.lens.encode(batch).spans.values()
    widths = [stop - start for axis in spans for start, stop in zip(axis.start, axis.stop, strict=True)]
    patch = next((width for width in widths if width > 0), 0)
    if patch > 1:
        patches = np.full(len(batch), patch)
        columns["patch_amplitude"] = amplitudes(forecast, patches)
        columns["patch_pull"] = (columns["patch_amplitude"] - amplitudes(batch.values, patches)) / spread
    for name, values in columns.items():
        data[name] = (("series",), values)
    data["forecast"] = (("series", "step"), forecast)
    cycles = np.arange(1, max(steps / 3, 1) + 1e-9, 1 / _FINENESS)
    trial = (steps / cycles)[::-1]
    parts: dict[str, Any] = {"context": [values[-steps:] for values in batch.values], "forecast": forecast}
    parts |= {"truth": data["truth"].values} if "truth" in data else {}
    grid = [[[amplitude_at(v, p) for p in trial] for v in values] for values in parts.values()]
    data = data.assign_coords(part=list(parts), trial_period=("trial_period", trial, {"units": "steps"}))
    data["amplitude"] = (("part", "series", "trial_period"), np.array(grid) / spread[:, None])
    source = "tsfm-lens paper, section 5 and figure 20"
    data.attrs = {**run.describe("seasonality", "Seasonality bias", source, patch=patch), "statistic": "median"}
    references = {"amplitude_change": (period, context)}
    if patch > 1:
        references["patch_pull"] = (patches, spread)
    for name, (periods, scale) in references.items():

        def change(other: np.ndarray, plain: np.ndarray, periods: Any = periods, scale: Any = scale) -> np.ndarray:
            gap = np.abs(amplitudes(other, periods) - amplitudes(plain, periods))
            return np.divide(gap, scale, out=np.full(gap.shape, np.nan), where=scale > 0)

        data = judge(data, name, floor=noise_floor(run.rolled_out(), change), signed=True)
    return data


def amplitudes(stretches: Iterable[np.ndarray], periods: Iterable[float]) -> np.ndarray:
    """Compute :func:`amplitude_at` of each stretch at its period."""
    return np.array([amplitude_at(values, period) for values, period in zip(stretches, periods, strict=True)])


def amplitude_at(values: np.ndarray, period: float) -> float:
    """Fit the amplitude of the sine of one period, beside a constant and a straight line."""
    finite = np.isfinite(values)
    if len(values) < period or finite.sum() < 5:
        return float("nan")
    time = np.arange(len(values))[finite]
    angle = 2 * np.pi * time / period
    trend = (time - time.mean()) / len(values)
    columns = np.stack([np.cos(angle), np.sin(angle), np.ones_like(trend), trend], axis=1)
    cosine, sine, *_ = np.linalg.lstsq(columns, values[finite], rcond=None)[0]
    return float(np.hypot(cosine, sine))


def dominant_period(values: np.ndarray) -> float:
    """Find the period with the largest amplitude, from 2 steps to a third of the series."""
    finite = np.isfinite(values)
    if finite.sum() < 6:
        return 2.0
    time = np.arange(len(values))
    filled = np.interp(time, time[finite], values[finite])
    flat = filled - np.polyval(np.polyfit(time, filled, 1), time)
    spectrum = np.abs(np.fft.rfft(flat))
    lowest = 3  # cycles in the series
    place = lowest + int(spectrum[lowest:].argmax())
    near = np.linspace(max(place - 1, lowest), min(place + 1, len(spectrum) - 1), 41)
    amplitudes = [amplitude_at(values, len(values) / frequency) for frequency in near]
    return float(len(values) / near[int(np.nanargmax(amplitudes))])
