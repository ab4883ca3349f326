"""Probes against closed forms, independent computations and planted truth."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import entropy as scipy_entropy

from closeness import close_in_float32
from refusals import expect_error
from tiny_lenses import fresh
from tiny_series import few_draws
from tsfm_lens.core.axes import depth_coords
from tsfm_lens.data import bundled
from tsfm_lens.models import Lens, load
from tsfm_lens.probes import (
    ablation_effects,
    attention_patterns,
    attribution,
    autoregressive_attention,
    head_entropy,
    head_spectra,
    layer_gain,
    logit_lens,
    patch_attention,
    stream_shares,
)
from tsfm_lens.probes.attention import row_entropy
from tsfm_lens.probes.logit_lens import bin_quantiles, count_peaks

H = 6


@pytest.fixture(scope="module")
def token_lens() -> Lens:
    return fresh("chronos")


@pytest.fixture(scope="module")
def patch_lens() -> Lens:
    return fresh("chronos-bolt")


BATCH, FUTURE = bundled("co2", "leisure_jobs").tail(60).split(H)


def test_lens_statistics_against_scipy(token_lens: Lens) -> None:
    run = token_lens.run(BATCH, H)
    result = logit_lens(run)
    with torch.no_grad():
        _, activations = token_lens.run_with_cache(
            run.encoded, names_filter="decoder_blocks.0.hook_resid_post"
        )
        stream = activations["decoder_blocks.0.hook_resid_post"]
        model = token_lens.adapter.model
        assert model.config.scale_decoder_outputs
        logits = model.lm_head(model.decoder.final_layer_norm(stream) * 36**-0.5)
    p = torch.softmax(logits.double(), -1).numpy()
    close_in_float32(result.entropy.sel(layer=0).values, scipy_entropy(p, axis=-1))
    assert_array_equal(
        result.effective_vocabulary.sel(layer=0).values, (p > 0.01).sum(-1)
    )
    scale = np.nanmean(np.abs(BATCH.values[0]))
    centers = np.linspace(-15, 15, 61)
    close_in_float32(result.value[0].values, centers * scale)
    best = result.probability.sel(layer=0).argmax("bin").values
    close_in_float32(
        result.point_forecast.sel(layer=0)[0].values, centers[best[0]] * scale
    )


def test_peaks_and_quantiles_of_known_distributions() -> None:
    p = np.zeros((3, 50))
    p[0, [0, 20, 49]] = 0.3  # one at either edge
    p[1, 10:40] = 1 / 30  # flat: one broad mode
    p[2, [5, 6]] = [0.5, 0.015]  # the second is too low and too near
    assert count_peaks(p).tolist() == [3, 1, 1]
    values = np.arange(4.0)[None]
    probability = np.array(
        [[[0.1, 0.2, 0.3, 0.2]]]
    )  # sums to 0.8: the rest is on special tokens
    found = bin_quantiles(probability, values, [0.1, 0.5, 0.9])
    assert found[0, :, 0].tolist() == [0.0, 2.0, 3.0]


def lens_result(forecasts: list[list[float]], truth: list[float]) -> xr.Dataset:
    return xr.Dataset(
        {
            "point_forecast": (
                ("layer", "series", "step"),
                np.array(forecasts)[:, None],
            ),
            "truth": (("series", "step"), np.array(truth)[None]),
        },
        coords={**depth_coords("layer", 2), "series": ["a"]},
        attrs={"kind": "logit_lens"},
    )


def test_gain_known_answers() -> None:
    result = layer_gain(lens_result([[3.0, 3.0], [3.0, 3.0], [2.0, 2.0]], [1.0, 1.0]))
    assert result.gain.sel(metric="MAE", series="a").values[1:].tolist() == [0.0, -50.0]
    assert result.gain.sel(metric="RMSE", series="a").values[1:].tolist() == [
        0.0,
        -50.0,
    ]
    assert np.isnan(result.gain.values[:, 0]).all()
    assert_allclose(result.error.sel(metric="sMAPE", series="a"), [50.0, 50.0, 100 / 3])
    model_gain = layer_gain(
        lens_result([[3.0, 3.0], [3.0, 3.0], [2.0, 2.0]], [1.0, 1.0]), reference="model"
    )
    assert model_gain.error.sel(metric="MAE", series="a").values.tolist() == [
        1.0,
        1.0,
        0.0,
    ]
    expect_error(
        "choose 'truth' or 'model'",
        layer_gain,
        lens_result([[1.0]] * 3, [1.0]),
        reference="median",
    )
    expect_error(
        "has no truth", layer_gain, lens_result([[1.0]] * 3, [1.0]).drop_vars("truth")
    )


@pytest.mark.parametrize("rollout", [True, False])
@pytest.mark.parametrize("lens", ["token_lens", "patch_lens"])
def test_effects_compare_with_the_edited_forecast(
    lens: str, rollout: bool, request: pytest.FixtureRequest
) -> None:
    """In rollouts those of the forecast's median, in single forwards those of what is
    read out along the path.
    """
    model = request.getfixturevalue(lens)
    run = model.run(BATCH, H, truth=FUTURE, rollout=rollout)
    result = ablation_effects(
        run, components=["decoder.0.mlp", "decoder.*.cross_attn.1", "decoder.1"]
    )
    encoded = run.encoded
    for component in result.component.values:
        found = result.sel(component=component)
        with model.ablate(component), torch.no_grad():
            edited = run.read(model.forward(encoded)).double().numpy()
            expected = edited
            if rollout:
                expected = model.forecast(BATCH, H).median
        close_in_float32(found.forecast, expected)
        # a decoder's first step reads no value
        later = slice(1 if run.tokens_read else 0, None)
        error = np.abs(expected - FUTURE)[:, later].mean(axis=1)
        close_in_float32(found.mae, error)
        xr.testing.assert_allclose(found.mae_change, found.mae / found.mae_baseline - 1)


def test_row_entropy_known_answers() -> None:
    rows = np.array([[1.0, 0, 0, 0], [0.25] * 4, [0.0] * 4, [2.0, 2.0, 0, 0]])
    assert_allclose(row_entropy(rows), [0.0, np.log(4), 0.0, np.log(2)])


def test_patterns_are_placed_in_time(patch_lens: Lens, token_lens: Lens) -> None:
    patch = attention_patterns(patch_lens.run(BATCH.select(0), H))
    assert patch.key_special.values[-1] == "REG"
    assert (patch.key_stop - patch.key_start).values[:-1].tolist() == [4] * (
        patch.sizes["key"] - 1
    )
    assert patch.attrs["attention"] == "cross_attn"
    token = attention_patterns(token_lens.run(BATCH.select(0), H), kind="self_attn")
    assert token.key_start.values.tolist() == list(range(H))
    close_in_float32(token.pattern.sum("key"), 1.0)


def test_entropy_is_scaled_over_all_heads(token_lens: Lens) -> None:
    result = head_entropy(token_lens.run(BATCH, H))
    assert float(result.normalised.min()) == 0.0
    assert float(result.normalised.max()) == 1.0
    single = [
        attention_patterns(token_lens.run(BATCH.select(i), H)).entropy for i in (0, 1)
    ]
    assert_allclose(result.entropy, (single[0] + single[1]) / 2)


def test_logits_match_model_and_lens_probabilities() -> None:
    """The last layer's logits are the model's; all give the lens's probabilities."""
    lens = load("chronos-nano")
    context, truth = bundled("co2", "sunspots").tail(90).split(8)
    run = lens.run(context, 8, truth=truth, num_samples=3)
    found = logit_lens(run, logits=True)
    first = lens.adapter.first_value_token  # type: ignore[attr-defined]
    with torch.no_grad():
        native = lens.forward(context, future=run.path)[..., first:]
    close_in_float32(found["logit"].values[-1], native.numpy())
    mine = torch.softmax(torch.tensor(found["logit"].values).double(), dim=-1).numpy()
    bins = found["probability"].values
    close_in_float32(mine, bins / bins.sum(-1, keepdims=True))


