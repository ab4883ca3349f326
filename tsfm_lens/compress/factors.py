"""A matrix as the product of two, and the best two of a rank: for any input, or for inputs of a known second moment."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tsfm_lens.errors import InputError

__all__ = ["Factors", "error_of", "product", "truncate"]

# eigenvalues of a second moment below this share of the largest are rounding of the float32 that it was summed of
_NOTHING = 1e-12
# what is added to the second moment of gradients, in shares of its mean eigenvalue
_EVEN = 1e-3


class Factors(NamedTuple):
    """Two factors of a matrix (out, in), ``W = up @ down``, (rank, in) and (out, rank).

    With heads in the rows of W, each truncated by itself, ``up`` is (head, out / heads, rank) and ``down``
    (heads · rank, in); with heads in its columns, ``down`` is (head, rank, in / heads) and ``up`` (out, heads · rank).
    """

    down: Tensor
    up: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (out, in) of the product."""
        rows = self.up.shape[0] * (self.up.shape[1] if self.up.ndim == 3 else 1)
        columns = self.down.shape[-1] * (self.down.shape[0] if self.down.ndim == 3 else 1)
        return rows, columns

    @property
    def rank(self) -> int:
        """Rank of the matrix, or of each head."""
        return self.down.shape[1] if self.down.ndim == 3 else self.up.shape[-1]

    @property
    def numbers(self) -> int:
        """Number of entries of both."""
        return self.down.numel() + self.up.numel()


def product(factors: Factors) -> Tensor:
    """Multiply two factors to the matrix (out, in) that they stand for.

    Example:
        >>> factors = compress.Factors(torch.ones(1, 3), torch.ones(2, 1))
        >>> compress.product(factors).tolist()
        [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """
    down, up = factors
    if up.ndim == 3:
        return torch.bmm(up, down.reshape(len(up), -1, down.shape[-1])).reshape(-1, down.shape[-1])
    if down.ndim == 3:
        wide = torch.bmm(up.reshape(len(up), len(down), -1).transpose(0, 1), down)
        return wide.transpose(0, 1).reshape(len(up), -1)
    return up @ down


