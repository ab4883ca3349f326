"""TimesFM called by hand: Google's packages, and the port to transformers with Google's weights."""

from __future__ import annotations

from functools import partial
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


def test_a_series_is_clamped_as_the_port_clamps_it_alone(univariate: list[np.ndarray]) -> None:
    lens, series = lens_of("timesfm-2.5-transformers"), univariate[2:]
    past = [torch.tensor(each, dtype=torch.float32) for each in series]
    run = partial(lens.native, past, forecast_context_len=32, force_flip_invariance=False)
    with torch.no_grad():
        clamped, plain = (run(truncate_negative=each).full_predictions[..., 1:] for each in (True, False))
    assert bool((plain < 0).any())
    np.testing.assert_array_equal(lens.forecast(series, 16).quantiles, clamped[:, :16].transpose(1, 2))
    with pytest.raises(InputError, match="longer than the 16 steps"):
        lens.forecast(univariate, 17)


def test_a_forward_is_the_ports_point_head(univariate: list[np.ndarray], monkeypatch: Any) -> None:
    lens = lens_of("timesfm-2.5-transformers")
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
def port() -> Lens:
    """The port to transformers with the weights of the tiny model of Google's package."""
    from transformers import TimesFm2_5Config, TimesFm2_5ModelForPrediction

    google = lens_of("timesfm-2.5").native.model
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


def test_both_packages_agree_inside_and_out(port: Lens, univariate: list[np.ndarray]) -> None:
    lens = lens_of("timesfm-2.5")
    # the port does not mend crossing quantiles
    as_port = load(own_of(lens, max_horizon=16, fix_quantile_crossing=False), check=False)
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
