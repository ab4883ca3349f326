"""Random Toto 2."""

from __future__ import annotations

from typing import Any

from tsfm_lens.models.wirings.toto_2 import NAME
from tsfm_lens.testing.models import random_model

SIZES = {
    "4m": (256, 688, 4, 4),
    "22m": (512, 1368, 8, 6),
    "313m": (1024, 2736, 16, 24),
    "1B": (1536, 4096, 24, 36),
    "2.5B": (2048, 5464, 32, 48),
}


def _native(
    patch: int, d_model: int, d_ff: int, n_heads: int, n_layers: int, d_head: int
) -> Any:
    config = {
        "patch_size": patch,
        "d_model": d_model,
        "d_ff": d_ff,
        "num_heads": n_heads,
        "num_groups": n_heads,
        "num_layers": n_layers,
        "layer_group_size": n_layers,
        "qk_dim": d_head,
        "v_dim": d_head,
        "attn_bias": True,
        "qk_norm": False,
        "qk_norm_include_weight": False,
        "per_dim_scale": True,
        "num_variate_layers_per_group": 1,
        "variate_layer_first": False,
        "norm_eps": 1e-4,
        "use_xpos": True,
        "residual_mult": 0.75,
        "residual_attn_ratio": 5.136215466577748,
    }
    # readouts divide by their whole fan-in, so their weights are larger
    gains = {
        "attn.in_proj": 2.0,
        "proj.linear2.weight": 3.0,
        "proj.skip_proj.weight": 3.0,
    }
    return random_model(NAME, config, gains, unit_scaled=True)


def tiny() -> Any:
    """Build a Toto 2 of four layers."""
    return _native(8, 40, 48, 4, 4, 8)


def published(size: str) -> Any:
    """Build a Toto 2 of a published size."""
    return _native(32, *SIZES[size], 64)