@pytest.mark.parametrize("name", ["chronos-nano", "bolt-nano"])
def test_shares_sum_attributions_in_wiring_order(
    name: str,
) -> None:
    """Shares are sums of the attribution, in the order of the wiring."""
    lens = load(name)
    run = lens.run(bundled("co2", "sunspots").tail(90), 8, **few_draws(lens))
    found = stream_shares(run)
    full = attribution(run)
    assert full["decomposition"].item() == found.attrs["decomposition"]
    parts = full["attribution"].sel(quantile=0.5)
    branch = "decoder.1.cross_attn"
    heads = parts.sel(component=[f"{branch}.{head}" for head in range(4)])
    heads = heads.isel(step=slice(found.attrs["horizon"] - found.attrs["steps"], None))
    at = found.sel(writer=branch)
    size = np.abs(heads.sum("component")).mean("step")
    close_in_float32(at["size"], size, depth=16)
    sizes = np.abs(heads).mean("step").transpose("component", "series")
    close_in_float32(at["head_size"], sizes, depth=16)
    assert_allclose(found["share"].sum("writer"), 1.0)
    kinds = {"self_attn": "decoder", "cross_attn": "encoder", "mlp": ""}
    rows = [f"decoder.{layer}.{kind}" for layer in range(3) for kind in kinds]
    assert [w for w in found["writer"].values if w != "bias"] == ["embed", *rows]
    encoder = found["writer"][(found["keys_from"] == "encoder").values]
    assert encoder.values.tolist() == [row for row in rows if "cross" in row]
    assert np.isnan(found["head_size"].sel(writer="decoder.0.mlp")).all()


