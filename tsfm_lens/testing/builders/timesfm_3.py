"""Random TimesFM 3."""

from __future__ import annotations

from typing import Any

from tsfm_lens.models.wirings.timesfm_2p5 import LIBRARY
from tsfm_lens.models.wirings.timesfm_3 import NAME
from tsfm_lens.testing.builders.timesfm_2p5 import GAINS
from tsfm_lens.testing.models import random_model


def tiny() -> Any:
    """Build a TimesFM 3 of two layers."""
    configs = LIBRARY.require("timesfm3.torch.configs")
    layer = configs.TransformerConfig(
        attention_norm="rms",
        feedforward_norm="rms",
        qk_norm="rms",
        model_dims=40,
        hidden_dims=24,
        num_heads=4,
        use_rope_seq=True,
        use_rope_var=False,
        use_bias=False,
        ff_activation="relu",
        deterministic=True,
    )
    block = configs.ResidualBlockConfig(
        hidden_dims=40, output_dims=40, use_bias=False, activation="relu"
    )
    config = {
        "input_patch_len": 8,
        "output_patch_len": 16,
        "residual_block_config": block,
        "transformer_config": configs.StackedTransformersConfig(
            num_layers=2, transformer=layer
        ),
    }
    return random_model(NAME, config, GAINS)


def published(size: str) -> Any:
    """Build a TimesFM 3 of the published size."""
    return random_model(NAME, {}, GAINS)
