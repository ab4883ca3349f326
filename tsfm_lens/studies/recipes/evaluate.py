"""Skill of a checkpoint against naive forecasts.

``python -m tsfm_lens.studies.recipes.evaluate FOLDER`` prints it. Read :func:`measure`
first, which forecasts windows of series with the native pipeline. The functions
``…_cases`` draw series at random or read them from files. This package's hooks take no
part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
import typer
from chronos import ChronosPipeline
from rich.table import Table
from scipy.stats import gmean

from tsfm_lens.core.console import console
from tsfm_lens.core.errors import CheckpointError, InputError
from tsfm_lens.data import SeriesBatch, bundled
from tsfm_lens.data.seasonal import filled
from tsfm_lens.studies.recipes.corpus import open_arrays
from tsfm_lens.studies.recipes.export import Pipeline, open_pipeline
from tsfm_lens.studies.recipes.families import CALENDAR_PERIODS, Array, unit
from tsfm_lens.sweep.data.evaluation import EvaluationSet, Window, rolling_windows
from tsfm_lens.training.command import Threads, run_command

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_MEDIAN = LEVELS.index(0.5)
WINDOWS = 5  # most forecast windows of a series
BATCH = 256  # most windows in one call of the pipeline
PATHS = 5_120
"""Sample paths at a time; those of chronos-nano take about 0.4 MB each."""
SHORTEST = 32  # fewest steps of a context
REPLICATES = 2000  # bootstrap samples of an interval

RATIOS = {
    "/ seasonal naive": ("MASE", "naive MASE"),
    "/ last value": ("MASE", "last MASE"),
    "CRPS / seasonal naive": ("CRPS", "naive CRPS"),
}
"""Columns of a table of skill: errors over those of naive forecasts, below 1 where the
model is better.
"""


def _spare_steps(series: SeriesBatch) -> Array:
    """Count the steps of each series beyond the shortest context."""
    # more than two seasons, so that the seasonal error averages over more than one
    shortest = np.maximum(SHORTEST, 2 * np.array(series.seasonalities) + 1)
    return np.array(series.lengths) - shortest


def evaluation_sets(series: SeriesBatch, horizon: int) -> list[EvaluationSet]:
    """Cut up to five windows, `horizon` apart, from the end of each series.

    The latest window of a series is its first. Series too short for one are left out.
    """
    counts = np.minimum(WINDOWS, _spare_steps(series) // horizon)
    columns = (series.ids, series.values, series.seasonalities, counts)
    sets = []
    for name, values, season, count in zip(*columns, strict=True):
        if count > 0:
            windows = tuple(rolling_windows(name, values[None], horizon, count))
            sets.append(EvaluationSet(name, windows[::-1], horizon, seasonality=season))
    return sets


@torch.no_grad()
def forecasts(
    pipeline: Pipeline,
    windows: Sequence[Window],
    *,
    horizon: int,
    samples: int | None = None,
) -> Array:
    """Forecast quantiles (window, level, step) with the native pipeline."""
    torch.manual_seed(0)
    options = {}
    batch = BATCH
    if isinstance(pipeline, ChronosPipeline):
        options["num_samples"] = samples or pipeline.model.config.num_samples
        batch = max(1, min(BATCH, PATHS // options["num_samples"]))
    contexts = [torch.tensor(window.context[0]).float() for window in windows]
    quantiles: list[Array] = []
    for start in range(0, len(windows), batch):
        parts, _ = pipeline.predict_quantiles(
            contexts[start : start + batch],
            prediction_length=horizon,
            quantile_levels=list(LEVELS),
            **options,
        )
        # Chronos-2 gives a list with a leading axis of variates
        shape = (horizon, len(LEVELS))
        quantiles += [
            part.double().numpy(force=True).reshape(shape).T for part in parts
        ]
    return np.stack(quantiles)


def measure(pipeline: Pipeline, series: SeriesBatch, **options: Any) -> pd.DataFrame:
    """Measure skill on series, with the options of :func:`window_errors`.

    Naive forecasts must have errors other than 0, as skill divides by them.

    Returns:
        One row per series with means over its windows: "MASE" and the columns of
        :data:`RATIOS`.
    """
    errors = window_errors(pipeline, series, **options)
    means = errors.groupby("series", sort=False).mean()
    skills = {name: means[own] / means[naive] for name, (own, naive) in RATIOS.items()}
    return pd.DataFrame({"MASE": means["MASE"], **skills})


def window_errors(
    pipeline: Pipeline,
    series: SeriesBatch,
    *,
    horizon: int = 24,
    samples: int | None = None,
) -> pd.DataFrame:
    """Measure scaled errors of the model and of naive forecasts.

    Left out are series too short for one window, and windows whose context has no
    seasonal error.

    Returns:
        One row per window, indexed by series, the latest window of each first.

    Raises:
        InputError: every series is too short, or a forecast is not finite.
    """
    sets = evaluation_sets(series, horizon)
    windows = [window for one in sets for window in one.windows]
    if not windows:
        raise InputError(
            f"none of {len(series)} series is long enough for a horizon of {horizon}"
            " steps; expected longer series, or a smaller horizon"
        )
    quantiles = forecasts(pipeline, windows, horizon=horizon, samples=samples)
    for window, levels in zip(windows, quantiles, strict=True):
        if np.isfinite(window.context).any() and not np.isfinite(levels).all():
            raise InputError(
                f"the forecast of {window.item!r} has"
                f" {int((~np.isfinite(levels)).sum())} of {levels.size} quantiles"
                f" that are not finite, after {window.context.size} steps; is the"
                " checkpoint damaged?"
            )
    naive = [one.seasonal_naive(range(len(one)), LEVELS) for one in sets]
    last = [filled(window.context[0])[-1] for window in windows]
    truth = np.stack([window.label for window in windows])
    scales = np.concatenate([one.scales(range(len(one))) for one in sets])
    above = np.array(LEVELS)[:, None]
    errors = {}
    for name, forecast in (
        ("", quantiles),
        ("naive ", np.concatenate(naive)),
        ("last ", np.reshape(last, (-1, 1, 1))),
    ):
        error = truth - forecast
        # (window, level, step); that of the median is the absolute error
        losses = 2 * np.maximum(above * error, (above - 1) * error)
        errors[f"{name}MASE"] = np.nanmean(losses[:, _MEDIAN], axis=-1) / scales
        errors[f"{name}CRPS"] = np.nanmean(losses, axis=(1, 2)) / scales
    names = pd.Index([window.item for window in windows], name="series")
    return pd.DataFrame(errors, names).dropna()


VALIDATION_SEED = 20_261_120
TEST_SEED = 20_261_122
"""Seeds of drawn series, not to be used in training, which draws with [seed, step]."""

REAL_SPLITS = ("validation", "records")
"""Real series to tune on: page views, fuel and rates; and records of business and
nature, by month and quarter.
"""


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
    return unit(cycle[None])[0]


def synthetic_cases(*, count: int = 48, seed: int = TEST_SEED) -> SeriesBatch:
    """Draw held-out seasonal series.

    They have three shapes of season, a drift, a level, and noise of 5 to 40 % of the
    season.
    """
    length = 512
    rng = np.random.default_rng(seed)
    rows: dict[str, tuple[Array, int]] = {}
    for row in range(count):
        kind = ("rough", "smooth", "wave")[row % 3]
        season = int(rng.choice(CALENDAR_PERIODS))
        drift = rng.normal() * np.linspace(0, 1, length)
        noise_scale = rng.choice([0.05, 0.1, 0.2, 0.4])
        noise = noise_scale * rng.standard_normal(length)
        level = rng.choice([0.0, 3.0, 10.0])
        values = level + drift + np.resize(_cycle(rng, kind, season), length) + noise
        name = f"{row}: {kind} season of {season}, noise {noise_scale}"
        rows[name] = (values, season)
    return _batch(rows)


def _batch(rows: Mapping[str, tuple[Array, int]]) -> SeriesBatch:
    """Return series, with the steps of their seasons, as a batch."""
    values, seasons = zip(*rows.values(), strict=True)
    return SeriesBatch(values, tuple(rows), seasonalities=seasons)


def validation_cases(path: Path, split: str) -> SeriesBatch:
    """Read the real series of one of :data:`REAL_SPLITS`.

    The file is one of `tools/build_training_series.py`.
    """
    with open_arrays(path) as arrays:
        rows = {}
        for key in sorted(arrays):
            part, _, name = key.partition("/")
            if part == split:
                rows[name] = (arrays[key], int(arrays[f"season/{name}"]))
    if not rows:
        raise CheckpointError(
            f"{path} has no array {split}/…: make it again with"
            " tools/build_training_series.py"
        )
    return _batch(rows)


def skill_table(title: str, skills: pd.DataFrame) -> Table:
    """Tabulate errors series by series, and their geometric means over series.

    The means have 95 % intervals, percentiles of 2,000 bootstrap draws of series.
    """
    table = Table("series", *skills.columns, title=title)
    for name, numbers in skills.iterrows():
        table.add_row(str(name), *(f"{number:.3f}" for number in numbers))
    ratios = skills[list(RATIOS)].to_numpy()
    count = len(ratios)
    sample = np.random.default_rng(0).integers(count, size=(REPLICATES, count))
    means = np.exp(np.log(ratios)[sample].mean(axis=1))
    bounds = np.percentile(means, [2.5, 97.5], axis=0)
    columns = zip(gmean(ratios), *bounds, strict=True)
    cells = [f"{mean:.3f} ({low:.3f} to {high:.3f})" for mean, low, high in columns]
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
            "test: bundled real series": bundled(),
        }
    for title, series in sets.items():
        longest = _spare_steps(series).max()
        if horizon > longest:
            raise InputError(
                f"--horizon {horizon}: no series of {title!r} is long enough; expected"
                f" at most {longest}"
            )
    for title, series in sets.items():
        skills = measure(pipeline, series, horizon=horizon, samples=samples)
        console().print(skill_table(title, skills))


if __name__ == "__main__":
    run_command(main)
