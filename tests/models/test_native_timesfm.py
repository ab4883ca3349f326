"""TimesFM called by hand: Google's packages, and the port to transformers with Google's weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from natives import compiled, interpolated
from tiny_lenses import lens_of
from tsfm_lens.errors import InputError
from tsfm_lens.models import Lens, load
from tsfm_lens.testing import assert_close


def own_of(lens: Lens, **changes: Any) -> Any:
    """The forecaster under a configuration of the caller's."""
    pytest.importorskip("timesfm")
    return compiled(lens.native, 50, 32, 3, **changes)


@pytest.mark.parametrize(
    ("horizon", "changes"),
    [
        (21, {"max_context": 64, "force_flip_invariance": True, "fix_quantile_crossing": False}),
        (40, {"max_horizon": 64, "use_continuous_quantile_head": False, "infer_is_positive": False}),
    ],
    ids=["flipped", "as-configured"],
)
def test_the_forecast_is_googles_as_configured(univariate: list[np.ndarray], horizon: int, changes: dict) -> None:
    native = own_of(lens_of("timesfm-2.5"), **changes)
    ours = load(native, check=False).forecast(univariate, horizon)
    point, deciles = native.forecast(horizon=horizon, inputs=[series.copy() for series in univariate])
    np.testing.assert_array_equal(ours.quantiles, deciles[..., 1:].transpose(0, 2, 1))
    np.testing.assert_array_equal(ours.mean, deciles[..., 0])
    np.testing.assert_array_equal(ours.median, point)


def test_a_longer_horizon_than_configured_is_refused(univariate: list[np.ndarray]) -> None:
    with pytest.raises(InputError, match="max_horizon 32"):
        load(own_of(lens_of("timesfm-2.5")), check=False).forecast(univariate, 33)


def test_a_forward_is_the_ports_point_head(univariate: list[np.ndarray], monkeypatch: Any) -> None:
    lens = lens_of("timesfm-2.5-transformers")
    monkeypatch.setattr(lens.native.config, "use_continuous_quantile_head", False)
    past = [torch.tensor(interpolated(series), dtype=torch.float32) for series in univariate]
    with torch.no_grad():
        full = lens.native(past, forecast_context_len=56, force_flip_invariance=False, truncate_negative=False)
    expected = full.full_predictions[..., 1:].transpose(1, 2)
    assert_close(lens.forward(univariate).detach(), expected, depth=1000)
