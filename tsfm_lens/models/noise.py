"""Uncertainty of a run's forecast when nothing is changed in the model.

Read :func:`noise_floor` first, against which effects are compared: rounding where the
forecast is deterministic, else the difference between two draws. Two functions mark
degenerate series: :func:`cached_flat_contexts` those that all statistics leave out, and
:func:`flat_forecasts` those without a shape, which statistics of shapes leave out, too.
Uncertainty over series is in :mod:`tsfm_lens.core.estimates`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import xarray as xr

from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks import residual
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.run import Run

Measure = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Two forecasts (series, step) -> their distance, (series,)."""

# every library scales series in float32 or better
_OUTER = torch.finfo(torch.float32).eps


def rounding(run: Run, plain: np.ndarray) -> np.ndarray:
    """Bound the rounding errors of forecasts of a run.

    The bound is a sum. Scaling in and out takes 4 roundings in float32 of the largest
    value of context and forecast. The blocks take the square root of 100 roundings
    each, in the precision of the weights, of the range of both. The forecasts ``plain``
    are (series, step).

    Returns:
        The bound in data units, (series,).

    Source:
        Higham and Mary 2019, A new approach to probabilistic rounding error analysis: n
        independent roundings add up to about the square root of n, not to n.
    """
    steps = np.array([_float_step(values) for values in _values(run, plain)])
    return steps + relative_rounding(run.lens) * ranges(run, plain)


def _float_step(values: np.ndarray) -> float:
    """Return the smallest range of finite values that a library can see.

    Values within it are one value to a library that scales them in float32.
    """
    return float(4 * _OUTER * np.abs(values).max(initial=0.0))


