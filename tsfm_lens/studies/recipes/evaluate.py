"""Skill of a checkpoint against naive forecasts.

``python -m tsfm_lens.studies.recipes.evaluate FOLDER`` prints it. Read :func:`measure`
first, which forecasts the windows of cases through the native pipeline; ``…_cases``
draw or read the series, :func:`covariate_signs` checks known covariates. Nothing of
this package's hooks is involved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
import typer
from chronos import ChronosPipeline
from rich.table import Table
from scipy.signal import lfilter

from tsfm_lens.core.console import console
from tsfm_lens.core.errors import CheckpointError, InputError
from tsfm_lens.data import bundled, bundled_names
from tsfm_lens.data.seasonal import filled, last_season, seasonal_error
from tsfm_lens.studies.recipes.corpus import open_arrays
from tsfm_lens.studies.recipes.export import Pipeline, open_pipeline
from tsfm_lens.studies.recipes.families import CALENDAR_PERIODS, Array
from tsfm_lens.training.command import run_command

LEVELS = tuple(round(0.1 * level, 1) for level in range(1, 10))
WINDOWS = 5
BATCH = 256
PATHS = 5_120
"""Sample paths at a time; those of chronos-nano take about 0.4 MB each."""
SHORTEST = 32
REPLICATES = 2000


@dataclass(frozen=True)
class SkillCase:
    """One series to forecast."""

    name: str
    values: Array
    season: int
    covariates: Array | None = None
    sign: int = 0
    """That of the covariate's effect."""


RATIOS = ["/ seasonal naive", "/ last value", "CRPS / seasonal naive"]
"""Columns of a table of skill: errors over those of naive forecasts, below 1 where the
model is better.
"""


@dataclass(frozen=True)
class ForecastWindow:
    """One forecast task of a case."""

    case: SkillCase
    context: Array
    truth: Array
    covariates: Array | None


def _least_context(case: SkillCase) -> int:
    return max(SHORTEST, 2 * case.season + 1)


def windows(case: SkillCase, horizon: int) -> Iterator[ForecastWindow]:
    """Yield up to five windows, `horizon` apart, from the series' end backwards."""
    for index in range(WINDOWS):
        end = len(case.values) - index * horizon
        if end - horizon < _least_context(case):
            return
        if case.covariates is None:
            covariates = None
        else:
            covariates = case.covariates[:, :end]
        yield ForecastWindow(
            case,
            case.values[: end - horizon],
            case.values[end - horizon : end],
            covariates,
        )


def geometric_mean(values: Sequence[float] | Array) -> float:
    """Compute the geometric mean of positive numbers."""
    return float(np.exp(np.mean(np.log(values))))


def interval(values: Sequence[float] | Array) -> tuple[float, float]:
    """Compute the 95 % bootstrap interval over series of the geometric mean.

    It has 2,000 draws, and percentiles of them as bounds.
    """
    logs = np.log(values)
    sample = np.random.default_rng(0).integers(len(logs), size=(REPLICATES, len(logs)))
    low, high = np.percentile(np.exp(logs[sample].mean(axis=1)), [2.5, 97.5])
    return float(low), float(high)


def quantile_loss(quantiles: Array, truth: Array) -> float:
    """Compute the mean over levels and steps of twice the pinball loss.

    Quantiles are (step, level), the truth is (step,).
    """
    error = truth[:, None] - quantiles
    loss = 2 * np.maximum(np.array(LEVELS) * error, (np.array(LEVELS) - 1) * error)
    return float(np.nanmean(loss))


