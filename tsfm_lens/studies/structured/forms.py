"""Scoring functions of attention: standard, sliding window, bilinear multi-level, bilinear tensor train, token levels.

A form makes the projections of queries and keys, and says how they score. Its scores are a bilinear form of two tokens,
on the feature axis (:class:`BilinearLevels`, :class:`BilinearTrain`) or by the blocks of the token axis that both lie
in (:class:`TokenLevels`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.studies.structured.matrices import factors_of
from tsfm_lens.studies.structured.projections import Copies, LevelFactor, LevelMap, TrainFactor, TrainMap
from tsfm_lens.studies.structured.sizes import level_blocks, refuse_ranks, whole
from tsfm_lens.studies.structured.tiles import Reach, reaching_attention

__all__ = ["BilinearLevels", "BilinearTrain", "Form", "Standard", "TokenLevels", "mixed", "token_blocks"]

Order = Literal["auto", "both", "keys"]


@dataclass(frozen=True, kw_only=True)
class Form(ABC):
    """Scoring function.

    Attributes:
        scale: "sqrt" divides scores by the root of the number of features, "mup" multiplies with ``constant`` over it,
            "none" leaves them, as equation 1 prints them.
        constant: C of "mup".
        norm: LayerNorm without parameters on queries and keys.
    """

    scale: Literal["sqrt", "mup", "none"] = "sqrt"
    constant: float = 8.0
    norm: bool = False

    def __post_init__(self) -> None:
        """Refuse an unknown scale."""
        if self.scale not in ("sqrt", "mup", "none"):
            raise unknown_name("scale", self.scale, ("sqrt", "mup", "none"))

    @abstractmethod
    def projections(self, width: int, heads: int, d_head: int) -> tuple[nn.Module, nn.Module, int]:
        """Return layers for queries and keys, and the features of a head in them."""

    def prepared(self, query: Tensor, key: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Return queries and keys (…, token, feature) of tokens of a width, as they enter the dot product."""
        if self.norm:
            query, key = _normalise(query), _normalise(key)
        return query * self.factor(query.shape[-1]), key

    def factor(self, features: int) -> float:
        """Return the factor on scores of so many features."""
        return {"sqrt": features**-0.5, "mup": self.constant / features, "none": 1.0}[self.scale]

    def reach(self, features: int, tokens: int, causal: bool) -> Reach:
        """Return the keys that a query scores."""
        return Reach((features,), (max(tokens, 1),), causal)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        """Compute the attention of prepared queries and keys."""
        return reaching_attention(query, key, value, self.reach(query.shape[-1], query.shape[-2], causal))


@dataclass(frozen=True)
class Standard(Form):
    """Low rank, W_Q W_Kᵀ, over all keys or those of a window (S2-ATT, S2-SWA).

    Attributes:
        window: keys at most so many tokens away; None for all.
    """

    window: int | None = None

    def __post_init__(self) -> None:
        """Refuse a window that holds no key."""
        super().__post_init__()
        if self.window is not None and self.window < 0:
            raise InputError(f"a window of {self.window} tokens; 0 lets a token see itself, None all")

    def projections(self, width: int, heads: int, d_head: int) -> tuple[nn.Module, nn.Module, int]:
        """Return dense layers."""
        return _dense(width, heads * d_head), _dense(width, heads * d_head), d_head

    def reach(self, features: int, tokens: int, causal: bool) -> Reach:
        """Return all keys, or those of the window."""
        return Reach((features,), (max(tokens, 1),), causal, self.window)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        """Compute torch's own attention; in a window, tile by tile."""
        if self.window is not None:
            return super().attend(query, key, value, causal)
        return F.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=1.0)


