"""Scores of a forecast: sums for the benchmark metrics, and distances.

Read :func:`window_scores` first (the sums of each series, which a store holds), then
:func:`pooled` (metrics from added-up sums) and :func:`forecast_distances` (how far a
forecast is from the plain model's). Tests of changes are in ``changes.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import truediv
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.core.errors import unknown_name
from tsfm_lens.data.stored import gluonts_module
from tsfm_lens.sweep.store import SEASONAL_NAIVE

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
"""Sums of a window; a metric is a ratio of such sums over all windows, not a mean of
ratios.
"""
DISTANCES = (
    "spearman_distance",
    "pearson_distance",
    "spectral_distance",
    "shape_distance",
    "slope_disagreement",
    "mean_shift",
)
# distances that ask for the shape of a forecast, which a flat one does not have
_OF_SHAPE = (
    "spearman_distance",
    "pearson_distance",
    "spectral_distance",
    "shape_distance",
)
# levels of the quantile losses by which the benchmarks approximate the CRPS
CRPS_LEVELS = tuple(k / 10 for k in range(1, 10))
# share outside the interval of the scaled interval score
ALPHA = 0.05
# gluonts wants a date, and none of these scores looks at it
_ANY_DATE = pd.Period("2000-01", freq="M")

# columns of sums: what is added up over the steps, and the column that counts the steps
# added
_STATS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "abs_label": ("absolute_label", {}, "n"),
    "abs_error": ("absolute_error", {"forecast_type": "0.5"}, None),
    "squared_error": ("squared_error", {"forecast_type": "0.5"}, None),
    "squared_error_mean": ("squared_error", {"forecast_type": "mean"}, None),
    "scaled_error": ("absolute_scaled_error", {"forecast_type": "0.5"}, "n_scaled"),
    "interval_score": ("scaled_interval_score", {"alpha": ALPHA}, "n_interval"),
    "percentage_error": (
        "absolute_percentage_error",
        {"forecast_type": "0.5"},
        "n_percentage",
    ),
    "symmetric_error": (
        "symmetric_absolute_percentage_error",
        {"forecast_type": "0.5"},
        "n_symmetric",
    ),
}


def _parts(
    arrays: dict[str, np.ndarray], levels: Sequence[float]
) -> dict[str, np.ndarray]:
    """Return the parts of a forecast that gluonts' measures need.

    Each is (series, step).
    """
    has_samples = "samples" in arrays
    source = arrays["samples" if has_samples else "quantiles"]
    # (row, all steps of all series), so that one gluonts forecast holds all series
    rows = np.moveaxis(source, 1, 0).reshape(source.shape[1], -1)
    shape = (len(source), source.shape[-1])
    forecasts = gluonts_module("model.forecast")
    if has_samples:
        forecast = forecasts.SampleForecast(rows, _ANY_DATE)
    else:
        names = [str(float(level)) for level in levels]
        forecast = forecasts.QuantileForecast(rows, _ANY_DATE, names)
    levels_read = ("0.5", str(ALPHA / 2), str(1.0 - ALPHA / 2), *map(str, CRPS_LEVELS))
    parts = {name: forecast[name].reshape(shape) for name in levels_read}
    mean = forecast.mean.reshape(shape) if has_samples else parts["0.5"]
    return {**parts, "mean": arrays.get("mean", mean)}


def window_scores(
    truth: np.ndarray,
    quantiles: np.ndarray,
    levels: Sequence[float],
    scale: np.ndarray,
    *,
    samples: np.ndarray | None = None,
    mean: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Sum over the known steps of each series, by gluonts' measures and rules.

    Returns a (series,) array for each of SUMS.
    """
    truth = np.asarray(truth, dtype=float)
    scale = np.asarray(scale, dtype=float)
    inputs = {"samples": samples, "mean": mean}
    if samples is None:
        inputs["quantiles"] = quantiles
    arrays = {
        name: np.asarray(array, dtype=float)
        for name, array in inputs.items()
        if array is not None
    }
    with np.errstate(all="ignore"):
        parts = _parts(arrays, levels)
        finite = np.all([np.isfinite(part) for part in parts.values()], axis=0)
        has_label = np.isfinite(truth)
        # a masked array leaves out a NaN result silently, so that steps without a
        # forecast are masked and counted here
        label = np.ma.masked_array(
            np.where(has_label, truth, 0.0), mask=~(has_label & finite)
        )
        data = {name: np.where(finite, part, 0.0) for name, part in parts.items()}
        data["label"] = label
        data["seasonal_error"] = np.where(np.isfinite(scale), scale, 0.0)[:, None]
        sums = {"n_invalid": (has_label & ~finite).sum(axis=1).astype(float)}
        stats = gluonts_module("ev.stats")
        for name, (stat, options, count) in _STATS.items():
            values = getattr(stats, stat)(data, **options)
            sums[name] = np.ma.filled(values.sum(axis=1), 0.0)
            if count is not None:
                sums[count] = values.count(axis=1).astype(float)
        losses = [
            np.ma.filled(stats.quantile_loss(data, level).sum(axis=1), 0.0)
            for level in CRPS_LEVELS
        ]
        sums["quantile_loss"] = np.mean(losses, axis=0)
    return {name: sums[name] for name in SUMS}


