"""TimesFM called by hand: Google's packages, and the port to transformers with Google's weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from tsfm_lens.errors import InputError
from tsfm_lens.models import Lens, load
from tsfm_lens.testing import assert_close

Opened = Callable[[str], Lens]


def padded(series: list[np.ndarray], length: int) -> torch.Tensor:
    """(…, time), NaN on the left of what is shorter."""
    rows = [
        np.pad(each, [(0, 0)] * (each.ndim - 1) + [(length - each.shape[-1], 0)], constant_values=np.nan)
        for each in series
    ]
    return torch.tensor(np.stack(rows), dtype=torch.float32)


def interpolated(series: np.ndarray) -> np.ndarray:
    known = np.flatnonzero(~np.isnan(series))
    return np.interp(np.arange(len(series)), known, series[known])[known[0] :]


def compiled(native: Any, **changes: Any) -> Any:
    """The forecaster under a configuration; by default the one that a lens chooses for 50 steps of context."""
    timesfm = pytest.importorskip("timesfm")
    settings = {
        "max_context": 56,
        "max_horizon": 32,
        "normalize_inputs": True,
        "use_continuous_quantile_head": True,
        "force_flip_invariance": False,
        "infer_is_positive": True,
        "fix_quantile_crossing": True,
        "per_core_batch_size": 3,
    }
    own = copy.copy(native)
    own.compile(timesfm.ForecastConfig(**{**settings, **changes}))
    return own


@pytest.mark.parametrize(
    ("horizon", "changes", "configured"),
    [
        (5, {"max_horizon": 16}, False),
        (21, {}, False),
        (40, {"max_horizon": 48, "use_continuous_quantile_head": False}, False),
        (21, {"max_context": 64, "force_flip_invariance": True, "fix_quantile_crossing": False}, True),
        (40, {"max_horizon": 64, "use_continuous_quantile_head": False, "infer_is_positive": False}, True),
    ],
    ids=["one-pass", "rollout", "past-the-quantile-head", "flipped", "as-configured"],
)
def test_the_forecast_is_googles(
    opened: Opened, univariate: list[np.ndarray], horizon: int, changes: dict, configured: bool
) -> None:
    lens = opened("timesfm-2.5")
    native = compiled(lens.native, **changes)
    ours = (load(native, check=False) if configured else lens).forecast(univariate, horizon)
    point, deciles = native.forecast(horizon=horizon, inputs=[series.copy() for series in univariate])
    np.testing.assert_array_equal(ours.quantiles, deciles[..., 1:].transpose(0, 2, 1))
    np.testing.assert_array_equal(ours.mean, deciles[..., 0])
    np.testing.assert_array_equal(ours.median, point)


def test_a_longer_horizon_than_configured_is_refused(opened: Opened, univariate: list[np.ndarray]) -> None:
    with pytest.raises(InputError, match="max_horizon 32"):
        load(compiled(opened("timesfm-2.5").native), check=False).forecast(univariate, 33)


def test_a_forward_is_the_naive_forecast(opened: Opened, univariate: list[np.ndarray]) -> None:
    lens = opened("timesfm-2.5")
    naive = lens.native.model.forecast_naive(16, [interpolated(series) for series in univariate])
    expected = np.stack(naive)[..., 1:].transpose(0, 2, 1)
    for row, series in enumerate(univariate):
        np.testing.assert_array_equal(lens.forward([series]).detach().numpy(), expected[row : row + 1])
    # in a batch, shorter series have whole patches of padding before them
    assert_close(lens.forward(univariate).detach().numpy(), expected, depth=1000, dtype=np.float32)


@pytest.mark.parametrize("horizon", [6, 16])
def test_the_forecast_is_the_ports(opened: Opened, univariate: list[np.ndarray], horizon: int) -> None:
    lens = opened("timesfm-2.5-transformers")
    past = [torch.tensor(interpolated(series), dtype=torch.float32) for series in univariate]
    run = partial(lens.native, forecast_context_len=56, force_flip_invariance=False)
    with torch.no_grad():
        values = run(past, truncate_negative=False).full_predictions[:, :horizon]
        # the library clamps all of a batch or none: alone, the last series is clamped
        alone = run(past[2:], truncate_negative=True).full_predictions[:, :horizon]
    assert bool((values[2] < 0).any())
    values[2].clamp_(min=0.0)
    assert_close(values[2:], alone, depth=1000)
    ours = lens.forecast(univariate, horizon)
    np.testing.assert_array_equal(ours.quantiles, values[..., 1:].transpose(1, 2))
    np.testing.assert_array_equal(ours.mean, values[..., 0])
    with pytest.raises(InputError, match="longer than the 16 steps"):
        lens.forecast(univariate, 17)


def test_a_forward_is_the_ports_point_head(opened: Opened, univariate: list[np.ndarray], monkeypatch: Any) -> None:
    lens = opened("timesfm-2.5-transformers")
    monkeypatch.setattr(lens.native.config, "use_continuous_quantile_head", False)
    past = [torch.tensor(interpolated(series), dtype=torch.float32) for series in univariate]
    with torch.no_grad():
        full = lens.native(past, forecast_context_len=56, force_flip_invariance=False, truncate_negative=False)
    expected = full.full_predictions[..., 1:].transpose(1, 2)
    assert_close(lens.forward(univariate).detach(), expected, depth=1000)


RENAMED = {
    "tokenizer.": "model.input_ff_layer.",
    "hidden_layer": "input_layer",
    "stacked_xf": "model.layers",
    "attn.out.": "self_attn.o_proj.",
    "attn.query_ln.scale": "self_attn.q_norm.weight",
    "attn.key_ln.scale": "self_attn.k_norm.weight",
    "attn.per_dim_scale.per_dim_scale": "self_attn.scaling",
    "pre_attn_ln.scale": "input_layernorm.weight",
    "post_attn_ln.scale": "post_attention_layernorm.weight",
    "pre_ff_ln.scale": "pre_feedforward_layernorm.weight",
    "post_ff_ln.scale": "post_feedforward_layernorm.weight",
    "ff0": "mlp.fc1",
    "ff1": "mlp.fc2",
}


@pytest.fixture(scope="module")
def port(opened: Opened) -> Lens:
    """The port to transformers with the weights of the tiny model of Google's package."""
    from transformers import TimesFm2_5Config, TimesFm2_5ModelForPrediction

    google = opened("timesfm-2.5").native.model
    config = TimesFm2_5Config(
        patch_length=google.p,
        context_length=512,
        horizon_length=google.o,
        output_quantile_len=google.os,
        num_hidden_layers=google.x,
        hidden_size=google.md,
        intermediate_size=24,
        num_attention_heads=google.h,
        num_key_value_heads=google.h,
        head_dim=google.hd,
    )
    weights = {}
    for name, tensor in google.state_dict().items():
        for old, new in RENAMED.items():
            name = name.replace(old, new)
        parts = zip("qkv", tensor.chunk(3), strict=True) if "qkv_proj" in name else [("", tensor)]
        weights.update({name.replace("attn.qkv_proj", f"self_attn.{part}_proj"): piece for part, piece in parts})
    model = TimesFm2_5ModelForPrediction._from_config(config, attn_implementation="sdpa")
    model.load_state_dict(weights)
    return load(model.eval())


