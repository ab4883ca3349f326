"""Skill of a checkpoint: `python -m tsfm_lens.studies.recipes.evaluate FOLDER` prints it against seasonal naive.

Recipes are chosen on validation sets (synthetic seasons of one seed, two sets of real series of packages that neither
training nor test reads); the test sets (synthetic seasons of another seed, the bundled real series) are for the cards.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from chronos import ChronosPipeline
from numpy.lib.npyio import NpzFile
from rich.table import Table
from transformers import PreTrainedModel

from tsfm_lens.console import console
from tsfm_lens.errors import CheckpointError, InputError, unknown_name
from tsfm_lens.studies.recipes.corpus import arrays_of, series_of
from tsfm_lens.studies.recipes.export import as_pipeline, open_pipeline
from tsfm_lens.studies.recipes.mixture import CALENDAR_PERIODS, Array
from tsfm_lens.studies.recipes.skill import Case, Skill, geometric_mean, interval, longest_horizon, measure, summary
from tsfm_lens.training.command import run_command

VALIDATION_SEED, TEST_SEED = 20_261_120, 20_261_122
"""Seeds [seed, step] of training are pairs; these stand alone, so no training row is drawn again."""

REAL_SPLITS = ("validation", "records")
"""Real series to tune on: page views, fuel and rates; and records of business and nature, by month and quarter."""

FLOOR = 1e-9


def _cycle(rng: np.random.Generator, kind: str, season: int) -> Array:
    """Draw one season of the kind "rough", "smooth" or "wave", standardised: (season,)."""
    if kind == "wave":
        cycle = np.sin(2 * np.pi * np.arange(season) / season + rng.uniform(0, 2 * np.pi))
    elif kind == "smooth":
        walk = np.cumsum(rng.standard_normal(season))
        cycle = walk - walk[-1] * np.linspace(0, 1, season)
    else:
        cycle = rng.standard_normal(season)
    return (cycle - cycle.mean()) / (cycle.std() + FLOOR)


def synthetic_cases(*, count: int = 48, length: int = 512, seed: int = TEST_SEED) -> list[Case]:
    """Draw held-out seasonal series: three shapes of season, a drift, a level, and noise of 5 to 40 % of the season."""
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
        cases.append(Case(f"{row}: {kind} season of {season}, noise {noise_scale}", values, season))
    return cases


def covariate_cases(*, count: int = 48, length: int = 320, seed: int = TEST_SEED) -> list[Case]:
    """Draw held-out targets: a known covariate carries half of the variance, a season and noise the rest."""
    rng = np.random.default_rng(seed)
    cases = []
    for row in range(count):
        season = int(rng.choice([7, 12, 24]))
        base = np.resize(_cycle(rng, ("smooth", "wave")[row % 2], season), length) + 0.3 * rng.standard_normal(length)
        if row % 3 == 0:
            cause = (rng.random(length) < 0.15).astype(float)
        elif row % 3 == 1:
            cause = np.convolve(rng.standard_normal(length + 8), np.ones(9) / 3, "valid")
        else:
            cause = rng.standard_normal(length)
        cause = (cause - cause.mean()) / cause.std()
        sign = rng.choice([-1.0, 1.0])
        values = rng.normal(0, 3) + (base / base.std() + sign * cause) * np.exp(rng.normal())
        kind = ("events", "weather", "noise")[row % 3]
        cases.append(Case(f"{row}: season of {season} and {kind}", values, season, cause[None]))
    return cases


def validation_cases(path: Path, split: str = "validation") -> list[Case]:
    """Read the real series of one of :data:`REAL_SPLITS` in the file of `tools/build_training_series.py`.

    Raises:
        UnknownNameError: there is no such split.
        CheckpointError: the file has none of its series, or one that is none or has no season.
    """
    if split not in REAL_SPLITS:
        raise unknown_name("split", split, REAL_SPLITS)
    with arrays_of(path) as arrays:
        names = sorted(key.removeprefix(f"{split}/") for key in arrays if key.startswith(f"{split}/"))
        if not names:
            raise CheckpointError(f"{path} has no array {split}/…: make it again with tools/build_training_series.py")
        return [
            Case(
                name,
                series_of(arrays, f"{split}/{name}", path).astype(np.float64),
                _season(arrays, f"season/{name}", path),
            )
            for name in names
        ]


def _season(arrays: NpzFile, name: str, path: Path) -> int:
    value = arrays.get(name)
    if value is None or value.shape or value.dtype.kind not in "iu" or value < 1:
        finding = "is not there" if value is None else f"is {np.array2string(value, threshold=4)}"
        raise CheckpointError(
            f"{path}: array {name} {finding}, expected a number of steps from 1 on; make it again with "
            "tools/build_training_series.py"
        )
    return int(value)


def real_cases() -> list[Case]:
    """Return every bundled real series: the test set."""
    from tsfm_lens.data import bundled, bundled_names

    return [
        Case(series_id, values, max(1, batch.seasonality))
        for batch in map(bundled, bundled_names())
        for series_id, values in zip(batch.ids, batch.values, strict=True)
    ]


def validation(model: PreTrainedModel, *, real: Path) -> dict[str, object]:
    """Summarise skill on the validation sets, by name; with covariates also the ratio of with to without."""
    pipeline = as_pipeline(model)
    summaries: dict[str, object] = {
        "synthetic": summary(measure(pipeline, synthetic_cases(seed=VALIDATION_SEED))),
        "real": summary(measure(pipeline, validation_cases(real))),
        "records": summary(measure(pipeline, validation_cases(real, "records"))),
    }
    if type(model).__name__ == "Chronos2Model":
        summaries["covariates"] = covariate_gain(model, seed=VALIDATION_SEED)
    return summaries


def covariate_gain(model: PreTrainedModel, *, count: int = 48, seed: int = TEST_SEED) -> dict[str, Any]:
    """Compute MASE with known covariates over MASE without, geometric mean with its interval."""
    pipeline, cases = as_pipeline(model), covariate_cases(count=count, seed=seed)
    with_them, without = (measure(pipeline, cases, covariates=use) for use in (True, False))
    ratios = [one.model / other.model for one, other in zip(with_them, without, strict=True)]
    return {"ratio": geometric_mean(ratios), "interval": interval(ratios)}


def skill_table(title: str, skills: list[Skill]) -> Table:
    """Tabulate errors series by series, and their geometric means with 95 % intervals over series."""
    table = Table("series", "MASE", "/ seasonal naive", "/ last value", "CRPS / seasonal naive", title=title)
    for skill in skills:
        ratios = (skill.ratio, skill.last_ratio, skill.crps_ratio)
        table.add_row(skill.name, f"{skill.model:.3f}", *(f"{value:.3f}" for value in ratios))
    cells = []
    for values in (
        [skill.ratio for skill in skills],
        [skill.last_ratio for skill in skills],
        [skill.crps_ratio for skill in skills],
    ):
        low, high = interval(values)
        cells.append(f"{geometric_mean(values):.3f} ({low:.3f} to {high:.3f})")
    table.add_row("geometric mean", "", *cells, style="bold")
    return table


def main(
    folder: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="folder of a checkpoint in the native format")
    ],
    horizon: Annotated[int, typer.Option(min=1, help="forecast steps per window")] = 24,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads")] = 1,
    samples: Annotated[
        int | None, typer.Option(min=1, help="paths that a sampling model draws; by default those of its configuration")
    ] = None,
    real: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="validation series of tools/build_training_series.py"),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="measure synthetic seasons of this seed alone, another draw of the test's")
    ] = None,
) -> None:
    """Print MASE and CRPS against naive forecasts, series by series and as geometric means."""
    torch.set_num_threads(threads)
    pipeline = open_pipeline(folder)
    if samples is not None and not isinstance(pipeline, ChronosPipeline):
        raise InputError(
            f"--samples {samples}: {type(pipeline).__name__} gives quantiles and draws no samples; leave it"
        )
    if seed is not None and real is not None:
        raise InputError(f"--seed {seed} and --real {real} ask for different series; give one of them")
    sets = {"test: synthetic seasons": synthetic_cases(), "test: bundled real series": real_cases()}
    if real is not None:
        sets = {"validation: synthetic seasons": synthetic_cases(seed=VALIDATION_SEED)}
        sets |= {f"validation: real series ({split})": validation_cases(real, split) for split in REAL_SPLITS}
    if seed is not None:
        sets = {f"synthetic seasons of seed {seed}": synthetic_cases(seed=seed)}
    for title, cases in sets.items():
        longest = max(map(longest_horizon, cases))
        if horizon > longest:
            raise InputError(f"--horizon {horizon}: no series of {title!r} is long enough; expected at most {longest}")
    for title, cases in sets.items():
        console().print(skill_table(title, measure(pipeline, cases, horizon=horizon, samples=samples)))
    if seed is None and type(pipeline).__name__ == "Chronos2Pipeline":
        gain_seed = TEST_SEED if real is None else VALIDATION_SEED
        gain = covariate_gain(pipeline.model, seed=gain_seed)
        low, high = gain["interval"]
        which = "test" if real is None else "validation"
        console().print(f"{which}: MASE with known covariates / without: {gain['ratio']:.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    run_command(main)
