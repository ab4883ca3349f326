"""Configuration of a model as TransformerLens's ``cfg``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tsfm_lens.errors import InputError
from tsfm_lens.hooks.wiring import Mlp, Stack
from tsfm_lens.models.base import LensBase


@dataclass(frozen=True)
class _Fields:
    """Fields of a :class:`Config`."""

    model_name: str
    architecture: str
    n_layers: int
    n_heads: int
    d_model: int
    d_head: int
    d_mlp: int
    n_key_value_heads: int
    n_ctx: int
    d_vocab: int | None
    act_fn: str
    gated_mlp: bool
    attn_only: bool
    normalization_type: str | None
    dtype: torch.dtype
    device: torch.device
    n_params: int
    stacks: Mapping[str, Stack] = field(repr=False)


class Config(_Fields):
    """Sizes and kinds of a model; of the stack that is read out, where it has several.

    Attributes:
        model_name: of the loaded model.
        architecture: name of the wiring.
        n_layers, n_heads, d_model, d_head, d_mlp: sizes of the stack that is read out.
        n_key_value_heads: heads of keys and values; as many as heads but for grouped queries.
        n_ctx: the most steps of context that the model reads (tokens may cover several steps each).
        d_vocab: size of the head's vocabulary; None for models that emit numbers.
        act_fn: activation function of the MLPs, "" where the wiring does not say or there is none.
        gated_mlp: whether half of the MLP's hidden layer multiplies the other.
        attn_only: whether there are no MLPs.
        normalization_type: "LN" or "RMS", as TransformerLens has them; None without norms.
        dtype, device: of the weights.
        n_params: number of weights.
        stacks: sizes of every stack by name, "" where there is one: ``cfg.stacks["encoder"].n_layers``.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        hint = "hook_result and the other hook points are computed whenever they are asked for"
        raise InputError(f"cfg.{name} cannot be set: nothing of the native model is changed, and {hint}")


def config_of(lens: LensBase) -> Config:
    """Return the configuration of a model behind a lens."""
    stack, model = lens.wiring.output_stack, lens.adapter.model
    rows = [row for layer in range(stack.n_layers) for row in stack.rows(layer)]
    mlp = next((row for row in rows if isinstance(row, Mlp)), None)
    attention = next((row for row in rows if not isinstance(row, Mlp)), None)
    n_shared = attention.heads_of("k", stack.n_heads) if attention is not None else stack.n_heads
    weights = list(lens.parameters())
    return Config(
        lens.model_id,
        lens.wiring.architecture,
        stack.n_layers,
        stack.n_heads,
        stack.d_model,
        stack.d_head,
        stack.d_mlp,
        n_shared,
        lens.context_length,
        lens.weights.W_U.shape[1] if lens.emits == "token" else None,
        "" if mlp is None else mlp.act,
        mlp is not None and mlp.gate is not None,
        mlp is None,
        _normalization(model, stack),
        weights[0].dtype,
        lens.device,
        sum(weight.numel() for weight in weights),
        {column.name: column for column in lens.wiring.stacks},
    )


def _normalization(model: nn.Module, stack: Stack) -> str | None:
    path = next((f"{stack.block(0)}.{row.norm}" for row in stack.rows(0) if row.norm), stack.ln_final)
    if not path:
        return None
    return "LN" if isinstance(model.get_submodule(path), nn.LayerNorm) else "RMS"
