"""Scoring functions of attention, and their projections to queries and keys.

A :class:`ScoringForm` makes the projections, prepares queries and keys, and attends;
:data:`REGRESSORS` lists the forms by name. Attention modules that use them are in
:mod:`tsfm_lens.studies.structured.models`, scores over blocks of tokens in
:mod:`tsfm_lens.studies.structured.scores`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.hooks.replay import shadowed
from tsfm_lens.studies.structured.matrices import (
    balance_factors,
    check_divisible,
    check_rank,
    check_ranks,
    level_blocks,
    level_features,
    whole,
)
from tsfm_lens.studies.structured.scores import Reach, reaching_attention

__all__ = [
    "BilinearLevels",
    "BilinearTrain",
    "LevelFactor",
    "REGRESSORS",
    "ScoringForm",
    "Standard",
    "StructuredLayer",
    "TokenLevels",
    "TrainFactor",
    "mixed",
    "token_blocks",
]


class StructuredLayer(nn.Module):
    """Layer from tokens (…, width) to features of all heads (…, head · feature)."""

    bias = None

    def __init__(self, width: int, heads: int, features: int) -> None:
        super().__init__()
        self.in_features = width
        self.features = features
        self.out_features = heads * features

    @property
    def weight(self) -> Tensor:
        """Dense matrix, (head · feature, width)."""
        return self.forward(torch.eye(self.in_features).to(next(self.parameters()))).T

    def as_matrix(self, matrix: Tensor) -> AbstractContextManager[None]:
        """Compute with another matrix (head · feature, width) while the block runs."""
        return shadowed([(self, lambda _: lambda x: F.linear(x, matrix.to(x)))])


class LevelFactor(StructuredLayer):
    """One side of a multi-level matrix for each head (S2-BMLR).

    Its features are X ⊕_k W_{l,k} of every level, side by side.

    Attributes:
        factors: by level l (2^(l-1) blocks, width / blocks, head, rank), drawn with
            variance p_l / width.
    """

    def __init__(self, width: int, heads: int, ranks: Sequence[int]) -> None:
        self.ranks = check_ranks(ranks, width)
        super().__init__(width, heads, sum(level_features(self.ranks)))
        self.factors = nn.ParameterList()
        for rank, count in zip(self.ranks, level_blocks(len(ranks)), strict=True):
            block_width = check_divisible(width, count, "a width")
            self.factors.append(
                nn.Parameter(
                    torch.randn(count, block_width, heads, rank) * block_width**-0.5
                )
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, width) to (…, head · feature)."""
        levels = []
        for factor in self.factors:
            blocks = x.unflatten(-1, (len(factor), -1))
            level = torch.einsum("...ki,kihr->...hkr", blocks, factor)
            levels.append(level.flatten(-2))
        return torch.cat(levels, -1).flatten(-2)


class TrainFactor(StructuredLayer):
    """One side of a block tensor train for each head (S2-BBTT).

    Its features are in the order (b, c, s) on both sides.

    Attributes:
        factor: (b, a, head, c s) of "queries", drawn with variance 1 / (c s); (c, d,
            head, b s) of "keys", 1 / d.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        rank: int = 1,
        *,
        side: str,
    ) -> None:
        self.a, self.b = self.c, self.d = balance_factors(width)
        self.rank = check_rank(
            whole(rank, "rank"), min(self.a, self.d), "the rank of the slices"
        )
        super().__init__(width, heads, self.b * self.c * rank)
        self.side = side
        if side == "queries":
            shape = (self.b, self.a, heads, self.c * rank)
            self.fan_in = self.c * rank
        else:
            shape = (self.c, self.d, heads, self.b * rank)
            self.fan_in = self.d
        self.factor = nn.Parameter(torch.randn(*shape) * self.fan_in**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, width) to (…, head · feature)."""
        if self.side == "queries":
            # P_L: entry α b + β of a token belongs to block β
            blocks = x.unflatten(-1, (self.a, self.b))
            return torch.einsum("...ab,bahi->...hbi", blocks, self.factor).flatten(-3)
        blocks = x.unflatten(-1, (self.c, self.d))
        factor = self.factor.unflatten(3, (self.b, self.rank))
        return torch.einsum("...cd,cdhbs->...hbcs", blocks, factor).flatten(-4)


