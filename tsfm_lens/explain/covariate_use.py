"""Use of covariates: forecasts with and without them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import xarray as xr

from tsfm_lens.ablation.metrics import mae
from tsfm_lens.ablation.notices import saying_once
from tsfm_lens.ablation.points import Progress
from tsfm_lens.data import SeriesBatch
from tsfm_lens.data.evaluation import seasonal_error
from tsfm_lens.errors import InputError
from tsfm_lens.findings import judge
from tsfm_lens.models.forecast import is_count
from tsfm_lens.models.noise import noise_floor
from tsfm_lens.models.run import Run
from tsfm_lens.registry import probe

__all__ = ["covariate_use"]

WAYS = ("removed", "constant", "shuffled")
_SOURCE = "tsfm-lens: forecasts with a covariate, without it, with its mean and with its values in random order"


@probe("covariate_use")
@saying_once
def covariate_use(
    run: Run, *, shuffles: int = 8, seed: int | None = None, progress: Progress | None = None
) -> xr.Dataset:
    """Forecast every item again without each covariate, and measure the change of the forecast and of its error.

    A covariate is "removed" with its row, "constant" at the mean of its context, or "shuffled" several times, past and
    known future together.

    Args:
        run: with covariates; a truth is needed to measure their worth.
        shuffles: number of random orders.
        seed: of the orders; the run's own if None.
        progress: called with (done, of) forecasts.

    Returns:
        Dataset of kind "covariate_use" over the forecast series. ``moved`` (covariate, way, series): mean absolute
        change of the median forecast, in multiples of the context's mean absolute seasonal difference, as in MASE. With
        a truth ``error`` (series), the MASE with all covariates, ``error_without`` (covariate, way, series), and
        ``worth``, their difference: above 0 the covariate helps. What :func:`tsfm_lens.findings.judge` adds for
        ``moved`` and ``worth`` within each way. ``role_of`` (covariate). NaN of a series whose context never changes,
        or in which the covariate is missing, never changes, or is the target.

    Source:
        Permutation importance (Breiman 2001), applied to whole series.

    Raises:
        InputError: the run has no covariates; one never changes, or is the target, in every series; no context changes,
            so there is no unit; or shuffles is not a count.

    Example:
        >>> explain.covariate_use(driven)["moved"].dims
        ('covariate', 'way', 'series')
    """
    batch = run.batch
    informative = _informative_rows(batch)
    if not is_count(shuffles):
        raise InputError(f"shuffles is {shuffles!r}, expected a number of shuffles, 1 or more")
    roles = {name: role for name, role in zip(batch.variates, batch.roles, strict=True) if role != "target"}
    names = list(roles)
    rows = np.flatnonzero(batch.is_target)
    unit = np.array([seasonal_error(batch.values[row], batch.seasonalities[row]) for row in rows])
    if np.isnan(unit).all():
        raise InputError(f"the context of {batch.ids[rows[0]]!r} is constant, MASE is undefined; use series that vary")
    rng = np.random.default_rng(run.seed if seed is None else seed)
    plain = run.forecast.median[rows]
    truth = None if run.truth is None else run.truth[rows]
    shift, error_without = (np.full((len(names), len(WAYS), len(rows)), np.nan) for _ in range(2))
    count, total = 0, len(names) * (2 + shuffles)
    for place, name in enumerate(names):
        groups = [batch.groups[row] for row in informative if batch.variates[row] == name]
        has_covariate = np.isin([batch.groups[row] for row in rows], groups)
        for column, way in enumerate(WAYS):
            forecasts = []
            for _ in range(shuffles if way == "shuffled" else 1):
                changed = _replace_covariate(batch, name, way, rng)
                other = run.lens.forecast(changed, run.horizon, num_samples=run.num_samples, seed=run.seed)
                forecasts.append(other.median[changed.is_target])
                count += 1
                if progress is not None:
                    progress(count, total)
            change = np.mean([np.abs(other - plain).mean(-1) for other in forecasts], axis=0)
            shift[place, column] = np.where(has_covariate, change / unit, np.nan)
            if truth is not None:
                errors = np.mean([mae(other, truth) for other in forecasts], axis=0)
                error_without[place, column] = np.where(has_covariate, errors / unit, np.nan)
    axes = ("covariate", "way", "series")
    data = run.dataset().isel(series=rows)
    data = data.assign_coords(covariate=names, way=list(WAYS), role_of=("covariate", [*roles.values()]))
    data["moved"] = (axes, shift)
    data["unit"] = (("series",), unit)
    data.attrs = run.describe("covariate_use", "Use of covariates", _SOURCE)
    noise = noise_floor(run, lambda other, same: np.abs(other - same).mean(-1))[rows] / unit
    floor = xr.DataArray(noise, dims="series")
    data = judge(data, "moved", floor=floor, groups="way")
    if truth is None:
        return data
    error = mae(run.forecast.median[rows], truth) / unit
    data["error"] = (("series",), error)
    data["error_without"] = (axes, error_without)
    data["worth"] = (axes, error_without - error)
    return judge(data, "worth", floor=floor, signed=True, groups="way")


def _informative_rows(batch: SeriesBatch) -> list[int]:
    """Return rows of the informative covariates; refuse one that never changes or is the target in every series."""
    if not batch.has_covariates:
        raise InputError(
            "these series have no covariates; name columns with known=… and past=…, or give entries with "
            "past_covariates"
        )
    faults = {row: _fault(batch, row) for row, role in enumerate(batch.roles) if role != "target"}
    for name in dict.fromkeys(batch.variates[row] for row in faults):
        reasons = [fault for row, fault in faults.items() if batch.variates[row] == name]
        if all(reasons):
            raise InputError(f"{reasons[0]}; leave it out")
    return [row for row, fault in faults.items() if not fault]


def _fault(batch: SeriesBatch, row: int) -> str:
    """Return the reason for which a covariate is not informative in its item; "" if it is."""
    name, future = batch.ids[row], batch.futures[row]
    values = batch.values[row] if future is None else np.concatenate([batch.values[row], future])
    finite = values[np.isfinite(values)]
    if not len(finite):
        return f"covariate {name!r} has no value"
    if (finite == finite[0]).all():
        categories = batch.categories[row]
        level = f"{finite[0]:g}" if categories is None else repr(categories[int(finite[0])])
        return f"covariate {name!r} is {level} throughout, so its use cannot be measured"
    for other, target in enumerate(batch.values):
        alike = batch.roles[other] == "target" and batch.groups[other] == batch.groups[row]
        if alike and np.array_equal(target, batch.values[row], equal_nan=True):
            return (
                f"covariate {name!r} equals the target {batch.ids[other]!r} at every step, so their effects "
                "cannot be told apart"
            )
    return ""


def _replace_covariate(batch: SeriesBatch, name: str, way: str, rng: np.random.Generator) -> SeriesBatch:
    """Return the batch with one covariate removed, or replaced by values without information."""
    rows = [row for row, variate in enumerate(batch.variates) if variate == name and batch.roles[row] != "target"]
    if way == "removed":
        return batch.select([row for row in range(len(batch)) if row not in rows])
    values, futures = list(batch.values), list(batch.futures)
    for row in rows:
        past, future = batch.values[row], batch.futures[row]
        ahead = np.empty(0) if future is None else future
        if way == "constant":
            # of categories the most frequent one, since a mean of their numbers is none
            finite = past[np.isfinite(past)]
            level = np.nanmean(past) if batch.categories[row] is None else np.bincount(finite.astype(int)).argmax()
            both = np.full(len(past) + len(ahead), float(level))
        else:
            # gaps stay where they are
            both = np.concatenate([past, ahead])
            finite = np.isfinite(both)
            both[finite] = rng.permutation(both[finite])
        values[row] = both[: len(past)]
        futures[row] = None if future is None else both[len(past) :]
    return replace(batch, values=tuple(values), futures=tuple(futures))
