"""Pooling of stored rows: sums per series, metrics per dataset, one figure for a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.sweep.statistics.scores import DISTANCES, SUMS

KEYS = ("model", "variant", "dataset", "item")
# name under which the rows of the seasonal naive forecast are stored
PLAIN = "plain"
SEASONAL_NAIVE = "seasonal_naive"


def _ratio(numerator: Any, denominator: Any) -> Any:
    return numerator / denominator


# metric: the sums that it is made of, the steps that it is a mean over first or last, and how
_FORMULAS: dict[str, tuple[tuple[str, ...], Callable[..., Any]]] = {
    "MASE": (("scaled_error", "n_scaled"), _ratio),
    "sMAPE": (("symmetric_error", "n_symmetric"), _ratio),
    "MSE": (("squared_error_mean", "n"), _ratio),
    "MSE[0.5]": (("squared_error", "n"), _ratio),
    "RMSE": (("squared_error_mean", "n"), lambda total, n: np.sqrt(total / n)),
    "NRMSE": (("squared_error_mean", "n", "abs_label"), lambda total, n, label: np.sqrt(total / n) / (label / n)),
    "ND": (("abs_error", "abs_label"), _ratio),
    "MAE": (("abs_error", "n"), _ratio),
    "MAPE": (("percentage_error", "n_percentage"), _ratio),
    "MSIS": (("interval_score", "n_interval"), _ratio),
    "CRPS": (("quantile_loss", "abs_label"), _ratio),
}
METRICS = tuple(_FORMULAS)
MEASURES = (*METRICS, *DISTANCES)
_FORMULAS |= {distance: ((distance, f"n_{distance}"), _ratio) for distance in DISTANCES}
# a sum of errors over what does not depend on the forecast, so that sums alone tell by how much it changes
SUMS_OF_ERRORS = ("MASE", "sMAPE", "ND", "MAE", "MAPE", "MSIS", "CRPS")
# the largest value of a distance; none is negative
LARGEST = dict(zip(DISTANCES, (2.0, 2.0, 1.0, 2.0, 1.0, np.inf), strict=True))


def formula(measure: str) -> tuple[tuple[str, ...], Callable[..., Any]]:
    """Return the columns of `per_series` that a metric or distance is made of, and the function that makes it."""
    if measure not in _FORMULAS:
        raise unknown_name("metric", measure, MEASURES)
    return _FORMULAS[measure]


def pooled(sums: pd.DataFrame | Mapping[str, Any], metrics: Sequence[str] = METRICS) -> dict[str, Any]:
    """Compute metrics from added-up sums, as gluonts gives them for all those steps at once (axis=None)."""
    with np.errstate(all="ignore"):
        valid = np.where(np.asarray(sums["n_invalid"]) > 0, np.nan, 1.0)
        values = {name: formula(name)[1](*(sums[c] for c in formula(name)[0])) for name in metrics}
        return {name: (np.where(np.isfinite(value), value, np.nan) * valid)[()] for name, value in values.items()}


def per_series(frame: pd.DataFrame, measures: Sequence[str] = MEASURES) -> pd.DataFrame:
    """Sum over the windows and variates of each series."""
    inputs = [column for measure in measures for column in formula(measure)[0]]
    sums = list(dict.fromkeys(["n", "n_invalid", *(c for c in inputs if c in SUMS)]))
    distances = [measure for measure in measures if measure in DISTANCES]
    absent = [c for c in (*KEYS, "window", "variate", *sums, *distances) if c not in frame]
    if absent:
        raise InputError(f"stored rows lack the columns {absent}; they have {list(frame)}")
    empty = [column for column in sums if frame[column].isna().to_numpy().any()]
    if empty:
        raise InputError(f"the sums {empty} hold NaN; `window_scores` gives none, so the rows are damaged")

    by = frame.groupby(list(KEYS), sort=True, observed=True)
    group = by.ngroup().to_numpy()
    out = by.size().rename("n_rows").reset_index()
    window, variate = frame["window"].to_numpy(), frame["variate"].to_numpy()
    width, depth = int(window.max(initial=0)) + 1, int(variate.max(initial=0)) + 1
    place = pd.Series((group.astype(np.int64) * width + window) * depth + variate)
    if len(place.unique()) < len(place):
        row = frame.iloc[int(place.duplicated().argmax())]
        where = ", ".join(f"{key} {row[key]!r}" for key in (*KEYS, "window", "variate"))
        raise InputError(f"a row is there twice: {where}")
    # the sum of 64-bit hashes tells one set of windows and variates from another
    which = np.zeros(len(out), dtype=np.uint64)
    np.add.at(which, group, pd.util.hash_array((window.astype(np.int64) << 20) + variate.astype(np.int64)))
    columns: dict[str, Any] = {**{str(name): out[name] for name in out}, "windows": which}
    # column by column and without a copy of all: a report should hold the rows once
    for name in sums:
        columns[name] = np.bincount(group, frame[name].to_numpy(), len(out))
    for name in distances:
        values = frame[name].to_numpy()
        valid = ~np.isnan(values)
        columns[name] = np.bincount(group, np.where(valid, values, 0.0), len(out))
        columns[f"n_{name}"] = np.bincount(group, valid, len(out))
    # categories, as stores give them, sort by their codes; series are compared by their names
    table = columns | {key: columns[key].astype(str) for key in KEYS}
    return pd.DataFrame(table, copy=False).sort_values(list(KEYS), ignore_index=True)


def as_series_sums(frame: pd.DataFrame, measures: Sequence[str]) -> pd.DataFrame:
    """Return `per_series` of stored rows, or the frame itself if it is that already."""
    if "n_rows" not in frame:
        return per_series(frame, measures)
    absent = [c for measure in measures for c in formula(measure)[0] if c not in frame]
    if absent:
        raise InputError(f"these sums per series lack {absent}: give `per_series` all measures that are asked for")
    return frame


def dataset_metrics(frame: pd.DataFrame, metrics: Sequence[str] = METRICS) -> pd.DataFrame:
    """Compute metrics by (model, variant, dataset)."""
    sums = as_series_sums(frame, metrics).drop(columns=["windows", "item"])
    total = sums.groupby(["model", "variant", "dataset"], sort=True, observed=True).sum()
    return pd.DataFrame(pooled(total, metrics), index=total.index)


def normalised(metrics: pd.DataFrame) -> pd.DataFrame:
    """Divide metrics by those of the seasonal naive forecast, dataset by dataset, as on leaderboards."""
    is_naive = metrics.index.get_level_values("variant") == SEASONAL_NAIVE
    naive = metrics[is_naive]
    if naive.empty:
        raise InputError(f"no rows of the variant {SEASONAL_NAIVE!r}: add the seasonal naive forecast to the sweep")
    table = naive.set_axis(naive.index.get_level_values("dataset"))
    if table.index.has_duplicates:
        raise InputError(f"more than one seasonal naive forecast of {table.index[table.index.duplicated()][0]!r}")
    rest = metrics[~is_naive]
    below = table.reindex(rest.index.get_level_values("dataset")).to_numpy()
    return rest.div(np.where(below > 0, below, np.nan))
