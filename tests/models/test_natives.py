"""Every lens on unequal series with gaps, against its library: forecasts, means, and
settings of the library's own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import library_forecasts
from library_forecasts import (
    DRAWS,
    LEVELS,
    NATIVE,
    answer,
    assert_is,
    by_series,
    compiled,
    count_draws,
    gluonts,
    interpolated,
    items,
    masked,
    moirai_forecaster,
    stacked,
)
from tiny_lenses import fresh, lens_of
from tsfm_lens.core.errors import InputError
from tsfm_lens.data import as_series
from tsfm_lens.models import Lens, architectures, load
from tsfm_lens.testing import assert_close

KINDS = pytest.mark.parametrize("kind", ["univariate", "multivariate"])
MULTIVARIATE = [
    name for name, entry in architectures().items() if entry.adapter.multivariate
]
CASES = [(name, "univariate") for name in sorted(NATIVE)] + [
    (name, "multivariate") for name in MULTIVARIATE
]


@pytest.mark.parametrize("horizon", [5, 19], ids=["one-pass", "rollout"])
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_forecast_is_the_librarys(
    name: str, kind: str, horizon: int, request: pytest.FixtureRequest
) -> None:
    lens = lens_of(name)
    series = request.getfixturevalue(kind)
    if name == "t5":
        series = [
            np.where(np.isnan(item), np.nan, np.abs(item).round()) for item in series
        ]
    if lens.adapter.rollout != "single":
        steps = horizon
    else:
        steps = min(horizon, lens.longest_pass)
    if not (lens.adapter.joint_rollout or kind == "univariate"):
        steps = min(steps, lens.prediction_length)
    ours = lens.forecast(series, steps, seed=11, **count_draws(lens))
    assert_is(ours, answer(lens, as_series(series), steps, seed=11))
    if ours.samples is not None:
        other = lens.forecast(series, steps, seed=12, **count_draws(lens)).samples
        assert other is not None
        assert not np.array_equal(other, ours.samples)


@KINDS
@pytest.mark.parametrize(
    "name",
    ["chronos-2", "chronos-bolt", "moirai-2", "timesfm-3", "timestral", "toto-2"],
)
def test_a_forward_is_the_forecast(
    name: str, kind: str, request: pytest.FixtureRequest
) -> None:
    if kind == "multivariate" and name not in MULTIVARIATE:
        pytest.skip("takes single series")
    lens = lens_of(name)
    series = request.getfixturevalue(kind)
    forward = lens.forward(series, horizon=7).detach()[..., :7]
    assert lens.levels == pytest.approx(LEVELS, abs=0)
    assert_close(
        forward,
        lens.forecast(series, 7, quantiles=LEVELS).quantiles,
        depth=1000,
        dtype=np.float32,
    )


# --- Moirai


def test_patch_size_follows_the_forecast_object(univariate: list[np.ndarray]) -> None:
    batch = as_series(univariate)
    forecast_object = moirai_forecaster(
        lens_of("moirai-1.1").native, items(batch), 21, patch_size=8, num_samples=DRAWS
    )
    with torch.random.fork_rng():
        torch.manual_seed(5)
        theirs = gluonts(
            forecast_object.module, batch, 21, patch_size=8, num_samples=DRAWS
        )
    np.testing.assert_array_equal(
        load(forecast_object, check=False)
        .forecast(univariate, 21, num_samples=DRAWS, seed=5)
        .samples,
        theirs,
    )


@KINDS
@pytest.mark.parametrize("horizon", [5, 21])
def test_the_mean_is_moirais(
    kind: str, horizon: int, request: pytest.FixtureRequest
) -> None:
    lens = lens_of("moirai-1.1")
    series = request.getfixturevalue(kind)
    forecast_object = moirai_forecaster(
        lens.native, items(as_series(series)), horizon, patch_size=16
    )
    values = stacked(as_series(series), 50).transpose(1, 2)
    lengths = torch.tensor([item.shape[-1] for item in series])
    padding = torch.arange(50)[None] < (50 - lengths)[:, None]
    with torch.no_grad():
        native = forecast_object._get_distr(
            16, values.nan_to_num(), ~values.isnan(), padding
        )

    def formatted(packed: torch.Tensor) -> torch.Tensor:
        """(series, step)."""
        return torch.from_numpy(
            by_series(
                list(
                    forecast_object._format_preds(
                        16, packed[None], values.shape[2]
                    ).numpy()
                )
            )
        )[:, 0]

    assert_close(
        lens.forward(series, horizon=horizon).detach()[:, 0, :horizon],
        formatted(native.mean),
        depth=100,
    )


def test_only_single_variates_roll_out(
    multivariate: list[np.ndarray],
) -> None:
    """Moirai 2 rolls out single variates only."""
    with pytest.raises(InputError, match="one variate only"):
        lens_of("moirai-2").forecast(multivariate, 9)


# --- TimesFM


def configured_forecaster(lens: Lens, **changes: Any) -> Any:
    """The forecaster under a configuration of the caller's."""
    pytest.importorskip("timesfm")
    return compiled(lens.native, 50, 32, 3, **changes)