@pytest.mark.parametrize(
    ("model", "horizon"), [("chronos-bolt", 40), ("chronos", 6), ("timesfm-2.5", 6)]
)
def test_patch_attention_is_the_rollout_s(model: str, horizon: int) -> None:
    """It has the windows of the rollout's attention and the rank of each head."""
    lens = fresh(model)
    run = lens.run(bundled("co2").tail(64), horizon, **few_draws(lens))
    found = patch_attention(run)
    attention = found["attention"]
    keys = found["key_start"].values
    maps = autoregressive_attention(run, keys="window")["attention"]
    assert_array_equal(attention, maps.transpose(*attention.dims))
    close_in_float32(attention.sum("key"), 1.0)
    ranks = head_spectra(lens, kind=found.attrs["attention"])["stable_rank"]
    assert_array_equal(found["stable_rank"], ranks.sel(product="QK"))
    # the last token alone forecasts in a causal model, every decoder token elsewhere
    rows = attention
    if model == "timesfm-2.5":
        rows = attention.isel(query=[-1])
    if model == "chronos":
        rows = rows.isel(query=found["query_start"].values >= 0)
    mean = rows.mean("query").where(found["key_special"] == "", -1)
    mean = mean.transpose("layer", "head", "key").values
    assert_array_equal(found["argmax_key"], mean.argmax(-1))
    assert_array_equal(found["argmax_start"], keys[mean.argmax(-1)])
    close_in_float32(found["argmax_weight"], mean.max(-1))
    assert_array_equal(found["quantile_forecast"], run.forecast.quantiles)


def test_measurements_take_an_option_called_kind() -> None:
    """The kind of attention is no kind of measurement."""
    run = load("bolt-nano").run(bundled("co2").tail(64), 4)
    found = run.measure("head_spectra", kind="cross_attn")
    assert found.attrs["attention"] == "cross_attn"
    assert found.attrs["kind"] == "head_spectra"
