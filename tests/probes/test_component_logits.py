"""Lens maps of single components: frozen they sum to the model's logits, by themselves they are the norm by hand."""

from __future__ import annotations

import pytest
import torch

from tiny_lenses import fresh
from tsfm_lens.data import bundled
from tsfm_lens.errors import InputError, UnknownNameError
from tsfm_lens.probes import component_writes
from tsfm_lens.probes.lens_logits import component_logits
from tsfm_lens.testing import assert_close


def test_frozen_maps_sum_to_the_logits_and_own_ones_are_the_norm_by_hand() -> None:
    lens = fresh("chronos")
    series, steps = bundled("co2").tail(40), 5
    run = lens.run(series, steps, num_samples=2, seed=1)
    with torch.no_grad():
        native = lens.forward(run.encoded)
    frozen = component_logits(run)
    assert_close(frozen["logit"].sum("component"), native[:, :steps], depth=100, dtype=torch.float32)
    own = component_logits(run, components=["*cross_attn.1"], norm="own")
    names, writes = component_writes(run)
    model = lens.adapter.model
    norm, head = model.decoder.final_layer_norm, model.lm_head.weight.detach()
    scale = model.config.d_model**-0.5 if model.config.tie_word_embeddings else 1.0
    for name, write in zip(map(str, names), writes.detach(), strict=True):
        if name not in own["component"].values:
            continue
        root = (write.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt()
        by_hand = (write / root * norm.weight.detach() * scale) @ head.T
        assert_close(own["logit"].sel(component=name), by_hand[:, :steps], depth=100, dtype=torch.float32)
    assert own.sizes["component"] == lens.wiring.output_stack.n_layers


def test_what_has_no_maps_is_refused() -> None:
    lens, series = fresh("chronos"), bundled("co2").tail(40)
    with pytest.raises(InputError, match="norm='none' is not known"):
        component_logits(lens.run(series, 4), norm="none")
    with pytest.raises(UnknownNameError, match=r"decoder\.9"):
        component_logits(lens.run(series, 4, num_samples=2), components=["decoder.9.mlp"])
    with pytest.raises(InputError, match="no logits"):
        component_logits(fresh("chronos-bolt").run(series, 4))
