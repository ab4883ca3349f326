"""Long frames of batches and forecasts, against frames made a series at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tsfm_lens.data import SeriesBatch
from tsfm_lens.models import Forecast

START = pd.Timestamp("2024-02-27")
LATER = pd.Timestamp("2025-01-01 03:00")
BATCHES: dict[str, dict[str, Any]] = {
    "no dates": {},
    "one frequency": {"freq": "D", "starts": (START,) * 4},
    "own starts": {"freqs": ("D", "h", "D", "MS"), "starts": (START, LATER) * 2},
    "some dates": {
        "freqs": ("D", None, "h", None),
        "starts": (START, None, LATER, None),
    },
    "first unknown": {
        "freqs": (None, "D", "h", "h"),
        "starts": (None, START, LATER, LATER),
    },
    "variates": {"groups": tuple("aabb"), "variates": tuple("xyxy"), "freq": "h"},
    "covariates": {
        "groups": tuple("aabb"),
        "variates": tuple("xyxy"),
        "roles": ("target", "past") * 2,
    },
}


@pytest.fixture(params=list(BATCHES))
def batch(request: pytest.FixtureRequest) -> SeriesBatch:
    rng = np.random.default_rng(0)
    values = tuple(rng.normal(size=length) for length in (5, 5, 8, 8))
    return SeriesBatch(values, **BATCHES[request.param])


def labels(batch: SeriesBatch, row: int) -> dict[str, str]:
    columns = {"id": batch.ids[row]}
    if batch.multivariate:
        columns |= {"group": batch.groups[row], "variate": batch.variates[row]}
        if batch.has_covariates:
            columns["role"] = batch.roles[row]
    return columns


def assert_same(frame: pd.DataFrame, parts: list[pd.DataFrame]) -> None:
    expected = pd.concat(parts, ignore_index=True)
    assert sorted(frame) == sorted(expected)
    pd.testing.assert_frame_equal(frame[list(expected)], expected)


def test_forecast_frame(batch: SeriesBatch) -> None:
    rng = np.random.default_rng(1)
    levels = (0.9, 0.5)
    forecast = Forecast(
        rng.normal(size=(4, 2, 3)), levels, rng.normal(size=(4, 3)), None, batch
    )
    parts = []
    for row in range(4):
        columns: dict[str, Any] = {**labels(batch, row), "step": np.arange(3)}
        dates = batch.timestamps(row, ahead=3)
        if dates is not None:
            columns["timestamp"] = dates[batch.lengths[row] :]
        columns["mean"] = forecast.mean[row]
        for column, level in enumerate(levels):
            columns[str(level)] = forecast.quantiles[row, column]
        parts.append(pd.DataFrame(columns))
    assert_same(forecast.to_frame(), parts)


def test_batch_frame(batch: SeriesBatch) -> None:
    parts = []
    for row in range(4):
        dates = batch.timestamps(row)
        time: dict[str, Any] = {"timestamp": dates}
        if dates is None:
            time = {"step": np.arange(batch.lengths[row])}
        columns = {**labels(batch, row), **time, "target": batch.values[row]}
        parts.append(pd.DataFrame(columns))
    assert_same(batch.to_frame(), parts)


def test_what_follows_from_columns_is_of_the_new_batch() -> None:
    """A batch keeps its lengths; a batch that is made of it has its own."""
    batch = SeriesBatch((np.arange(4.0), np.arange(6.0)), groups=("a", "b"))
    assert batch.lengths == (4, 6)
    assert batch.tail(3).lengths == (3, 3)
    assert batch.select([1]).lengths == (6,)
