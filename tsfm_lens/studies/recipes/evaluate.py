"""Skill of a checkpoint against naive forecasts.

``python -m tsfm_lens.studies.recipes.evaluate FOLDER`` prints it. Read :func:`measure`
first, which forecasts windows of series with the native pipeline. The functions
``…_cases`` draw series at random or read them from files. This package's hooks take no
part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
import typer
from chronos import ChronosPipeline
from rich.table import Table
from scipy.special import ndtri
from scipy.stats import gmean

from tsfm_lens.core.console import console
from tsfm_lens.core.errors import CheckpointError, InputError
from tsfm_lens.data import bundled, bundled_names
from tsfm_lens.data.seasonal import filled, last_season, seasonal_error
from tsfm_lens.studies.recipes.corpus import open_arrays
from tsfm_lens.studies.recipes.export import Pipeline, open_pipeline
from tsfm_lens.studies.recipes.families import CALENDAR_PERIODS, Array
from tsfm_lens.training.command import Threads, run_command

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_MEDIAN = LEVELS.index(0.5)
WINDOWS = 5  # most forecast windows of a series
BATCH = 256  # most windows in one call of the pipeline
PATHS = 5_120
"""Sample paths at a time; those of chronos-nano take about 0.4 MB each."""
SHORTEST = 32  # fewest steps of a context
REPLICATES = 2000  # bootstrap samples of an interval


@dataclass(frozen=True)
class SkillCase:
    """One series to forecast.

    Attributes:
        name: label of the series in the table of skill.
        values: of the series, (time,).
        season: length of its season in steps.
    """

    name: str
    values: Array
    season: int


RATIOS = ["/ seasonal naive", "/ last value", "CRPS / seasonal naive"]
"""Columns of a table of skill: errors over those of naive forecasts, below 1 where the
model is better.
"""


@dataclass(frozen=True)
class ForecastWindow:
    """One forecast task: a context (time,) and the true values after it (step,)."""

    case: SkillCase
    context: Array
    truth: Array


def _least_context(case: SkillCase) -> int:
    # more than two seasons, so that the seasonal error averages over more than one
    return max(SHORTEST, 2 * case.season + 1)


def windows(case: SkillCase, horizon: int) -> Iterator[ForecastWindow]:
    """Yield up to five windows, `horizon` apart, from the series' end backwards."""
    for index in range(1, WINDOWS + 1):
        origin = len(case.values) - index * horizon
        if origin < _least_context(case):
            return
        truth = case.values[origin : origin + horizon]
        yield ForecastWindow(case, case.values[:origin], truth)


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
    levels = np.array(LEVELS)
    return float(np.nanmean(2 * np.maximum(levels * error, (levels - 1) * error)))


def naive_quantiles(context: Array, season: int, horizon: int) -> Array:
    """Forecast (step, level) by the seasonal naive method with Gaussian quantiles.

    Their width grows with the square root of the number of seasons ahead, as the
    seasonal differences of the steps between add up.
    """
    last, deviation = last_season(filled(context), season, horizon)
    seasons_ahead = np.arange(horizon) // season + 1
    width = deviation * np.sqrt(seasons_ahead)
    return last[:, None] + width[:, None] * ndtri(LEVELS)


