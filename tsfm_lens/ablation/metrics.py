"""How far a forecast moved, and how good it is."""

from __future__ import annotations

import numpy as np
from gluonts.ev.ts_stats import seasonal_error
from scipy.stats import spearmanr

from tsfm_lens.errors import InputError


def spearman_distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """1 - rank correlation of two forecasts, step by step: 0 = same shape, 1 = unrelated, 2 = reversed.

    A constant forecast has rank correlation 0 with anything, so its distance is 1, never NaN.

    Args:
        a, b: (…, step), at least 2 steps.

    Returns:
        (…) in [0, 2].

    Source:
        tsfm-lens paper, section 3 (definition S3-SPEAR of the measurements index); average ranks on ties.

    Raises:
        InputError: shapes differ, or there are fewer than 2 steps.
    """
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if a.shape != b.shape:
        raise InputError(f"forecasts of shapes {a.shape} and {b.shape} cannot be compared step by step")
    if a.shape[-1] < 2:
        raise InputError(f"a rank correlation needs at least 2 steps, got {a.shape[-1]}")
    rows = []
    for x, y in zip(a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1]), strict=True):
        varies = np.ptp(x) > 0 and np.ptp(y) > 0
        rows.append(1.0 - (float(spearmanr(x, y).statistic) if varies else 0.0))
    return np.array(rows).reshape(a.shape[:-1])


def mae(forecast: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Mean absolute error over the steps with a known truth, (…); NaN where none is known."""
    error = np.abs(np.asarray(forecast, dtype=float) - np.asarray(truth, dtype=float))
    known = np.isfinite(error)
    total = np.where(known, error, 0.0).sum(axis=-1)
    count = known.sum(axis=-1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def seasonal_scale(context: np.ndarray, seasonality: int) -> float:
    """Mean absolute seasonal difference of the context, the denominator of MASE (gluonts).

    NaN pairs are left out; NaN if there is no pair, or if the context repeats exactly.
    """
    series = np.ma.masked_invalid(np.asarray(context, dtype=float))
    season = seasonality if seasonality < len(series) else 1
    if len(series) < 2:
        return float("nan")
    value = np.ma.filled(seasonal_error(series, seasonality=season, time_axis=0), np.nan)
    scale = float(np.asarray(value).reshape(-1)[0])
    return scale if scale > 0 else float("nan")


def relative_change(value: np.ndarray, baseline: np.ndarray) -> np.ndarray:
    """value / baseline - 1; NaN where the baseline is 0 or unknown."""
    value, baseline = np.broadcast_arrays(np.asarray(value, float), np.asarray(baseline, float))
    out = np.full(value.shape, np.nan)
    np.divide(value, baseline, out=out, where=np.isfinite(baseline) & (baseline != 0))
    return out - 1.0
