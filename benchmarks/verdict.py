"""Shares of true and wrong explanations whose inputs hold: ``python -m
benchmarks.verdict --cases 100``.

The wrong ones change one thing of the Shapley values of a drawn forecast with three
known covariates that matter. The forecasters are a planted one, which is linear in each
covariate, and ``chronos2-nano``.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import xarray as xr
from rich.console import Console
from rich.table import Table

from tsfm_lens.data import as_series
from tsfm_lens.explain import deletion_curves, input_attribution, verdict
from tsfm_lens.models import Run, load
from tsfm_lens.zoo.planted import plant

STEPS = 96
HORIZON = 16
SEASON = 24
DRIVERS = 3
PARTS = 3
REFERENCE = "seasonal naive"
"""Values of another season, since a covariate that is constant has no scale."""

ZERO = "effect of one covariate set to 0"
NOT_NAMED = "the same, and not named"


def drawn_run(model: str, case: int, seed: int) -> Run:
    """Draw a series with a season and known covariates that move it; forecast it."""
    rng = np.random.default_rng([seed, case])
    # future values of different sizes give the covariates effects of different sizes
    drivers = rng.normal(size=(DRIVERS, STEPS + HORIZON))
    drivers[:, STEPS:] *= rng.uniform(0.5, 2.0, (DRIVERS, 1))
    slopes = rng.uniform(1, 5, DRIVERS) * rng.choice([-1, 1], DRIVERS)
    season = rng.uniform(1, 5) * np.sin(
        2 * np.pi * (np.arange(STEPS) / SEASON + rng.random())
    )
    past = {f"x{number}": values[:STEPS] for number, values in enumerate(drivers)}
    future = {f"x{number}": values[STEPS:] for number, values in enumerate(drivers)}
    item = {
        "target": slopes @ drivers[:, :STEPS] + season,
        "past_covariates": past,
        "future_covariates": future,
    }
    if model == "planted":
        lens = plant("covariate", "chronos-2", seed=case).lens()
    else:
        lens = load(model)
    return lens.run(as_series([item], seasonality=SEASON), HORIZON)


def wrong_explanations(
    true: xr.Dataset, rng: np.random.Generator
) -> dict[str, xr.Dataset]:
    """Change effects of the true explanation; the covariate and the exchanged segments
    are drawn.
    """
    effects = true["attribution"].transpose("segment", ...)
    order = np.argsort(-np.abs(effects.values).mean(axis=tuple(range(1, effects.ndim))))
    covariate = int(
        rng.choice(np.flatnonzero(true["kind"].values == "known covariate"))
    )
    one, other = rng.choice(len(order), 2, replace=False)

    def scaled(segment: int, factor: float) -> xr.Dataset:
        factors = np.ones(len(order))
        factors[segment] = factor
        changed = true.assign(
            attribution=effects * xr.DataArray(factors, dims="segment")
        )
        return changed.assign_attrs(changed=str(true["segment"].values[segment]))

    exchanged = np.arange(len(order))
    exchanged[[one, other]] = other, one
    return {
        "sign of one covariate flipped": scaled(covariate, -1.0),
        ZERO: scaled(covariate, 0.0),
        "second largest segment flipped": scaled(int(order[1]), -1.0),
        "two segments exchanged": true.assign(
            attribution=(effects.dims, effects.values[exchanged])
        ),
        "all signs flipped": true.assign(attribution=-effects),
    }


def accepted(model: str, cases: int, seed: int = 0, **options: Any) -> dict[str, int]:
    """Count the explanations of each kind whose inputs hold, and effects set to 0 that
    no verdict then names.
    """
    counts = {"true": 0}
    for case in range(cases):
        run = drawn_run(model, case, seed)
        true = input_attribution(run, parts=PARTS, reference=REFERENCE)
        rng = np.random.default_rng([seed, case, 1])
        tried = {"true": true, **wrong_explanations(true, rng)}
        curves = deletion_curves(
            run, tried, reference=REFERENCE, orders=1, seed=case, **options
        )
        for position, (kind, explanation) in enumerate(tried.items()):
            word, sentences = verdict(curves.isel(explanation=[position]))
            counts[kind] = counts.get(kind, 0) + (word == "holds")
            if kind == ZERO:
                named = explanation.attrs["changed"] in sentences[0]
                silent = word == "holds" and not named
                counts[NOT_NAMED] = counts.get(NOT_NAMED, 0) + silent
    return counts


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--cases", type=int, default=100, help="drawn forecasts of each model"
    )
    parser.add_argument("--models", default="planted,chronos2-nano")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    table = Table(
        "explanation",
        *given.models.split(","),
        title=f"inputs hold, of {given.cases} drawn forecasts",
    )
    columns = [
        accepted(model, given.cases, given.seed) for model in given.models.split(",")
    ]
    for kind in columns[0]:
        table.add_row(kind, *(str(column[kind]) for column in columns))
    Console().print(table)


if __name__ == "__main__":
    main()
