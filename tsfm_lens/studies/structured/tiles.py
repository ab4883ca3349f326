"""Attention over nested blocks of tokens, or in a window, a tile of queries at a time, with the work that it saves.

Scores of a tile are products of as many features as the depth of a pair allows, so that multiply-adds are those of the
formula; the pattern is never held whole, neither forward nor backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from tsfm_lens.hooks.attention_capture import scored_by

__all__ = ["Reach", "block_depth", "reaching_attention", "reaching_scores"]

ROWS = 128
"""Queries of a tile."""
FINEST = 64
"""Tokens of the smallest block that has tiles of its own; levels below are added within them."""
BUFFER = 2**20
"""Scores of a tile over all its heads, at most, where one head's are fewer."""


@dataclass(frozen=True)
class Reach:
    """Keys that a query scores, and the number of features for each; ``scale`` is a factor on the scores.

    Attributes:
        ranks: features of each level; they lie side by side in queries and keys.
        blocks: tokens of a block, by level, each a multiple of the next; levels score the pairs within their blocks.
        causal, window: no key after the query; none further away than this, None for any.
        by_depth: divide a score by the number of levels that it sums over.
    """

    ranks: tuple[int, ...]
    blocks: tuple[int, ...]
    causal: bool = True
    window: int | None = None
    scale: float = 1.0
    by_depth: bool = False


