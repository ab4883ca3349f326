"""Language models behind a lens, for comparison with TransformerLens, which has them too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM

from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.spans import TokenSpans
from tsfm_lens.hooks.wiring import Attention, Mlp, Projection, Site, Stack, Wiring
from tsfm_lens.models.adapter import Adapter
from tsfm_lens.models.architecture import Encoded
from tsfm_lens.models.wirings import _random

VOCABULARY, LAYERS, HEADS, WIDTH, HIDDEN = 50, 3, 4, 24, 40
HIDDEN_AXES = "batch pos d_mlp"


def llama() -> Any:
    """Root-mean-square norms, a gated MLP, grouped queries, no biases."""
    sizes = {"hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_hidden_layers": LAYERS}
    config = LlamaConfig(vocab_size=VOCABULARY, num_attention_heads=HEADS, num_key_value_heads=2, **sizes)
    return _random.spread_weights(LlamaForCausalLM(config).eval(), {}, std=1.0)


def neox() -> Any:
    """LayerNorms, a fused projection, biases everywhere."""
    sizes = {"hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_hidden_layers": LAYERS}
    config = GPTNeoXConfig(vocab_size=VOCABULARY, num_attention_heads=HEADS, use_parallel_residual=False, **sizes)
    model = _random.spread_weights(GPTNeoXForCausalLM(config).eval(), {}, std=1.0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.add_(0.2 * torch.randn_like(weight)) if "norm" in name else weight.normal_(std=0.3)
    return model


def _llama_rows() -> tuple[Attention, Mlp]:
    q, k, v, o = (Projection(f"self_attn.{letter}_proj") for letter in "qkvo")
    norms = ("input_layernorm", "post_attention_layernorm")
    reads = (Site("", "in"), Site(norms[1], "in"))
    attention = Attention("attn", "self_attn", Site("self_attn"), reads[0], q, k, v, o, norm=norms[0], n_kv_heads=2)
    pre, post = Site("mlp.gate_proj", layout=HIDDEN_AXES), Site("mlp.down_proj", "in", layout=HIDDEN_AXES)
    inner, gate = Projection("mlp.gate_proj", "d_mlp"), Projection("mlp.up_proj", "d_mlp")
    out = "mlp.down_proj"
    return attention, Mlp(Site("mlp"), reads[1], pre, post, out, inner, gate, norm=norms[1], aside=True, act="silu")


def _neox_rows() -> tuple[Attention, Mlp]:
    q, k, v = (Projection("attention.query_key_value", "(head part d_head)", part, 3) for part in range(3))
    norms = ("input_layernorm", "post_attention_layernorm")
    reads = (Site("", "in"), Site(norms[1], "in"))
    o = Projection("attention.dense")
    attention = Attention("attn", "attention", Site("attention"), reads[0], q, k, v, o, norm=norms[0])
    pre = Site("mlp.dense_h_to_4h", layout=HIDDEN_AXES)
    post = Site("mlp.dense_4h_to_h", "in", layout=HIDDEN_AXES)
    inner, out = Projection("mlp.dense_h_to_4h", "d_mlp"), "mlp.dense_4h_to_h"
    return attention, Mlp(Site("mlp"), reads[1], pre, post, out, inner, norm=norms[1], aside=True, act="gelu")


class LanguageModel(Adapter):
    """Token ids in, logits out."""

    readout: Literal["token", "quantile", "distribution"] = "token"
    integers = True
    context_length, prediction_length, levels = 64, 1, ()
    first_value_token = 0

    def __init__(self, native: Any) -> None:
        self.native = self.model = native
        self.architecture = type(native).__name__
        llama = self.architecture == "LlamaForCausalLM"
        root, embed, head, last, rows = (
            ("model", "model.embed_tokens", "lm_head", "norm", _llama_rows())
            if llama
            else ("gpt_neox", "gpt_neox.embed_in", "lm_head", "final_layer_norm", _neox_rows())
        )
        sizes = (LAYERS, HEADS, WIDTH, WIDTH // HEADS, HIDDEN)
        stack = Stack("", f"{root}.layers", *sizes, rows, ln_final=f"{root}.{last}", upstream=(embed,))
        self.wiring = Wiring(self.architecture, (stack,), Site(head, layout="batch pos d_vocab"), embed, 1)

    def encode(
        self,
        batch: SeriesBatch,
        future: Tensor | None = None,
        tokens: Tensor | None = None,
        horizon: int | None = None,
    ) -> Encoded:
        """Token ids of one length."""
        ids = torch.stack([torch.tensor(series).long() for series in batch.values])
        spans = {"": TokenSpans.patches(-ids.shape[1], ids.shape[1], 1)}
        return Encoded({"input_ids": ids}, spans, torch.zeros(len(ids)), torch.ones(len(ids)), batch)

    def run(self, inputs: Mapping[str, Any]) -> Tensor:
        """Logits (batch, step, vocabulary)."""
        return self.model(**inputs, use_cache=False).logits


def bridge(native: Any) -> Any:
    """The same weights behind TransformerLens; the native model is taken apart."""
    return build_bridge_from_module(native, type(native).__name__, hf_config=native.config)