def test_both_packages_agree_inside_and_out(opened: Opened, port: Lens, univariate: list[np.ndarray]) -> None:
    lens = opened("timesfm-2.5")
    # the port does not mend crossing quantiles
    as_port = load(compiled(lens.native, max_horizon=16, fix_quantile_crossing=False), check=False)
    ours, theirs = (each.forecast(univariate).quantiles for each in (as_port, port))
    assert_close(theirs, ours, depth=1000, dtype=np.float32)
    with torch.no_grad():
        (_, google), (_, hf) = (
            each.run_with_cache(univariate, names_filter=lambda name: True) for each in (lens, port)
        )
    assert set(google) == set(hf)
    for name in google:
        if not name.endswith("hook_attn_scores"):
            assert_close(hf[name], google[name], depth=10000, what=name)


@pytest.mark.parametrize("horizon", [6, 40])
@pytest.mark.parametrize("kind", ["univariate", "multivariate"])
def test_the_forecast_is_timesfm_3s(opened: Opened, kind: str, horizon: int, request: pytest.FixtureRequest) -> None:
    lens, series = opened("timesfm-3"), request.getfixturevalue(kind)
    target = padded([np.atleast_2d(each) for each in series], 50)
    missing = target.isnan()
    emitted = lens.native.decode(target.nan_to_num(), horizon=horizon, target_mask=missing)
    expected = emitted.flatten(0, 1).transpose(1, 2)
    np.testing.assert_array_equal(lens.forecast(series, horizon).quantiles, expected)
    assert torch.equal(lens.forward(series, horizon=horizon).detach(), expected)
