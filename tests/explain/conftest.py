"""Series and models that explanations are tested on."""

from __future__ import annotations

import numpy as np
import pytest

import tsfm_lens
from explain.series import drawn
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.models import Lens, Run


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
