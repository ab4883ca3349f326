"""Moirai 1.1-R and Moirai 2 called by hand, through the GluonTS predictors of their own library."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from natives import DRAWS, by_series, gluonts, items, moirai_forecaster, stacked
from tiny_lenses import lens_of
from tsfm_lens.data import as_series
from tsfm_lens.errors import InputError
from tsfm_lens.models import load
from tsfm_lens.testing import assert_close

KINDS = pytest.mark.parametrize("kind", ["univariate", "multivariate"])


def test_the_patch_size_is_the_forecast_objects(univariate: list[np.ndarray]) -> None:
    batch = as_series(univariate)
    own = moirai_forecaster(lens_of("moirai-1.1").native, items(batch), 21, patch_size=8, num_samples=DRAWS)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        theirs = gluonts(own.module, batch, 21, patch_size=8, num_samples=DRAWS)
    np.testing.assert_array_equal(
        load(own, check=False).forecast(univariate, 21, num_samples=DRAWS, seed=5).samples, theirs
    )


@KINDS
@pytest.mark.parametrize("horizon", [5, 21])
def test_the_mean_is_moirais(kind: str, horizon: int, request: pytest.FixtureRequest) -> None:
    lens, series = lens_of("moirai-1.1"), request.getfixturevalue(kind)
    own = moirai_forecaster(lens.native, items(as_series(series)), horizon, patch_size=16)
    values = stacked(as_series(series), 50).transpose(1, 2)
    lengths = torch.tensor([each.shape[-1] for each in series])
    padding = torch.arange(50)[None] < (50 - lengths)[:, None]
    with torch.no_grad():
        native = own._get_distr(16, values.nan_to_num(), ~values.isnan(), padding)

    def formatted(packed: torch.Tensor) -> torch.Tensor:
        """(series, step)."""
        return torch.from_numpy(by_series(list(own._format_preds(16, packed[None], values.shape[2]).numpy())))[:, 0]

    mean = formatted(native.mean)
    assert_close(lens.forward(series, horizon=horizon).detach()[:, 0, :horizon], mean, depth=100)


def test_moirai_2_rolls_out_single_variates_only(multivariate: list[np.ndarray]) -> None:
    with pytest.raises(InputError, match="one variate only"):
        lens_of("moirai-2").forecast(multivariate, 9)
