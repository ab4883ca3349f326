"""Requirements of definitions on a model: words for its traits, which its wiring and its adapter give it."""

from __future__ import annotations

from tsfm_lens.registry import Needs

TOKENS = Needs("logits over a vocabulary", frozenset({"token_logits"}))
SEQUENCES = Needs(
    "an encoder and a decoder over value tokens",
    frozenset({"decoder_tokens", "cross_attention"}),
)
CROSS_ATTENTION = Needs(
    "cross-attention without rotary embeddings or norms of queries and keys",
    frozenset({"cross_attention"}),
)
GRADIENTS = Needs("derivatives of the forecast", frozenset({"gradients"}))
HEADS = Needs("heads", frozenset({"attention"}))
SUMS = Needs("a stream that is the sum of its writes", frozenset({"additive"}))
VOCABULARY = Needs("tokens from an embedding table", frozenset({"vocabulary"}))
SERIES = Needs("numeric series, not text", frozenset({"numeric_series"}))
COVARIATES = Needs("covariates", frozenset({"covariates"}))
TRAINING_RECORD = Needs(
    "a record of its training",
    frozenset({"training_record"}),
    models="reference checkpoints",
)
