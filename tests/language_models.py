"""Language models behind a lens, for comparison with TransformerLens, which has them
too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from transformer_lens.model_bridge.sources._bridge_builder import (
    build_bridge_from_module,
)
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.activations import TokenSpans
from tsfm_lens.hooks.wiring import Projection, Site, Stack, Wiring
from tsfm_lens.models.adapter import Adapter
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.models.wirings._common import (
    Matrices,
    attention_row,
    fused,
    mlp_row,
    projections,
)
from tsfm_lens.testing import spread_weights

VOCABULARY = 50
LAYERS = 3
HEADS = 4
WIDTH = 24
HIDDEN = 40


def llama() -> Any:
    """Root-mean-square norms, a gated MLP, grouped queries, no biases."""
    sizes = {
        "hidden_size": WIDTH,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": LAYERS,
    }
    config = LlamaConfig(
        vocab_size=VOCABULARY, num_attention_heads=HEADS, num_key_value_heads=2, **sizes
    )
    return spread_weights(LlamaForCausalLM(config).eval(), {}, std=1.0)


def neox() -> Any:
    """LayerNorms, a fused projection, biases everywhere."""
    sizes = {
        "hidden_size": WIDTH,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": LAYERS,
    }
    config = GPTNeoXConfig(
        vocab_size=VOCABULARY,
        num_attention_heads=HEADS,
        use_parallel_residual=False,
        **sizes,
    )
    model = spread_weights(GPTNeoXForCausalLM(config).eval(), {}, std=1.0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                (
                    weight.add_(0.2 * torch.randn_like(weight))
                    if "norm" in name
                    else weight.normal_(std=0.3)
                )
    return model


def _rows(
    matrices: Matrices, at: str, out: str, into: str, act: str, gate: str = ""
) -> tuple[Any, ...]:
    norms = ("input_layernorm", "post_attention_layernorm")
    if gate:
        shared = {"n_kv_heads": 2}
    else:
        shared = {}
    attention = attention_row("attn", at, matrices, norm=norms[0], **shared)
    rest: dict[str, Any] = {
        "gate": Projection(gate, "d_mlp") if gate else None,
        "norm": norms[1],
        "aside": True,
    }
    return attention, mlp_row("mlp", norms[1], (into, out), act, **rest)


def llama_rows() -> tuple[Any, ...]:
    matrices = projections("self_attn.{}_proj", "q k v o")
    return _rows(
        matrices, "self_attn", "mlp.down_proj", "mlp.gate_proj", "silu", "mlp.up_proj"
    )


def neox_rows() -> tuple[Any, ...]:
    matrices = fused(
        "attention.query_key_value", "(head part d_head)", Projection("attention.dense")
    )
    return _rows(
        matrices, "attention", "mlp.dense_4h_to_h", "mlp.dense_h_to_4h", "gelu"
    )


class LanguageModel(Adapter):
    """Token ids in, logits out."""

    readout: Literal["token", "quantile", "distribution"] = "token"
    integers = True
    context_length = 64
    prediction_length = 1
    levels = ()
    first_value_token = 0

    def __init__(self, native: Any) -> None:
        self.native = self.model = native
        self.architecture = type(native).__name__
        llama = self.architecture == "LlamaForCausalLM"
        root, embed, head, last, rows = (
            ("model", "model.embed_tokens", "lm_head", "norm", llama_rows())
            if llama
            else (
                "gpt_neox",
                "gpt_neox.embed_in",
                "lm_head",
                "final_layer_norm",
                neox_rows(),
            )
        )
        sizes = (LAYERS, HEADS, WIDTH, WIDTH // HEADS, HIDDEN)
        stack = Stack(
            "",
            f"{root}.layers",
            *sizes,
            rows,
            ln_final=f"{root}.{last}",
            upstream=(embed,),
        )
        self.wiring = Wiring(
            self.architecture,
            (stack,),
            Site(head, layout="batch pos d_vocab"),
            embed,
            1,
        )

    def encode(
        self, batch: SeriesBatch, horizon: int | None = None, **_: Any
    ) -> Encoded:
        """Token ids of one length."""
        ids = torch.stack([torch.tensor(series).long() for series in batch.values])
        spans = {"": TokenSpans.patches(-ids.shape[1], ids.shape[1], 1)}
        return Encoded(
            {"input_ids": ids},
            spans,
            torch.zeros(len(ids)),
            torch.ones(len(ids)),
            batch,
        )

    def run(self, inputs: Mapping[str, Any]) -> Tensor:
        """Logits (batch, step, vocabulary)."""
        return self.model(**inputs, use_cache=False).logits


def bridge(native: Any) -> Any:
    """The same weights behind TransformerLens; the native model is taken apart."""
    return build_bridge_from_module(
        native, type(native).__name__, hf_config=native.config
    )
