"""Weights of each head, read through the wiring's layouts."""

from __future__ import annotations

from einops import rearrange
from torch import Tensor, nn

from tsfm_lens.errors import WiringError
from tsfm_lens.hooks.wiring import Attention, Projection, Stack


def head_output_weights(model: nn.Module, stack: Stack, layer: int, kind: str) -> Tensor:
    """W_O of every head: (head, d_head, d_model), so that ``z @ W_O`` is the head's write."""
    writer = _attention(stack, kind)
    weight = _linear(model, f"{stack.block(layer)}.{writer.o.module}").weight
    heads = rearrange(weight, f"d_model {writer.o.layout} -> head d_head d_model", head=stack.n_heads)
    return heads if writer.o.gain == 1.0 else heads * writer.o.gain


def head_input_weights(model: nn.Module, stack: Stack, layer: int, kind: str, which: str) -> Tensor:
    """W_Q, W_K or W_V of every head: (head, d_model, d_head), so that ``x @ W`` is the head's q, k or v.

    Args:
        which: "q", "k" or "v".
    """
    projection: Projection = getattr(_attention(stack, kind), which)
    weight = _linear(model, f"{stack.block(layer)}.{projection.module}").weight
    if projection.parts == 1:
        return rearrange(weight, f"{projection.layout} d_model -> head d_model d_head", head=stack.n_heads)
    fused = rearrange(
        weight,
        f"{projection.layout} d_model -> part head d_model d_head",
        head=stack.n_heads,
        part=projection.parts,
    )
    return fused[projection.part]


def _attention(stack: Stack, kind: str) -> Attention:
    writer = stack.writer(kind)
    if not isinstance(writer, Attention):
        raise WiringError(f"{kind!r} is no attention writer; it has no heads")
    return writer


def _linear(model: nn.Module, path: str) -> nn.Linear:
    module = model.get_submodule(path)
    if not isinstance(getattr(module, "weight", None), Tensor):
        raise WiringError(f"module {path!r} has no weight matrix")
    return module  # type: ignore[return-value]
