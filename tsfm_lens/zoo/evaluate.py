"""Skill of a checkpoint: its MASE beside that of the seasonal naive forecast.

`python -m tsfm_lens.zoo.evaluate FOLDER` prints a table over held-out synthetic seasons and over the bundled real
series, which no recipe trains on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from chronos import BaseChronosPipeline
from numpy.typing import NDArray
from rich.table import Table

from tsfm_lens.console import console
from tsfm_lens.zoo.mixture import CALENDAR_PERIODS

Array = NDArray[np.float64]

HELD_OUT_SEED = 20_261_121
"""Seeds [seed, step] of training are pairs; this one stands alone, so no training row is drawn again."""

WINDOWS = 5
BATCH = 64
SCALE_FLOOR = 1e-9


@dataclass(frozen=True)
class Case:
    """One series to forecast: its values, season length in steps, and name."""

    name: str
    values: Array
    season: int


@dataclass(frozen=True)
class Skill:
    """MASE of the model and of the seasonal naive forecast on one series, mean over windows."""

    name: str
    model: float
    naive: float

    @property
    def ratio(self) -> float:
        """Model over seasonal naive; below 1 the model is better."""
        return self.model / self.naive


def seasonal_naive(context: Array, season: int, horizon: int) -> Array:
    """Repeat the last `season` observed values over `horizon` steps; gaps are filled forward first."""
    filled = context.copy()
    seen = np.where(np.isnan(filled), 0, np.arange(len(filled)))
    filled = filled[np.maximum.accumulate(seen)]
    return np.resize(filled[-season:], horizon)


def mase(forecast: Array, truth: Array, context: Array, season: int) -> float:
    """Mean absolute scaled error (Hyndman and Koehler 2006): the scale is the context's seasonal difference."""
    scale = float(np.nanmean(np.abs(context[season:] - context[:-season])))
    return float(np.nanmean(np.abs(forecast - truth)) / max(scale, SCALE_FLOOR))


def geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean of positive numbers."""
    return float(np.exp(np.mean(np.log(values))))


def windows(case: Case, horizon: int, *, shortest: int = 32) -> Iterator[tuple[Array, Array]]:
    """Up to five (context, truth) pairs, `horizon` apart, from the end of the series backwards."""
    for index in range(WINDOWS):
        end = len(case.values) - index * horizon
        if end - horizon < max(shortest, 2 * case.season + 1):
            return
        yield case.values[: end - horizon], case.values[end - horizon : end]


def median_forecasts(
    pipeline: BaseChronosPipeline, contexts: Sequence[Array], *, horizon: int, seed: int = 0
) -> list[Array]:
    """Median forecast (horizon,) of each context, in batches of 64."""
    torch.manual_seed(seed)
    medians: list[Array] = []
    for start in range(0, len(contexts), BATCH):
        past = [torch.tensor(context, dtype=torch.float32) for context in contexts[start : start + BATCH]]
        quantiles, _ = pipeline.predict_quantiles(past, prediction_length=horizon, quantile_levels=[0.5])
        medians.extend(quantiles[:, :, 0].double().numpy())
    return medians


def measure(pipeline: BaseChronosPipeline, cases: Sequence[Case], *, horizon: int, seed: int = 0) -> list[Skill]:
    """Skill on each case that is long enough for one window: MASE of the median and of the seasonal naive forecast."""
    found = [(case, context, truth) for case in cases for context, truth in windows(case, horizon)]
    medians = median_forecasts(pipeline, [context for _, context, _ in found], horizon=horizon, seed=seed)
    errors: dict[str, list[tuple[float, float]]] = {}
    for (case, context, truth), median in zip(found, medians, strict=True):
        naive = seasonal_naive(context, case.season, horizon)
        pair = (mase(median, truth, context, case.season), mase(naive, truth, context, case.season))
        errors.setdefault(case.name, []).append(pair)
    return [Skill(name, *map(float, np.mean(pairs, axis=0))) for name, pairs in errors.items()]


def _cycle(rng: np.random.Generator, kind: str, season: int) -> Array:
    """One season of the kind "rough", "smooth" or "wave", standardised: (season,)."""
    if kind == "wave":
        cycle = np.sin(2 * np.pi * np.arange(season) / season + rng.uniform(0, 2 * np.pi))
    elif kind == "smooth":
        walk = np.cumsum(rng.standard_normal(season))
        cycle = walk - walk[-1] * np.linspace(0, 1, season)
    else:
        cycle = rng.standard_normal(season)
    return (cycle - cycle.mean()) / (cycle.std() + SCALE_FLOOR)


def synthetic_cases(*, count: int = 48, length: int = 512, seed: int = HELD_OUT_SEED) -> list[Case]:
    """Held-out seasonal series: three shapes of season, a drift, a level, and noise of 5 to 40 % of the season."""
    rng = np.random.default_rng(seed)
    cases = []
    for row in range(count):
        kind = ("rough", "smooth", "wave")[row % 3]
        season = int(rng.choice(CALENDAR_PERIODS))
        drift = rng.normal() * np.linspace(0, 1, length)
        spread = rng.choice([0.05, 0.1, 0.2, 0.4])
        noise = spread * rng.standard_normal(length)
        level = rng.choice([0.0, 3.0, 10.0])
        values = level + drift + np.resize(_cycle(rng, kind, season), length) + noise
        cases.append(Case(f"{row}: {kind} season of {season}, noise {spread}", values, season))
    return cases


def real_cases() -> list[Case]:
    """Every bundled real series."""
    from tsfm_lens.data import bundled, bundled_names

    return [
        Case(series_id, values, max(1, batch.seasonality))
        for batch in map(bundled, bundled_names())
        for series_id, values in zip(batch.ids, batch.values, strict=True)
    ]


def main(
    folder: Annotated[Path, typer.Argument(help="folder of a checkpoint in the native format")],
    horizon: Annotated[int, typer.Option(help="forecast steps a window")] = 24,
    threads: Annotated[int, typer.Option(help="CPU threads")] = 1,
) -> None:
    """Print MASE against the seasonal naive forecast, series by series and as geometric means."""
    torch.set_num_threads(threads)
    pipeline = BaseChronosPipeline.from_pretrained(str(folder))
    for title, cases in (("held-out synthetic seasons", synthetic_cases()), ("bundled real series", real_cases())):
        table = Table("series", "MASE", "seasonal naive", "ratio", title=title)
        skills = measure(pipeline, cases, horizon=horizon)
        for one in skills:
            table.add_row(one.name, f"{one.model:.3f}", f"{one.naive:.3f}", f"{one.ratio:.3f}")
        means = [geometric_mean([getattr(one, key) for one in skills]) for key in ("model", "naive", "ratio")]
        table.add_row("geometric mean", *(f"{value:.3f}" for value in means), style="bold")
        console().print(table)


if __name__ == "__main__":
    typer.run(main)
