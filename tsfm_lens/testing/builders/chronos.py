"""Random Chronos."""

from __future__ import annotations

from typing import Any

from tsfm_lens.models.wirings.chronos import INNER
from tsfm_lens.testing.builders.t5 import random_t5, sized


def _config(size: str, n_tokens: int, context: int, horizon: int) -> dict[str, Any]:
    settings = {
        **INNER,
        "tokenizer_kwargs": {"low_limit": -15.0, "high_limit": 15.0},
        "n_tokens": n_tokens,
        "n_special_tokens": 2,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "use_eos_token": True,
        "context_length": context,
        "prediction_length": horizon,
        "num_samples": 20,
        "temperature": 1.0,
        "top_k": 50,
        "top_p": 1.0,
    }
    return sized(size, vocab_size=n_tokens, chronos_config=settings)


def tiny() -> Any:
    """Build a Chronos of two layers with 64 tokens."""
    return random_t5("chronos", _config("", 64, 64, 8))


def published(size: str) -> Any:
    """Build a Chronos of a published size."""
    return random_t5("chronos", _config(size, 4096, 512, 64), std=0.5)
