"""Tiny lenses of every architecture, and series on which a careless adapter shows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homemade_model import Forecaster, drawn
from tsfm_lens.zoo import checkpoint_path


@pytest.fixture(autouse=True)
def loads_are_tested(read_models_anew: None) -> None:
    """Models are loaded from what a test makes of the library and the files."""


@pytest.fixture(scope="module")
def model() -> Forecaster:
    """Random weights so large that every head moves the forecast."""
    return drawn()


@pytest.fixture
def nano(tmp_path: Path) -> Path:
    """A copy of chronos-nano that a test may spoil."""
    return shutil.copytree(checkpoint_path("chronos-nano"), tmp_path / "nano")


@pytest.fixture
def configured(nano: Path) -> Callable[..., Path]:
    """That copy with changed settings; those of ``chronos_config`` under their own
    names.
    """

    def change(**changes: Any) -> Path:
        config = json.loads((nano / "config.json").read_text())
        for key, value in changes.items():
            (config["chronos_config"] if key in config["chronos_config"] else config)[
                key
            ] = value
        (nano / "config.json").write_text(json.dumps(config))
        return nano

    return change


@pytest.fixture
def univariate() -> list[np.ndarray]:
    """Unequal lengths, a gap inside, missing values at the start, and one series
    without a negative value.
    """
    rng = np.random.default_rng(7)
    first, second, third = (
        rng.normal(size=size).cumsum() + 1.0 for size in (50, 43, 28)
    )
    first[7:10] = np.nan
    second[:2] = np.nan
    return [first, second, np.abs(third)]


@pytest.fixture
def multivariate() -> list[np.ndarray]:
    """Items of two variates, (variate, time), of unequal lengths and with gaps of their
    own.
    """
    rng = np.random.default_rng(8)
    first, second = (rng.normal(size=(2, size)).cumsum(-1) + 1.0 for size in (50, 37))
    first[0, 3:6] = np.nan
    first[1, 20] = np.nan
    second[1, 11:15] = np.nan
    return [first, second]
