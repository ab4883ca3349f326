"""Random Moirai 2."""

from __future__ import annotations

from typing import Any

from tsfm_lens.models.adapter import DECILES
from tsfm_lens.testing.models import random_model


def _native(
    d_model: int, d_ff: int, layers: int, patch: int, length: int, ahead: int
) -> Any:
    config = {
        "d_model": d_model,
        "d_ff": d_ff,
        "num_layers": layers,
        "patch_size": patch,
        "max_seq_len": length,
        "num_predict_token": ahead,
        "attn_dropout_p": 0.0,
        "dropout_p": 0.0,
        "scaling": True,
        "quantile_levels": DECILES,
    }
    gains = {"out_proj.output_layer": 0.3, "out_proj.residual_layer": 0.3}
    return random_model("moirai-2", config, gains)


def tiny() -> Any:
    """Build a Moirai 2 of two layers; the library has d_model // 64 heads."""
    return _native(192, 48, 2, 4, 64, 2)


def published(size: str) -> Any:
    """Build a Moirai 2 of the published size."""
    return _native(384, 1024, 6, 16, 512, 4)
