"""Probes against closed forms, independent computations and planted truth."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xarray as xr
from scipy.stats import entropy as scipy_entropy

from tsfm_lens.data import bundled
from tsfm_lens.errors import InputError, UnknownNameError
from tsfm_lens.models import Lens, architectures, load
from tsfm_lens.probes import (
    ablation_effects,
    attention_patterns,
    attribute,
    bin_quantiles,
    count_peaks,
    head_entropy,
    layer_gain,
    logit_lens,
    row_entropy,
)
from tsfm_lens.testing import assert_close

H = 6


@pytest.fixture(scope="module")
def token_lens() -> Lens:
    return load(architectures()["chronos"].tiny())


@pytest.fixture(scope="module")
def patch_lens() -> Lens:
    return load(architectures()["chronos-bolt"].tiny())


BATCH, FUTURE = bundled("co2", "leisure_jobs").tail(60).split(H)


def test_last_layer_of_the_lens_is_the_model(token_lens: Lens, patch_lens: Lens) -> None:
    run = token_lens.run(BATCH, H)
    token = logit_lens(run)
    with torch.no_grad():
        p = torch.softmax(token_lens.forward(run.encoded), dim=-1)
    assert_close(token.probability[-1].values, p[..., 3:].numpy(), depth=16, magnitude=1.0, dtype=np.float32)
    patch = logit_lens(patch_lens.run(BATCH, H))
    assert_close(
        patch.quantile_forecast[-1].values, patch_lens.forecast(BATCH, H).quantiles, depth=100, dtype=np.float32
    )


def test_lens_statistics_against_scipy(token_lens: Lens) -> None:
    run = token_lens.run(BATCH, H)
    result = logit_lens(run)
    with torch.no_grad():
        _, acts = token_lens.run_with_cache(run.encoded, names_filter="decoder_blocks.0.hook_resid_post")
        stream = acts["decoder_blocks.0.hook_resid_post"]
        model = token_lens.adapter.model
        assert model.config.scale_decoder_outputs
        logits = model.lm_head(model.decoder.final_layer_norm(stream) * 36**-0.5)
    p = torch.softmax(logits.double(), -1).numpy()
    assert_close(result.entropy.sel(layer="0").values, scipy_entropy(p, axis=-1), depth=100, dtype=np.float32)
    np.testing.assert_array_equal(result.effective_vocabulary.sel(layer="0").values, (p > 0.01).sum(-1))
    scale = np.nanmean(np.abs(BATCH.values[0]))
    centers = np.linspace(-15, 15, 61)
    assert_close(result.value[0].values, centers * scale, depth=100, dtype=np.float32)
    best = result.probability.sel(layer="0").argmax("bin").values
    assert_close(result.point_forecast.sel(layer="0")[0].values, centers[best[0]] * scale, depth=100, dtype=np.float32)


@pytest.mark.parametrize("lens", ["token_lens", "patch_lens"])
def test_horizons_beyond_one_pass_are_refused(lens: str, request: pytest.FixtureRequest) -> None:
    for horizon in (999, 0, -3, 2.7, "4", True, float("nan"), [4]):
        with pytest.raises(InputError, match=r"cannot be explained in one pass|is not a number of steps"):
            logit_lens(request.getfixturevalue(lens).run(BATCH, horizon))


def test_peaks_and_quantiles_of_known_distributions() -> None:
    p = np.zeros((3, 50))
    p[0, [0, 20, 49]] = 0.3  # one at either edge
    p[1, 10:40] = 1 / 30  # flat: one broad mode
    p[2, [5, 6]] = [0.5, 0.015]  # the second is too low and too near
    assert count_peaks(p).tolist() == [3, 1, 1]
    values = np.arange(4.0)[None]
    probability = np.array([[[0.1, 0.2, 0.3, 0.2]]])  # sums to 0.8: the rest is on special tokens
    found = bin_quantiles(probability, values, [0.1, 0.5, 0.9])
    assert found[0, :, 0].tolist() == [0.0, 2.0, 3.0]


def lens_result(forecasts: list[list[float]], truth: list[float]) -> xr.Dataset:
    return xr.Dataset(
        {
            "point_forecast": (("layer", "series", "step"), np.array(forecasts)[:, None]),
            "truth": (("series", "step"), np.array(truth)[None]),
        },
        coords={"layer": ["embed", "0", "1"], "series": ["a"]},
        attrs={"kind": "logit_lens"},
    )


def test_gain_known_answers() -> None:
    result = layer_gain(lens_result([[3.0, 3.0], [3.0, 3.0], [2.0, 2.0]], [1.0, 1.0]))
    assert result.gain.sel(metric="MAE", series="a").values[1:].tolist() == [0.0, -50.0]
    assert result.gain.sel(metric="RMSE", series="a").values[1:].tolist() == [0.0, -50.0]
    assert np.isnan(result.gain.values[:, 0]).all()
    np.testing.assert_allclose(result.error.sel(metric="sMAPE", series="a"), [50.0, 50.0, 100 / 3])
    own = layer_gain(lens_result([[3.0, 3.0], [3.0, 3.0], [2.0, 2.0]], [1.0, 1.0]), reference="model")
    assert own.error.sel(metric="MAE", series="a").values.tolist() == [1.0, 1.0, 0.0]
    with pytest.raises(InputError, match="choose 'truth' or 'model'"):
        layer_gain(lens_result([[1.0]] * 3, [1.0]), reference="median")
    with pytest.raises(InputError, match="knows no truth"):
        layer_gain(lens_result([[1.0]] * 3, [1.0]).drop_vars("truth"))


def test_token_attributions_sum_to_the_models_own_logits(token_lens: Lens) -> None:
    run = token_lens.run(BATCH, H)
    result = attribute(run)
    assert float(result.completeness_error.max()) < 1e-5
    with torch.no_grad():
        logits = token_lens.forward(run.encoded)
    assert run.tokens is not None
    emitted = logits.gather(-1, run.tokens[..., None])[..., 0] - logits.mean(-1)
    parts = result.attribution.sel(decomposition="logit").sum("component").values
    assert_close(parts, emitted.numpy(), depth=100, dtype=np.float32)


def test_one_heads_logit_is_its_write_times_the_frozen_unembedding(token_lens: Lens) -> None:
    run = token_lens.run(BATCH, H)
    result = attribute(run)
    assert run.tokens is not None
    model = token_lens.adapter.model
    with torch.no_grad():
        _, acts = token_lens.run_with_cache(run.encoded)
        z = acts["decoder_blocks.1.cross_attn.hook_z"][:, :, 2]
        write = z @ model.decoder.block[1].layer[1].EncDecAttention.o.weight[:, 16:24].T
        last = acts["decoder_blocks.1.hook_resid_post"]
        rms = last.pow(2).mean(-1, keepdim=True).add(1e-6).sqrt()
        w = model.lm_head.weight
        direction = (w[run.tokens] - w.mean(0)) * model.decoder.final_layer_norm.weight
        if model.config.scale_decoder_outputs:
            direction = direction * model.config.d_model**-0.5
        expected = ((write / rms) * direction).sum(-1)
    found = result.attribution.sel(decomposition="logit", component="decoder.1.cross_attn.2").values
    assert_close(found, expected.numpy(), depth=100, dtype=np.float32)


def test_patch_attributions(patch_lens: Lens) -> None:
    result = attribute(patch_lens.run(BATCH, H))
    error = result.completeness_error.max("series")
    assert float(error.sel(decomposition="lens_difference")) < 1e-5
    assert float(error.sel(decomposition="integrated")) < 0.01
    assert float(error.sel(decomposition="linearised")) > float(error.sel(decomposition="integrated"))
    run = patch_lens.run(BATCH, H)
    stream = torch.zeros(2, 1, patch_lens.d_model)
    with torch.no_grad():
        empty = patch_lens.readout(stream, run.encoded)[..., :H]
    whole = result.total.sel(decomposition="lens_difference").values + empty.numpy()
    assert_close(whole, patch_lens.forecast(BATCH, H).quantiles, depth=100, dtype=np.float32)


def test_quadrature_converges(patch_lens: Lens) -> None:
    run = patch_lens.run(BATCH, H)
    errors = [attribute(run, nodes=nodes).completeness_error.sel(decomposition="integrated") for nodes in (4, 256)]
    assert float(errors[1].max()) < float(errors[0].max()) / 4
    with pytest.raises(InputError, match="nodes is 0"):
        attribute(run, nodes=0)


def test_a_linear_head_makes_all_methods_agree(patch_lens: Lens) -> None:
    """With the head's hidden layer cut, it is linear: linearised and integrated are exact and equal."""
    lens = load(architectures()["chronos-bolt"].tiny())
    with torch.no_grad():
        lens.adapter.model.output_patch_embedding.output_layer.weight.zero_()
    result = attribute(lens.run(BATCH, H), nodes=2)
    linearised = result.attribution.sel(decomposition="linearised").values
    assert_close(linearised, result.attribution.sel(decomposition="integrated").values, depth=100, dtype=np.float32)
    assert float(result.completeness_error.max()) < 1e-5


