"""Moirai 1.1-R and Moirai 2 called by hand, through the GluonTS predictors of their own library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tsfm_lens.errors import InputError
from tsfm_lens.models import Lens, load
from tsfm_lens.models.extras import require
from tsfm_lens.testing import assert_close

Opened = Callable[[str], Lens]
KINDS = pytest.mark.parametrize("kind", ["univariate", "multivariate"])


def forecaster(module: Any, series: list[np.ndarray], horizon: int, **changes: Any) -> Any:
    """The library's forecast object for these series."""
    name = type(module).__name__.removesuffix("Module")
    sizes = {
        "prediction_length": horizon,
        "target_dim": np.atleast_2d(series[0]).shape[0],
        "context_length": max(each.shape[-1] for each in series),
        "feat_dynamic_real_dim": 0,
        "past_feat_dynamic_real_dim": 0,
        **changes,
    }
    return getattr(require("moirai", f"uni2ts.model.{name.lower()}"), f"{name}Forecast")(module=module, **sizes)


def predicted(own: Any, series: list[np.ndarray]) -> list[Any]:
    from gluonts.dataset.common import ListDataset

    entries = [{"target": each, "start": "2024-01-01 00:00"} for each in series]
    dataset = ListDataset(entries, freq="h", one_dim_target=series[0].ndim == 1)
    return list(own.create_predictor(batch_size=len(series), device="cpu").predict(dataset))


def rows(arrays: list[np.ndarray]) -> np.ndarray:
    """(sample or quantile, step[, variate]) an item to (series, sample or quantile, step)."""
    wide = np.stack([each if each.ndim == 3 else each[..., None] for each in arrays])
    return wide.transpose(0, 3, 1, 2).reshape(-1, *wide.shape[1:3])


@KINDS
@pytest.mark.parametrize(("horizon", "patch"), [(5, 16), (21, 16), (21, 8)])
def test_the_samples_are_moirais(
    opened: Opened, seeded_call: Callable, kind: str, horizon: int, patch: int, request: pytest.FixtureRequest
) -> None:
    series = request.getfixturevalue(kind)
    own = forecaster(opened("moirai-1.1").native, series, horizon, patch_size=patch, num_samples=6)
    theirs = rows([forecast.samples for forecast in seeded_call(lambda: predicted(own, series), 5)])
    lens = load(own, check=False)
    ours = lens.forecast(series, horizon, num_samples=6, seed=5)
    np.testing.assert_array_equal(ours.samples, theirs)
    assert_close(ours.median, np.median(theirs, axis=1), depth=100, dtype=np.float32)
    assert_close(ours.mean, theirs.mean(axis=1), depth=1000, dtype=np.float32)
    assert not np.array_equal(lens.forecast(series, horizon, num_samples=6, seed=6).samples, ours.samples)


@KINDS
@pytest.mark.parametrize("horizon", [5, 21])
def test_the_mean_and_the_distribution_are_moirais(
    opened: Opened, kind: str, horizon: int, request: pytest.FixtureRequest
) -> None:
    lens, series = opened("moirai-1.1"), request.getfixturevalue(kind)
    own = forecaster(lens.native, series, horizon, patch_size=16)
    shape = (len(series), np.atleast_2d(series[0]).shape[0], 50)
    target = np.full(shape, np.nan, dtype=np.float32)
    for row, each in zip(target, series, strict=True):
        row[:, 50 - each.shape[-1] :] = each
    lengths = torch.tensor([each.shape[-1] for each in series])
    padding = torch.arange(50)[None] < (50 - lengths)[:, None]
    values = torch.from_numpy(target).transpose(1, 2)
    with torch.no_grad():
        native = own._get_distr(16, values.nan_to_num(), ~values.isnan(), padding)

    def formatted(packed: torch.Tensor) -> torch.Tensor:
        """(series, step)."""
        return torch.from_numpy(rows(list(own._format_preds(16, packed[None], shape[1]).numpy())))[:, 0]

    mean = formatted(native.mean)
    assert_close(lens.forward(series, horizon=horizon).detach()[:, 0, :horizon], mean, depth=100)
    ours = lens.forecast(series, horizon, num_samples=2).distribution
    assert ours.batch_shape == mean.shape
    assert_close(ours.mean, mean, depth=100)
    # a whole number, which the negative binomial among the components needs
    expected = formatted(native.log_prob(torch.full_like(native.mean, 3.0)))
    assert expected.isfinite().all()
    assert_close(ours.log_prob(torch.full_like(mean, 3.0)), expected, depth=100)


@pytest.mark.parametrize(
    ("kind", "horizon"), [("univariate", 5), ("univariate", 8), ("univariate", 21), ("multivariate", 7)]
)
def test_the_forecast_is_moirai_2s(opened: Opened, kind: str, horizon: int, request: pytest.FixtureRequest) -> None:
    lens, series = opened("moirai-2"), request.getfixturevalue(kind)
    theirs = rows([each.forecast_array for each in predicted(forecaster(lens.native, series, horizon), series)])
    np.testing.assert_array_equal(lens.forecast(series, horizon).quantiles, theirs)
    if horizon <= 8:
        ours = lens.forward(series, horizon=horizon).detach()[..., :horizon]
        assert_close(ours, theirs, depth=100, dtype=np.float32)


def test_moirai_2_rolls_out_single_variates_only(opened: Opened, multivariate: list[np.ndarray]) -> None:
    with pytest.raises(InputError, match="one variate only"):
        opened("moirai-2").forecast(multivariate, 9)
