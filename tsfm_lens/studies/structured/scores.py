"""Attention over nested blocks of tokens, or in a window.

:class:`Reach` says which keys a query scores; :func:`reaching_scores` computes the
scores and :func:`reaching_attention` the attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from tsfm_lens.hooks.attention_capture import declare_scores

__all__ = ["Reach", "block_depth", "reaching_attention", "reaching_scores"]


@dataclass(frozen=True)
class Reach:
    """Keys that a query scores, and the number of features for each.

    Attributes:
        ranks: features of each level; they lie side by side in queries and keys.
        blocks: tokens of a block, by level, each twice the next; levels score the pairs
            within their blocks. The first one holds all tokens.
        causal, window: no key after the query; none further away than this, None for
            any.
        by_depth: divide a score by the number of levels that it sums over.
    """

    ranks: tuple[int, ...]
    blocks: tuple[int, ...]
    causal: bool = True
    window: int | None = None
    by_depth: bool = False


def block_depth(tokens: int, blocks: tuple[int, ...]) -> Tensor:
    """Return the deepest level whose block holds both tokens, d(j, j') (S2-MLRA).

    Levels count from 1 on; the result is (query, key).

    Example:
        >>> depth = structured.block_depth(16, (16, 8, 4))
        >>> depth[7, 8].item(), depth[0, 7].item(), depth[0, 3].item()
        (1, 2, 3)
    """
    positions = torch.arange(tokens)
    return torch.stack(
        [positions[:, None] // block == positions // block for block in blocks]
    ).sum(0)


def reaching_scores(query: Tensor, key: Tensor, reach: Reach) -> Tensor:
    """Compute all scores (…, query, key) before the softmax.

    They are -inf where a key may not be seen. Queries and keys are (…, token, feature),
    the features of the levels side by side.

    Example:
        >>> x = torch.eye(2)[None]
        >>> structured.reaching_scores(x, x, structured.Reach((2,), (2,)))[0].tolist()
        [[1.0, -inf], [0.0, 1.0]]
    """
    tokens = query.shape[-2]
    queries, keys = (
        F.pad(part, (0, 0, 0, reach.blocks[0] - tokens)).split(list(reach.ranks), -1)
        for part in (query, key)
    )
    # (…, block, query, key) of each level, which multiplies within its own blocks only
    levels = [
        q.unflatten(-2, (-1, block)) @ k.unflatten(-2, (-1, block)).mT
        for q, k, block in zip(queries, keys, reach.blocks, strict=True)
    ]
    # from the finest level up
    total = reduce(lambda finer, level: level + _in_pairs(finer), reversed(levels))
    scores = total.squeeze(-3)[..., :tokens, :tokens]
    if reach.by_depth:
        scores = scores / block_depth(tokens, reach.blocks).to(scores.device)
    positions = torch.arange(tokens, device=query.device)
    ahead = positions - positions[:, None]
    # no key is as many steps ahead as there are tokens
    farthest = 0 if reach.causal else tokens
    hidden = ahead > farthest
    if reach.window is not None:
        hidden = hidden | (ahead.abs() > reach.window)
    # added, since a gradient passes a sum without a copy
    bias = scores.new_zeros(hidden.shape).masked_fill(hidden, float("-inf"))
    return scores + bias


def _in_pairs(blocks: Tensor) -> Tensor:
    """Put every two blocks on the diagonal of one twice as large.

    Blocks are (…, block, query, key).
    """
    first, second = blocks.unflatten(-3, (-1, 2)).unbind(-3)
    width = blocks.shape[-1]
    return torch.cat([F.pad(first, (0, width)), F.pad(second, (width, 0))], -2)


def spread(x: Tensor, ranks: Sequence[int], blocks: Sequence[int]) -> Tensor:
    """Spread queries or keys (…, token, feature) for scores by nested blocks of tokens.

    Each level has the next ``ranks[level]`` features. They are repeated for each block
    of ``blocks[level]`` tokens, and are 0 but for the block of the token. So the dot
    product of a spread query and key adds up the levels on which both are in the same
    block.
    """
    positions = torch.arange(x.shape[-2], device=x.device)
    levels = []
    for features, size in zip(x.split(list(ranks), -1), blocks, strict=True):
        numbers = torch.arange(blocks[0] // size, device=x.device)
        # (token, block)
        in_block = (positions[:, None] // size == numbers).to(x)
        levels.append((features[..., None, :] * in_block[:, :, None]).flatten(-2))
    return torch.cat(levels, -1)


FUSED = 64
"""Features up to which spread queries and keys are faster than separate levels."""

VECTOR = 16
"""Features below which fused attention is slower on CPUs, whose registers hold 16."""


@declare_scores(reaching_scores)
def reaching_attention(
    query: Tensor, key: Tensor, value: Tensor, reach: Reach
) -> Tensor:
    """Compute softmax(scores) · value (…, token, d_head) of :func:`reaching_scores`.

    Where levels have few features, one fused call of torch computes them together,
    which does more operations than level by level, but in less time and memory.

    Example:
        >>> x = torch.eye(2)[None]
        >>> reach = structured.Reach((2,), (2,))
        >>> structured.reaching_attention(x, x, x, reach)[0, 0].tolist()
        [1.0, 0.0]
    """
    features = sum(
        rank * (reach.blocks[0] // block)
        for rank, block in zip(reach.ranks, reach.blocks, strict=True)
    )
    if reach.window is not None or reach.by_depth or features > FUSED:
        return torch.softmax(reaching_scores(query, key, reach), -1) @ value
    size = max(features, value.shape[-1], VECTOR)
    query, key = (spread(part, reach.ranks, reach.blocks) for part in (query, key))
    query, key, wide_value = (
        F.pad(part, (0, size - part.shape[-1])) for part in (query, key, value)
    )
    out = F.scaled_dot_product_attention(
        query, key, wide_value, is_causal=reach.causal, scale=1.0
    )
    return out[..., : value.shape[-1]]
