"""Studies with known errors, as a store would hold them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.sweep.statistics.scores import DISTANCES, SUMS

STEPS = 24.0


def row(variant: str, dataset: str, item: str, error: float, **more: Any) -> dict[str, Any]:
    """A stored row whose mean scaled error is ``error``; every metric follows from it."""
    sums = dict.fromkeys(SUMS, error * STEPS) | {"n_invalid": 0.0, "abs_label": 2 * STEPS}
    sums |= {name: STEPS for name in SUMS if name.startswith("n") and name != "n_invalid"}
    key = {"model": "m", "variant": variant, "dataset": dataset, "item": item, "window": 0, "variate": 0}
    return {"cell": "c", **key, **sums, **dict.fromkeys(DISTANCES, 0.25), **more}


def study(errors: dict[str, dict[str, list[float]]]) -> pd.DataFrame:
    """Rows from errors by variant and dataset, one a series."""
    return pd.DataFrame(
        [
            row(variant, dataset, f"s{k}", error)
            for variant, datasets in errors.items()
            for dataset, values in datasets.items()
            for k, error in enumerate(values)
        ]
    )


def simulated(
    rng: np.random.Generator, datasets: int, series: int, between: float, within: float, variants: int = 1
) -> pd.DataFrame:
    """Studies whose true change is 0.1: datasets differ by ``between``, series by ``within``, scales by a lot."""
    plain = np.exp(rng.normal(size=(datasets, 1)) + 0.3 * rng.normal(size=(datasets, series)))
    where = [(f"d{d:02d}", f"s{k}") for d in range(datasets) for k in range(series)]
    key = {"model": "m", "window": 0, "variate": 0, "n": STEPS, "n_invalid": 0.0, "n_scaled": STEPS}
    parts = []
    for number in range(variants + 1):
        shift = 0.1 + between * rng.normal(size=(datasets, 1)) + within * rng.normal(size=(datasets, series))
        errors, variant = (plain * (1 + shift), f"v{number}") if number else (plain, "plain")
        table = pd.DataFrame(where, columns=["dataset", "item"])
        parts.append(table.assign(variant=variant, scaled_error=errors.ravel(), **key))
    return pd.concat(parts, ignore_index=True)