def truncate(
    weight: Tensor,
    rank: int,
    *,
    moment: Tensor | None = None,
    sensitivity: Tensor | None = None,
    heads: int = 1,
    of: str = "rows",
) -> Factors:
    """Compute the two factors of a rank whose product is nearest to a matrix.

    Without a moment nearest in the Frobenius norm (and the spectral one): truncated SVD. With the second moment
    C = E[x xᵀ] of what enters, the mean of ‖(W - W̃) x‖² over those inputs is the least that the rank allows. In closed
    form: with C = S Sᵀ and U the first ``rank`` left singular vectors of W S, W̃ = U Uᵀ W. In the null space of C, W̃ x
    is W x as far as U reaches.

    With the second moment G of the forecast's gradient at what leaves, the mean of dᵀ G d for d = (W - W̃) x is least:
    W̃ = R⁻¹ U Uᵀ R W, with G = R R and U of R W S. A share of G's mean is added to its diagonal, so that R has an
    inverse.

    Args:
        weight: (out, in).
        rank: of the whole, or of each head.
        moment: (in, in), symmetric, from zero on.
        sensitivity: (out, out), as well.
        heads: number of blocks that are truncated by themselves.
        of: whether they are "rows" or "columns" of the matrix, one after the other.

    Returns:
        Factors in the type of ``weight``, computed in double precision.

    Source:
        Eckart and Young 1936 for the matrix times S; Flow of ranks, section 5 (S0-TSVD), without a moment, and its
        equations 19 and 20 (S0-LR) for factors of the whole and of each head.

    Raises:
        InputError: the matrix or the moment is not finite or of another shape, or the rank is not from 1 to the full
            one.

    Example:
        >>> w = torch.diag(torch.tensor([3.0, 2.0, 1.0]))
        >>> compress.product(compress.truncate(w, 2)).diagonal().tolist()
        [3.0, 2.0, 0.0]
        >>> rarely = torch.diag(torch.tensor([1.0, 0.1, 1.0]))
        >>> compress.product(compress.truncate(w, 2, moment=rarely)).diagonal().tolist()
        [3.0, 0.0, 1.0]
    """
    if weight.ndim != 2 or not bool(torch.isfinite(weight).all()):
        raise InputError(f"a weight of shape {tuple(weight.shape)}, expected a finite matrix (out, in)")
    side = {"rows": 0, "columns": 1}.get(of)
    if side is None or heads < 1 or weight.shape[side] % heads:
        raise InputError(f"{heads} heads as {of!r} of a matrix {tuple(weight.shape)}; expected equal rows or columns")
    full = min(weight.shape[side] // heads, weight.shape[1 - side]) if heads > 1 else min(weight.shape)
    if not 1 <= rank <= full:
        raise InputError(f"rank {rank} of a matrix {tuple(weight.shape)} of {heads} blocks; expected 1 to {full}")
    exact = weight.detach().double()
    root = None if moment is None else _root(moment, exact.shape[1])
    outer = None if sensitivity is None else _check_moment(sensitivity, exact.shape[0])
    size = exact.shape[side] // heads
    downs, ups = [], []
    for head, block in enumerate(exact.chunk(heads, dim=side)):
        own = slice(head * size, (head + 1) * size)
        inner = root if side == 0 or root is None else root[own]
        down, up = _leading(block, inner, rank, outer if side == 1 or outer is None else outer[own, own])
        downs.append(down.to(weight.dtype))
        ups.append(up.to(weight.dtype))
    if heads == 1:
        return Factors(downs[0].contiguous(), ups[0].contiguous())
    return Factors(torch.cat(downs), torch.stack(ups)) if side == 0 else Factors(torch.stack(downs), torch.cat(ups, 1))


def _root(moment: Tensor, size: int) -> Tensor:
    """Compute S of C = S Sᵀ, (in, directions that inputs have)."""
    values, vectors = torch.linalg.eigh(_check_moment(moment, size))
    if not values[-1] > 0:
        raise InputError("a second moment of zero: nothing but zeros entered the matrix, so no rank is better than 1")
    some = values > _NOTHING * values[-1]
    return vectors[:, some] * values[some].sqrt()


def _check_moment(moment: Tensor, size: int) -> Tensor:
    if moment.shape != (size, size) or not bool(torch.isfinite(moment).all()):
        raise InputError(f"a second moment of shape {tuple(moment.shape)}, expected a finite ({size}, {size})")
    return moment.double()


def _leading(matrix: Tensor, root: Tensor | None, rank: int, outer: Tensor | None) -> Factors:
    """Project a matrix onto the directions in which its outputs, for such inputs, are largest."""
    if outer is not None:
        values, vectors = torch.linalg.eigh(outer)
        if not values[-1] > 0:
            # a query of a single key, say: whatever is lost, nothing of it is felt
            return _leading(matrix, root, rank, None)
        roots = (values.clamp(min=0.0) + _EVEN * values.clamp(min=0.0).mean()).sqrt()
        inside = _leading((vectors * roots) @ vectors.T @ matrix, root, rank, None)
        return Factors(inside.down, (vectors / roots) @ vectors.T @ inside.up)
    u, _, _ = torch.linalg.svd(matrix if root is None else matrix @ root, full_matrices=False)
    if u.shape[1] < rank:
        # inputs have fewer directions than there are ranks: what is left of the matrix comes after them
        rest, _, _ = torch.linalg.svd(matrix - u @ (u.T @ matrix), full_matrices=False)
        u = torch.cat([u, rest[:, : rank - u.shape[1]]], dim=1)
        u, _ = torch.linalg.qr(u)
    up = u[:, :rank]
    return Factors(up.T @ matrix, up)


def error_of(weight: Tensor, other: Tensor, moment: Tensor | None = None) -> float:
    """Compute the mean of ‖(W - W̃) x‖² over that of ‖W x‖², for inputs of a second moment (the identity if None).

    Args:
        weight, other: (out, in).
        moment: (in, in).

    Example:
        >>> w = torch.diag(torch.tensor([2.0, 1.0]))
        >>> compress.error_of(w, torch.diag(torch.tensor([2.0, 0.0])))
        0.2
    """
    exact, rest = weight.detach().double(), weight.detach().double() - other.detach().double()
    over, of = (w if moment is None else w @ moment.double() for w in (rest, exact))
    return float((over * rest).sum() / (of * exact).sum())
