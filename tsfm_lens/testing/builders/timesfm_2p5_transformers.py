"""Random TimesFM 2.5 of transformers."""

from __future__ import annotations

from typing import Any

from tsfm_lens.testing.builders.timesfm_2p5 import GAINS
from tsfm_lens.testing.models import spread_weights


def _native(**sizes: int) -> Any:
    from transformers import TimesFm2_5Config, TimesFm2_5ModelForPrediction

    model = TimesFm2_5ModelForPrediction._from_config(
        TimesFm2_5Config(**sizes), attn_implementation="sdpa"
    )
    return spread_weights(model, {**GAINS, "self_attn.scaling": 0.1})


def tiny() -> Any:
    """Build a TimesFM 2.5 of three layers."""
    return _native(
        patch_length=8,
        context_length=512,
        horizon_length=16,
        output_quantile_len=32,
        head_dim=8,
        num_attention_heads=4,
        num_key_value_heads=4,
        num_hidden_layers=3,
        hidden_size=36,
        intermediate_size=24,
    )


def published(size: str) -> Any:
    """Build a TimesFM 2.5 of the published size."""
    return _native()
