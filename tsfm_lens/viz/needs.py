"""Requirements of definitions on a model."""

from __future__ import annotations

from typing import Any

from tsfm_lens.core.registry import Needs
from tsfm_lens.embedded import has_training_record


def _has_cross_attention(lens: Any) -> bool:
    return "cross_attn" in lens.wiring.output_stack.attention_kinds()


TOKENS = Needs(
    "logits over a vocabulary",
    "Chronos",
    lambda lens: lens.adapter.readout == "token",
    lambda arch: arch.readout == "token",
)
SEQUENCES = Needs(
    "an encoder and a decoder over value tokens",
    "Chronos",
    lambda lens: hasattr(lens.adapter, "encode_tokens") and _has_cross_attention(lens),
    lambda arch: arch.name == "chronos",
)
CROSS_ATTENTION = Needs(
    "cross-attention without rotary embeddings or norms of queries and keys",
    "T5 family",
    _has_cross_attention,
    lambda arch: arch.name in ("chronos", "chronos-bolt", "t5"),
)
GRADIENTS = Needs(
    "derivatives of the forecast",
    "all but Toto 2 and TiRex",
    lambda lens: lens.wiring.true_gradients,
    lambda arch: arch.name not in ("toto-2", "tirex"),
)
HEADS = Needs(
    "heads",
    "models with attention",
    lambda lens: bool(lens.wiring.output_stack.attention_kinds()),
    lambda arch: arch.name not in ("fracast", "tirex", "ttm"),
)
SUMS = Needs(
    "a stream that is the sum of its writes",
    "all but Fracast, which has a norm after each sum",
    lambda lens: lens.wiring.output_stack.sums,
    lambda arch: arch.name != "fracast",
)
VOCABULARY = Needs(
    "tokens from an embedding table",
    "Chronos, T5",
    lambda lens: lens.tokens is not None or lens.takes_ids,
    lambda arch: arch.name in ("chronos", "t5"),
)
SERIES = Needs(
    "numeric series, not text",
    "all but T5",
    lambda lens: not lens.takes_ids,
    lambda arch: arch.name != "t5",
)
COVARIATES = Needs(
    "covariates",
    "models that take covariates (`tsfm-lens models`)",
    lambda lens: bool(getattr(lens.adapter, "covariates", ())),
    lambda arch: bool(arch.covariates),
)
TRAINING_RECORD = Needs(
    "a record of its training",
    "reference checkpoints",
    lambda lens: has_training_record(lens.model_id),
)