@pytest.mark.parametrize("rollout", [True, False])
@pytest.mark.parametrize("lens", ["token_lens", "patch_lens"])
def test_effects_are_those_of_the_edited_forecast(lens: str, rollout: bool, request: pytest.FixtureRequest) -> None:
    """In rollouts those of the forecast's median, in single forwards those of what is read out along the path."""
    model: Lens = request.getfixturevalue(lens)
    run = model.run(BATCH, H, truth=FUTURE, rollout=rollout)
    result = ablation_effects(run, components=["decoder.0.mlp", "decoder.*.cross_attn.1", "decoder.1"])
    encoded = run.encoded
    for component in result.component.values:
        with model.ablate(component), torch.no_grad():
            edited = run.read(model.forward(encoded)).double().numpy()
            expected = model.forecast(BATCH, H).median if rollout else edited
        found = result.forecast.sel(component=component).values
        assert_close(found, expected, depth=100, dtype=np.float32)
        # a decoder's first step reads no value
        later = slice(1 if run.tokens_read else 0, None)
        error = np.abs(expected - FUTURE)[:, later].mean(axis=1)
        assert_close(result.mae.sel(component=component), error, depth=100, dtype=np.float32)
    change = result.mae_change.sel(component="decoder.1").values
    np.testing.assert_allclose(change, (result.mae.sel(component="decoder.1") / result.mae_baseline - 1).values)


