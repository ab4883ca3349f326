"""Structured matrices as linear maps, with their sizes and ranks.

:class:`MultiLevelLowRank` and :class:`BlockTensorTrain` are the two families; low-rank
and block-diagonal matrices are special cases. Each is checked against ``dense()``, its
definition. Attention that scores with them is in
:mod:`tsfm_lens.studies.structured.forms`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tsfm_lens.core.errors import InputError

__all__ = [
    "BlockTensorTrain",
    "MultiLevelLowRank",
    "StructuredMatrix",
    "left_permutation",
    "nearest_tensor_train",
    "right_permutation",
]


def level_blocks(levels: int) -> tuple[int, ...]:
    """Return the numbers of blocks of nested levels, 1, 2, 4, … (p_l = 2^(l-1)).

    Raises:
        InputError: there is no level.
    """
    if levels < 1:
        raise InputError(f"{levels} levels; a form with levels has at least 1")
    return tuple(2**level for level in range(levels))


def level_features(ranks: Sequence[int]) -> list[int]:
    """Return the features of each level of blocks of the width, r_l p_l."""
    blocks = level_blocks(len(ranks))
    return [rank * count for rank, count in zip(ranks, blocks, strict=True)]


def balance_factors(width: int) -> tuple[int, int]:
    """Return the two factors of a width that are nearest to its root.

    Raises:
        InputError: the width is a prime above 3.
    """
    whole(width, "width")
    low = next(
        factor for factor in range(int(width**0.5), 0, -1) if width % factor == 0
    )
    if low == 1 and width > 3:
        raise InputError(
            f"a width of {width} is a prime and has no two factors for a block tensor"
            " train"
        )
    return low, width // low


def whole(value: int, what: str) -> int:
    """Return a count; raise InputError unless it is at least 1."""
    if value < 1:
        raise InputError(f"{what} is {value!r}, expected a whole number of at least 1")
    return value


def check_divisible(size: int, blocks: int, what: str) -> int:
    """Return the length of equal blocks that fill ``size``.

    Raises:
        InputError: the blocks do not divide the size.
    """
    whole(blocks, "number of blocks")
    if size % blocks:
        raise InputError(
            f"{what} of {size} is not divided by {blocks} blocks; expected a divisor"
        )
    return size // blocks


def check_rank(rank: int, width: int, what: str) -> int:
    """Return a rank; raise InputError if it is negative or above the width."""
    if not 0 <= rank <= width:
        raise InputError(f"{what} is {rank}, expected 0 to the width of {width}")
    return rank


def check_ranks(ranks: Sequence[int], width: int) -> tuple[int, ...]:
    """Return the ranks of levels; raise InputError unless they are valid.

    There is at least one level, none is negative or above the width, and not all are 0.
    """
    valid = tuple(
        check_rank(rank, width, f"the rank of level {level}")
        for level, rank in enumerate(ranks, 1)
    )
    if not any(valid):
        raise InputError(
            f"ranks {list(ranks)} leave nothing; give at least one level a rank of 1 or"
            " more"
        )
    return valid


class StructuredMatrix(nn.Module, ABC):
    """Matrix (out, in) of fewer parameters than entries."""

    def __init__(self, out_features: int, in_features: int) -> None:
        super().__init__()
        self.out_features = whole(out_features, "out_features")
        self.in_features = whole(in_features, "in_features")

    @abstractmethod
    def dense(self) -> Tensor:
        """Compute the matrix, (out, in), from its definition."""

    @property
    def n_parameters(self) -> int:
        """Number of parameters.

        A product with one vector takes as many multiply-adds.
        """
        return sum(part.numel() for part in self.parameters())

    @property
    @abstractmethod
    def generic_rank(self) -> int:
        """Rank for almost all values of the parameters."""


class MultiLevelLowRank(StructuredMatrix):
    """Sum over levels of low-rank blocks on the diagonal (S2-MLR).

    It is Σ_l ⊕_k L_{l,k} R_{l,k}ᵀ, a finer level over each coarser one, of (out + in)
    Σ r_l parameters. One level of one block is a low-rank matrix (S2-LR), as the scores
    W_Q W_Kᵀ of a head are; one level of p blocks is low-rank block-diagonal (S2-LRBD),
    and diagonal with rank 1 and p = width.

    Attributes:
        ranks, blocks: rank of each block, by level, 0 leaving it out; blocks of each
            level, 1, 2, 4, … by default.
        left, right: by level (block, out / blocks, rank) and (block, in / blocks,
            rank).

    Raises:
        InputError: sizes do not divide, a rank exceeds the width, or there is none.
    """

    def __init__(
        self,
        out_features: int,
        in_features: int,
        ranks: Sequence[int],
        blocks: Sequence[int] | None = None,
    ) -> None:
        super().__init__(out_features, in_features)
        self.ranks = check_ranks(ranks, min(out_features, in_features))
        self.blocks = level_blocks(len(self.ranks)) if blocks is None else tuple(blocks)
        if len(self.blocks) != len(self.ranks):
            raise InputError(
                f"{len(self.ranks)} ranks for {len(self.blocks)} levels; give one rank"
                " for each level"
            )
        self.left = nn.ParameterList()
        self.right = nn.ParameterList()
        for rank, count in zip(self.ranks, self.blocks, strict=True):
            rows = check_divisible(out_features, count, "a height")
            columns = check_divisible(in_features, count, "a width")
            self.left.append(_draw(count, rows, rank, fan_in=max(rank, 1)))
            self.right.append(_draw(count, columns, rank, fan_in=columns))

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, in) to (…, out)."""
        flat = x.reshape(-1, self.in_features)
        levels = []
        for left, right in zip(self.left, self.right, strict=True):
            # (block, vector, in / blocks)
            blocks = flat.unflatten(1, (len(right), -1)).transpose(0, 1)
            wide = blocks @ right @ left.mT
            levels.append(wide.transpose(0, 1).flatten(1))
        return torch.stack(levels).sum(0).reshape(*x.shape[:-1], self.out_features)

    def dense(self) -> Tensor:
        levels = [
            torch.block_diag(*(left @ right.mT))
            for left, right in zip(self.left, self.right, strict=True)
        ]
        return torch.stack(levels).sum(0)

    @property
    def generic_rank(self) -> int:
        """Rank for almost all values of the parameters; levels must be nested.

        It is computed from the finest level up: R_l = min(block, r_l + blocks inside ·
        R_{l+1}).
        """
        below = 0
        finer = self.blocks[-1]
        for rank, count in zip(
            reversed(self.ranks), reversed(self.blocks), strict=True
        ):
            if finer % count:
                raise InputError(
                    f"blocks {list(self.blocks)} are not nested: {count} does not"
                    f" divide {finer}"
                )
            block = min(self.out_features, self.in_features) // count
            below = min(block, rank + finer // count * below)
            finer = count
        return finer * below


class BlockTensorTrain(StructuredMatrix):
    """Block tensor train, P_L (⊕_{k'≤b} L_k') P_R (⊕_{k≤c} R_kᵀ) (S2-BTT).

    It has s (c · out + b · in) parameters, and full rank from s = 1 on, which is
    Monarch. Entry (αb + β, γd + δ) is Σ_{t<s}
    L_β[α, γs + t] R_γ[δ, βs + t]: slices of fixed (β, γ), (a, d), have rank s.

    Attributes:
        rank: s.
        a, b, c, d: factors of the sizes, a b of out and c d of in, each pair as equal
            as can be.
        left, right: (b, a, c · s) and (c, d, b · s).

    Raises:
        InputError: a size is a prime, or s exceeds min(a, d), from which on any matrix
            is reached.
    """

    def __init__(self, out_features: int, in_features: int, rank: int = 1) -> None:
        super().__init__(out_features, in_features)
        self.a, self.b = balance_factors(out_features)
        self.c, self.d = balance_factors(in_features)
        self.rank = check_rank(
            whole(rank, "rank"), min(self.a, self.d), "the rank of the slices"
        )
        self.left = _draw(self.b, self.a, self.c * rank, fan_in=self.c * rank)
        self.right = _draw(self.c, self.d, self.b * rank, fan_in=self.d)

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, in) to (…, out)."""
        blocks = x.unflatten(-1, (self.c, self.d))
        right = self.right.unflatten(2, (self.b, self.rank))
        inner = torch.einsum("...cd,cdbs->...bcs", blocks, right).flatten(-2)
        return torch.einsum("...bi,bai->...ab", inner, self.left).flatten(-2)

    def dense(self) -> Tensor:
        inner = right_permutation(self.b, self.c, self.rank)
        narrow = torch.block_diag(*self.right.mT)[inner]
        return (torch.block_diag(*self.left) @ narrow)[left_permutation(self.a, self.b)]

    @property
    def generic_rank(self) -> int:
        """Full rank, up to the inner width c · b · s."""
        return min(self.out_features, self.in_features, self.c * self.b * self.rank)


def nearest_tensor_train(matrix: Tensor, rank: int) -> BlockTensorTrain:
    """Compute the block tensor train nearest to a matrix (out, in).

    It is nearest in the Frobenius norm, with slices (a, d) of rank s.

    Raises:
        InputError: as in :class:`BlockTensorTrain`.

    Example:
        >>> train = structured.nearest_tensor_train(torch.ones(4, 4), 1)
        >>> train.dense().sum().round().item()
        16.0
    """
    rows, columns = matrix.shape
    out = BlockTensorTrain(rows, columns, rank).to(matrix)
    slices = matrix.detach().reshape(out.a, out.b, out.c, out.d).permute(1, 2, 0, 3)
    u, sigma, v = torch.linalg.svd(slices, full_matrices=False)
    share = sigma[..., :rank].sqrt()
    left = u[..., :rank] * share[..., None, :]
    right = v[..., :rank, :].mT * share[..., None, :]
    out.left.data = left.permute(0, 2, 1, 3).flatten(2)
    out.right.data = right.permute(1, 2, 0, 3).flatten(2)
    return out


def left_permutation(a: int, b: int) -> Tensor:
    """Return P_L as an index, (a b,).

    A vector is read as (b, a), transposed to (a, b), and flattened.

    Example:
        >>> structured.left_permutation(2, 3).tolist()
        [0, 2, 4, 1, 3, 5]
    """
    return torch.arange(a * b).reshape(b, a).T.flatten()


def right_permutation(b: int, c: int, s: int) -> Tensor:
    """Return P_R as an index, (c b s,).

    A vector is read as (c, b, s), its first axes are swapped, and it is flattened.

    Example:
        >>> structured.right_permutation(2, 3, 1).tolist()
        [0, 2, 4, 1, 3, 5]
    """
    return torch.arange(c * b * s).reshape(c, b, s).transpose(0, 1).flatten()


def _draw(blocks: int, rows: int, columns: int, fan_in: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(blocks, rows, columns) * fan_in**-0.5)
