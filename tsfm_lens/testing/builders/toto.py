"""Random Toto 1."""

from __future__ import annotations

from typing import Any

from tsfm_lens.models.wirings.toto import NAME
from tsfm_lens.testing.models import random_model


def _native(
    patch: int,
    width: int,
    layers: int,
    heads: int,
    hidden: int,
    every: int,
    components: int,
) -> Any:
    config = {
        "patch_size": patch,
        "stride": patch,
        "embed_dim": width,
        "num_layers": layers,
        "num_heads": heads,
        "mlp_hidden_dim": hidden,
        "spacewise_every_n_layers": every,
        "output_distribution_kwargs": {"k_components": components},
        "dropout": 0.1,
        "spacewise_first": False,
        "scaler_cls": "<class 'model.scaler.CausalPatchStdMeanScaler'>",
        "output_distribution_classes": [
            "<class 'model.distribution.MixtureOfStudentTsOutput'>"
        ],
        "use_memory_efficient_attention": False,
        "stabilize_with_global": True,
        "scale_factor_exponent": 10.0,
    }
    native = random_model(NAME, config, {"output_distribution": 0.5})
    native.saved_config = config
    return native


def tiny() -> Any:
    """Build a Toto of four layers."""
    return _native(8, 32, 4, 4, 48, 2, 3)


def published(size: str) -> Any:
    """Build a Toto of the published size."""
    return _native(64, 768, 12, 12, 3072, 12, 24)