def test_row_entropy_known_answers() -> None:
    rows = np.array([[1.0, 0, 0, 0], [0.25] * 4, [0.0] * 4, [2.0, 2.0, 0, 0]])
    np.testing.assert_allclose(row_entropy(rows), [0.0, np.log(4), 0.0, np.log(2)])


def test_patterns_are_placed_in_time(patch_lens: Lens, token_lens: Lens) -> None:
    patch = attention_patterns(patch_lens.run(BATCH.select(0), H))
    assert patch.key_special.values[-1] == "REG"
    assert (patch.key_stop - patch.key_start).values[:-1].tolist() == [4] * (patch.sizes["key"] - 1)
    assert patch.attrs["attention"] == "cross_attn"
    token = attention_patterns(token_lens.run(BATCH.select(0), H), kind="self_attn")
    assert token.key_start.values.tolist() == list(range(H))
    assert_close(token.pattern.sum("key"), 1.0, depth=100, dtype=np.float32)
    with pytest.raises(InputError, match="one series at a time"):
        attention_patterns(token_lens.run(BATCH, H))
    with pytest.raises(UnknownNameError, match="Closest: cross_attn"):
        attention_patterns(token_lens.run(BATCH.select(0), H), kind="crossattn")


def test_head_entropy_is_scaled_over_all_heads(token_lens: Lens) -> None:
    result = head_entropy(token_lens.run(BATCH, H))
    assert float(result.normalised.min()) == 0.0
    assert float(result.normalised.max()) == 1.0
    single = [attention_patterns(token_lens.run(BATCH.select(i), H)).entropy for i in (0, 1)]
    np.testing.assert_allclose(result.entropy, (single[0] + single[1]) / 2)
