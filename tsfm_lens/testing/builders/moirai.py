"""Random Moirai 1.1."""

from __future__ import annotations

from typing import Any

from tsfm_lens.models.wirings.moirai_2 import LIBRARY
from tsfm_lens.testing.models import spread_weights

SIZES = {"small": (384, 6), "base": (768, 12), "large": (1024, 24)}


def _native(
    d_model: int, num_layers: int, patch_sizes: tuple[int, ...], max_seq_len: int
) -> Any:
    parts = LIBRARY.require("uni2ts.distribution")
    kinds = (
        parts.StudentTOutput,
        parts.NormalFixedScaleOutput,
        parts.NegativeBinomialOutput,
        parts.LogNormalOutput,
    )
    native = LIBRARY.require("uni2ts.model.moirai").MoiraiModule(
        parts.MixtureOutput([kind() for kind in kinds]),
        d_model,
        num_layers,
        patch_sizes,
        max_seq_len,
        attn_dropout_p=0.0,
        dropout_p=0.0,
        scaling=True,
    )
    gains = {"param_proj": 0.3, "var_attn_bias": 1.0, "mask_encoding": 3.0}
    return spread_weights(native, gains)


def tiny() -> Any:
    """Build a Moirai of two layers; the library has d_model // 64 heads."""
    return _native(192, 2, (8, 16), 64)


def published(size: str) -> Any:
    """Build a Moirai of a published size."""
    return _native(*SIZES[size], (8, 16, 32, 64, 128), 512)
