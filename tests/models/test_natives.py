"""Every lens on unequal series with gaps: its forecast is the library's, and its forward is the forecast."""

from __future__ import annotations

import numpy as np
import pytest

from natives import LEVELS, NATIVE, answer, assert_is, draws_of
from tiny_lenses import lens_of
from tsfm_lens.data import as_series
from tsfm_lens.models import architectures
from tsfm_lens.testing import assert_close

MULTIVARIATE = [name for name, entry in architectures().items() if entry.adapter.multivariate]
CASES = [(name, "univariate") for name in sorted(NATIVE)] + [(name, "multivariate") for name in MULTIVARIATE]


@pytest.mark.parametrize("horizon", [5, 19], ids=["one-pass", "rollout"])
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_forecast_is_the_librarys(name: str, kind: str, horizon: int, request: pytest.FixtureRequest) -> None:
    lens, series = lens_of(name), request.getfixturevalue(kind)
    if name == "t5":
        series = [np.where(np.isnan(each), np.nan, np.abs(each).round()) for each in series]
    steps = horizon if lens.adapter.rollout != "single" else min(horizon, lens.longest_pass)
    steps = steps if lens.adapter.joint_rollout or kind == "univariate" else min(steps, lens.prediction_length)
    ours = lens.forecast(series, steps, seed=11, **draws_of(lens))
    assert_is(ours, answer(lens, as_series(series), steps, seed=11))
    if ours.samples is not None:
        other = lens.forecast(series, steps, seed=12, **draws_of(lens)).samples
        assert other is not None
        assert not np.array_equal(other, ours.samples)


@pytest.mark.parametrize("kind", ["univariate", "multivariate"])
@pytest.mark.parametrize("name", ["chronos-2", "chronos-bolt", "moirai-2", "timesfm-3", "toto-2"])
def test_a_forward_is_the_forecast(name: str, kind: str, request: pytest.FixtureRequest) -> None:
    if kind == "multivariate" and name not in MULTIVARIATE:
        pytest.skip("takes single series")
    lens, series = lens_of(name), request.getfixturevalue(kind)
    forward = lens.forward(series, horizon=7).detach()[..., :7]
    assert lens.levels == pytest.approx(LEVELS, abs=0)
    assert_close(forward, lens.forecast(series, 7, quantiles=LEVELS).quantiles, depth=1000, dtype=np.float32)
