"""Requirements of definitions on a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tsfm_lens.catalogue.entry import Needs

if TYPE_CHECKING:
    from tsfm_lens.models import Lens


def _tokens(lens: Lens) -> bool:
    return lens.adapter.readout == "token"


def _sequences(lens: Lens) -> bool:
    return hasattr(lens.adapter, "encode_tokens") and _cross(lens)


def _cross(lens: Lens) -> bool:
    return "cross_attn" in lens.wiring.output_stack.attention_kinds()


TOKENS = Needs("logits over a vocabulary", "Chronos", _tokens, lambda arch: arch.readout == "token")
SEQUENCES = Needs(
    "an encoder and a decoder over value tokens", "Chronos", _sequences, lambda arch: arch.name == "chronos"
)
CROSS_ATTENTION = Needs(
    "cross-attention without rotary embeddings or norms of queries and keys",
    "T5 family",
    _cross,
    lambda arch: arch.name in ("chronos", "chronos-bolt", "t5"),
)
GRADIENTS = Needs(
    "derivatives of the forecast",
    "all but Toto 2, whose backward pass is rescaled",
    lambda lens: lens.wiring.true_gradients,
    lambda arch: arch.name != "toto-2",
)
VOCABULARY = Needs(
    "tokens that are looked up",
    "Chronos, T5",
    lambda lens: lens.tokens is not None or lens.takes_ids,
    lambda arch: arch.name in ("chronos", "t5"),
)
SERIES = Needs(
    "measured series, not text", "all but T5", lambda lens: not lens.takes_ids, lambda arch: arch.name != "t5"
)
