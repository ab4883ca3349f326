"""Lens logits, shares of the stream's writers and patch attention, against the native forward and the wiring."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from contrasted import few_draws
from tiny_lenses import fresh
from tsfm_lens.data import bundled
from tsfm_lens.errors import InputError, UnknownNameError
from tsfm_lens.models import load
from tsfm_lens.probes import (
    attribute,
    autoregressive_attention,
    head_spectra,
    lens_logits,
    logit_lens,
    patch_attention,
    stream_shares,
)
from tsfm_lens.testing import assert_close

NANO = ("chronos-nano", "bolt-nano")


def test_the_last_layers_logits_are_the_models_own_and_all_give_the_lens_probabilities() -> None:
    lens = load("chronos-nano")
    context, truth = bundled("co2", "sunspots").tail(90).split(8)
    run = lens.run(context, 8, truth=truth, num_samples=3)
    found, p = lens_logits(run), logit_lens(run)
    first = lens.adapter.first_value_token  # type: ignore[attr-defined]
    with torch.no_grad():
        native = lens.forward(context, future=run.path)[..., first:]
    assert_close(found["logit"].values[-1], native.numpy(), depth=100, dtype=np.float32)
    mine = torch.softmax(torch.tensor(found["logit"].values).double(), dim=-1).numpy()
    bins = p["probability"].values
    assert_close(mine, bins / bins.sum(-1, keepdims=True), depth=100, dtype=np.float32)
    np.testing.assert_array_equal(found["value"], p["value"])
    assert list(found["layer"].values) == list(p["layer"].values)
    with pytest.raises(InputError, match="emits quantiles, not tokens"):
        lens_logits(load("bolt-nano").run(context, 8))


@pytest.mark.parametrize("name", NANO)
def test_shares_are_sums_of_the_attribution_in_the_order_of_the_wiring(name: str) -> None:
    lens = load(name)
    context = bundled("co2", "sunspots").tail(90)
    found = stream_shares(lens.run(context, 8, num_samples=3 if name == "chronos-nano" else None))
    whole = attribute(lens.run(context, 8, num_samples=3 if name == "chronos-nano" else None), nodes=1)
    decomposition = found.attrs["decomposition"]
    parts = whole["attribution"].sel(decomposition=decomposition)
    if "quantile" in parts.dims:
        parts = parts.sel({"quantile": 0.5})
    branch = [c for c in parts["component"].values if str(c).startswith("decoder.1.cross_attn.")]
    expected = np.abs(parts.sel(component=branch).sum("component")).mean("step")
    assert_close(found["size"].sel(writer="decoder.1.cross_attn"), expected, depth=16, dtype=np.float32)
    heads = np.abs(parts.sel(component=branch)).mean("step").transpose("component", "series")
    assert_close(found["head_size"].sel(writer="decoder.1.cross_attn"), heads, depth=16, dtype=np.float32)
    np.testing.assert_allclose(found["share"].sum("writer"), 1.0)
    rows = [f"decoder.{layer}.{kind}" for layer in range(3) for kind in ("self_attn", "cross_attn", "mlp")]
    assert [w for w in found["writer"].values if w != "bias"] == ["embed", *rows]
    sources = dict(zip(found["writer"].values, found["keys_from"].values, strict=True))
    assert {w for w, source in sources.items() if source == "encoder"} == {w for w in rows if "cross" in w}
    assert np.isnan(found["head_size"].sel(writer="decoder.0.mlp")).all()
    with pytest.raises(UnknownNameError, match="'guess'"):
        stream_shares(lens.run(context, 8), decomposition="guess")


def test_a_writer_that_writes_nothing_has_no_share() -> None:
    lens = load("bolt-nano")
    stack = lens.wiring.output_stack
    with torch.no_grad():
        lens.adapter.model.get_submodule(f"{stack.block(1)}.{stack.writer('mlp').o}").weight.zero_()
    found = stream_shares(lens.run(bundled("co2").tail(90), 8))
    # a zero write leaves the readout as it is, to the last bit
    assert float(found["share"].sel(writer="decoder.1.mlp").max()) == 0.0
    assert float(found["share"].sel(writer="decoder.2.mlp").min()) > 0.0


@pytest.mark.parametrize(("model", "horizon"), [("chronos-bolt", 40), ("chronos", 6), ("timesfm-2.5", 6)])
def test_patch_attention_is_the_windows_of_the_rollout_with_the_rank_of_each_head(model: str, horizon: int) -> None:
    lens = fresh(model)
    context, truth = bundled("co2").tail(64 + horizon).split(horizon)
    draws = few_draws(lens)
    found = patch_attention(lens.run(context, horizon, truth=truth, **draws))
    maps = autoregressive_attention(lens.run(context, horizon, **draws), keys="window")
    np.testing.assert_array_equal(found["attention"], maps["attention"].transpose("layer", "head", "query", "key"))
    assert_close(found["attention"].sum("key"), 1.0, depth=100, dtype=np.float32)
    ranks = head_spectra(lens, kind=found.attrs["attention"])["stable_rank"].sel(product="QK")
    np.testing.assert_array_equal(found["stable_rank"], ranks)
    special = np.array([bool(str(word)) for word in found["key_special"].values])
    # the last token alone forecasts in a causal model, every decoder token elsewhere
    rows = found["attention"].isel(query=[-1]) if model == "timesfm-2.5" else found["attention"]
    if model == "chronos":
        rows = rows.isel(query=found["query_start"].values >= 0)
    mean = rows.mean("query").transpose("layer", "head", "key").values
    mean[..., special] = -1
    np.testing.assert_array_equal(found["argmax_key"], mean.argmax(-1))
    assert_close(found["argmax_weight"], mean.max(-1), depth=100, dtype=np.float32)
    np.testing.assert_array_equal(found["argmax_start"], found["key_start"].values[mean.argmax(-1)])
    np.testing.assert_array_equal(found["quantile_forecast"], lens.forecast(context, horizon, **draws).quantiles)
