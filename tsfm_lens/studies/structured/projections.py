"""Projections of tokens to the queries and keys of all heads, by structured matrices.

Each is a linear layer without a bias whose ``weight`` (head · feature, width) is computed on access: wirings,
hooks and ``lens.weights`` read it as they do that of a dense layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tsfm_lens.studies.structured.matrices import cut, factors_of
from tsfm_lens.studies.structured.sizes import level_blocks, refuse_rank, refuse_ranks, refuse_remainder, whole

__all__ = ["Copies", "LevelFactor", "LevelMap", "StructuredLayer", "TrainFactor", "TrainMap"]


class StructuredLayer(nn.Module):
    """Layer from tokens (…, width) to all heads' features (…, head · feature).

    Args:
        width: features of a token.
        heads: number of heads.
        features: of each head.
    """

    bias = None

    def __init__(self, width: int, heads: int, features: int) -> None:
        super().__init__()
        self.in_features, self.heads, self.features = width, heads, features
        self.out_features = heads * features

    def of_tokens(self, flat: Tensor) -> Tensor:
        """Map (token, width) to (token, head, feature)."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, width) to (…, head · feature)."""
        return self.of_tokens(x.reshape(-1, self.in_features)).reshape(*x.shape[:-1], self.out_features)

    @property
    def weight(self) -> Tensor:
        """Dense matrix, (head · feature, width)."""
        like = next(self.parameters(), torch.empty(0))
        return self.forward(torch.eye(self.in_features, dtype=like.dtype, device=like.device)).T

    @contextmanager
    def as_matrix(self, matrix: Tensor) -> Iterator[None]:
        """Compute with another matrix (head · feature, width) while the block runs."""
        self.__dict__["forward"] = lambda x: F.linear(x, matrix.to(x))
        try:
            yield
        finally:
            del self.__dict__["forward"]


