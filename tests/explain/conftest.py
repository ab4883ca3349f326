"""Series and models that explanations are tested on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tsfm_lens
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.models import Lens, Run


def drawn(steps: int = 96, horizon: int = 16, seed: int = 0) -> dict[str, Any]:
    """An item with a past covariate "a" and a known one "k" that moves the target."""
    rng = np.random.default_rng(seed)
    known, time = rng.normal(size=steps + horizon), np.arange(steps)
    target = 20 + 3 * known[:steps] + 5 * np.sin(2 * np.pi * time / 24) + 0.3 * rng.normal(size=steps)
    past = {"a": rng.normal(size=steps), "k": known[:steps]}
    return {"target": target, "past_covariates": past, "future_covariates": {"k": known[steps:]}}


@pytest.fixture(scope="session")
def items() -> SeriesBatch:
    """Two items with covariates."""
    return as_series([drawn(seed=0), drawn(seed=1)], freq="h")


@pytest.fixture(scope="session")
def covariate_run(items: SeriesBatch) -> Run:
    """Of the embedded model that takes covariates."""
    return tsfm_lens.load("chronos2-nano").run(items, 16)


@pytest.fixture(scope="session")
def bolt() -> Lens:
    return tsfm_lens.load("bolt-nano")


@pytest.fixture(scope="session")
def bolt_run(bolt: Lens) -> Run:
    return bolt.run(as_series(10 + np.sin(np.arange(128) / 4), seasonality=24), 16)
