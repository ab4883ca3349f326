"""Multi-level block tensor contractions, the family that contains all the others, and containments among them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tsfm_lens.errors import InputError
from tsfm_lens.studies.structured.matrices import (
    BlockTensorTrain,
    MultiLevelLowRank,
    StructuredMatrix,
    cut,
    joined,
    left_permutation,
    right_permutation,
)

__all__ = [
    "MultiLevelBlockTensorContraction",
    "as_contraction",
    "kronecker",
    "nearest_tensor_train",
]


class MultiLevelBlockTensorContraction(StructuredMatrix):
    """Σ_l α_l P_L,l (⊕_{k'} L_{l,k'}) P_R,l (⊕_k R_{l,k}ᵀ): the family that contains all the others (S2-MLBTC).

    Args:
        left, right: by level (p', out / p', r') and (p, in / p, r), with p r = p' r'.
        alphas: by level; all 1 if None.
        left_permutations, right_permutations: by level (out,) and (p r,); none if None.

    Raises:
        InputError: shapes do not fit, or an index is no permutation.
    """

    alphas: Tensor

    def __init__(
        self,
        left: Sequence[Tensor],
        right: Sequence[Tensor],
        alphas: Sequence[float] | None = None,
        left_permutations: Sequence[Tensor] | None = None,
        right_permutations: Sequence[Tensor] | None = None,
    ) -> None:
        if not left or len(left) != len(right):
            raise InputError(
                f"{len(left)} left and {len(right)} right factors; give one of each for every level"
            )
        super().__init__(
            left[0].shape[0] * left[0].shape[1], right[0].shape[0] * right[0].shape[1]
        )
        self.left = nn.ParameterList(
            nn.Parameter(part.detach().clone()) for part in left
        )
        self.right = nn.ParameterList(
            nn.Parameter(part.detach().clone()) for part in right
        )
        for level, (outer, inner) in enumerate(zip(left, right, strict=True)):
            sizes = (outer.shape[0] * outer.shape[1], inner.shape[0] * inner.shape[1])
            if sizes != (self.out_features, self.in_features):
                raise InputError(
                    f"level {level + 1} is {sizes}, expected {(self.out_features, self.in_features)}"
                )
            if outer.shape[0] * outer.shape[2] != inner.shape[0] * inner.shape[2]:
                raise InputError(
                    f"level {level + 1} has p' r' = {outer.shape[0]} · {outer.shape[2]} and p r = {inner.shape[0]} · "
                    f"{inner.shape[2]}; both must be one number"
                )
        self.register_buffer(
            "alphas",
            torch.as_tensor([1.0] * len(left) if alphas is None else alphas).to(
                left[0]
            ),
        )
        inner_sizes = [part.shape[0] * part.shape[2] for part in right]
        self.outer_order = _permutations(
            left_permutations, [self.out_features] * len(left)
        )
        self.inner_order = _permutations(right_permutations, inner_sizes)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, self.in_features)
        total = flat.new_zeros(len(flat), self.out_features)
        levels = zip(
            self.alphas,
            self.left,
            self.right,
            self.outer_order,
            self.inner_order,
            strict=True,
        )
        for alpha, left, right, outer, inner in levels:
            narrow = joined(cut(flat, len(right)) @ right)[:, inner]
            total = (
                total
                + alpha
                * joined(torch.bmm(cut(narrow, len(left)), left.transpose(1, 2)))[
                    :, outer
                ]
            )
        return total.reshape(*x.shape[:-1], self.out_features)

    def dense(self) -> Tensor:
        total = self.left[0].new_zeros(self.out_features, self.in_features)
        levels = zip(
            self.alphas,
            self.left,
            self.right,
            self.outer_order,
            self.inner_order,
            strict=True,
        )
        for alpha, left, right, outer, inner in levels:
            p_left, p_right = (
                torch.eye(len(order)).to(total)[order] for order in (outer, inner)
            )
            narrow = torch.block_diag(*right.transpose(1, 2))
            total = total + alpha * p_left @ torch.block_diag(*left) @ p_right @ narrow
        return total

    @property
    def n_parameters(self) -> int:
        """Σ_l (out r'_l + in r_l); the fixed α and permutations do not count."""
        levels = zip(self.left, self.right, strict=True)
        return sum(
            self.out_features * x.shape[2] + self.in_features * y.shape[2]
            for x, y in levels
        )

    @property
    def generic_rank(self) -> int:
        """min(out, in, Σ p_l r_l), bounded by the inner widths alone."""
        inner = sum(part.shape[0] * part.shape[2] for part in self.right)
        return min(self.out_features, self.in_features, inner)


def _permutations(
    orders: Sequence[Tensor] | None, sizes: Sequence[int]
) -> list[Tensor]:
    if orders is None:
        return [torch.arange(size) for size in sizes]
    if len(orders) != len(sizes):
        raise InputError(
            f"{len(orders)} permutations for {len(sizes)} levels; give one for every level"
        )
    for order, size in zip(orders, sizes, strict=True):
        if not torch.equal(torch.sort(order).values, torch.arange(size)):
            raise InputError(f"{order.tolist()} is no permutation of 0 … {size - 1}")
    return [order.clone() for order in orders]


def as_contraction(matrix: StructuredMatrix) -> MultiLevelBlockTensorContraction:
    """Write a multi-level (low-rank, block-diagonal) matrix or a block tensor train as a contraction (S2-MLBTC).

    Raises:
        InputError: the matrix is of no such family.

    Example:
        >>> structured.as_contraction(structured.BlockTensorTrain(16, 16)).n_parameters
        128
    """
    if isinstance(matrix, BlockTensorTrain):
        outer, inner = (
            left_permutation(matrix.a, matrix.b),
            right_permutation(matrix.b, matrix.c, matrix.rank),
        )
        return MultiLevelBlockTensorContraction(
            [matrix.left], [matrix.right], None, [outer], [inner]
        )
    if isinstance(matrix, MultiLevelLowRank):
        return MultiLevelBlockTensorContraction(list(matrix.left), list(matrix.right))
    if isinstance(matrix, MultiLevelBlockTensorContraction):
        return matrix
    raise InputError(
        f"{type(matrix).__name__} is of no known family; expected a multi-level matrix or a tensor train"
    )


def nearest_tensor_train(
    matrix: Tensor,
    rank: int,
    out_factors: tuple[int, int] | None = None,
    in_factors: tuple[int, int] | None = None,
) -> BlockTensorTrain:
    """Compute the block tensor train nearest to a matrix (out, in) in the Frobenius norm: slices (a, d) of rank s.

    Raises:
        InputError: the matrix has another number of axes, or as in :class:`BlockTensorTrain`.

    Example:
        >>> structured.nearest_tensor_train(torch.ones(4, 4), 1).dense().sum().round().item()
        16.0
    """
    if matrix.ndim != 2:
        raise InputError(
            f"the matrix has shape {tuple(matrix.shape)}, expected (out, in)"
        )
    out = BlockTensorTrain(
        len(matrix), matrix.shape[1], rank, out_factors, in_factors
    ).to(matrix)
    slices = matrix.detach().reshape(out.a, out.b, out.c, out.d).permute(1, 2, 0, 3)
    u, sigma, v = torch.linalg.svd(slices, full_matrices=False)
    share = sigma[..., :rank].sqrt()
    left, right = (
        u[..., :rank] * share[..., None, :],
        v[..., :rank, :].mT * share[..., None, :],
    )
    _copy_values(out.left, left.permute(0, 2, 1, 3).flatten(2))
    _copy_values(out.right, right.permute(1, 2, 0, 3).flatten(2))
    return out


def kronecker(first: Tensor, second: Tensor) -> BlockTensorTrain:
    """Return A ⊗ B of A (a, c) and B (b, d), a block tensor train of s = 1.

    Example:
        >>> structured.kronecker(torch.eye(2), torch.eye(3)).dense().equal(torch.eye(6))
        True
    """
    (a, c), (b, d) = first.shape, second.shape
    out = BlockTensorTrain(a * b, c * d, 1, (a, b), (c, d)).to(first)
    _copy_values(out.left, first.expand(b, a, c))
    _copy_values(out.right, second.T.expand(c, d, b))
    return out


def _copy_values(parameter: Tensor, values: Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(values)