def naive_quantiles(context: Array, season: int, horizon: int) -> Array:
    """Forecast (step, level) by the seasonal naive method with Gaussian quantiles.

    They widen with every season.
    """
    last, deviation = last_season(filled(context), season, horizon)
    width = deviation * np.sqrt(np.arange(horizon) // season + 1)
    z = np.array([NormalDist().inv_cdf(level) for level in LEVELS])
    return last[:, None] + width[:, None] * z


@torch.no_grad()
def forecasts(
    pipeline: Pipeline,
    tasks: Sequence[ForecastWindow],
    *,
    horizon: int,
    seed: int,
    covariates: bool,
    samples: int | None = None,
) -> list[Array]:
    """Compute quantiles (step, level) of each task in batches.

    They come from the native pipeline.
    """
    torch.manual_seed(seed)
    if samples is None:
        options = {}
    else:
        options = {"num_samples": samples}
    quantiles_of_tasks: list[Array] = []
    settings = getattr(getattr(pipeline, "model", None), "config", None)
    paths: int = samples or getattr(settings, "num_samples", None) or 1
    batch = max(1, min(BATCH, PATHS // paths))
    for start in range(0, len(tasks), batch):
        inputs: list[object] = []
        for task in tasks[start : start + batch]:
            if covariates and task.covariates is not None:
                covariates_by_row = {
                    str(row): values for row, values in enumerate(task.covariates)
                }
                past, future = (
                    {key: values[part] for key, values in covariates_by_row.items()}
                    for part in (slice(None, -horizon), slice(-horizon, None))
                )
                inputs.append(
                    {
                        "target": task.context,
                        "past_covariates": past,
                        "future_covariates": future,
                    }
                )
            else:
                inputs.append(torch.tensor(task.context, dtype=torch.float32))
        quantiles, _ = pipeline.predict_quantiles(
            inputs, prediction_length=horizon, quantile_levels=list(LEVELS), **options
        )
        # Chronos-2 gives a list with a leading axis of variates
        quantiles_of_tasks.extend(
            (
                part.squeeze(0).double().cpu().numpy()
                if part.ndim == 3
                else part.double().cpu().numpy()
            )
            for part in quantiles
        )
    return quantiles_of_tasks


def measure(
    pipeline: Pipeline,
    cases: Sequence[SkillCase],
    *,
    horizon: int = 24,
    seed: int = 0,
    covariates: bool = True,
    samples: int | None = None,
) -> pd.DataFrame:
    """Measure skill on cases.

    A case must be long enough for one window and have naive errors other than 0.

    Returns:
        One row per series with means over its windows: "MASE" and the columns of
        :data:`RATIOS`.
    """
    tasks = [task for case in cases for task in windows(case, horizon)]
    rows = []
    predictions = forecasts(
        pipeline,
        tasks,
        horizon=horizon,
        seed=seed,
        covariates=covariates,
        samples=samples,
    )
    for task, quantiles in zip(tasks, predictions, strict=True):
        if np.isfinite(task.context).any() and not np.isfinite(quantiles).all():
            raise InputError(
                f"the forecast of {task.case.name!r} has"
                f" {int((~np.isfinite(quantiles)).sum())} of {quantiles.size} quantiles"
                f" that are not finite, after {len(task.context)} steps; is the"
                " checkpoint damaged?"
            )
        season = task.case.season
        scale = seasonal_error(task.context, season)
        naive = naive_quantiles(task.context, season, horizon)
        last = filled(task.context)[-1]
        points = (quantiles[:, 4], naive[:, 4], np.full(horizon, last))
        mases = [
            float(np.nanmean(np.abs(point - task.truth))) / scale for point in points
        ]
        losses = [
            quantile_loss(levels, task.truth) / scale for levels in (quantiles, naive)
        ]
        rows.append((task.case.name, *mases, *losses))
    columns = ["series", "MASE", "naive", "last", "CRPS", "naive CRPS"]
    errors = pd.DataFrame(rows, columns=columns).set_index("series")
    finite = errors[np.isfinite(errors).all(axis=1)]
    means = finite.groupby("series", sort=False).mean()
    ratios = (
        means["MASE"] / means["naive"],
        means["MASE"] / means["last"],
        means["CRPS"] / means["naive CRPS"],
    )
    return means[["MASE"]].assign(**dict(zip(RATIOS, ratios, strict=True)))


VALIDATION_SEED = 20_261_120
TEST_SEED = 20_261_122
"""Seeds [seed, step] of training are pairs; these stand alone, so no training row is
drawn again.
"""

REAL_SPLITS = ("validation", "records")
"""Real series to tune on: page views, fuel and rates; and records of business and
nature, by month and quarter.
"""

FLOOR = 1e-9


def _cycle(rng: np.random.Generator, kind: str, season: int) -> Array:
    """Draw (season,) one standardised season, "rough", "smooth" or "wave"."""
    if kind == "wave":
        cycle = np.sin(
            2 * np.pi * np.arange(season) / season + rng.uniform(0, 2 * np.pi)
        )
    elif kind == "smooth":
        walk = np.cumsum(rng.standard_normal(season))
        cycle = walk - walk[-1] * np.linspace(0, 1, season)
    else:
        cycle = rng.standard_normal(season)
    return (cycle - cycle.mean()) / (cycle.std() + FLOOR)


def synthetic_cases(*, count: int = 48, seed: int = TEST_SEED) -> list[SkillCase]:
    """Draw held-out seasonal series.

    They have three shapes of season, a drift, a level, and noise of 5 to 40 % of the
    season.
    """
    length = 512
    rng = np.random.default_rng(seed)
    cases = []
    for row in range(count):
        kind = ("rough", "smooth", "wave")[row % 3]
        season = int(rng.choice(CALENDAR_PERIODS))
        drift = rng.normal() * np.linspace(0, 1, length)
        noise_scale = rng.choice([0.05, 0.1, 0.2, 0.4])
        noise = noise_scale * rng.standard_normal(length)
        level = rng.choice([0.0, 3.0, 10.0])
        values = level + drift + np.resize(_cycle(rng, kind, season), length) + noise
        cases.append(
            SkillCase(
                f"{row}: {kind} season of {season}, noise {noise_scale}", values, season
            )
        )
    return cases


def covariate_cases(*, count: int = 48, seed: int = TEST_SEED) -> list[SkillCase]:
    """Draw held-out targets with a known covariate.

    The covariate carries half of the variance, a season and noise the rest.
    """
    length = 320
    rng = np.random.default_rng(seed)
    cases = []
    for row in range(count):
        season = int(rng.choice([7, 12, 24]))
        base = np.resize(
            _cycle(rng, ("smooth", "wave")[row % 2], season), length
        ) + 0.3 * rng.standard_normal(length)
        if row % 3 == 0:
            cause = (rng.random(length) < 0.15).astype(float)
        elif row % 3 == 1:
            cause = np.convolve(
                rng.standard_normal(length + 8), np.ones(9) / 3, "valid"
            )
        else:
            cause = rng.standard_normal(length)
        cause = (cause - cause.mean()) / cause.std()
        sign = rng.choice([-1.0, 1.0])
        values = rng.normal(0, 3) + (base / base.std() + sign * cause) * np.exp(
            rng.normal()
        )
        kind = ("events", "weather", "noise")[row % 3]
        cases.append(
            SkillCase(
                f"{row}: season of {season} and {kind}",
                values,
                season,
                cause[None],
                int(sign),
            )
        )
    return cases


def _drift(rng: np.random.Generator, length: int, hours: float) -> Array:
    """Draw a standardised series whose memory fades over ``hours`` steps."""
    memory = np.exp(-1 / hours)
    values = lfilter(
        [1.0], [1.0, -memory], rng.standard_normal(length + int(5 * hours))
    )[-length:]
    return (values - values.mean()) / values.std()


def hourly_cases(
    *, count: int = 48, seed: int = TEST_SEED, heated: bool = False
) -> list[SkillCase]:
    """Draw held-out hours like those of M4: a day's shape in a week, on a drift.

    If `heated`, half of the variance is by a temperature, the known covariate.
    """
    length = 748
    rng = np.random.default_rng([seed, 24])
    hour = np.arange(length)
    cases = []
    for row in range(count):
        kind = ("smooth", "wave")[row % 2]
        noise_scale = rng.choice([0.01, 0.03, 0.1])
        work, rest = (
            np.convolve(np.tile(_cycle(rng, kind, 24), 3), np.ones(3) / 3, "same")[
                24:48
            ]
            for _ in range(2)
        )
        day_off = rng.choice([0.0, 0.5, 1.0]) * (
            (hour + rng.integers(168)) // 24 % 7 >= 5
        )
        base = np.resize(work, length) * (1 - day_off) + day_off * (
            0.5 * np.resize(work + rest, length) - 0.8
        )
        base = (
            base
            + rng.choice([0.0, 0.1, 0.3]) * _drift(rng, length, 120)
            + noise_scale * _drift(rng, length, 3)
        )
        base = base / base.std()
        sign = int(rng.choice([-1, 1]))
        heat = np.sin(2 * np.pi * (hour + rng.uniform(0, 24)) / 24) + rng.uniform(
            0.1, 1.0
        ) * _drift(rng, length, 48)
        heat = heat / heat.std()
        values = rng.uniform(3, 30) + base + sign * heat * heated
        name = f"{row}: {kind} days, noise {noise_scale}"
        temperature = 15 + rng.uniform(3, 8) * heat
        cases.append(
            SkillCase(name, values, 24, temperature[None] if heated else None, sign)
        )
    return cases


def validation_cases(path: Path, split: str = "validation") -> list[SkillCase]:
    """Read the real series of one of :data:`REAL_SPLITS`.

    The file is one of `tools/build_training_series.py`.
    """
    with open_arrays(path) as arrays:
        names = sorted(
            key.removeprefix(f"{split}/")
            for key in arrays
            if key.startswith(f"{split}/")
        )
        if not names:
            raise CheckpointError(
                f"{path} has no array {split}/…: make it again with"
                " tools/build_training_series.py"
            )
        series = [arrays[f"{split}/{name}"].astype(np.float64) for name in names]
        steps = [int(arrays[f"season/{name}"]) for name in names]
    return list(map(SkillCase, names, series, steps))


def real_cases() -> list[SkillCase]:
    """Return every bundled real series: the test set."""
    return [
        SkillCase(series_id, values, max(1, batch.seasonality))
        for batch in map(bundled, bundled_names())
        for series_id, values in zip(batch.ids, batch.values, strict=True)
    ]


def _changed(task: ForecastWindow, horizon: int, *, rise: float) -> ForecastWindow:
    """Return a task whose known future is changed.

    It is raised by `rise` standard deviations, or reversed in time if that is 0.
    """
    assert task.covariates is not None
    changed = task.covariates.copy()
    future = changed[:, -horizon:]
    changed[:, -horizon:] = future + rise * changed.std() if rise else future[:, ::-1]
    return replace(task, covariates=changed)


def covariate_gain(
    pipeline: Pipeline, *, count: int = 48, seed: int = TEST_SEED
) -> dict[str, Any]:
    """Compute MASE with known covariates over MASE without.

    It is a geometric mean, with its interval.
    """
    cases = covariate_cases(count=count, seed=seed)
    with_them, without = (
        measure(pipeline, cases, covariates=use) for use in (True, False)
    )
    ratios = (with_them["MASE"] / without["MASE"]).to_numpy()
    return {"ratio": geometric_mean(ratios), "interval": interval(ratios)}


def covariate_signs(
    pipeline: Pipeline, *, count: int = 96, horizon: int = 24, seed: int = TEST_SEED
) -> dict[str, float]:
    """Compute how often the forecast moves with a known covariate by the right sign.

    The share of cases is given by sign.

    The covariate carries half of the variance; in half of the cases it is the
    temperature of hours. Its future is reversed, and raised by a standard deviation;
    the forecast must move the right way both times.
    """
    cases = [
        *covariate_cases(count=count, seed=seed),
        *hourly_cases(count=count, seed=seed, heated=True),
    ]
    tasks = [next(windows(case, horizon)) for case in cases]
    forecast = partial(forecasts, pipeline, horizon=horizon, seed=0, covariates=True)
    before = forecast(tasks)
    signs = np.array([case.sign for case in cases])
    right = np.ones(len(cases), dtype=bool)
    for rise in (0.0, 1.0):
        changed_tasks = [_changed(task, horizon, rise=rise) for task in tasks]
        for row, (old, new, task, changed_task) in enumerate(
            zip(before, forecast(changed_tasks), tasks, changed_tasks, strict=True)
        ):
            assert task.covariates is not None
            assert changed_task.covariates is not None
            change = (changed_task.covariates - task.covariates)[0, -horizon:]
            # a future of events may be its own reverse
            right[row] &= (
                not change.any() or signs[row] * float((new - old)[:, 4] @ change) > 0
            )
    return {
        name: float(right[signs == sign].mean())
        for name, sign in (("negative", -1), ("positive", 1))
    }


def skill_table(title: str, skills: pd.DataFrame) -> Table:
    """Tabulate errors series by series, and their geometric means over series.

    The means have 95 % intervals.
    """
    table = Table("series", *skills.columns, title=title)
    for name, numbers in skills.iterrows():
        table.add_row(str(name), *(f"{number:.3f}" for number in numbers))
    cells = []
    for column in RATIOS:
        values = skills[column].to_numpy()
        low, high = interval(values)
        cells.append(f"{geometric_mean(values):.3f} ({low:.3f} to {high:.3f})")
    table.add_row("geometric mean", "", *cells, style="bold")
    return table


def main(
    folder: Annotated[
        Path,
        typer.Argument(
            exists=True,
            file_okay=False,
            help="folder of a checkpoint in the native format",
        ),
    ],
    horizon: Annotated[int, typer.Option(min=1, help="forecast steps per window")] = 24,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads")] = 1,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=(
                "paths that a sampling model draws; by default those of its"
                " configuration"
            ),
        ),
    ] = None,
    real: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="validation series of tools/build_training_series.py",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            help=(
                "measure synthetic seasons of this seed alone, another draw of the"
                " test's"
            ),
        ),
    ] = None,
) -> None:
    """Print MASE and CRPS against naive forecasts, by series and as geometric means."""
    torch.set_num_threads(threads)
    pipeline = open_pipeline(folder)
    if samples is not None and not isinstance(pipeline, ChronosPipeline):
        raise InputError(
            f"--samples {samples}: {type(pipeline).__name__} gives quantiles and draws"
            " no samples; leave it"
        )
    if seed is not None and real is not None:
        raise InputError(
            f"--seed {seed} and --real {real} ask for different series; give one of"
            " them"
        )
    sets = {
        "test: synthetic seasons": synthetic_cases(),
        "test: bundled real series": real_cases(),
    }
    sets["test: synthetic hours"] = hourly_cases()
    if real is not None:
        sets = {"validation: synthetic seasons": synthetic_cases(seed=VALIDATION_SEED)}
        sets["validation: synthetic hours"] = hourly_cases(seed=VALIDATION_SEED)
        sets |= {
            f"validation: real series ({split})": validation_cases(real, split)
            for split in REAL_SPLITS
        }
    if seed is not None:
        sets = {f"synthetic seasons of seed {seed}": synthetic_cases(seed=seed)}
    for title, cases in sets.items():
        longest = max(len(case.values) - _least_context(case) for case in cases)
        if horizon > longest:
            raise InputError(
                f"--horizon {horizon}: no series of {title!r} is long enough; expected"
                f" at most {longest}"
            )
    for title, cases in sets.items():
        console().print(
            skill_table(
                title, measure(pipeline, cases, horizon=horizon, samples=samples)
            )
        )
    if seed is None and type(pipeline).__name__ == "Chronos2Pipeline":
        gain_seed = VALIDATION_SEED
        if real is None:
            gain_seed = TEST_SEED
        gain = covariate_gain(pipeline, seed=gain_seed)
        low, high = gain["interval"]
        split_name = "validation"
        if real is None:
            split_name = "test"
        console().print(
            f"{split_name}: MASE with known covariates / without: {gain['ratio']:.3f}"
            f" ({low:.3f} to {high:.3f})"
        )
        shares = covariate_signs(pipeline, seed=gain_seed)
        console().print(
            f"{split_name}: effects of the right sign: "
            + ", ".join(f"{sign} {share:.1%}" for sign, share in shares.items())
        )


if __name__ == "__main__":
    run_command(main)
