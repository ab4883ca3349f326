"""Containments among families of structured matrices, as constructions: the same matrix in the larger family."""

from __future__ import annotations

import torch
from torch import Tensor

from tsfm_lens.errors import InputError
from tsfm_lens.studies.structured.contraction import MultiLevelBlockTensorContraction
from tsfm_lens.studies.structured.matrices import (
    BlockTensorTrain,
    LowRankBlockDiagonal,
    MultiLevelLowRank,
    StructuredMatrix,
    left_permutation,
    right_permutation,
)
from tsfm_lens.studies.structured.sizes import level_blocks

__all__ = ["as_contraction", "as_levels", "kronecker", "nearest_tensor_train"]


def as_levels(matrix: LowRankBlockDiagonal) -> MultiLevelLowRank:
    """Write a low-rank (block-diagonal) matrix as the level of its blocks among levels 1, 2, 4, …, others of rank 0.

    Args:
        matrix: with a power of two blocks; low rank has one.

    Raises:
        InputError: the number of blocks is no power of two; names the nearest.

    Example:
        >>> structured.as_levels(structured.LowRankBlockDiagonal(8, 8, rank=1, blocks=4)).ranks
        (0, 0, 1)
    """
    count = matrix.blocks[0]
    levels = count.bit_length()
    if level_blocks(levels)[-1] != count:
        raise InputError(
            f"{count} blocks are no level of 1, 2, 4, …; the nearest is {2 ** (levels - 1)}. Or name the levels: "
            "MultiLevelLowRank(…, blocks=…)"
        )
    out = MultiLevelLowRank(matrix.out_features, matrix.in_features, (*[0] * (levels - 1), matrix.ranks[0]))
    _copy_values(out.left[-1], matrix.left[0])
    _copy_values(out.right[-1], matrix.right[0])
    return out.to(matrix.left[0])


def as_contraction(matrix: StructuredMatrix) -> MultiLevelBlockTensorContraction:
    """Write a multi-level (low-rank, block-diagonal) matrix or a block tensor train as a contraction.

    Source:
        Structured attention, appendix C: MLR has α = 1 and no permutations; BTT is one level with p' = b, p = c,
        r' = c s, r = b s.

    Raises:
        InputError: the matrix is of no such family.

    Example:
        >>> structured.as_contraction(structured.BlockTensorTrain(16, 16)).n_parameters
        128
    """
    if isinstance(matrix, BlockTensorTrain):
        outer, inner = left_permutation(matrix.a, matrix.b), right_permutation(matrix.b, matrix.c, matrix.rank)
        return MultiLevelBlockTensorContraction([matrix.left], [matrix.right], None, [outer], [inner])
    if isinstance(matrix, MultiLevelLowRank):
        return MultiLevelBlockTensorContraction(list(matrix.left), list(matrix.right))
    if isinstance(matrix, MultiLevelBlockTensorContraction):
        return matrix
    raise InputError(f"{type(matrix).__name__} is of no known family; expected a multi-level matrix or a tensor train")


def nearest_tensor_train(
    matrix: Tensor,
    rank: int,
    out_factors: tuple[int, int] | None = None,
    in_factors: tuple[int, int] | None = None,
) -> BlockTensorTrain:
    """Compute the block tensor train nearest to a matrix in the Frobenius norm: slices (a, d) cut off at rank s.

    It is the matrix itself if and only if no slice has a higher rank: always with s = min(a, d), for a matrix of rank
    r with s = r, for a Monarch matrix or a Kronecker product with s = 1.

    Args:
        matrix: (out, in).
        rank, out_factors, in_factors: see :class:`BlockTensorTrain`.

    Raises:
        InputError: the matrix has another number of axes, or as in :class:`BlockTensorTrain`.

    Example:
        >>> structured.nearest_tensor_train(torch.ones(4, 4), 1).dense().sum().round().item()
        16.0
    """
    if matrix.ndim != 2:
        raise InputError(f"the matrix has shape {tuple(matrix.shape)}, expected (out, in)")
    out = BlockTensorTrain(len(matrix), matrix.shape[1], rank, out_factors, in_factors).to(matrix)
    slices = matrix.detach().reshape(out.a, out.b, out.c, out.d).permute(1, 2, 0, 3)
    u, sigma, v = torch.linalg.svd(slices, full_matrices=False)
    share = sigma[..., :rank].sqrt()
    left, right = u[..., :rank] * share[..., None, :], v[..., :rank, :].mT * share[..., None, :]
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
