"""Skill of forecasts on series with a known future: MASE and CRPS beside those of naive forecasts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import NDArray

from tsfm_lens.data.naive import filled, last_season, seasonal_error
from tsfm_lens.errors import InputError
from tsfm_lens.stats import bootstrap_interval
from tsfm_lens.studies.recipes.export import Pipeline

Array = NDArray[np.float64]

LEVELS = tuple(round(0.1 * level, 1) for level in range(1, 10))
WINDOWS = 5
BATCH = 256
PATHS = 5_120
"""Sample paths at a time; those of chronos-nano take about 0.4 MB each."""
SHORTEST = 32
REPLICATES = 2000


@dataclass(frozen=True)
class Case:
    """One series to forecast.

    Attributes:
        name: of the series.
        values: (time,).
        season: steps of its season, at least 1.
        covariates: (covariate, time), known in the future too; None for most.
    """

    name: str
    values: Array
    season: int
    covariates: Array | None = None


@dataclass(frozen=True)
class Skill:
    """Errors on one series, means over its windows.

    Attributes:
        name: the case.
        model, naive, last: MASE of the model's median, of the seasonal naive forecast and of the last value.
        model_crps, naive_crps: mean quantile loss over nine levels, in units of the seasonal error.
    """

    name: str
    model: float
    naive: float
    last: float
    model_crps: float
    naive_crps: float

    @property
    def ratio(self) -> float:
        """MASE over that of the seasonal naive forecast; below 1 the model is better."""
        return self.model / self.naive

    @property
    def crps_ratio(self) -> float:
        """CRPS over that of the seasonal naive forecast."""
        return self.model_crps / self.naive_crps

    @property
    def last_ratio(self) -> float:
        """MASE over that of repeating the last value."""
        return self.model / self.last


@dataclass(frozen=True)
class Window:
    """One forecast task of a case."""

    case: Case
    context: Array
    truth: Array
    covariates: Array | None


def longest_horizon(case: Case) -> int:
    """Return the steps of the longest horizon of which a case has a window; below 1 where it has none."""
    return len(case.values) - _least_context(case)


def _least_context(case: Case) -> int:
    return max(SHORTEST, 2 * case.season + 1)


def windows(case: Case, horizon: int) -> Iterator[Window]:
    """Yield up to five windows, `horizon` apart, from the end of the series backwards."""
    for index in range(WINDOWS):
        end = len(case.values) - index * horizon
        if end - horizon < _least_context(case):
            return
        covariates = None if case.covariates is None else case.covariates[:, :end]
        yield Window(case, case.values[: end - horizon], case.values[end - horizon : end], covariates)


def geometric_mean(values: Sequence[float] | Array) -> float:
    """Compute the geometric mean of positive numbers."""
    return float(np.exp(np.mean(np.log(values))))


def interval(values: Sequence[float], *, seed: int = 0) -> tuple[float, float]:
    """Compute the 95 % bootstrap interval over series of the geometric mean (2,000 draws, percentiles)."""
    return bootstrap_interval(np.log(values), lambda logs: np.exp(logs.mean(axis=1)), seed=seed, replicates=REPLICATES)


def quantile_loss(quantiles: Array, truth: Array) -> float:
    """Compute the mean over levels and steps of twice the pinball loss; (step, level) against (step,)."""
    error = truth[:, None] - quantiles
    loss = 2 * np.maximum(np.array(LEVELS) * error, (np.array(LEVELS) - 1) * error)
    return float(np.nanmean(loss))


def naive_quantiles(context: Array, season: int, horizon: int) -> Array:
    """Forecast by the seasonal naive method with Gaussian quantiles that widen by season: (step, level)."""
    last, deviation = last_season(filled(context), season, horizon)
    width = deviation * np.sqrt(np.arange(horizon) // season + 1)
    z = np.array([NormalDist().inv_cdf(level) for level in LEVELS])
    return last[:, None] + width[:, None] * z


@torch.no_grad()
def forecasts(
    pipeline: Pipeline,
    tasks: Sequence[Window],
    *,
    horizon: int,
    seed: int,
    covariates: bool,
    samples: int | None = None,
) -> list[Array]:
    """Compute quantiles (step, level) of each task through the native pipeline, in batches."""
    torch.manual_seed(seed)
    options = {} if samples is None else {"num_samples": samples}
    quantiles_of_tasks: list[Array] = []
    settings = getattr(getattr(pipeline, "model", None), "config", None)
    paths: int = samples or getattr(settings, "num_samples", None) or 1
    batch = max(1, min(BATCH, PATHS // paths))
    for start in range(0, len(tasks), batch):
        inputs: list[object] = []
        for task in tasks[start : start + batch]:
            if covariates and task.covariates is not None:
                rows = {str(row): values for row, values in enumerate(task.covariates)}
                inputs.append(
                    {
                        "target": task.context,
                        "past_covariates": {key: values[:-horizon] for key, values in rows.items()},
                        "future_covariates": {key: values[-horizon:] for key, values in rows.items()},
                    }
                )
            else:
                inputs.append(torch.tensor(task.context, dtype=torch.float32))
        quantiles, _ = pipeline.predict_quantiles(
            inputs, prediction_length=horizon, quantile_levels=list(LEVELS), **options
        )
        # Chronos-2 gives a list with a leading axis of variates
        quantiles_of_tasks.extend(
            part.squeeze(0).double().cpu().numpy() if part.ndim == 3 else part.double().cpu().numpy()
            for part in quantiles
        )
    return quantiles_of_tasks


def measure(
    pipeline: Pipeline,
    cases: Sequence[Case],
    *,
    horizon: int = 24,
    seed: int = 0,
    covariates: bool = True,
    samples: int | None = None,
) -> list[Skill]:
    """Measure skill on each case that is long enough for one window and whose naive errors are not 0.

    Args:
        pipeline: the native pipeline.
        cases: series with their seasons.
        horizon: forecast steps per window.
        seed: of sampling models.
        covariates: whether the model gets those of the cases.
        samples: paths that a sampling model draws, instead of those of its configuration. Quantiles of few paths are
            themselves noisy, which adds to both errors.

    Raises:
        InputError: a forecast of a context with values is not finite.
    """
    tasks = [task for case in cases for task in windows(case, horizon)]
    errors: dict[str, list[tuple[float, ...]]] = {}
    predictions = forecasts(pipeline, tasks, horizon=horizon, seed=seed, covariates=covariates, samples=samples)
    for task, quantiles in zip(tasks, predictions, strict=True):
        if np.isfinite(task.context).any() and not np.isfinite(quantiles).all():
            raise InputError(
                f"the forecast of {task.case.name!r} has {int((~np.isfinite(quantiles)).sum())} of {quantiles.size} "
                f"quantiles that are not finite, after {len(task.context)} steps; is the checkpoint damaged?"
            )
        season = task.case.season
        scale = seasonal_error(task.context, season)
        naive = naive_quantiles(task.context, season, horizon)
        last = filled(task.context)[-1]
        points = (quantiles[:, 4], naive[:, 4], np.full(horizon, last))
        mases = [float(np.nanmean(np.abs(point - task.truth))) / scale for point in points]
        losses = [quantile_loss(levels, task.truth) / scale for levels in (quantiles, naive)]
        if np.isfinite([*mases, *losses]).all():
            errors.setdefault(task.case.name, []).append((*mases, *losses))
    return [Skill(name, *map(float, np.mean(rows, axis=0))) for name, rows in errors.items()]


def summary(skills: Sequence[Skill]) -> dict[str, float | tuple[float, float]]:
    """Summarise series by geometric means with their intervals, and the worst ratio to the last value."""
    ratios, crps = [skill.ratio for skill in skills], [skill.crps_ratio for skill in skills]
    return {
        "mase": geometric_mean(ratios),
        "mase_interval": interval(ratios),
        "crps": geometric_mean(crps),
        "crps_interval": interval(crps),
        "worst_over_last": max(skill.last_ratio for skill in skills),
    }
