"""Common parts of Chronos and Chronos-Bolt: the T5 encoder-decoder of transformers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from tsfm_lens.hooks.wiring import Attention, Mlp, Projection, Site, Stack
from tsfm_lens.models.wirings import _random
from tsfm_lens.models.wirings._checks import keys

KEYS = keys(
    "bos_token_id chronos_pipeline_class classifier_dropout d_ff d_kv d_model decoder_start_token_id dense_act_fn "
    "dropout_rate eos_token_id feed_forward_proj initializer_factor is_decoder is_encoder_decoder is_gated_act "
    "layer_norm_epsilon n_positions num_decoder_layers num_heads num_layers output_past pad_token_id reg_token_id "
    "relative_attention_max_distance relative_attention_num_buckets scale_decoder_outputs task_specific_params "
    "tie_encoder_decoder tie_word_embeddings use_cache vocab_size"
)
VALUES = {"model_type": "t5"}

PUBLISHED_SIZES = {
    "tiny": {"d_model": 256, "d_ff": 1024, "layers": 4, "heads": 4},
    "mini": {"d_model": 384, "d_ff": 1536, "layers": 4, "heads": 8},
    "small": {"d_model": 512, "d_ff": 2048, "layers": 6, "heads": 8},
    "base": {"d_model": 768, "d_ff": 3072, "layers": 12, "heads": 12},
    "large": {"d_model": 1024, "d_ff": 4096, "layers": 24, "heads": 16},
}


def blank(model: str, config: Mapping[str, Any]) -> Any:
    """Build a model without weights, of T5 in transformers or of a class "module:name" that takes its configuration."""
    from transformers import T5Config

    module, _, name = model.rpartition(":")
    return getattr(import_module(module or "transformers"), name)(T5Config.from_dict(deep(config)))


def stacks(config: Any, *, encoder_upstream: tuple[str, ...]) -> tuple[Stack, ...]:
    """Describe the encoder's and the decoder's rows; ``encoder_upstream`` are the modules that make the first input."""
    sizes = {
        "n_heads": config.num_heads,
        "d_model": config.d_model,
        "d_head": config.d_kv,
        "d_mlp": config.d_ff,
    }
    encoder = Stack(
        "encoder",
        "encoder.block",
        config.num_layers,
        writers=(_attention("self_attn", 0, "SelfAttention"), _mlp(1, config)),
        ln_final="encoder.final_layer_norm",
        upstream=encoder_upstream,
        entry="encoder",
        **sizes,
    )
    decoder = Stack(
        "decoder",
        "decoder.block",
        config.num_decoder_layers,
        writers=(
            _attention("self_attn", 0, "SelfAttention"),
            _attention("cross_attn", 1, "EncDecAttention", keys_from="encoder"),
            _mlp(2, config),
        ),
        ln_final="decoder.final_layer_norm",
        upstream=(*encoder_upstream, "encoder"),
        entry="decoder",
        cached=_cache_length,
        **sizes,
    )
    return encoder, decoder


def _cache_length(_args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    cache = kwargs.get("past_key_values")
    return 0 if cache is None else int(cache.get_seq_length())


def _attention(kind: str, sublayer: int, name: str, keys_from: str = "") -> Attention:
    at = f"layer.{sublayer}.{name}"
    q, k, v, o = (Projection(f"{at}.{letter}") for letter in "qkvo")
    norm = f"layer.{sublayer}.layer_norm"
    reads = Site(f"layer.{sublayer}", "in", 0)
    return Attention(kind, at, Site(at), reads, q, k, v, o, keys_from=keys_from, norm=norm)


def _mlp(sublayer: int, config: Any) -> Mlp:
    at, is_gated = f"layer.{sublayer}.DenseReluDense", config.is_gated_act
    pre = Site(f"{at}.wi_0" if is_gated else f"{at}.wi", layout="batch pos d_mlp")
    post = Site(f"{at}.wo", "in", 0, "batch pos d_mlp")
    matrix = Projection(f"{at}.wi_0" if is_gated else f"{at}.wi", "d_mlp")
    gate = Projection(f"{at}.wi_1", "d_mlp") if is_gated else None
    reads = Site(f"layer.{sublayer}", "in", 0)
    norm = f"layer.{sublayer}.layer_norm"
    return Mlp(Site(at), reads, pre, post, f"{at}.wo", matrix, gate, norm=norm, act=config.dense_act_fn)


def spread_weights(model: Any, std: float = 1.0, head: float = 1.0) -> Any:
    """Draw random weights under which every head and MLP matters; ``head`` is a factor on the output layer."""
    # T5 does not scale q·k: this gain gives attention scores a standard deviation of 3 at any head size
    dot_product = (3.0 / model.config.d_kv**0.5) ** 0.5
    gains = {".q.weight": dot_product, ".k.weight": dot_product, "output_patch_embedding": std * head}
    return _random.spread_weights(model, gains, std=std)


def t5_kwargs(size: str) -> dict[str, Any]:
    """Return the T5Config arguments of a published size of T5, Chronos and Chronos-Bolt."""
    shape = PUBLISHED_SIZES[size]
    return {
        "d_model": shape["d_model"],
        "d_ff": shape["d_ff"],
        "d_kv": 64,
        "num_layers": shape["layers"],
        "num_decoder_layers": shape["layers"],
        "num_heads": shape["heads"],
        "feed_forward_proj": "relu",
        "dropout_rate": 0.1,
        "initializer_factor": 0.05,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "is_encoder_decoder": True,
    }


def tiny_kwargs(decoder_layers: int = 2) -> dict[str, Any]:
    """Return the T5Config arguments of the conformance suite's small model.

    No two sizes are equal by accident (d_model 36, 4 heads of 8), so that mixed-up axes show.
    """
    sizes = {"d_model": 36, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4}
    return {**t5_kwargs("tiny"), **sizes, "num_decoder_layers": decoder_layers}


def deep(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy that a library may change."""
    return copy.deepcopy(dict(value))