@pytest.mark.parametrize(
    ("horizon", "changes"),
    [
        (
            21,
            {
                "max_context": 64,
                "force_flip_invariance": True,
                "fix_quantile_crossing": False,
            },
        ),
        (
            40,
            {
                "max_horizon": 64,
                "use_continuous_quantile_head": False,
                "infer_is_positive": False,
            },
        ),
    ],
    ids=["flipped", "as-configured"],
)
def test_forecasts_follow_google_s_configuration(
    univariate: list[np.ndarray], horizon: int, changes: dict
) -> None:
    """The forecast is that of Google's library under its configuration."""
    native = configured_forecaster(lens_of("timesfm-2.5"), **changes)
    ours = load(native, check=False).forecast(univariate, horizon)
    point, deciles = native.forecast(
        horizon=horizon, inputs=[series.copy() for series in univariate]
    )
    np.testing.assert_array_equal(ours.quantiles, deciles[..., 1:].transpose(0, 2, 1))
    np.testing.assert_array_equal(ours.mean, deciles[..., 0])
    np.testing.assert_array_equal(ours.median, point)


def test_horizons_beyond_the_configuration_are_refused(
    univariate: list[np.ndarray],
) -> None:
    with pytest.raises(InputError, match="max_horizon 32"):
        load(configured_forecaster(lens_of("timesfm-2.5")), check=False).forecast(
            univariate, 33
        )


def test_forward_is_the_port_s_point(
    univariate: list[np.ndarray], monkeypatch: Any
) -> None:
    """A forward is the point head of the port to transformers."""
    lens = lens_of("timesfm-2.5-transformers")
    monkeypatch.setattr(lens.native.config, "use_continuous_quantile_head", False)
    past = [
        torch.tensor(interpolated(series), dtype=torch.float32) for series in univariate
    ]
    with torch.no_grad():
        full = lens.native(
            past,
            forecast_context_len=56,
            force_flip_invariance=False,
            truncate_negative=False,
        )
    expected = full.full_predictions[..., 1:].transpose(1, 2)
    assert_close(lens.forward(univariate).detach(), expected, depth=1000)


# --- Timestral


@KINDS
@pytest.mark.parametrize("horizon", [5, 19], ids=["one-pass", "rollout"])
def test_both_options_are_timestrals(
    kind: str, horizon: int, request: pytest.FixtureRequest
) -> None:
    lens = fresh("timestral")
    series = request.getfixturevalue(kind)
    lens.adapter.clampsym = True  # type: ignore[attr-defined]
    assert_is(
        lens.forecast(series, horizon),
        library_forecasts.timestral(lens.native, as_series(series), horizon, both=True),
    )
    with pytest.raises(InputError, match="clampsym"):
        lens.run_with_cache(series, names_filter="unembed.hook_out", rollout=True)


# --- Toto


@KINDS
def test_the_mean_is_totos(kind: str, request: pytest.FixtureRequest) -> None:
    lens = lens_of("toto-1")
    series = request.getfixturevalue(kind)
    from toto.inference.forecaster import TotoForecaster

    forecaster = TotoForecaster(lens.native.model)
    given = masked(as_series(series))
    mean = forecaster.forecast(given, prediction_length=8).mean.flatten(0, 1)
    assert_close(lens.forward(series).detach()[:, 0], mean, depth=100)


def test_final_gaps_are_carried_forward(multivariate: list[np.ndarray]) -> None:
    """As the library's own predictor does: its model takes the last patch as observed,
    whatever its mask.
    """
    lens = lens_of("toto-2")
    from gluonts.dataset.common import ListDataset
    from toto2 import Toto2GluonTSModel
    from toto2.configuration import Toto2GluonTSModelConfig

    for item in multivariate:
        item[1, -3:] = np.nan
    config = Toto2GluonTSModelConfig(
        prediction_length=8, context_length=56, target_dim=2, scaler_fallback_min_obs=0
    )
    entries = [{"target": item, "start": "2024-01-01 00:00"} for item in multivariate]
    dataset = ListDataset(entries, freq="h", one_dim_target=False)
    predictor = Toto2GluonTSModel(lens.native, config).create_predictor(
        batch_size=2, device="cpu"
    )
    expected = [
        np.stack([forecast.quantile(level) for level in LEVELS])
        for forecast in predictor.predict(dataset)
    ]
    ours = lens.forecast(multivariate, 8).quantiles.reshape(2, 2, 9, 8)
    assert_close(
        ours.transpose(0, 2, 1, 3), np.stack(expected), depth=100, dtype=np.float32
    )