def _values(run: Run, plain: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the finite numbers of each context and its forecast in ``plain``."""
    for context, forecast in zip(run.batch.values, plain, strict=True):
        values = np.concatenate([np.ravel(context), forecast]).astype(float)
        yield values[np.isfinite(values)]


def forecast_rounding(run: Run) -> np.ndarray:
    """Return the :func:`rounding` of the run's own point forecast, computed once."""
    return _computed_once(run, "rounding", lambda: rounding(run, run.point))


def _computed_once(
    run: Run, name: str, compute: Callable[[], np.ndarray]
) -> np.ndarray:
    """Return an array that a run keeps, which nobody may write to."""
    if name not in run.cache:
        values = compute()
        # a caller that changed it would change what every later one is given
        values.flags.writeable = False
        run.cache[name] = values
    kept: np.ndarray = run.cache[name]
    return kept


def with_noise(run: Run, sizes: Sequence[float], seed: int) -> Run:
    """Return a run of the same series with normal noise on past and future.

    ``sizes`` (series,) are standard deviations in data units. Categories stay.
    """
    batch = run.batch
    values = list(batch.values)
    futures = list(batch.futures)
    for row, future in enumerate(futures):
        # the noise of a series depends on its row alone, not on the lengths of those
        # before
        rng = np.random.default_rng([seed, row])
        size = sizes[row] * (not batch.categories[row])
        values[row] = values[row] + size * rng.standard_normal(batch.lengths[row])
        if future is not None:
            futures[row] = future + size * rng.standard_normal(len(future))
    batch = replace(batch, values=tuple(values), futures=tuple(futures))
    return replace(run, batch=batch, full_batch=None, forced_path=None, _of=None)


def measured_rounding(run: Run) -> np.ndarray:
    """Measure how far the quantiles move under rounding of the series.

    All values of a series move by its :func:`forecast_rounding`. A forecast is the
    exact one of series that are off by the rounding of a forward. Where values on the
    way are large, as the scores of sharp attention or a small difference that the
    readout enlarges, this exceeds :func:`rounding`.

    Returns:
        The distance in data units, (series,).

    Source:
        Higham 2002, Accuracy and Stability of Numerical Algorithms, sections 1.5 and
        1.6: the forward error is the backward error times the condition.
    """
    # what the series themselves give, whatever the run says that it took its forecast
    # from
    alone = replace(run, full_batch=None, forced_path=None, _of=None)
    moved = with_noise(alone, forecast_rounding(alone).tolist(), seed=0)
    distances = np.abs(moved.forecast.quantiles - alone.forecast.quantiles)
    return np.asarray(distances.max((1, 2)))


def relative_rounding(lens: Lens) -> float:
    """Estimate the relative rounding error of a number at the end of a forward.

    Returns:
        The error as a share of the size of the terms that the number sums.
    """
    return residual.relative_rounding(lens.adapter.model, lens.wiring)


def ranges(run: Run, plain: np.ndarray) -> np.ndarray:
    """Compute the range of each context and its forecast in ``plain``.

    ``plain`` is (series, step).

    Returns:
        Ranges in data units, (series,).
    """
    return np.array(
        [np.ptp(values) if values.size else 0.0 for values in _values(run, plain)]
    )


def cached_flat_contexts(run: Run) -> np.ndarray:
    """Return the :func:`flat_contexts` of a run's series, computed once."""
    # what is encoded already need not be once more; a path for it may cost a forecast
    encoded = vars(run).get("encoded")
    return _computed_once(
        run, "flat contexts", lambda: flat_contexts(run.lens, run.batch, encoded)
    )


def flat_contexts(
    lens: Lens, batch: SeriesBatch, encoded: Encoded | None = None
) -> np.ndarray:
    """Mark the series (series,) that a model sees as one value.

    Their range is below the float step, or within one bin of a token model. Give what
    the batch is ``encoded`` as if it is at hand, so that it is not computed again.

    Returns:
        True for these series, (series,).
    """
    finite = [
        values[np.isfinite(values)]
        for values in (np.ravel(value).astype(float) for value in batch.values)
    ]
    ranges = np.array([np.ptp(values) if values.size else 0.0 for values in finite])
    steps = np.array([_float_step(values) for values in finite])
    if lens.adapter.readout == "token":
        if encoded is None:
            encoded = lens.encode(batch, future=np.zeros((len(batch), 1)))
        levels = [values.mean() if values.size else 0.0 for values in finite]
        steps = np.fmax(steps, _bin_widths(lens, encoded, levels))
    return np.asarray(ranges <= steps)


def _bin_widths(lens: Lens, encoded: Encoded, levels: list[float]) -> np.ndarray:
    """Return the width of the bin that holds the level of each series.

    Bins are those of a token model, widths in data units, (series,).
    """
    bins = np.sort(lens.bin_values(encoded).cpu().double().numpy())
    nearest = [
        # a level beyond all bins is in the first or the last one
        np.clip(np.searchsorted(row, level), 1, len(row) - 1)
        for row, level in zip(bins, levels, strict=True)
    ]
    return np.array(
        [row[at] - row[at - 1] for row, at in zip(bins, nearest, strict=True)]
    )


def flat_forecasts(run: Run) -> np.ndarray:
    """Mark the series of a run whose forecast has no shape, (series,).

    A flat forecast varies by no more than its :func:`rounding`. It has no order of
    steps, with which that of another forecast could be compared. The size of a change
    needs none, so that only statistics of shapes leave such series out. The forecast of
    a flat context has no shape of its own either. A twin leaves out what its original
    does.

    Returns:
        True for these series, (series,).
    """
    return _computed_once(run, "flat forecasts", lambda: _flat_forecasts(run))


def _flat_forecasts(run: Run) -> np.ndarray:
    flat = cached_flat_contexts(run).copy()
    if run.horizon > 1:
        flat |= np.ptp(run.point, axis=-1) <= forecast_rounding(run)
    if run.original is not None:
        # a twin is compared with its original on the same series
        flat |= flat_forecasts(run.original)
    return flat


def marked_dataset(run: Run, **coords: Any) -> xr.Dataset:
    """Return the dataset that all results share, with the coordinate ``flat``.

    The coordinate is :func:`flat_contexts` of the run; ``coords`` are added to it.
    """
    flat = ("series", cached_flat_contexts(run))
    return run.dataset().assign_coords(flat=flat, **coords)


def keep_above_rounding(
    run: Run, forecasts: np.ndarray, plain: np.ndarray
) -> np.ndarray:
    """Replace forecasts by ``plain`` where they differ by rounding alone.

    The forecasts are (…, series, step), ``plain`` (series, step).

    Returns:
        The forecasts, (…, series, step).
    """
    same = np.abs(forecasts - plain).max(-1) <= rounding(run, plain)
    return np.where(same[..., None], plain, forecasts)


def noise_floor(run: Run, measure: Measure) -> np.ndarray:
    """Measure two forecasts of an unchanged model against each other, (series,).

    In a rollout that draws, they are the medians of two draws. Else they differ by
    rounding, all steps in one direction or in alternating ones, whichever measures
    more.

    Returns:
        The measure of the two forecasts, (series,).
    """
    plain = run.point
    if run.rollout and run.forecast.samples is not None:
        return measure(run.redraw().forecast.median, plain)
    bounds = forecast_rounding(run)[:, None]
    signs = np.where(np.arange(run.horizon) % 2, 1.0, -1.0)
    alternating = measure(plain + bounds * signs, plain)
    # which of the two a measure feels depends on it: a sum does not see alternating
    # errors, a measure of shape does not see a shift
    return np.fmax(alternating, measure(plain + bounds, plain))


def share_floor(run: Run, difference: np.ndarray) -> np.ndarray:
    """Compute the :func:`noise_floor` of a share of the way to another forecast.

    ``difference`` (…, series, step) leads from the run's forecast to the other one; the
    floor is (…, series).

    Returns:
        The floor, without unit, (…, series).
    """
    length = np.square(difference).sum(-1)

    def share(other: np.ndarray, plain: np.ndarray) -> np.ndarray:
        along = (other - plain) * difference
        # errors of the steps may all point one way, or be independent of each other
        size = np.fmax(np.abs(along.sum(-1)), np.sqrt(np.square(along).sum(-1)))
        result: np.ndarray = np.divide(
            size, length, out=np.full(length.shape, np.inf), where=length > 0
        )
        return result

    return noise_floor(run, share)
