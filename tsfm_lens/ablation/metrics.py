"""Distances between forecasts, and errors of forecasts.

Distances compare the shapes of two forecasts along their last axis
(:func:`spearman_distance` first); a constant or non-finite forecast has no shape, so
that its distance is NaN. Errors (:func:`mae`) compare a forecast with the truth. All
are plain numpy functions of arrays, without models or units.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tsfm_lens.core.errors import InputError

# scipy.signal and scipy.stats take a second to import, which plans of sweeps do
# without: functions that need them import them themselves


def _pair(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return both forecasts as floats of one shape with at least 2 steps."""
    a = np.asarray(a, dtype=float)
    b = np.asarray(b, dtype=float)
    if a.shape != b.shape:
        raise InputError(
            f"forecasts of shapes {a.shape} and {b.shape} cannot be compared step by"
            " step"
        )
    if a.shape[-1] < 2:
        raise InputError(
            "a rank correlation or another measure of shape needs at least 2 steps,"
            f" got {a.shape[-1]}"
        )
    return a, b


def _of_rows(a: np.ndarray, b: np.ndarray, distances: np.ndarray) -> np.ndarray:
    """Set the distance of equal rows to 0.

    Returns:
        The distances, NaN for rows that are not finite in both forecasts.
    """
    finite = np.isfinite(a).all(axis=-1) & np.isfinite(b).all(axis=-1)
    # equal constant rows, too, whose correlation is not defined
    distances = np.where((a == b).all(axis=-1), 0.0, distances)
    return np.where(finite, distances, np.nan)