def forecast_distances(
    point: np.ndarray,
    plain: np.ndarray,
    *,
    steps: int = 64,
    flat: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Compute each of DISTANCES of point forecasts from the plain model's.

    Forecasts are (series, step), and the first ``steps`` are compared.

    A series has no shape if its plain forecast varies by float32's rounding alone, or
    if it is marked as ``flat`` (series,). Distances of shape are then NaN, so that the
    series counts for nothing. A forecast that is flat where the plain one is not has
    kept nothing of its shape: these distances are then 1.
    """
    # the package of the engine loads torch, which a report of stored rows does not need
    from tsfm_lens.ablation import metrics

    point = np.asarray(point, dtype=float)[:, :steps]
    plain = np.asarray(plain, dtype=float)[:, :steps]
    with np.errstate(all="ignore"):
        if point.shape[1] < 2:
            distances = {name: np.full(len(point), np.nan) for name in DISTANCES}
        else:
            distances = {
                name: getattr(metrics, name)(point, plain)
                for name in DISTANCES
                if name != "mean_shift"
            }
            shapeless = _is_flat(plain)
            if flat is not None:
                shapeless = shapeless | flat
            for name in _OF_SHAPE:
                finite = np.isfinite(point).all(axis=1)
                lost = np.where(finite & _is_flat(point), 1.0, distances[name])
                distances[name] = np.where(shapeless, np.nan, lost)
        shift = np.abs(point - plain).mean(axis=1)
        distances["mean_shift"] = np.where(np.isfinite(shift), shift, np.nan)
    return {name: distances[name] for name in DISTANCES}


def _is_flat(forecasts: np.ndarray) -> np.ndarray:
    """Mark forecasts (series, step) that do not vary.

    They vary by no more than four roundings of float32.
    """
    tolerance = 4 * np.finfo(np.float32).eps * np.abs(forecasts).max(axis=1)
    return np.asarray(np.ptp(forecasts, axis=1) <= tolerance)


KEYS = ("model", "variant", "dataset", "item")
# names under which the rows of the plain model and of the seasonal naive forecast are
# stored
PLAIN = "plain"


# by metric: the sums of which it is made, and the function that takes them
_FORMULAS: dict[str, tuple[tuple[str, ...], Callable[..., Any]]] = {
    "MASE": (("scaled_error", "n_scaled"), truediv),
    "sMAPE": (("symmetric_error", "n_symmetric"), truediv),
    "MSE": (("squared_error_mean", "n"), truediv),
    "MSE[0.5]": (("squared_error", "n"), truediv),
    "RMSE": (("squared_error_mean", "n"), lambda total, n: np.sqrt(total / n)),
    "NRMSE": (
        ("squared_error_mean", "n", "abs_label"),
        lambda total, n, label: np.sqrt(total / n) / (label / n),
    ),
    "ND": (("abs_error", "abs_label"), truediv),
    "MAE": (("abs_error", "n"), truediv),
    "MAPE": (("percentage_error", "n_percentage"), truediv),
    "MSIS": (("interval_score", "n_interval"), truediv),
    "CRPS": (("quantile_loss", "abs_label"), truediv),
}
METRICS = tuple(_FORMULAS)
MEASURES = (*METRICS, *DISTANCES)
_FORMULAS |= {
    distance: ((distance, f"n_{distance}"), truediv) for distance in DISTANCES
}
# metrics whose denominator does not depend on the forecast, so that the ratio of two of
# them is a ratio of sums of errors
SUMS_OF_ERRORS = ("MASE", "sMAPE", "ND", "MAE", "MAPE", "MSIS", "CRPS")
# the largest value of a distance; none is negative
LARGEST = dict(zip(DISTANCES, (2.0, 2.0, 1.0, 2.0, 1.0, np.inf), strict=True))


def formula(measure: str) -> tuple[tuple[str, ...], Callable[..., Any]]:
    """Return how a metric or distance is computed from columns of `per_series`.

    Returns the names of the columns, and the function that takes them.
    """
    if measure not in _FORMULAS:
        raise unknown_name("metric", measure, MEASURES)
    return _FORMULAS[measure]


def pooled(
    sums: pd.DataFrame | Mapping[str, Any], metrics: Sequence[str] = METRICS
) -> dict[str, Any]:
    """Compute metrics from added-up sums.

    They are as gluonts gives them for all those steps at once (axis=None).
    """
    with np.errstate(all="ignore"):
        valid = np.where(np.asarray(sums["n_invalid"]) > 0, np.nan, 1.0)
        values = {
            name: formula(name)[1](*(sums[c] for c in formula(name)[0]))
            for name in metrics
        }
        return {
            name: (np.where(np.isfinite(value), value, np.nan) * valid)[()]
            for name, value in values.items()
        }


def per_series(frame: pd.DataFrame, measures: Sequence[str] = MEASURES) -> pd.DataFrame:
    """Sum over the windows and variates of each series."""
    inputs = [column for measure in measures for column in formula(measure)[0]]
    sums = list(dict.fromkeys(["n", "n_invalid", *(c for c in inputs if c in SUMS)]))
    distances = [measure for measure in measures if measure in DISTANCES]
    groups = frame.groupby(list(KEYS), sort=True, observed=True)
    group = groups.ngroup().to_numpy()
    series = groups.size().rename("n_rows").reset_index()
    count = len(series)
    window = frame["window"].to_numpy().astype(np.int64)
    variate = frame["variate"].to_numpy().astype(np.int64)
    # the sum of 64-bit hashes tells one set of windows and variates from another
    window_sets = np.zeros(count, dtype=np.uint64)
    np.add.at(window_sets, group, pd.util.hash_array((window << 20) + variate))
    columns: dict[str, Any] = {
        **{str(name): series[name] for name in series},
        "windows": window_sets,
    }
    # column by column and without a copy of all: a report should hold the rows once
    for name in sums:
        columns[name] = np.bincount(group, frame[name].to_numpy(), count)
    for name in distances:
        values = frame[name].to_numpy()
        valid = ~np.isnan(values)
        columns[name] = np.bincount(group, np.where(valid, values, 0.0), count)
        columns[f"n_{name}"] = np.bincount(group, valid, count)
    # categories, as stores give them, sort by their codes; series are compared by their
    # names
    table = columns | {key: columns[key].astype(str) for key in KEYS}
    return pd.DataFrame(table, copy=False).sort_values(list(KEYS), ignore_index=True)


def as_series_sums(frame: pd.DataFrame, measures: Sequence[str]) -> pd.DataFrame:
    """Return `per_series` of stored rows, or the frame itself if it is that already."""
    if "n_rows" in frame:
        return frame
    return per_series(frame, measures)


def dataset_metrics(
    frame: pd.DataFrame, metrics: Sequence[str] = METRICS
) -> pd.DataFrame:
    """Compute metrics by (model, variant, dataset)."""
    sums = as_series_sums(frame, metrics).drop(columns=["windows", "item"])
    total = sums.groupby(
        ["model", "variant", "dataset"], sort=True, observed=True
    ).sum()
    return pd.DataFrame(pooled(total, metrics), index=total.index)


def normalised(metrics: pd.DataFrame) -> pd.DataFrame:
    """Divide metrics by those of the seasonal naive forecast.

    This is done dataset by dataset, as on leaderboards.
    """
    is_naive = metrics.index.get_level_values("variant") == SEASONAL_NAIVE
    naive = metrics[is_naive]
    table = naive.set_axis(naive.index.get_level_values("dataset"))
    rest = metrics[~is_naive]
    denominator = table.reindex(rest.index.get_level_values("dataset")).to_numpy()
    return rest.div(np.where(denominator > 0, denominator, np.nan))
