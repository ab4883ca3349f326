"""Copy scores without logits against copy scores from every head's logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tiny_lenses import fresh
from tsfm_lens.models import load
from tsfm_lens.probes import induction_scores
from tsfm_lens.testing import assert_close


@pytest.mark.parametrize(
    ("model", "positions", "read"),
    [
        ("chronos-nano", "last", slice(-1, None)),
        ("chronos-nano", "first", slice(0, 1)),
        ("chronos", "all", slice(None)),
    ],
)
def test_copy_scores_are_the_z_scores_of_the_logits(
    model: str, positions: str, read: slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    lens = load(model) if model.endswith("nano") else fresh(model)
    options = {"motif": 6, "repeats": 3, "n_sequences": 5, "decoding": "forced", "within": 3.0, "positions": positions}
    # the sequences are taken from the run itself
    ids: dict[str, torch.Tensor] = {}
    native = lens.adapter.encode_tokens

    def encode(context: torch.Tensor, decoder: torch.Tensor) -> object:
        ids.update(context=context, decoder=decoder)
        return native(context, decoder)

    monkeypatch.setattr(lens.adapter, "encode_tokens", encode)
    found = induction_scores(lens, **options)
    encoded = native(ids["context"], ids["decoder"])
    right = ids["context"][:, 1:6]
    n_layers = lens.wiring.output_stack.n_layers
    points = [f"decoder_blocks.{layer}.cross_attn.hook_result" for layer in range(n_layers)]
    with torch.no_grad():
        _, acts = lens.run_with_cache(encoded, names_filter=points)
        for layer, point in enumerate(points):
            logits = lens.readout(acts[point].transpose(1, 2).transpose(0, 1), encoded).double()[:, :, 1:]
            chosen = logits.gather(-1, right.expand(len(logits), -1, -1)[..., None])[..., 0]
            z = ((chosen - logits.mean(-1)) / logits.std(-1))[..., read].mean(dim=(1, 2))
            assert_close(found["copy_score"].values[layer], z.numpy(), depth=100, dtype=np.float32)