@torch.no_grad()
def forecasts(
    pipeline: Pipeline,
    tasks: Sequence[ForecastWindow],
    *,
    horizon: int,
    samples: int | None = None,
) -> list[Array]:
    """Forecast the quantiles (step, level) of each task with the native pipeline."""
    torch.manual_seed(0)
    options = {} if samples is None else {"num_samples": samples}
    quantiles_of_tasks: list[Array] = []
    # a pipeline that draws no samples has no num_samples, and counts as one path
    model = getattr(pipeline, "model", None)
    settings = getattr(model, "config", None)
    paths: int = samples or getattr(settings, "num_samples", None) or 1
    batch = max(1, min(BATCH, PATHS // paths))
    contexts = [torch.tensor(task.context, dtype=torch.float32) for task in tasks]
    for start in range(0, len(tasks), batch):
        quantiles, _ = pipeline.predict_quantiles(
            contexts[start : start + batch],
            prediction_length=horizon,
            quantile_levels=list(LEVELS),
            **options,
        )
        # Chronos-2 gives a list with a leading axis of variates
        shape = (horizon, len(LEVELS))
        quantiles_of_tasks += [
            part.double().numpy(force=True).reshape(shape) for part in quantiles
        ]
    return quantiles_of_tasks


def measure(
    pipeline: Pipeline,
    cases: Sequence[SkillCase],
    **options: Any,
) -> pd.DataFrame:
    """Measure skill on cases, with the options of :func:`window_errors`.

    Naive forecasts must have errors other than 0, as skill divides by them.

    Returns:
        One row per series with means over its windows: "MASE" and the columns of
        :data:`RATIOS`.
    """
    errors = window_errors(pipeline, cases, **options)
    means = errors.groupby("series", sort=False).mean()
    skills = means[["MASE"]].copy()
    skills[RATIOS[0]] = means["MASE"] / means["naive MASE"]
    skills[RATIOS[1]] = means["MASE"] / means["last MASE"]
    skills[RATIOS[2]] = means["CRPS"] / means["naive CRPS"]
    return skills


def window_errors(
    pipeline: Pipeline,
    cases: Sequence[SkillCase],
    *,
    horizon: int = 24,
    samples: int | None = None,
) -> pd.DataFrame:
    """Measure scaled errors of the model and of naive forecasts.

    Left out are series too short for one window, and windows whose context has no
    seasonal error.

    Returns:
        One row per window, indexed by series, the latest window of each first.
    """
    tasks = [task for case in cases for task in windows(case, horizon)]
    rows = []
    predictions = forecasts(pipeline, tasks, horizon=horizon, samples=samples)
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
        points = (quantiles[:, _MEDIAN], naive[:, _MEDIAN], last)
        mases = [np.nanmean(np.abs(point - task.truth)) / scale for point in points]
        losses = [
            quantile_loss(levels, task.truth) / scale for levels in (quantiles, naive)
        ]
        rows.append((task.case.name, *mases, *losses))
    columns = ["series", "MASE", "naive MASE", "last MASE", "CRPS", "naive CRPS"]
    errors = pd.DataFrame(rows, columns=columns).set_index("series")
    return errors.replace([np.inf, -np.inf], np.nan).dropna()


VALIDATION_SEED = 20_261_120
TEST_SEED = 20_261_122
"""Seeds of drawn series, not to be used in training, which draws with [seed, step]."""

REAL_SPLITS = ("validation", "records")
"""Real series to tune on: page views, fuel and rates; and records of business and
nature, by month and quarter.
"""

FLOOR = 1e-9  # added to a deviation, which may be 0, before dividing by it


def _cycle(rng: np.random.Generator, kind: str, season: int) -> Array:
    """Draw (season,) one standardised season, "rough", "smooth" or "wave"."""
    if kind == "wave":
        phase = rng.uniform(0, 2 * np.pi)
        cycle = np.sin(2 * np.pi * np.arange(season) / season + phase)
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
        return [
            SkillCase(
                name,
                arrays[f"{split}/{name}"].astype(np.float64),
                int(arrays[f"season/{name}"]),
            )
            for name in names
        ]


def real_cases() -> list[SkillCase]:
    """Return every bundled real series: the test set."""
    return [
        SkillCase(series_id, values, max(1, batch.seasonality))
        for batch in map(bundled, bundled_names())
        for series_id, values in zip(batch.ids, batch.values, strict=True)
    ]


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
        cells.append(f"{gmean(values):.3f} ({low:.3f} to {high:.3f})")
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
    threads: Threads = 1,
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
    if seed is not None:
        sets = {f"synthetic seasons of seed {seed}": synthetic_cases(seed=seed)}
    elif real is not None:
        sets = {"validation: synthetic seasons": synthetic_cases(seed=VALIDATION_SEED)}
        for split in REAL_SPLITS:
            title = f"validation: real series ({split})"
            sets[title] = validation_cases(real, split)
    else:
        sets = {
            "test: synthetic seasons": synthetic_cases(),
            "test: bundled real series": real_cases(),
        }
    for title, cases in sets.items():
        longest = max(len(case.values) - _least_context(case) for case in cases)
        if horizon > longest:
            raise InputError(
                f"--horizon {horizon}: no series of {title!r} is long enough; expected"
                f" at most {longest}"
            )
    for title, cases in sets.items():
        skills = measure(pipeline, cases, horizon=horizon, samples=samples)
        console().print(skill_table(title, skills))


if __name__ == "__main__":
    run_command(main)
