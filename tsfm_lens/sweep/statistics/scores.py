"""Scores of a forecast: sums for the benchmark metrics, and distances.

Read :func:`window_scores` first (the sums of each series, which a store holds), then
:func:`pooled` (metrics from added-up sums) and :func:`forecast_distances` (how far an
ablated model's forecast is from the plain model's, with nothing ablated). Tests of
changes are in ``changes.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import truediv
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.core.errors import unknown_name
from tsfm_lens.data.stored import gluonts_module
from tsfm_lens.sweep.data.evaluation import SEASONAL_NAIVE

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
"""Names of the sums that are stored for each series of a window.

A metric is a ratio of such sums over all windows, not a mean of ratios. ``n`` counts
the scored steps, and ``n_invalid`` those with a truth but no finite forecast;
``n_scaled`` and its like count the steps of one sum, which leaves out divisions by 0.
"""
DISTANCES = (
    "spearman_distance",
    "pearson_distance",
    "spectral_distance",
    "shape_distance",
    "slope_disagreement",
    "mean_shift",
)
# distances that compare the shapes of two forecasts; a flat one has no shape
_OF_SHAPE = (
    "spearman_distance",
    "pearson_distance",
    "spectral_distance",
    "shape_distance",
)
# levels of the quantile losses by which the benchmarks approximate the CRPS
CRPS_LEVELS = tuple(k / 10 for k in range(1, 10))
# share of values expected outside the interval that the interval score rates
ALPHA = 0.05
# gluonts wants a date, and none of these scores looks at it
_ANY_DATE = pd.Period("2000-01", freq="M")

# by sum: the function of ``gluonts.ev.stats`` whose values are added up over the steps,
# its options, and the sum that counts these steps, if it is not that of another entry
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


def _quantiles_and_mean(
    arrays: dict[str, np.ndarray], levels: Sequence[float]
) -> dict[str, np.ndarray]:
    """Return the quantiles and the mean of a forecast that gluonts' measures read.

    Each is (series, step); quantiles are named by their levels.
    """
    has_samples = "samples" in arrays
    # (series, sample or level, step)
    source = arrays["samples" if has_samples else "quantiles"]
    # (sample or level, series · step), as if of one long series: one gluonts forecast
    # then holds all of them
    rows = np.moveaxis(source, 1, 0).reshape(source.shape[1], -1)
    shape = (len(source), source.shape[-1])
    forecasts = gluonts_module("model.forecast")
    if has_samples:
        forecast = forecasts.SampleForecast(rows, _ANY_DATE)
    else:
        names = [str(float(level)) for level in levels]
        forecast = forecasts.QuantileForecast(rows, _ANY_DATE, names)
    interval_ends = (str(ALPHA / 2), str(1.0 - ALPHA / 2))
    names_read = ("0.5", *interval_ends, *map(str, CRPS_LEVELS))
    quantiles = {name: forecast[name].reshape(shape) for name in names_read}
    # gluonts takes the median for a missing mean, too, but logs a warning
    mean = forecast.mean.reshape(shape) if has_samples else quantiles["0.5"]
    return {**quantiles, "mean": arrays.get("mean", mean)}


def window_scores(
    truth: np.ndarray,
    quantiles: np.ndarray,
    levels: Sequence[float],
    scale: np.ndarray,
    *,
    samples: np.ndarray | None = None,
    mean: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """Sum gluonts' measures of each series over the steps whose truth is known.

    Args:
        truth: (series, step), NaN where it is not known.
        quantiles: (series, level, step); not read if there are samples, since gluonts
            takes the quantiles of a sampling model from its samples.
        levels: levels of the quantiles, between 0 and 1.
        scale: seasonal errors, (series,), by which scaled errors are divided.
        samples: (series, sample, step).
        mean: (series, step); that of the samples, or the median, if None.

    Returns:
        A (series,) array for each of SUMS.
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
        forecast = _quantiles_and_mean(arrays, levels)
        finite = np.all([np.isfinite(part) for part in forecast.values()], axis=0)
        has_label = np.isfinite(truth)
        # divisions of masked arrays silently leave out results that are not finite;
        # steps without a forecast are therefore masked here, and counted as n_invalid
        label = np.ma.masked_array(
            np.where(has_label, truth, 0.0), mask=~(has_label & finite)
        )
        data = {name: np.where(finite, part, 0.0) for name, part in forecast.items()}
        data["label"] = label
        # divided by 0, all steps of a series without a scale are masked
        data["seasonal_error"] = np.where(np.isfinite(scale), scale, 0.0)[:, None]
        sums = {"n_invalid": (has_label & ~finite).sum(axis=1).astype(float)}
        stats = gluonts_module("ev.stats")
        for name, (stat, options, count_name) in _STATS.items():
            values = getattr(stats, stat)(data, **options)
            sums[name] = np.ma.filled(values.sum(axis=1), 0.0)
            if count_name is not None:
                sums[count_name] = values.count(axis=1).astype(float)
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
    """Compute each of DISTANCES between point forecasts and the plain model's.

    Both are (series, step), and their first ``steps`` are compared.

    A series has no shape if its plain forecast varies by float32's rounding alone, or
    if it is marked as ``flat`` (series,). Distances of shape are then NaN, so that the
    series counts for nothing. A forecast that is flat where the plain one is not has
    kept nothing of its shape: these distances are then 1.

    Returns:
        Distances, (series,), by name.
    """
    # the package ``ablation`` loads torch, which a report of stored rows does not need
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
            has_lost_shape = np.isfinite(point).all(axis=1) & _is_flat(point)
            for name in _OF_SHAPE:
                distance = np.where(has_lost_shape, 1.0, distances[name])
                distances[name] = np.where(shapeless, np.nan, distance)
        shift = np.abs(point - plain).mean(axis=1)
        distances["mean_shift"] = np.where(np.isfinite(shift), shift, np.nan)
    return {name: distances[name] for name in DISTANCES}


