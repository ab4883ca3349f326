"""Scores of a forecast: sums from which each benchmark metric can be pooled, and distances to the plain one."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.errors import InputError, MissingExtraError

SUMS = (
    *("n", "n_invalid", "abs_label", "abs_error", "squared_error", "squared_error_mean", "quantile_loss"),
    *("scaled_error", "n_scaled", "interval_score", "n_interval", "percentage_error", "n_percentage"),
    *("symmetric_error", "n_symmetric"),
)
"""Sums of a window; a metric is a ratio of such sums over all windows, which a mean of its values is not."""
DISTANCES = (
    *("spearman_distance", "pearson_distance", "spectral_distance", "shape_distance", "slope_disagreement"),
    "mean_shift",
)
# of the continuous ranked probability score, as the benchmarks approximate it
CRPS_LEVELS = tuple(k / 10 for k in range(1, 10))
# of the scaled interval score: outside its interval lies this share
ALPHA = 0.05
# gluonts wants a date, and none of these scores looks at it
_ANY_DATE = pd.Period("2000-01", freq="M")

# columns of sums: what is added up over the steps, and the column that counts the steps added
_STATS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "abs_label": ("absolute_label", {}, "n"),
    "abs_error": ("absolute_error", {"forecast_type": "0.5"}, None),
    "squared_error": ("squared_error", {"forecast_type": "0.5"}, None),
    "squared_error_mean": ("squared_error", {"forecast_type": "mean"}, None),
    "scaled_error": ("absolute_scaled_error", {"forecast_type": "0.5"}, "n_scaled"),
    "interval_score": ("scaled_interval_score", {"alpha": ALPHA}, "n_interval"),
    "percentage_error": ("absolute_percentage_error", {"forecast_type": "0.5"}, "n_percentage"),
    "symmetric_error": ("symmetric_absolute_percentage_error", {"forecast_type": "0.5"}, "n_symmetric"),
}


def _gluonts(module: str) -> Any:
    """Import a module of gluonts, which only the scores of sweeps need."""
    try:
        with warnings.catch_warnings():
            # it recommends a faster JSON library, and nothing here reads JSON through it
            warnings.filterwarnings("ignore", message="Using `json`-module", category=UserWarning)
            return import_module(f"gluonts.{module}")
    except ImportError as error:
        raise MissingExtraError('scores need gluonts: pip install "tsfm-lens-toolbox[sweep]"') from error


def _parts(arrays: dict[str, np.ndarray], levels: Sequence[float]) -> dict[str, np.ndarray]:
    """Return the parts of a forecast that gluonts's measures ask for, each (series, step)."""
    source = arrays["samples"] if "samples" in arrays else arrays["quantiles"]
    # (row, all steps of all series), so that one gluonts forecast holds all series
    rows, shape = np.moveaxis(source, 1, 0).reshape(source.shape[1], -1), (len(source), source.shape[-1])
    names = [str(float(level)) for level in levels]
    if "samples" in arrays:
        forecast = _gluonts("model.forecast").SampleForecast(rows, _ANY_DATE)
    elif len(set(names)) > 1:
        forecast = _gluonts("model.forecast").QuantileForecast(rows, _ANY_DATE, names)
    else:
        raise InputError(f"an interval score needs 2 quantile levels or samples, got the levels {list(levels)}")
    levels_read = ("0.5", str(ALPHA / 2), str(1.0 - ALPHA / 2), *map(str, CRPS_LEVELS))
    parts = {name: forecast[name].reshape(shape) for name in levels_read}
    own = forecast.mean.reshape(shape) if "samples" in arrays else parts["0.5"]
    return {**parts, "mean": arrays.get("mean", own)}


def window_scores(
    truth: np.ndarray,
    quantiles: np.ndarray,
    levels: Sequence[float],
    scale: np.ndarray,
    *,
    samples: np.ndarray | None = None,
    mean: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Sum over the known steps of each series, by gluonts's measures and rules; a (series,) array for each of SUMS.

    A forecast that is not finite where the label is known stops nothing: ``n_invalid`` counts those steps, which are
    in no other sum.

    Args:
        truth: (series, step), data units; NaN where missing.
        quantiles: (series, quantile, step), data units; not looked at where samples are given.
        levels: their levels, in (0, 1), ascending.
        scale: (series,) seasonal error of the context, the denominator of MASE; NaN or 0 where there is none.
        samples: (series, sample, step), of models that sample.
        mean: (series, step) of MSE and RMSE; without it the samples' mean, or else the median.

    Source:
        gluonts.ev with axis=None and mask_invalid_label=True, as GIFT-Eval calls it; levels 0.1 to 0.9, alpha 0.05.
    """
    truth, scale = np.asarray(truth, dtype=float), np.asarray(scale, dtype=float)
    inputs = {"samples": samples, "mean": mean} | ({"quantiles": quantiles} if samples is None else {})
    arrays = {name: np.asarray(array, dtype=float) for name, array in inputs.items() if array is not None}
    with np.errstate(all="ignore"):
        parts = _parts(arrays, levels)
        finite = np.all([np.isfinite(part) for part in parts.values()], axis=0)
        has_label = np.isfinite(truth)
        # a masked array leaves out a NaN result without a word, so that steps without a forecast are counted here
        label = np.ma.masked_array(np.where(has_label, truth, 0.0), mask=~(has_label & finite))
        data = {name: np.where(finite, part, 0.0) for name, part in parts.items()}
        data |= {"label": label, "seasonal_error": np.where(np.isfinite(scale), scale, 0.0)[:, None]}
        sums = {"n_invalid": (has_label & ~finite).sum(axis=1).astype(float)}
        stats = _gluonts("ev.stats")
        for name, (stat, options, count) in _STATS.items():
            values = getattr(stats, stat)(data, **options)
            sums[name] = np.ma.filled(values.sum(axis=1), 0.0)
            if count is not None:
                sums[count] = values.count(axis=1).astype(float)
        losses = [np.ma.filled(stats.quantile_loss(data, level).sum(axis=1), 0.0) for level in CRPS_LEVELS]
        sums["quantile_loss"] = np.mean(losses, axis=0)
    return {name: sums[name] for name in SUMS}


def forecast_distances(point: np.ndarray, plain: np.ndarray, *, steps: int = 64) -> dict[str, np.ndarray]:
    """Compute each of DISTANCES of point forecasts (series, step) from the plain model's, over the first steps.

    ``mean_shift`` is the mean absolute difference in data units. All are NaN where a forecast is not finite, and all
    but ``mean_shift`` with a horizon of 1 step, which has no shape.
    """
    # the package of the engine loads torch, which a report of stored rows does not need
    from tsfm_lens.ablation import metrics

    point, plain = np.asarray(point, dtype=float)[:, :steps], np.asarray(plain, dtype=float)[:, :steps]
    with np.errstate(all="ignore"):
        if point.shape[1] < 2:
            distances = {name: np.full(len(point), np.nan) for name in DISTANCES}
        else:
            distances = {name: getattr(metrics, name)(point, plain) for name in DISTANCES if name != "mean_shift"}
        shift = np.abs(point - plain).mean(axis=1)
        distances["mean_shift"] = np.where(np.isfinite(shift), shift, np.nan)
    return {name: distances[name] for name in DISTANCES}
