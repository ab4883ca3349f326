"""Codes of ablations in the lens paper: what a code names goes, and nothing else."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from tsfm_lens import load
from tsfm_lens.ablation import Variant, forecast_variants
from tsfm_lens.data import bundled
from tsfm_lens.models import Lens
from tsfm_lens.studies.queue.lens_paper import read_components, write_code
from tsfm_lens.testing import assert_close

HORIZON = 8


@pytest.fixture(scope="module", params=["bolt-nano", "chronos-nano"])
def nano(request: pytest.FixtureRequest) -> Lens:
    return load(request.param)


def test_codes_name_heads_of_every_attention_over_time(nano: Lens) -> None:
    code = write_code([(0, 3), (0, 0), (0, "m"), (2, 1)])
    assert code == "0:h03m 2:h1"
    assert [str(part) for part in read_components(nano, code)] == [
        "decoder.0.self_attn.0",
        "decoder.0.self_attn.3",
        "decoder.0.cross_attn.0",
        "decoder.0.cross_attn.3",
        "decoder.0.mlp",
        "decoder.2.self_attn.1",
        "decoder.2.cross_attn.1",
    ]
    code = write_code([(1, 0), (1, 2)], "x")
    assert [str(part) for part in read_components(nano, code)] == [
        "decoder.1.cross_attn.0",
        "decoder.1.cross_attn.2",
    ]


@pytest.mark.parametrize("layer", [0, 2])
def test_heads_of_a_layer_go_as_if_their_weights_were_0(nano: Lens, layer: int) -> None:
    code = write_code((layer, head) for head in range(4))
    without = Variant.zero(*read_components(nano, code))
    edited = load(copy.deepcopy(nano.native), check=False)
    block = edited.adapter.model.decoder.block[layer]
    with torch.no_grad():
        block.layer[0].SelfAttention.o.weight.zero_()
        block.layer[1].EncDecAttention.o.weight.zero_()
    samples = 2 if nano.emits == "token" else None
    found, expected = (
        forecast_variants(
            lens, bundled("co2"), HORIZON, [variant], num_samples=samples
        ).mean
        for lens, variant in ((nano, without), (edited, Variant("plain", ())))
    )
    assert_close(found, expected, depth=100, dtype=np.float32)
