"""Random TinyTimeMixer."""

from __future__ import annotations

from typing import Any

from tsfm_lens.models.wirings.ttm import MODEL, NAME
from tsfm_lens.testing.models import random_model

SIZES = {
    "512-96": (512, 64, 192, 2, 128),
    "1024-96": (1024, 128, 384, 2, 256),
    "1536-96": (1536, 128, 384, 3, 256),
}


def _native(
    context: int,
    patch: int,
    width: int,
    layers: int,
    decoder: int,
    steps: int = 96,
) -> Any:
    config = {
        "context_length": context,
        "prediction_length": steps,
        "patch_length": patch,
        "patch_stride": patch,
        "d_model": width,
        "num_layers": layers,
        "adaptive_patching_levels": 3,
        "decoder_num_layers": 2,
        "decoder_d_model": decoder,
        "architectures": [MODEL],
    }
    return random_model(NAME, config, {"gating_block": 0.5, "mlp.fc": 1.5})


def tiny() -> Any:
    """Build a TinyTimeMixer of two layers at each level."""
    return _native(48, 8, 32, 2, 16, 12)


def published(size: str) -> Any:
    """Build a TinyTimeMixer of a published size."""
    return _native(*SIZES[size])
