"""Scores by nested blocks of tokens in a T5, by transformers' own interface for attention functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask
from transformers.models.t5.modeling_t5 import T5Attention, eager_attention_forward

from tsfm_lens.errors import InputError
from tsfm_lens.studies.structured import level_blocks, token_blocks

__all__ = ["score_by_levels", "spread"]

NAME = "token-levels"


def spread(x: Tensor, ranks: Sequence[int]) -> Tensor:
    """Spread queries or keys so that dot products are scores by nested blocks: each level has a place for each block.

    Args:
        x: (…, token, feature), the features of the levels side by side.
        ranks: features of each level.

    Returns:
        (…, token, Σ r_l p_l).

    Source:
        Structured attention, equation 9 (S2-MLRA).
    """
    tokens, parts = x.shape[-2], []
    at = torch.arange(tokens, device=x.device)
    sizes = token_blocks(tokens, len(ranks))
    for part, block, count in zip(x.split(list(ranks), -1), sizes, level_blocks(len(ranks)), strict=True):
        own = (at[:, None] // block == torch.arange(count, device=x.device)).to(x)
        parts.append((part[..., None, :] * own[:, :, None]).flatten(-2))
    return torch.cat(parts, -1)


def attend(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Any:
    """Compute T5's attention, by the module's levels where it has some."""
    ranks = getattr(module, "level_ranks", ())
    if ranks:
        query, key = spread(query, ranks), spread(key, ranks)
    return eager_attention_forward(module, query, key, value, mask, **options)


def score_by_levels(model: PreTrainedModel, ranks: Sequence[int]) -> None:
    """Let the encoder of a T5 score by nested blocks of tokens, in the model itself; weights stay as they are.

    The decoder is left as it is: its few tokens cannot be divided as often.

    Args:
        model: with T5's attention.
        ranks: features of each level.

    Raises:
        InputError: the ranks do not sum to the size of a head.
    """
    size = model.config.d_kv
    if sum(ranks) != size or min(ranks) < 1:
        raise InputError(f"ranks {list(ranks)} sum to {sum(ranks)}; expected whole numbers from 1 that sum to {size}")
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, eager_mask)
    model.set_attn_implementation(NAME)
    for module in model.get_encoder().modules():
        if isinstance(module, T5Attention):
            module.level_ranks = tuple(ranks)
