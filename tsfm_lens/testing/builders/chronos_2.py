"""Random Chronos-2."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tsfm_lens.models.adapter import DECILES
from tsfm_lens.testing.builders.t5 import random_t5

LEVELS = (0.01, *(round(0.05 * step, 2) for step in range(1, 20)), 0.99)


def _native(
    sizes: Sequence[int],
    context: int,
    patch: int,
    patches: int,
    levels: tuple[float, ...],
    std: float = 1.0,
) -> Any:
    names = ("d_model", "d_kv", "d_ff", "num_layers", "num_heads")
    settings = {
        "context_length": context,
        "input_patch_size": patch,
        "input_patch_stride": patch,
        "output_patch_size": patch,
        "max_output_patches": patches,
        "quantiles": list(levels),
        "use_reg_token": True,
        "use_arcsinh": True,
        "time_encoding_scale": context,
    }
    config = dict(
        zip(names, sizes, strict=True),
        architectures=["Chronos2Model"],
        chronos_pipeline_class="Chronos2Pipeline",
        vocab_size=2,
        pad_token_id=0,
        reg_token_id=1,
        chronos_config=settings,
    )
    return random_t5("chronos-2", config, std=std, head=0.1)


def tiny() -> Any:
    """Build a Chronos-2 of two layers."""
    return _native((36, 8, 48, 2, 4), 64, 4, 4, DECILES)


def published(size: str) -> Any:
    """Build a Chronos-2 of the published size."""
    return _native((768, 64, 3072, 12, 12), 8192, 16, 64, LEVELS, 0.5)