def block_depth(tokens: int, blocks: tuple[int, ...]) -> Tensor:
    """Return (query, key): the deepest level whose block holds both tokens, from 1 on, d(j, j') (S2-MLRA).

    Example:
        >>> depth = structured.block_depth(16, (16, 8, 4))
        >>> depth[7, 8].item(), depth[0, 7].item(), depth[0, 3].item()
        (1, 2, 3)
    """
    at = torch.arange(tokens)
    return torch.stack([at[:, None] // block == at // block for block in blocks]).sum(0)


def reaching_scores(query: Tensor, key: Tensor, reach: Reach) -> Tensor:
    """Compute all scores (…, query, key) before the softmax, -inf where a key may not be seen.

    Queries and keys are (…, token, feature), the features of the levels side by side.

    Example:
        >>> x = torch.eye(2)[None]
        >>> structured.reaching_scores(x, x, structured.Reach((2,), (2,)))[0].tolist()
        [[1.0, -inf], [0.0, 1.0]]
    """
    tokens = query.shape[-2]
    at = torch.arange(tokens, device=query.device)
    total, start = query.new_zeros(*query.shape[:-1], tokens), 0
    for rank, block in zip(reach.ranks, reach.blocks, strict=True):
        features = slice(start, start + rank)
        level = query[..., features] @ key[..., features].transpose(-2, -1)
        total = total + level * (at[:, None] // block == at // block)
        start += rank
    if reach.by_depth:
        total = total / block_depth(tokens, reach.blocks).to(total.device)
    hidden = _hidden(tokens, 0, tokens, reach.causal, reach.window).to(query.device)
    return (total * reach.scale).masked_fill(hidden, float("-inf"))


@scored_by(reaching_scores)
def reaching_attention(
    query: Tensor, key: Tensor, value: Tensor, reach: Reach
) -> Tensor:
    """Compute softmax(scores) · value (…, token, d_head) of :func:`reaching_scores`, without holding the scores.

    Example:
        >>> x = torch.eye(2)[None]
        >>> structured.reaching_attention(x, x, x, structured.Reach((2,), (2,)))[0, 0].tolist()
        [1.0, 0.0]
    """
    flat = [part.reshape(-1, *part.shape[-2:]) for part in (query, key, value)]
    out: Tensor = _TiledAttention.apply(*flat, reach)
    return out.reshape(*value.shape)


@dataclass(frozen=True)
class _Piece:
    """Rectangle of scores: rows of the tile, keys of the sequence, features, and the factor on their products."""

    rows: slice
    keys: slice
    features: slice
    factor: float


@dataclass(frozen=True)
class _Tile:
    """Queries that are scored together."""

    rows: slice
    keys: slice
    pieces: tuple[_Piece, ...]
    fine: tuple[tuple[slice, int], ...]
    depth: int

    @property
    def near(self) -> slice:
        return slice(
            self.rows.start - self.keys.start, self.rows.stop - self.keys.start
        )


@lru_cache(maxsize=64)
def _tiles(reach: Reach, tokens: int) -> tuple[_Tile, ...]:
    deep = [
        level
        for level, block in enumerate(reach.blocks)
        if block >= FINEST or level == 0
    ][-1]
    # a block may have several tiles only where nothing is added within them
    unit = min(reach.blocks[deep], tokens)
    rows = unit if deep < len(reach.blocks) - 1 else ROWS
    spans = (
        (start, min(start + rows, block + unit, tokens))
        for block in range(0, tokens, unit)
        for start in range(block, min(block + unit, tokens), rows)
    )
    return tuple(_tile(reach, tokens, deep, *span) for span in spans)


def _tile(reach: Reach, tokens: int, deep: int, start: int, stop: int) -> _Tile:
    low, high = 0, stop if reach.causal else tokens
    if reach.window is not None:
        low, high = max(low, start - reach.window), min(high, stop + reach.window)
    ends = [sum(reach.ranks[: level + 1]) for level in range(len(reach.ranks))]
    pieces = []
    inner = (start, start)
    for level in range(deep, -1, -1):
        first = start // reach.blocks[level] * reach.blocks[level]
        outer = (max(low, first), min(high, first + reach.blocks[level]))
        factor = _factor(level + 1, reach)
        sides = (
            (outer,) if level == deep else ((outer[0], inner[0]), (inner[1], outer[1]))
        )
        for left, right in sides:
            if right > left:
                pieces.append(
                    _Piece(
                        slice(start, stop),
                        slice(left, right),
                        slice(0, ends[level]),
                        factor,
                    )
                )
        inner = outer
    fine = tuple(
        (slice(ends[level - 1], ends[level]), reach.blocks[level])
        for level in range(deep + 1, len(reach.ranks))
        if reach.ranks[level]
    )
    return _Tile(slice(start, stop), slice(low, high), tuple(pieces), fine, deep + 1)


def _score(
    query: Tensor, key: Tensor, tile: _Tile, reach: Reach, buffer: Tensor
) -> Tensor:
    """Write the scores of one tile (head, row, key) into ``buffer``."""
    shape = (
        len(query),
        tile.rows.stop - tile.rows.start,
        tile.keys.stop - tile.keys.start,
    )
    scores = buffer[: shape[0] * shape[1] * shape[2]].view(shape)
    for piece, part in _pieces(scores, tile):
        q, k = query[:, piece.rows, piece.features], key[:, piece.keys, piece.features]
        part.baddbmm_(q, k.transpose(1, 2), beta=0, alpha=piece.factor)
    for own, blocks in _fine(scores, tile):
        own.add_(
            blocks(query) @ blocks(key).transpose(2, 3),
            alpha=_factor(tile.depth, reach),
        )
    _weigh(scores, tile, reach)
    if reach.window is not None:
        hidden = _hidden(
            shape[1],
            tile.rows.start - tile.keys.start,
            shape[2],
            reach.causal,
            reach.window,
        )
        scores.masked_fill_(hidden.to(scores.device), float("-inf"))
    elif reach.causal:
        hidden = _hidden(shape[1], 0, shape[1], reach.causal, None)
        scores[:, :, tile.near].masked_fill_(hidden.to(scores.device), float("-inf"))
    return scores


def _pieces(scores: Tensor, tile: _Tile) -> Iterator[tuple[_Piece, Tensor]]:
    """Yield the pieces of a tile, each with its part of the tile's scores."""
    for piece in tile.pieces:
        yield (
            piece,
            scores[
                :,
                :,
                piece.keys.start - tile.keys.start : piece.keys.stop - tile.keys.start,
            ],
        )


def _fine(
    scores: Tensor, tile: _Tile
) -> Iterator[tuple[Tensor, Callable[[Tensor], Tensor]]]:
    """Yield blocks of fine levels in a tile's scores, (head, count, block, block), and what cuts queries or keys so."""
    for features, block in tile.fine:
        # the last block may be shorter
        whole, rest = divmod(tile.rows.stop - tile.rows.start, block)
        for first, count, length in (
            (0, whole, block),
            (whole * block, min(rest, 1), rest),
        ):
            if count:
                inside = slice(first, first + count * length)
                own = scores[:, :, tile.near][:, inside, inside].unflatten(
                    2, (count, length)
                )
                diagonal = (
                    own.unflatten(1, (count, length))
                    .diagonal(dim1=1, dim2=3)
                    .permute(0, 3, 1, 2)
                )
                rows = slice(
                    tile.rows.start + inside.start, tile.rows.start + inside.stop
                )
                yield (
                    diagonal,
                    partial(_cut, rows=rows, features=features, shape=(count, length)),
                )


def _cut(
    part: Tensor, *, rows: slice, features: slice, shape: tuple[int, int]
) -> Tensor:
    return part[:, rows, features].unflatten(1, shape)


def _factor(depth: int, reach: Reach) -> float:
    return reach.scale / (depth if reach.by_depth else 1)


def _weigh(scores: Tensor, tile: _Tile, reach: Reach) -> None:
    """Divide scores within a tile by their own depth, where finer levels were added."""
    if reach.by_depth and tile.fine:
        scores[:, :, tile.near].mul_(
            _depths(reach.blocks, tile.depth, scores.shape[1]).to(scores)
        )


@lru_cache(maxsize=64)
def _depths(blocks: tuple[int, ...], depth: int, tokens: int) -> Tensor:
    """Return (row, key) of a tile: the depth that its scores were divided by, over the one that they have."""
    return depth / block_depth(tokens, blocks).double()


@lru_cache(maxsize=256)
def _hidden(
    rows: int, first: int, keys: int, causal: bool, window: int | None
) -> Tensor:
    """Return the mask (row, key) of keys that may not be seen; row 0 stands at key ``first``."""
    ahead = torch.arange(keys) - torch.arange(rows)[:, None] - first
    hidden = ahead > 0 if causal else torch.zeros_like(ahead, dtype=torch.bool)
    return hidden if window is None else hidden | (ahead.abs() > window)


class _TiledAttention(torch.autograd.Function):
    """Attention by tiles of all heads, forward and backward."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, reach: Reach
    ) -> Tensor:
        ctx.reach = reach
        ctx.save_for_backward(query, key, value)
        out = torch.empty_like(value)
        for heads, tile, buffer, _ in _walk(query, reach, 0):
            q, k, v = query[heads], key[heads], value[heads]
            scores = _score(q, k, tile, reach, buffer)
            pattern = torch.softmax(scores, -1, out=scores)
            out[heads, tile.rows] = torch.bmm(pattern, v[:, tile.keys])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        reach, (grad,) = ctx.reach, grads
        if torch.is_grad_enabled():
            # for a second derivative the scores are formed whole
            out = torch.softmax(reaching_scores(query, key, reach), -1) @ value
            return (
                *torch.autograd.grad(out, (query, key, value), grad, create_graph=True),
                None,
            )
        d_query, d_key, d_value = (
            torch.zeros_like(part) for part in (query, key, value)
        )
        for heads, tile, buffer, (other,) in _walk(query, reach, 1):
            q, k, v, g = query[heads], key[heads], value[heads], grad[heads, tile.rows]
            scores = _score(q, k, tile, reach, buffer)
            pattern = torch.softmax(scores, -1, out=scores)
            d_value[heads, tile.keys].baddbmm_(pattern.transpose(1, 2), g)
            d_pattern = torch.bmm(
                g,
                v[:, tile.keys].transpose(1, 2),
                out=other[: scores.numel()].view(scores.shape),
            )
            d_scores = torch._softmax_backward_data(
                d_pattern, pattern, -1, scores.dtype, grad_input=d_pattern
            )
            _weigh(d_scores, tile, reach)
            d_q, d_k = d_query[heads], d_key[heads]
            for piece, part in _pieces(d_scores, tile):
                d_q[:, piece.rows, piece.features].baddbmm_(
                    part, k[:, piece.keys, piece.features], alpha=piece.factor
                )
                own_q = q[:, piece.rows, piece.features]
                d_k[:, piece.keys, piece.features].baddbmm_(
                    part.transpose(1, 2), own_q, alpha=piece.factor
                )
            for own, blocks in _fine(d_scores, tile):
                blocks(d_q).add_(own @ blocks(k), alpha=_factor(tile.depth, reach))
                blocks(d_k).add_(
                    own.transpose(2, 3) @ blocks(q), alpha=_factor(tile.depth, reach)
                )
        return d_query, d_key, d_value, None


def _walk(
    query: Tensor, reach: Reach, more: int
) -> Iterator[tuple[slice, _Tile, Tensor, list[Tensor]]]:
    """Yield every tile of every few heads, with buffers for its scores and for as many arrays more."""
    tiles = _tiles(reach, query.shape[1])
    largest = max(
        (t.rows.stop - t.rows.start) * (t.keys.stop - t.keys.start) for t in tiles
    )
    together = max(1, min(len(query), BUFFER // largest))
    buffer, *others = (query.new_empty(together * largest) for _ in range(1 + more))
    for first in range(0, len(query), together):
        for tile in tiles:
            yield slice(first, min(first + together, len(query))), tile, buffer, others
