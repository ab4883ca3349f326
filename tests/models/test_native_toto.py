"""Toto 1.0 and Toto 2.0 called by hand."""

from __future__ import annotations

import numpy as np
import pytest

from natives import LEVELS, masked
from tiny_lenses import lens_of
from tsfm_lens.data import as_series
from tsfm_lens.testing import assert_close

KINDS = pytest.mark.parametrize("kind", ["univariate", "multivariate"])


@KINDS
def test_the_mean_is_totos(kind: str, request: pytest.FixtureRequest) -> None:
    lens, series = lens_of("toto-1"), request.getfixturevalue(kind)
    from toto.inference.forecaster import TotoForecaster

    forecaster, given = TotoForecaster(lens.native.model), masked(as_series(series))
    mean = forecaster.forecast(given, prediction_length=8).mean.flatten(0, 1)
    assert_close(lens.forward(series).detach()[:, 0], mean, depth=100)


def test_a_gap_at_the_end_is_carried_forward(multivariate: list[np.ndarray]) -> None:
    """As the library's own predictor does: its model takes the last patch as observed, whatever its mask."""
    lens = lens_of("toto-2")
    from gluonts.dataset.common import ListDataset
    from toto2 import Toto2GluonTSModel
    from toto2.configuration import Toto2GluonTSModelConfig

    for item in multivariate:
        item[1, -3:] = np.nan
    config = Toto2GluonTSModelConfig(prediction_length=8, context_length=56, target_dim=2, scaler_fallback_min_obs=0)
    entries = [{"target": item, "start": "2024-01-01 00:00"} for item in multivariate]
    dataset = ListDataset(entries, freq="h", one_dim_target=False)
    predictor = Toto2GluonTSModel(lens.native, config).create_predictor(batch_size=2, device="cpu")
    expected = [np.stack([forecast.quantile(level) for level in LEVELS]) for forecast in predictor.predict(dataset)]
    ours = lens.forecast(multivariate, 8).quantiles.reshape(2, 2, 9, 8)
    assert_close(ours.transpose(0, 2, 1, 3), np.stack(expected), depth=100, dtype=np.float32)