@dataclass(frozen=True, kw_only=True)
class ScoringForm:
    """Scoring function of attention.

    Attributes:
        scale, constant: "sqrt" divides scores by the root of the number of features,
            "mup" multiplies with ``constant`` over it, "none" leaves them.
        norm: LayerNorm without parameters on queries and keys.
    """

    scale: Literal["sqrt", "mup", "none"] = "sqrt"
    constant: float = 8.0
    norm: bool = False

    def __post_init__(self) -> None:
        if self.scale not in ("sqrt", "mup", "none"):
            raise unknown_name("scale", self.scale, ("sqrt", "mup", "none"))

    def projections(
        self, width: int, heads: int, d_head: int
    ) -> tuple[nn.Module, nn.Module, int]:
        """Return layers for queries and keys, and the features of a head in them.

        They are dense, with the features of a standard head, unless a form has others.
        """
        query, key = (nn.Linear(width, heads * d_head, bias=False) for _ in range(2))
        return query, key, d_head

    def prepared(self, query: Tensor, key: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Return queries and keys as they enter the dot product.

        They are (…, token, feature), of tokens of a width.
        """
        query, key = self.normed(query, key)
        return query * self.factor(query.shape[-1]), key

    def normed(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Apply LayerNorm to each part, if the form has it.

        A part without features stays as it is.
        """
        return tuple(
            F.layer_norm(x, x.shape[-1:]) if self.norm and x.shape[-1] else x
            for x in parts
        )

    def factor(self, features: int) -> float:
        """Return the factor on scores of so many features."""
        factors = {"sqrt": features**-0.5, "mup": self.constant / features, "none": 1.0}
        return factors[self.scale]

    def reach(self, features: int, tokens: int, causal: bool) -> Reach:
        """Return the keys that a query scores."""
        return Reach((features,), (max(tokens, 1),), causal)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        """Compute the attention of prepared queries and keys."""
        return reaching_attention(
            query, key, value, self.reach(query.shape[-1], query.shape[-2], causal)
        )


@dataclass(frozen=True)
class Standard(ScoringForm):
    """Low-rank scores W_Q W_Kᵀ, over all keys or those of a window (S2-ATT, S2-SWA).

    Attributes:
        window: keys at most so many tokens away; None for all.
    """

    window: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.window is not None and self.window < 0:
            raise InputError(
                f"a window of {self.window} tokens; 0 lets a token see itself, None all"
            )

    def reach(self, features: int, tokens: int, causal: bool) -> Reach:
        return Reach((features,), (max(tokens, 1),), causal, self.window)


@dataclass(frozen=True)
class TokenLevels(ScoringForm):
    """MLR attention: nested blocks of tokens, scored level by level (S2-MLRA).

    Each level has features of its own.

    Attributes:
        ranks: r_l; level l has 2^(l-1) blocks of tokens. One level is standard
            attention.
        length: tokens that the blocks divide; a shorter sequence is its beginning. None
            for those of each sequence.
        level_scale: multiply level l with 1 / r_l, in place of ``scale``.
        by_depth: divide a score by the number of levels that it sums over.
    """

    ranks: tuple[int, ...] = (32, 32)
    length: int | None = None
    level_scale: bool = False
    by_depth: bool = False

    def projections(
        self, width: int, heads: int, d_head: int
    ) -> tuple[nn.Module, nn.Module, int]:
        return super().projections(width, heads, sum(check_ranks(self.ranks, width)))

    def prepared(self, query: Tensor, key: Tensor, width: int) -> tuple[Tensor, Tensor]:
        if not self.level_scale:
            return super().prepared(query, key, width)
        query, key = self.normed(query, key)
        shares = [1 / rank for rank in self.ranks for _ in range(rank)]
        return query * torch.tensor(shares, dtype=query.dtype, device=query.device), key

    def reach(self, features: int, tokens: int, causal: bool) -> Reach:
        blocks = token_blocks(tokens, len(self.ranks), self.length)
        return Reach(tuple(self.ranks), blocks, causal, by_depth=self.by_depth)


@dataclass(frozen=True)
class BilinearLevels(ScoringForm):
    """Scores xᵀ (Σ_l ⊕_k L_{l,k} R_{l,k}ᵀ) x', with blocks of features (S2-BMLR).

    Attributes:
        ranks: r_l; their sum is what the head size is in standard attention.
    """

    ranks: tuple[int, ...] = (4, 4)

    def projections(
        self, width: int, heads: int, d_head: int
    ) -> tuple[nn.Module, nn.Module, int]:
        query, key = (LevelFactor(width, heads, self.ranks) for _ in range(2))
        return query, key, query.features

    def prepared(self, query: Tensor, key: Tensor, width: int) -> tuple[Tensor, Tensor]:
        features = level_features(self.ranks)
        queries, keys = (
            self.normed(*part.split(features, -1)) for part in (query, key)
        )
        parts = [part * self.factor(max(part.shape[-1], 1)) for part in queries]
        return torch.cat(parts, -1), torch.cat(keys, -1)


@dataclass(frozen=True)
class BilinearTrain(ScoringForm):
    """Scores xᵀ (P_L ⊕L P_R ⊕Rᵀ) x', of full rank (S2-BBTT).

    Attributes:
        rank: s.
    """

    rank: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm:
            raise InputError(
                "the norm of a block tensor train acts on keys of full width, which are"
                " not formed; choose norm=False"
            )

    def projections(
        self, width: int, heads: int, d_head: int
    ) -> tuple[nn.Module, nn.Module, int]:
        query, key = (
            TrainFactor(width, heads, self.rank, side=side)
            for side in ("queries", "keys")
        )
        return query, key, query.features

    def prepared(self, query: Tensor, key: Tensor, width: int) -> tuple[Tensor, Tensor]:
        return query * self.factor(width), key


def token_blocks(
    tokens: int, levels: int, length: int | None = None
) -> tuple[int, ...]:
    """Return the tokens of a block of each level, halved from one to the next.

    They are those of a sequence padded at its end to ``length``.

    Raises:
        InputError: the sequence is longer than ``length``, or has fewer tokens than the
            finest level has blocks.

    Example:
        >>> structured.token_blocks(16, 3), structured.token_blocks(10, 3, length=14)
        ((16, 8, 4), (16, 8, 4))
    """
    whole(tokens, "the number of tokens")
    total = tokens if length is None else whole(length, "length")
    if tokens > total:
        raise InputError(
            f"{tokens} tokens are more than the {total} that the levels divide; make"
            f" length={tokens}"
        )
    count = level_blocks(levels)[-1]
    if total < count:
        raise InputError(
            f"{total} tokens are fewer than the {count} blocks of level {levels}; at"
            f" most {total.bit_length()} levels"
        )
    finest = -(-total // count)
    return tuple(finest * 2 ** (levels - 1 - level) for level in range(levels))


def mixed(layers: int, pattern: Sequence[ScoringForm]) -> tuple[ScoringForm, ...]:
    """Return a form for every layer, from a pattern that repeats (S2-GSWA).

    So global attention and windows can alternate.

    Example:
        >>> wide, near = structured.Standard(), structured.Standard(window=8)
        >>> [form.window for form in structured.mixed(5, [wide, near, near])]
        [None, 8, 8, None, 8]
    """
    if not pattern:
        raise InputError("an empty pattern of forms; give at least one")
    return tuple(
        pattern[layer % len(pattern)] for layer in range(whole(layers, "layers"))
    )


REGRESSORS: dict[str, Callable[..., ScoringForm]] = {
    "attention": Standard,
    "bilinear-btt": BilinearTrain,
    "bilinear-mlr": BilinearLevels,
    "mlr-attention": TokenLevels,
}
"""Scoring functions of regressors and forecasters by name."""


def form_of_name(name: str, arguments: Mapping[str, Any]) -> ScoringForm:
    """Make a scoring function by name.

    Lists among its arguments, as they come from files, become tuples.
    """
    if name not in REGRESSORS:
        raise unknown_name("model", name, REGRESSORS)
    options = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in arguments.items()
    }
    return REGRESSORS[name](**options)
