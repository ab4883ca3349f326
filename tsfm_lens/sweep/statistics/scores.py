"""Scores of a forecast: sums from which each benchmark metric can be pooled, and distances to the plain one.

A metric of a benchmark is a ratio of sums over all its steps, so that a mean of the metric over windows is another
number. Sums are therefore stored for each window; they add up over any set of windows.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.errors import InputError, MissingExtraError

SUMS = (
    "n",
    "n_invalid",
    "abs_label",
    "abs_error",
    "squared_error",
    "squared_error_mean",
    "quantile_loss",
    "scaled_error",
    "n_scaled",
    "interval_score",
    "n_interval",
    "percentage_error",
    "n_percentage",
    "symmetric_error",
    "n_symmetric",
)
DISTANCES = (
    "spearman_distance",
    "pearson_distance",
    "spectral_distance",
    "shape_distance",
    "slope_disagreement",
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
    """Import a module of gluonts, which only the scores of sweeps need.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        with warnings.catch_warnings():
            # it recommends a faster JSON library, and nothing here reads JSON through it
            warnings.filterwarnings("ignore", message="Using `json`-module", category=UserWarning)
            return import_module(f"gluonts.{module}")
    except ImportError as error:
        raise MissingExtraError('scores need gluonts: pip install "tsfm-lens-toolbox[sweep]"') from error


def _part_names() -> list[str]:
    """Name the parts of a forecast that gluonts's measures ask for."""
    return ["mean", "0.5", str(ALPHA / 2), str(1.0 - ALPHA / 2), *map(str, CRPS_LEVELS)]


def _rows(array: np.ndarray) -> np.ndarray:
    """Reshape (series, row, step) to (row, all steps of all series), so that one gluonts forecast holds all series."""
    return np.moveaxis(array, 1, 0).reshape(array.shape[1], -1)


def _parts(forecast: Any, mean: np.ndarray, shape: tuple[int, int]) -> dict[str, np.ndarray]:
    parts = {name: forecast[name].reshape(shape) for name in _part_names() if name != "mean"}
    return {**parts, "mean": mean}


def _quantile_parts(quantiles: np.ndarray, levels: Sequence[float], mean: np.ndarray | None) -> dict[str, np.ndarray]:
    names = [str(float(level)) for level in levels]
    if len(set(names)) < 2:
        raise InputError(f"an interval score needs 2 quantile levels or samples, got the levels {list(levels)}")
    forecast = _gluonts("model.forecast").QuantileForecast(_rows(quantiles), _ANY_DATE, names)
    shape = (len(quantiles), quantiles.shape[-1])
    return _parts(forecast, forecast["0.5"].reshape(shape) if mean is None else mean, shape)


def _sample_parts(samples: np.ndarray, mean: np.ndarray | None) -> dict[str, np.ndarray]:
    shape = (len(samples), samples.shape[-1])
    forecast = _gluonts("model.forecast").SampleForecast(_rows(samples), _ANY_DATE)
    return _parts(forecast, forecast.mean.reshape(shape) if mean is None else mean, shape)


def _check(truth: np.ndarray, levels: Sequence[float], scale: np.ndarray, forecasts: dict[str, np.ndarray]) -> None:
    if truth.ndim != 2:
        raise InputError(f"truth must be (series, step), got the shape {truth.shape}")
    if scale.shape != truth.shape[:1]:
        raise InputError(f"scale must have one value per series, {len(truth)}, got the shape {scale.shape}")
    middle = {"quantiles": (len(levels),), "samples": (-1,), "mean": ()}
    for name, array in forecasts.items():
        shape = (truth.shape[0], *middle[name], truth.shape[1])
        if array.ndim != len(shape) or any(w not in (-1, got) for w, got in zip(shape, array.shape, strict=True)):
            words = "(" + ", ".join("samples" if w == -1 else str(w) for w in shape) + ")"
            raise InputError(f"{name} must have the shape {words} to fit truth and levels, got {array.shape}")