@dataclass(frozen=True)
class TokenLevels(Form):
    """MLR attention: nested blocks of tokens, each level with features of its own (S2-MLRA).

    Attributes:
        ranks: r_l; level l has 2^(l-1) blocks of tokens. One level is standard attention.
        length: tokens that the blocks divide; a shorter sequence is its beginning. None for those of each sequence.
        level_scale: multiply level l with 1 / r_l, in place of ``scale``.
        by_depth: divide a score by the number of levels that it sums over.
    """

    ranks: tuple[int, ...] = (32, 32)
    length: int | None = None
    level_scale: bool = False
    by_depth: bool = False

    def projections(self, width: int, heads: int, d_head: int) -> tuple[nn.Module, nn.Module, int]:
        """Return dense layers, whose features of a head are those of the levels side by side."""
        features = sum(refuse_ranks(self.ranks, width))
        return _dense(width, heads * features), _dense(width, heads * features), features

    def prepared(self, query: Tensor, key: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Apply LayerNorm over all features of a head, and the scale."""
        if not self.level_scale:
            return super().prepared(query, key, width)
        if self.norm:
            query, key = _normalise(query), _normalise(key)
        shares = [1 / rank for rank in self.ranks for _ in range(rank)]
        return query * torch.tensor(shares, dtype=query.dtype, device=query.device), key

    def reach(self, features: int, tokens: int, causal: bool) -> Reach:
        """Return the keys of nested blocks."""
        blocks = token_blocks(tokens, len(self.ranks), self.length)
        return Reach(tuple(self.ranks), blocks, causal, by_depth=self.by_depth)


@dataclass(frozen=True)
class BilinearLevels(Form):
    """xᵀ (Σ_l ⊕_k L_{l,k} R_{l,k}ᵀ) x', blocks on the feature axis (S2-BMLR).

    Attributes:
        ranks: r_l; their sum is what the head size is in standard attention.
        order: "both" forms queries and keys of Σ r_l p_l features (order c of table 2), "keys" keys of full width (e);
            "auto" takes what costs less, and "both" with ``norm``.
    """

    ranks: tuple[int, ...] = (4, 4)
    order: Order = "auto"

    def __post_init__(self) -> None:
        """Refuse an unknown order, or one in which the norm is not defined."""
        super().__post_init__()
        _refuse_order(self.order)
        if self.norm and self.order == "keys":
            raise InputError('order="keys" sums the levels before their norm could act; choose order="both"')

    @property
    def features(self) -> list[int]:
        """r_l p_l."""
        return [rank * count for rank, count in zip(self.ranks, level_blocks(len(self.ranks)), strict=True)]

    def projections(self, width: int, heads: int, d_head: int) -> tuple[nn.Module, nn.Module, int]:
        """Return factors of both sides, or the tokens and whole matrices."""
        if self.forms_both(width):
            query, key = (LevelFactor(width, heads, self.ranks) for _ in range(2))
            return query, key, sum(self.features)
        alphas = [self.factor(max(count, 1)) for count in self.features]
        return Copies(width, heads), LevelMap(width, heads, self.ranks, alphas), width

    def forms_both(self, width: int) -> bool:
        """Return whether queries and keys are both projected."""
        return self.order == "both" or self.norm or (self.order == "auto" and sum(self.features) <= width)

    def prepared(self, query: Tensor, key: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Scale and normalise level by level; whole matrices contain their factors."""
        if not self.forms_both(width):
            return query, key
        queries, keys = query.split(self.features, -1), key.split(self.features, -1)
        if self.norm:
            queries, keys = tuple(map(_normalise, queries)), tuple(map(_normalise, keys))
        parts = [part * self.factor(max(count, 1)) for part, count in zip(queries, self.features, strict=True)]
        return torch.cat(parts, -1), torch.cat(keys, -1)


@dataclass(frozen=True)
class BilinearTrain(Form):
    """xᵀ (P_L ⊕L P_R ⊕Rᵀ) x', of full rank (S2-BBTT).

    Attributes:
        rank: s.
        out_factors, in_factors: (a, b) and (c, d) of the width; balanced if None.
        order: "both" forms queries and keys of b c s features, "keys" keys of full width; "auto" takes what costs less,
            and "keys" with ``norm``, which acts on tokens and on keys of full width.
    """

    rank: int = 1
    out_factors: tuple[int, int] | None = None
    in_factors: tuple[int, int] | None = None
    order: Order = "auto"

    def __post_init__(self) -> None:
        """Refuse an unknown order, or one in which the norm is not defined."""
        super().__post_init__()
        _refuse_order(self.order)
        if self.norm and self.order == "both":
            raise InputError('the norm acts on tokens and on keys of full width; choose order="keys"')

    def projections(self, width: int, heads: int, d_head: int) -> tuple[nn.Module, nn.Module, int]:
        """Return factors of both sides, or the tokens and whole matrices."""
        sizes = (width, heads, self.rank, self.out_factors, self.in_factors)
        if self.forms_both(width):
            return TrainFactor(*sizes, side="queries"), TrainFactor(*sizes, side="keys"), self.inner(width)
        return Copies(width, heads), TrainMap(*sizes), width

    def inner(self, width: int) -> int:
        """Return b c s, the features of queries and keys where both are projected."""
        (_, b), (c, _) = factors_of(width, self.out_factors, "out"), factors_of(width, self.in_factors, "in")
        return b * c * self.rank

    def forms_both(self, width: int) -> bool:
        """Return whether queries and keys are both projected."""
        return self.order == "both" or (self.order == "auto" and not self.norm and self.inner(width) <= width)

    def prepared(self, query: Tensor, key: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Scale by the width whatever the order, so that the scores are the same."""
        if self.norm:
            query, key = _normalise(query), _normalise(key)
        return query * self.factor(width), key


def token_blocks(tokens: int, levels: int, length: int | None = None) -> tuple[int, ...]:
    """Return the tokens of a block, by level: halved from one level to the next.

    Args:
        tokens: of the sequence.
        levels: number of levels.
        length: tokens that the blocks divide; ``tokens`` if None. Where 2^(levels-1) does not divide them, blocks are
            those of the next length that it does divide, as if the end were padded.

    Raises:
        InputError: the sequence is longer than ``length``, or has fewer tokens than the finest level has blocks.

    Example:
        >>> structured.token_blocks(16, 3), structured.token_blocks(10, 3, length=14)
        ((16, 8, 4), (16, 8, 4))
    """
    whole(tokens, "the number of tokens")
    total = tokens if length is None else whole(length, "length")
    if tokens > total:
        raise InputError(f"{tokens} tokens are more than the {total} that the levels divide; make length={tokens}")
    count = level_blocks(levels)[-1]
    if total < count:
        raise InputError(
            f"{total} tokens are fewer than the {count} blocks of level {levels}; at most {total.bit_length()} levels"
        )
    finest = -(-total // count)
    return tuple(finest * 2 ** (levels - 1 - level) for level in range(levels))


def mixed(layers: int, pattern: Sequence[Form]) -> tuple[Form, ...]:
    """Return a form for every layer: a pattern, repeated, as global attention and windows alternate (S2-GSWA).

    Example:
        >>> wide, near = structured.Standard(), structured.Standard(window=8)
        >>> [form.window for form in structured.mixed(5, [wide, near, near])]
        [None, 8, 8, None, 8]
    """
    if not pattern:
        raise InputError("an empty pattern of forms; give at least one")
    return tuple(pattern[layer % len(pattern)] for layer in range(whole(layers, "layers")))


def _dense(width: int, features: int) -> nn.Linear:
    return nn.Linear(width, features, bias=False)


def _normalise(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:]) if x.shape[-1] else x


def _refuse_order(order: str) -> None:
    if order not in ("auto", "both", "keys"):
        raise unknown_name("order", order, ("auto", "both", "keys"))
