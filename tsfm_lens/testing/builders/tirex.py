"""Random TiRex."""

from __future__ import annotations

from typing import Any

from tsfm_lens.models.adapter import DECILES
from tsfm_lens.models.wirings.tirex import NAME
from tsfm_lens.testing.models import random_model


def _native(
    patch: int, width: int, n_heads: int, n_blocks: int, hidden: int, context: int
) -> Any:
    blocks = {
        "embedding_dim": width,
        "num_heads": n_heads,
        "ffn_proj_factor": 2.6667,
        "num_blocks": n_blocks,
    }
    model = {
        "input_patch_size": patch,
        "output_patch_size": patch,
        "quantiles": list(DECILES),
        "block_kwargs": blocks,
        "input_ff_dim": hidden,
    }
    config = {"model_config": model, "train_ctx_len": context}
    gains = {"group_norm": 0.2, "_recurrent_kernel_": 0.5, "_bias_": 0.1}
    return random_model(NAME, config, gains)


def tiny() -> Any:
    """Build a TiRex of three blocks."""
    return _native(8, 24, 2, 3, 32, 64)


def published(size: str) -> Any:
    """Build a TiRex of the published size."""
    return _native(32, 512, 4, 12, 2048, 2048)
