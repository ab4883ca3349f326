"""Distance of structured matrices of a size to a matrix that is given by two factors, M = left · rightᵀ.

Factors have shapes (…, m, r) and (…, n, r), and M is never formed. Errors are ‖M − its approximation‖ / ‖M‖ in the
Frobenius norm, NaN for a matrix of zeros. A size is the rank ρ of the low-rank matrix that takes (m + n) ρ numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from tsfm_lens.errors import InputError

__all__ = ["structure_sizes"]

Level = tuple[np.ndarray, np.ndarray]
"""Factors of the blocks of one level: (…, block, rows, rank) and (…, block, columns, rank)."""


@dataclass(frozen=True)
class StructureSizes:
    """Sizes of each structure, b = c = ``cuts`` of a block tensor train, within the numbers of a low-rank matrix."""

    rank: int
    level_ranks: tuple[int, ...]
    blocks: int
    block_rank: int
    cuts: int
    slice_rank: int

    @property
    def ranks(self) -> tuple[int, int, int, int]:
        """Numbers over (m + n): low rank, block diagonal, multi-level, block tensor train."""
        return (
            self.rank,
            self.block_rank,
            sum(self.level_ranks),
            self.cuts * self.slice_rank,
        )

    @property
    def words(self) -> tuple[str, str, str, str]:
        """Ranks and blocks in words, in the same order."""
        return (
            f"rank {self.rank}",
            f"{self.blocks} blocks of rank {self.block_rank}",
            f"ranks {', '.join(map(str, self.level_ranks))}",
            f"{self.cuts} × {self.cuts} slices of rank {self.slice_rank}",
        )


def structure_sizes(
    rows: int, columns: int, rank: int, levels: int = 4
) -> StructureSizes:
    """Choose sizes of equal cost for a matrix (m, n) and a rank ρ, the nearest below where something does not divide.

    Of a multi-level matrix each level has half of the remaining rank and the last one the rest; levels whose blocks do
    not divide both sides are left out. Of a block tensor train b = c ≤ √gcd(m, n) leaves the least of ρ unused.

    Raises:
        InputError: a rank below 1 or above a side, or no level.

    Example:
        >>> rank_theory.structure_sizes(512, 512, 32).level_ranks
        (16, 8, 4, 4)
    """
    if not 1 <= rank <= min(rows, columns):
        raise InputError(
            f"rank {rank} of a matrix {rows} × {columns}, expected 1 to {min(rows, columns)}"
        )
    if levels < 1:
        raise InputError(f"levels is {levels}, expected 1 or more")
    common = gcd(rows, columns)
    counts = [2**level for level in range(levels) if common % 2**level == 0]
    shares: list[int] = []
    for place in range(len(counts)):
        rest = rank - sum(shares)
        shares.append(rest if place == len(counts) - 1 else -(-rest // 2))
    smallest = min(rows, columns)
    ranks = [
        min(share, smallest // count)
        for share, count in zip(shares, counts, strict=True)
    ]
    # the rank that exceeds a level's blocks goes to the whole matrix
    ranks[0] += rank - sum(ranks)
    cuts = [
        cut
        for cut in range(2, int(common**0.5) + 1)
        if common % cut == 0 and cut <= rank
    ] or [1]
    slice_ranks = {cut: min(rank // cut, smallest // cut) for cut in cuts}
    cut = max(cuts, key=lambda each: (each * slice_ranks[each], each))
    return StructureSizes(
        rank,
        tuple(ranks),
        counts[-1],
        min(rank, smallest // counts[-1]),
        cut,
        slice_ranks[cut],
    )


def low_rank_error(left: np.ndarray, right: np.ndarray, rank: int) -> np.ndarray:
    """Compute the error of the best matrix of a rank, (…): what truncation of its singular values leaves (S2-LR)."""
    values = _values(left, right)
    return _relative(_tail(values, rank), values)


def block_diagonal_error(
    left: np.ndarray, right: np.ndarray, blocks: int, rank: int
) -> np.ndarray:
    """Compute the error of the best block-diagonal matrix with blocks of a rank, (…): each truncated (S2-LRBD)."""
    rows, columns = _cut(left, blocks), _cut(right, blocks)
    outside = np.zeros(rows.shape[:-3])
    for first in range(blocks):
        others = np.delete(columns, first, axis=-3)
        # entry by entry, since a difference of norms could not tell a small remainder from rounding
        outside += np.square(
            rows[..., first, None, :, :] @ np.swapaxes(others, -1, -2)
        ).sum((-1, -2, -3))
    return _relative(
        outside + _tail(_values(rows, columns), rank).sum(-1), _values(left, right)
    )


def tensor_train_error(
    left: np.ndarray, right: np.ndarray, cuts: int, rank: int
) -> np.ndarray:
    """Compute the error of the best tensor train, b = c = ``cuts``, s = ``rank``, (…): slices truncated (S2-BTT)."""
    _refuse(left, right, cuts)
    rows = np.moveaxis(left.reshape(*left.shape[:-2], -1, cuts, left.shape[-1]), -2, -3)
    slices = _values(rows[..., :, None, :, :], _cut(right, cuts)[..., None, :, :, :])
    return _relative(_tail(slices, rank).sum((-1, -2)), _values(left, right))


def fit_levels(
    left: np.ndarray, right: np.ndarray, ranks: Sequence[int], sweeps: int
) -> tuple[list[Level | None], np.ndarray]:
    """Fit a multi-level matrix as Parshakova et al. 2023: factors by level, None at rank 0, and the error (S2-MLR)."""
    if sweeps < 1 or not any(ranks) or min(ranks) < 0:
        raise InputError(
            f"ranks {list(ranks)} in {sweeps} sweeps, expected a rank above 0 and at least one sweep"
        )
    factors: list[Level | None] = [None] * len(ranks)
    steps = [level for level, rank in enumerate(ranks) if rank]
    # ends with the whole matrix, whose remaining singular values are then the error
    for place, level in enumerate([*steps * sweeps, 0]):
        rows, columns = [_cut(left, 2**level)], [_cut(right, 2**level)]
        for other, factor in enumerate(factors):
            if factor is not None and other != level:
                rows.append(-_within(factor[0], 2**level))
                columns.append(_within(factor[1], 2**level))
        remaining = np.concatenate(rows, -1), np.concatenate(columns, -1)
        before = factors[level]
        if before is not None and place < len(steps) * sweeps:
            # least squares for the left factor given the right one, then for the right one
            one, two = remaining
            basis = np.linalg.qr(one @ (np.swapaxes(two, -1, -2) @ before[1]))[0]
            factors[level] = basis, two @ (np.swapaxes(one, -1, -2) @ basis)
            continue
        u, values, v = _decompose(*remaining)
        rank = ranks[level]
        if rank:
            factors[level] = (u[..., :rank] * values[..., None, :rank], v[..., :rank])
    return factors, _relative(_tail(values, ranks[0])[..., 0], _values(left, right))


def block_share(left: np.ndarray, right: np.ndarray, blocks: int) -> np.ndarray:
    """Compute the share of squared entries in the blocks on the diagonal, (…): 1 / blocks for entries anywhere."""
    inside, whole = (
        _norms(_cut(left, count), _cut(right, count)).sum(-1) for count in (blocks, 1)
    )
    return np.asarray(
        np.divide(inside, whole, out=np.full_like(whole, np.nan), where=whole > 0)
    )


def _cut(factor: np.ndarray, blocks: int) -> np.ndarray:
    """Reshape (…, m, r) to (…, block, m / blocks, r)."""
    _refuse(factor, factor, blocks)
    return factor.reshape(
        *factor.shape[:-2], blocks, factor.shape[-2] // blocks, factor.shape[-1]
    )


def _refuse(left: np.ndarray, right: np.ndarray, blocks: int) -> None:
    if blocks < 1 or left.shape[-2] % blocks or right.shape[-2] % blocks:
        raise InputError(
            f"{blocks} blocks do not divide {left.shape[-2]} rows and {right.shape[-2]} columns evenly"
        )


def _within(factor: np.ndarray, blocks: int) -> np.ndarray:
    """Return a level's factor (…, count, rows, rank) as factors of other blocks, (…, blocks, their rows, columns)."""
    count, rows, rank = factor.shape[-3:]
    lead, inner = factor.shape[:-3], max(count // blocks, 1)
    if inner == 1:
        return factor.reshape(*lead, blocks, count * rows // blocks, rank)
    out = np.zeros((*lead, blocks, inner, rows, inner, rank))
    parts = factor.reshape(*lead, blocks, inner, rows, rank)
    for place in range(inner):
        out[..., place, :, place, :] = parts[..., place, :, :]
    return out.reshape(*lead, blocks, inner * rows, inner * rank)


def _decompose(
    left: np.ndarray, right: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Compute U (…, m, j), singular values (…, j) and V (…, n, j) of left · rightᵀ."""
    (q, core), (p, other) = np.linalg.qr(left), np.linalg.qr(right)
    u, values, vt = np.linalg.svd(
        core @ np.swapaxes(other, -1, -2), full_matrices=False
    )
    return q @ u, values, p @ np.swapaxes(vt, -1, -2)


def _values(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Compute singular values of left · rightᵀ, (…, j)."""
    core, other = np.linalg.qr(left, mode="r"), np.linalg.qr(right, mode="r")
    return np.asarray(
        np.linalg.svd(core @ np.swapaxes(other, -1, -2), compute_uv=False)
    )


def _norms(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Compute squared Frobenius norms of left · rightᵀ, (…); rounding is relative to the factors."""
    grams = (np.swapaxes(left, -1, -2) @ left) * (np.swapaxes(right, -1, -2) @ right)
    return np.asarray(np.maximum(grams.sum((-1, -2)), 0.0))


def _tail(values: np.ndarray, rank: int) -> np.ndarray:
    """Sum the squares of the singular values beyond a rank, over the last axis."""
    return np.asarray(np.square(values[..., rank:]).sum(-1))


def _relative(residual: np.ndarray, values: np.ndarray) -> np.ndarray:
    whole = _tail(values, 0)
    return np.sqrt(
        np.divide(residual, whole, out=np.full_like(whole, np.nan), where=whole > 0)
    )
