"""Any items with covariates: the library's own forecast, to rounding, or a clear error;
nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tiny_lenses import lens_of
from tsfm_lens.core.errors import InputError
from tsfm_lens.data import as_series
from tsfm_lens.models import Lens
from tsfm_lens.testing import assert_close

GAPS = ("none", "none", "some", "first", "last", "all but one")
# beyond one pass
HORIZON = 24


@pytest.fixture(scope="module")
def lens() -> Lens:
    return lens_of("chronos-2")


def gapped(values: np.ndarray, gaps: str, rng: np.random.Generator) -> np.ndarray:
    """Values with missing ones."""
    missing = {
        "none": np.zeros(len(values), dtype=bool),
        "some": rng.random(len(values)) < 0.3,
        "first": np.arange(len(values)) < len(values) // 2,
        "last": np.arange(len(values)) >= len(values) // 2,
        "all but one": np.arange(len(values)) != len(values) // 3,
    }[gaps]
    return np.where(missing, np.nan, values)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[dict[str, Any]], int]:
    """Items of one kind, each with its own length, and a horizon."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    past = draw(st.integers(0, 2))
    known = draw(st.integers(0, 2))
    text = draw(st.booleans())
    horizon = draw(st.integers(1, HORIZON))
    scale = 10.0 ** draw(st.integers(-6, 6))
    items = []
    for _ in range(draw(st.integers(1, 3))):
        steps = draw(st.integers(2, 40))
        before = {
            f"p{i}": gapped(rng.normal(size=steps), draw(st.sampled_from(GAPS)), rng)
            for i in range(past)
        }
        after: dict[str, Any] = {}
        for i in range(known):
            full = scale * rng.normal(size=steps + horizon)
            before[f"k{i}"], after[f"k{i}"] = (
                gapped(full[:steps], draw(st.sampled_from(GAPS)), rng),
                full[steps:],
            )
        if text:
            named = rng.choice(["a", "b", "c"], size=steps + horizon)
            before["w"] = named[:steps]
            after["w"] = named[steps:]
        target = gapped(
            scale * rng.normal(size=steps), draw(st.sampled_from(GAPS)), rng
        )
        items.append(
            {"target": target, "past_covariates": before, "future_covariates": after}
        )
    return items, horizon


@settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(case=batches())
def test_covariate_forecasts_match_pipeline_or_refuse(
    lens: Lens, case: tuple[list[dict[str, Any]], int]
) -> None:
    """Items with covariates are forecast as by the pipeline, or refused."""
    items, horizon = case
    try:
        batch = as_series(items)
        ours = lens.forecast(batch, horizon)
    except InputError as error:
        # nothing but missing values, or a category that the past does not know
        known = ("only NaN", "has the category")
        assert any(text in str(error) for text in known)  # noqa: PT017
        return
    theirs = torch.stack(lens.native.predict(items, prediction_length=horizon))[:, 0]
    # the library may order the covariates of an item in another way, and sums over them
    # round
    assert_close(ours.quantiles[batch.is_target], theirs, depth=100)
