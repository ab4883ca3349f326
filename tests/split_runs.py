"""Runs that are planned for parts of a batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tsfm_lens.models import Forecast
from tsfm_lens.testing import assert_close

# one encoder, one decoder, sampled: about 100 roundings a block
DEPTH = 1000


def make_series(name: str, count: int = 5, *, alike: bool = False) -> list[np.ndarray]:
    """Series of unequal lengths, with a gap; token ids for a language model."""
    rng = np.random.default_rng(3)
    if alike:
        lengths = [44] * count
    else:
        lengths = [30, 50, 21, 41, 37][:count]
    if name == "t5":
        return [rng.integers(2, 30, size=length).astype(float) for length in lengths]
    found = [rng.normal(size=length).cumsum() + 1 for length in lengths]
    found[0][4:6] = np.nan
    return found


def plan_items(monkeypatch: pytest.MonkeyPatch, items: int) -> None:
    """Plan every run for so many items at a time."""
    for module in ("batching", "recording"):
        monkeypatch.setattr(
            f"tsfm_lens.models.{module}.fitting",
            lambda _need, count, *_a, **_k: min(count, items),
        )


def assert_same_forecast(actual: Forecast, expected: Forecast) -> None:
    assert_close(actual.quantiles, expected.quantiles, depth=DEPTH, dtype=torch.float32)
    assert_close(actual.mean, expected.mean, depth=DEPTH, dtype=torch.float32)
    assert (actual.samples is None) == (expected.samples is None)
    if expected.samples is not None:
        assert_close(actual.samples, expected.samples, depth=DEPTH, dtype=torch.float32)
    assert actual.context.ids == expected.context.ids
