"""Random Chronos-Bolt."""

from __future__ import annotations

from typing import Any

from tsfm_lens.models.adapter import DECILES
from tsfm_lens.models.wirings.chronos_bolt import MODEL
from tsfm_lens.testing.builders.t5 import random_t5, sized


def _config(size: str, context: int, horizon: int, patch: int) -> dict[str, Any]:
    settings = {
        "context_length": context,
        "prediction_length": horizon,
        "input_patch_size": patch,
        "input_patch_stride": patch,
        "quantiles": list(DECILES),
        "use_reg_token": True,
    }
    return sized(
        size,
        architectures=[MODEL],
        chronos_pipeline_class="ChronosBoltPipeline",
        vocab_size=2,
        reg_token_id=1,
        chronos_config=settings,
    )


def tiny() -> Any:
    """Build a Chronos-Bolt of two encoder and three decoder layers."""
    config = _config("", 64, 16, 4)
    return random_t5("chronos-bolt", {**config, "num_decoder_layers": 3})


def published(size: str) -> Any:
    """Build a Chronos-Bolt of a published size."""
    return random_t5("chronos-bolt", _config(size, 2048, 64, 16), std=0.5)