def _centre(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Subtract the mean of each row, in units of its largest absolute value.

    Returns:
        The centred rows, and whether each varies at all.
    """
    # by the extremes: the spread about a rounded mean of equal values need not be 0
    varies = x.max(axis=-1) > x.min(axis=-1)
    largest = np.abs(x).max(axis=-1, keepdims=True)
    # scaled first, so that the squares of large forecasts do not overflow;
    # rows with infinities become NaN, and are found by the callers
    with np.errstate(invalid="ignore"):
        x = x / np.where(largest > 0, largest, 1.0)
        return x - x.mean(axis=-1, keepdims=True), varies


def _inner(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Compute the inner product of rows."""
    return (x * y).sum(axis=-1)


def _correlation_distance(
    a: np.ndarray, b: np.ndarray, product: Callable[..., np.ndarray] = _inner
) -> np.ndarray:
    """Compute 1 - correlation of rows; NaN for constant rows.

    The correlation is Pearson's unless another product is given.

    Returns:
        Distances in [0, 2], (…).
    """
    (x, x_varies), (y, y_varies) = _centre(a), _centre(b)
    size = np.sqrt(_inner(x, x) * _inner(y, y))
    varies = x_varies & y_varies & (size > 0)
    correlation = np.where(varies, product(x, y) / np.where(varies, size, 1.0), np.nan)
    # rounding may lift a correlation above 1
    return 1.0 - np.clip(correlation, -1.0, 1.0)


def spearman_distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compute 1 - rank correlation of two forecasts, step by step.

    0 is the same shape, 1 unrelated, 2 reversed.

    Equal forecasts have distance 0. A constant one has no order, so that its distance
    from any other is NaN, as is that of a forecast that is not finite.

    Args:
        a: forecast (…, step), at least 2 steps.
        b: forecast of the same shape.

    Returns:
        (…) in [0, 2].

    Source:
        tsfm-lens paper, section 3 (definition S3-SPEAR of the measurements index);
        average ranks on ties.

    Raises:
        InputError: shapes differ, or there are fewer than 2 steps.

    Example:
        >>> float(ablation.spearman_distance(np.arange(5.0), -np.arange(5.0)))
        2.0
    """
    from scipy.stats import rankdata

    a, b = _pair(a, b)
    return _of_rows(
        a, b, _correlation_distance(rankdata(a, axis=-1), rankdata(b, axis=-1))
    )


def pearson_distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compute 1 - linear correlation of two forecasts.

    Args:
        a: forecast (…, step), at least 2 steps.
        b: forecast of the same shape.

    Returns:
        (…) in [0, 2]; 0 of equal forecasts, NaN of a constant and another one.

    Raises:
        InputError: shapes differ, or there are fewer than 2 steps.
    """
    a, b = _pair(a, b)
    return _of_rows(a, b, _correlation_distance(a, b))


def spectral_distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compute the Hellinger distance of two normalised power spectra.

    The distance between forecasts is blind to level, scale and phase. A constant
    forecast has no spectrum.

    Args:
        a: forecast (…, step), at least 2 steps.
        b: forecast of the same shape.

    Returns:
        (…): 0 for equal spectra, 1 for spectra without a common frequency; NaN between
        a constant forecast and any but an equal one.

    Raises:
        InputError: shapes differ, or there are fewer than 2 steps.

    Source:
        Hess et al. 2023, Generalized teacher forcing for learning chaotic dynamics,
        appendix on evaluation measures.
    """
    from scipy.signal import periodogram

    a, b = _pair(a, b)
    spectra = []
    varies = []
    for x, row_varies in (_centre(a), _centre(b)):
        # without frequency 0: rows are centred, and what is left there is rounding
        power = periodogram(x, detrend=False, axis=-1)[1][..., 1:]
        total = power.sum(axis=-1, keepdims=True)
        spectra.append(power / np.where(total > 0, total, 1.0))
        varies.append(row_varies & (total[..., 0] > 0))
    p, q = spectra
    # half the squared distance of the roots: exactly 0 for equal spectra, unlike 1 -
    # sum sqrt(p q)
    distance = np.sqrt(
        np.clip(((np.sqrt(p) - np.sqrt(q)) ** 2).sum(axis=-1) / 2, 0.0, 1.0)
    )
    distance = np.where(varies[0] & varies[1], distance, np.nan)
    return _of_rows(a, b, distance)


def shape_distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compute 1 - largest normalised cross-correlation over all shifts.

    Forecasts are shifted against zeros. The distance is blind to level, scale and lag.

    Args:
        a: forecast (…, step), at least 2 steps.
        b: forecast of the same shape.

    Returns:
        (…) in [0, 2]; NaN between a constant forecast and another one.

    Raises:
        InputError: shapes differ, or there are fewer than 2 steps.

    Source:
        Paparrizos & Gravano 2015, k-Shape, section 3.1 (shape-based distance,
        coefficient normalisation).
    """
    from scipy.signal import fftconvolve

    a, b = _pair(a, b)
    # a convolution with the reversed row is the cross-correlation at every shift
    convolved = _correlation_distance(
        a, b, lambda x, y: fftconvolve(x, y[..., ::-1], axes=-1).max(axis=-1)
    )
    return _of_rows(a, b, convolved)


def slope_disagreement(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Compute the share of steps at which two forecasts move differently.

    A forecast rises, falls or rests at a step.

    Args:
        a: forecast (…, step), at least 2 steps.
        b: forecast of the same shape.

    Returns:
        Shares, (…), from 0 to 1; NaN of forecasts that are not finite.

    Raises:
        InputError: shapes differ, or there are fewer than 2 steps.
    """
    a, b = _pair(a, b)
    differs = np.sign(np.diff(a, axis=-1)) != np.sign(np.diff(b, axis=-1))
    return _of_rows(a, b, differs.mean(axis=-1))


def mae(forecast: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Compute the mean absolute error over the steps with a known truth.

    Args:
        forecast: (…, step).
        truth: values of the same shape, NaN where unknown.

    Returns:
        Errors in data units, (…); NaN where no truth is known.

    Example:
        >>> float(ablation.mae(np.array([1.0, 2.0]), np.array([1.0, 4.0])))
        1.0
    """
    error = np.abs(np.asarray(forecast, dtype=float) - np.asarray(truth, dtype=float))
    known = np.isfinite(error)
    count = known.sum(axis=-1)
    return np.where(
        count > 0,
        np.where(known, error, 0.0).sum(axis=-1) / np.maximum(count, 1),
        np.nan,
    )


def seasonal_scale(context: np.ndarray, seasonality: int) -> float:
    """Compute the mean absolute seasonal difference of the context.

    This is gluonts's definition, the denominator of MASE.

    Args:
        context: values (time,), NaN where unknown.
        seasonality: season length in steps.

    Returns:
        The difference in data units; NaN if no two values a season apart differ.

    Example:
        >>> float(ablation.seasonal_scale(np.array([1.0, 2.0, 2.0, 4.0]), 2))
        1.5
    """
    # masked, since a difference with a missing value is left out of the mean
    series = np.ma.masked_invalid(np.asarray(context, dtype=float))
    # a context shorter than a season has no seasonal difference: gluonts compares
    # neighbours then
    season = 1
    if seasonality < len(series):
        season = seasonality
    if len(series) < 2:
        return float("nan")
    scale = float(
        np.ma.filled(np.ma.abs(series[:-season] - series[season:]).mean(), np.nan)
    )
    if scale > 0:
        return scale
    return float("nan")


def relative_change(
    value: np.ndarray, baseline: np.ndarray, smallest: np.ndarray | float = 0.0
) -> np.ndarray:
    """Compute value / baseline - 1.

    Args:
        value: changed values, of any shape.
        baseline: values to compare with, of the same shape.
        smallest: baselines of at most this size give NaN.

    Returns:
        The change without unit, NaN where the baseline is unknown or too small.

    Example:
        >>> ablation.relative_change(np.array([3.0]), np.array([2.0])).tolist()
        [0.5]
    """
    value, baseline = np.broadcast_arrays(
        np.asarray(value, float), np.asarray(baseline, float)
    )
    # `where` leaves the other entries as they are, and warns of no division by zero
    out = np.full(value.shape, np.nan)
    np.divide(
        value,
        baseline,
        out=out,
        where=np.isfinite(baseline) & (np.abs(baseline) > smallest),
    )
    return out - 1.0