class Copies(StructuredLayer):
    """Identity of every head: queries where the whole matrix acts on keys; without parameters.

    Args:
        width: features of a token.
        heads: number of heads.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads, width)

    def of_tokens(self, flat: Tensor) -> Tensor:
        """Map (token, width) to (token, head, width), a view."""
        return flat[:, None].expand(-1, self.heads, -1)


class LevelFactor(StructuredLayer):
    """X ⊕_k W_{l,k} of every level, side by side: one side of a multi-level matrix for each head.

    Args:
        width: features of a token; the finest level divides it.
        heads: number of heads.
        ranks: r_l; level l has 2^(l-1) blocks of features.

    Attributes:
        factors: by level (block, width / blocks, head, rank), drawn with variance p_l / width.

    Source:
        Structured attention, equations 12 and 13.
    """

    def __init__(self, width: int, heads: int, ranks: Sequence[int]) -> None:
        self.ranks, self.blocks = refuse_ranks(ranks, width), level_blocks(len(ranks))
        inside = [rank * count for rank, count in zip(self.ranks, self.blocks, strict=True)]
        super().__init__(width, heads, sum(inside))
        self.factors = nn.ParameterList()
        for rank, count in zip(self.ranks, self.blocks, strict=True):
            own = refuse_remainder(width, count, "a width")
            self.factors.append(nn.Parameter(torch.randn(count, own, heads, rank) * own**-0.5))

    def of_tokens(self, flat: Tensor) -> Tensor:
        """Map (token, width) to (token, head, Σ r_l p_l)."""
        levels = []
        for factor in self.factors:
            narrow = cut(flat, len(factor)) @ factor.flatten(2)
            levels.append(narrow.unflatten(2, factor.shape[2:]).permute(1, 2, 0, 3).flatten(2))
        return torch.cat(levels, -1)


class LevelMap(StructuredLayer):
    """Σ_l α_l ⊕_k L_{l,k} R_{l,k}ᵀ x for each head: keys of full width, for queries that are the tokens themselves.

    Args:
        width, heads, ranks: as in :class:`LevelFactor`.
        alphas: factors on the levels; all 1 if None.

    Attributes:
        left, right: the factors on the queries' and on the keys' side.
    """

    def __init__(self, width: int, heads: int, ranks: Sequence[int], alphas: Sequence[float] | None = None) -> None:
        super().__init__(width, heads, width)
        self.left, self.right = LevelFactor(width, heads, ranks), LevelFactor(width, heads, ranks)
        self.alphas = tuple(1.0 for _ in ranks) if alphas is None else tuple(alphas)

    def of_tokens(self, flat: Tensor) -> Tensor:
        """Map (token, width) to (token, head, width)."""
        total = flat.new_zeros(len(flat), self.heads, self.in_features)
        for alpha, left, right in zip(self.alphas, self.left.factors, self.right.factors, strict=True):
            blocks, heads = len(right), self.heads
            narrow = (cut(flat, blocks) @ right.flatten(2)).unflatten(2, right.shape[2:])
            # (block · head, token, rank) @ (block · head, rank, width / blocks)
            wide = narrow.transpose(1, 2).flatten(0, 1) @ left.permute(0, 2, 3, 1).flatten(0, 1)
            total = total + alpha * wide.unflatten(0, (blocks, heads)).permute(2, 1, 0, 3).flatten(2)
        return total


class TrainFactor(StructuredLayer):
    """One side of a block tensor train for each head, its features in the order (b, c, s) on both sides.

    Args:
        width: features of a token, a · b on the queries' side, c · d on the keys'.
        heads: number of heads.
        rank: s.
        out_factors, in_factors: (a, b) and (c, d); balanced if None.
        side: "queries" or "keys".

    Attributes:
        factor: (b, a, head, c s) of queries, drawn with variance 1 / (c s); (c, d, head, b s) of keys, 1 / d.

    Source:
        Structured attention, equations 15 and 16; the permutations P_3 and P_4 must order (s, b, c) alike.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        rank: int = 1,
        out_factors: tuple[int, int] | None = None,
        in_factors: tuple[int, int] | None = None,
        *,
        side: str,
    ) -> None:
        a, b = factors_of(width, out_factors, "out_factors")
        c, d = factors_of(width, in_factors, "in_factors")
        self.rank = refuse_rank(whole(rank, "rank"), min(a, d), "the rank of the slices")
        super().__init__(width, heads, b * c * rank)
        self.a, self.b, self.c, self.d, self.side = a, b, c, d, side
        queries = side == "queries"
        shape, fan_in = ((b, a, heads, c * rank), c * rank) if queries else ((c, d, heads, b * rank), d)
        self.factor = nn.Parameter(torch.randn(*shape) * fan_in**-0.5)

    def of_tokens(self, flat: Tensor) -> Tensor:
        """Map (token, width) to (token, head, b · c · s)."""
        if self.side == "queries":
            # P_L: entry α b + β of a token belongs to block β
            parts = flat.unflatten(1, (self.a, self.b)).permute(2, 0, 1)
            heads = (parts @ self.factor.flatten(2)).unflatten(2, (self.heads, self.c * self.rank))
            return heads.permute(1, 2, 0, 3).flatten(2)
        heads = (cut(flat, self.c) @ self.factor.flatten(2)).unflatten(2, (self.heads, self.b, self.rank))
        return heads.permute(1, 2, 3, 0, 4).flatten(2)


class TrainMap(StructuredLayer):
    """P_L ⊕W_Q P_R ⊕W_Kᵀ x for each head: keys of full width, for queries that are the tokens themselves.

    Args:
        width, heads, rank, out_factors, in_factors: as in :class:`TrainFactor`.

    Attributes:
        left, right: the factors on the queries' and on the keys' side.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        rank: int = 1,
        out_factors: tuple[int, int] | None = None,
        in_factors: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(width, heads, width)
        self.left = TrainFactor(width, heads, rank, out_factors, in_factors, side="queries")
        self.right = TrainFactor(width, heads, rank, out_factors, in_factors, side="keys")

    def of_tokens(self, flat: Tensor) -> Tensor:
        """Map (token, width) to (token, head, width)."""
        b, inner = self.left.b, self.left.c * self.left.rank
        narrow = self.right.of_tokens(flat).unflatten(2, (b, inner))
        # (b · head, token, c s) @ (b · head, c s, a)
        wide = narrow.permute(2, 1, 0, 3).flatten(0, 1) @ self.left.factor.permute(0, 2, 3, 1).flatten(0, 1)
        return wide.unflatten(0, (b, self.heads)).permute(2, 1, 3, 0).flatten(2)