def _is_flat(forecasts: np.ndarray) -> np.ndarray:
    """Mark forecasts (series, step) whose range is within four roundings of float32."""
    tolerance = 4 * np.finfo(np.float32).eps * np.abs(forecasts).max(axis=1)
    return np.asarray(np.ptp(forecasts, axis=1) <= tolerance)


KEYS = ("model", "variant", "dataset", "item")
"""Columns that tell the series of a table of stored rows from one another."""
# variant under which the rows of the plain model are stored
PLAIN = "plain"


# by metric: the names of the sums that it is made of, and the function of these sums
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
# added after METRICS is made, since a distance is no metric: it is a mean over rows
_FORMULAS |= {
    distance: ((distance, f"n_{distance}"), truediv) for distance in DISTANCES
}
# metrics whose denominator does not depend on the forecast, so that the ratio of two of
# them is a ratio of sums of errors
SUMS_OF_ERRORS = ("MASE", "sMAPE", "ND", "MAE", "MAPE", "MSIS", "CRPS")
# the largest value of a distance; none is negative
LARGEST = dict(zip(DISTANCES, (2.0, 2.0, 1.0, 2.0, 1.0, np.inf), strict=True))


def formula(measure: str) -> tuple[tuple[str, ...], Callable[..., Any]]:
    """Return the columns of `per_series` behind a measure, and the function of them.

    The function gives the metric or distance and takes the columns in their order.
    """
    if measure not in _FORMULAS:
        raise unknown_name("metric", measure, MEASURES)
    return _FORMULAS[measure]


def pooled(
    sums: pd.DataFrame | Mapping[str, Any], metrics: Sequence[str] = METRICS
) -> dict[str, Any]:
    """Compute metrics from added-up sums.

    They equal those that gluonts computes over all the summed steps at once
    (``axis=None``), and are NaN if a step has no finite forecast.

    Returns:
        Metrics by name.
    """
    with np.errstate(all="ignore"):
        nan_if_invalid = np.where(np.asarray(sums["n_invalid"]) > 0, np.nan, 1.0)
        metric_values = {}
        for name in metrics:
            columns, compute = formula(name)
            value = compute(*(sums[column] for column in columns))
            finite = np.where(np.isfinite(value), value, np.nan)
            # [()] makes a number of an array without axes
            metric_values[name] = (finite * nan_if_invalid)[()]
        return metric_values


def per_series(frame: pd.DataFrame, measures: Sequence[str] = MEASURES) -> pd.DataFrame:
    """Sum stored rows over the windows and variates of each series.

    Added to the sums of the measures are ``n_rows``, for a distance the number of rows
    that have it (``n_DISTANCE``), and ``windows``, a hash by which two variants can be
    tested for equal windows and variates.

    Returns:
        A row for each series.
    """
    inputs = [column for measure in measures for column in formula(measure)[0]]
    sums = list(dict.fromkeys(["n", "n_invalid", *(c for c in inputs if c in SUMS)]))
    distances = [measure for measure in measures if measure in DISTANCES]
    groups = frame.groupby(list(KEYS), sort=True, observed=True)
    group = groups.ngroup().to_numpy()
    series = groups.size().rename("n_rows").reset_index()
    count = len(series)
    window = frame["window"].to_numpy().astype(np.int64)
    variate = frame["variate"].to_numpy().astype(np.int64)
    # one number for each pair, as long as an item has fewer than 2^20 variates; a sum
    # of 64-bit hashes then tells sets of pairs apart, whatever their order
    pair = (window << 20) + variate
    window_hash = np.zeros(count, dtype=np.uint64)
    np.add.at(window_hash, group, pd.util.hash_array(pair))
    columns: dict[str, Any] = {
        **{str(name): series[name] for name in series},
        "windows": window_hash,
    }
    # column by column, so that a report of many rows needs no second copy of them
    for name in sums:
        columns[name] = np.bincount(group, frame[name].to_numpy(), count)
    for name in distances:
        values = frame[name].to_numpy()
        valid = ~np.isnan(values)
        columns[name] = np.bincount(group, np.where(valid, values, 0.0), count)
        columns[f"n_{name}"] = np.bincount(group, valid, count)
    # stores give keys as categories, which sort by their codes; as strings they sort by
    # name, by which the series of two variants are aligned
    table = columns | {key: columns[key].astype(str) for key in KEYS}
    return pd.DataFrame(table, copy=False).sort_values(list(KEYS), ignore_index=True)


def as_series_sums(frame: pd.DataFrame, measures: Sequence[str]) -> pd.DataFrame:
    """Apply `per_series` to stored rows; its own result is returned as it is."""
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

    Returns:
        Ratios.
    """
    is_naive = metrics.index.get_level_values("variant") == SEASONAL_NAIVE
    naive = metrics[is_naive]
    table = naive.set_axis(naive.index.get_level_values("dataset"))
    rest = metrics[~is_naive]
    denominator = table.reindex(rest.index.get_level_values("dataset")).to_numpy()
    return rest.div(np.where(denominator > 0, denominator, np.nan))