def window_scores(
    truth: np.ndarray,
    quantiles: np.ndarray,
    levels: Sequence[float],
    scale: np.ndarray,
    *,
    samples: np.ndarray | None = None,
    mean: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Sum over the known steps of each series; `statistics.pooled` makes the metrics of any set of them.

    The measures are gluonts's own, with its rules: steps without a label are left out; steps with a scale of 0 or
    without one are left out of MASE and MSIS, with a label of 0 out of MAPE, with label and forecast 0 out of sMAPE.
    Levels that a quantile forecast has not, as 0.025 and 0.975 of MSIS, are interpolated or, beyond the outermost,
    continued by gluonts's exponential tail; a sample forecast's quantile q of n samples is number round((n - 1) q)
    in order. Unlike gluonts, a forecast that is not finite where the label is known stops nothing: ``n_invalid``
    counts those steps, they are in no other sum, and `pooled` gives NaN where there are any.

    Args:
        truth: (series, step), data units; NaN where missing.
        quantiles: (series, quantile, step), data units; not looked at where samples are given.
        levels: their levels, in (0, 1), ascending.
        scale: (series,) seasonal error of the context, the denominator of MASE; NaN or 0 where there is none.
        samples: (series, sample, step), of models that sample.
        mean: (series, step) of MSE and RMSE; without it the samples' mean, or else the median.

    Returns:
        A (series,) array for each name of SUMS. ``n*`` count steps; ``quantile_loss`` is the mean over the levels
        0.1 to 0.9 of the summed loss; ``squared_error`` is the median's, ``squared_error_mean`` the mean's.

    Source:
        gluonts.ev with axis=None and mask_invalid_label=True, as GIFT-Eval calls it; levels 0.1 to 0.9, alpha 0.05.

    Raises:
        InputError: shapes do not fit together, or there are fewer than 2 levels and no samples.
    """
    truth, scale = np.asarray(truth, dtype=float), np.asarray(scale, dtype=float)
    inputs = {"quantiles": quantiles} if samples is None else {"samples": samples}
    inputs |= {} if mean is None else {"mean": mean}
    arrays = {name: np.asarray(array, dtype=float) for name, array in inputs.items()}
    _check(truth, levels, scale, arrays)
    with np.errstate(all="ignore"):
        if samples is None:
            parts = _quantile_parts(arrays["quantiles"], levels, arrays.get("mean"))
        else:
            parts = _sample_parts(arrays["samples"], arrays.get("mean"))
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


def forecast_distances(
    point: np.ndarray, plain: np.ndarray, *, steps: int = 64, scale: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Compute the distance of each series' forecast from the plain model's, over the first steps.

    Args:
        point, plain: (series, step) point forecasts (median or mean of samples), data units.
        steps: how many steps are compared, at most.
        scale: (series,) unit of ``mean_shift``, as the denominator of MASE; data units without it.

    Returns:
        A (series,) array for each name of DISTANCES: the measures of `tsfm_lens.ablation.metrics`, and
        ``mean_shift``, the mean absolute difference. NaN in all where a forecast is not finite; in ``mean_shift``
        where scale is 0 or NaN; and in all but ``mean_shift`` with a horizon of 1 step, which has no shape.

    Source:
        S3-SPEAR of the measurements index for the first, and for the 64 steps; see each measure for the others.

    Raises:
        InputError: shapes differ or are not (series, step), or steps is less than 1.
    """
    # the package of the engine loads torch, which a report of stored rows does not need
    from tsfm_lens.ablation import metrics

    point, plain = np.asarray(point, dtype=float), np.asarray(plain, dtype=float)
    if point.shape != plain.shape or point.ndim != 2:
        raise InputError(f"two forecasts (series, step) of one shape are compared, got {point.shape} and {plain.shape}")
    if steps < 1 or point.shape[1] < 1:
        raise InputError(f"at least 1 step is compared, got steps={steps} of a horizon of {point.shape[1]}")
    point, plain = point[:, :steps], plain[:, :steps]
    with np.errstate(all="ignore"):
        if point.shape[1] < 2:
            distances = {name: np.full(len(point), np.nan) for name in DISTANCES}
        else:
            distances = {name: getattr(metrics, name)(point, plain) for name in DISTANCES if name != "mean_shift"}
        shift = np.abs(point - plain).mean(axis=1)
        if scale is not None:
            scale = np.asarray(scale, dtype=float)
            shift = shift / np.where(scale > 0, scale, np.nan)
        distances["mean_shift"] = np.where(np.isfinite(shift), shift, np.nan)
    return {name: distances[name] for name in DISTANCES}
