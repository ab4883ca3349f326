"""Random T5, and what its relatives share."""

from __future__ import annotations

from typing import Any

from tsfm_lens.testing.models import random_model

SIZES = {
    "": (36, 48, 2, 4),
    "tiny": (256, 1024, 4, 4),
    "mini": (384, 1536, 4, 8),
    "small": (512, 2048, 6, 8),
    "base": (768, 3072, 12, 12),
    "large": (1024, 4096, 24, 16),
}
"""Size, "" of the small one -> d_model, d_ff, layers, heads."""


def sized(size: str, **others: Any) -> dict[str, Any]:
    """Return the configuration of a published size, or of the small model ""."""
    d_model, d_ff, layers, heads = SIZES[size]
    return {
        "d_model": d_model,
        "d_ff": d_ff,
        "d_kv": 64 if size else 8,
        "num_heads": heads,
        "num_layers": layers,
        "num_decoder_layers": layers,
        "decoder_start_token_id": 0,
        **others,
    }


def random_t5(
    name: str, config: dict[str, Any], std: float = 1.0, head: float = 1.0
) -> Any:
    """Build a random relative of T5; ``head`` is a factor on the output layer."""
    # T5 does not scale q·k: this gain gives attention scores a standard deviation of 3 at any head size
    dot_product = (3.0 / config["d_kv"] ** 0.5) ** 0.5
    gains = {
        ".q.weight": dot_product,
        ".k.weight": dot_product,
        "output_patch_embedding": std * head,
    }
    return random_model(name, config, gains, std=std)


def tiny() -> Any:
    """Build a T5 of two layers with gated MLPs."""
    config = sized("", vocab_size=50, feed_forward_proj="gated-gelu")
    return random_t5("t5", config, std=0.5)


def published(size: str) -> Any:
    """Build a T5 of a published size."""
    return random_t5("t5", sized(size, vocab_size=32128), std=0.5)
