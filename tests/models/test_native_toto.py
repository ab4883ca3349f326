"""Toto 1.0 and Toto 2.0 called by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from natives import LEVELS, masked, stacked
from tiny_lenses import lens_of
from tsfm_lens.data import as_series
from tsfm_lens.testing import assert_close

KINDS = pytest.mark.parametrize("kind", ["univariate", "multivariate"])


@KINDS
def test_the_mean_and_the_distribution_are_totos(kind: str, request: pytest.FixtureRequest) -> None:
    lens, series = lens_of("toto-1"), request.getfixturevalue(kind)
    from toto.data.util.dataset import pad_array
    from toto.inference.forecaster import TotoForecaster

    forecaster, given = TotoForecaster(lens.native.model), masked(as_series(series))
    mean = forecaster.forecast(given, prediction_length=8).mean.flatten(0, 1)
    assert_close(lens.forward(series).detach()[:, 0], mean, depth=100)

    inputs = [pad_array(part, 8) for part in (given.series, given.padding_mask, given.id_mask)]
    with torch.no_grad():
        output = lens.native.model(*inputs, scaling_prefix_length=56)
    native = forecaster.create_affine_transformed(*output)
    for horizon in (5, 8):
        ours = lens.forecast(series, horizon, num_samples=2).distribution
        assert ours.batch_shape == (mean.shape[0], horizon)
        assert_close(ours.mean, mean[:, :horizon], depth=100)
        at = torch.full_like(inputs[0], 0.7)
        expected = native.log_prob(at).flatten(0, 1)[:, -8:][:, :horizon]
        assert expected.isfinite().all()
        assert_close(ours.log_prob(at.flatten(0, 1)[:, :horizon]), expected, depth=100)
    assert lens.forecast(series, 9, num_samples=2).distribution is None


@KINDS
@pytest.mark.parametrize("block", [8, 16])
def test_the_blocks_are_toto_2s(
    kind: str, block: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    lens, series = lens_of("toto-2"), request.getfixturevalue(kind)
    from toto2.model import linear_imputation

    values = stacked(as_series(series), 56)
    # what stands under the mask is never read
    filled = torch.stack([torch.tensor(linear_imputation(item.numpy())) for item in values])
    inputs = {
        "target": filled,
        "target_mask": ~values.isnan(),
        "series_ids": torch.zeros(values.shape[:2], dtype=torch.long),
    }
    with torch.no_grad():
        emitted = lens.native.forecast(inputs, horizon=40, decode_block_size=block)
    expected = emitted.flatten(1, 2).transpose(0, 1)
    monkeypatch.setattr(lens.adapter, "decode_block_size", block)
    np.testing.assert_array_equal(lens.forecast(series, 40).quantiles, expected)


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
