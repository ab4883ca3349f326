"""Theorem 6 and appendix J.2: sketches of few directions, one for all heads or one for each, and their errors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import orth

from tsfm_lens.errors import InputError
from tsfm_lens.ranks import positive_and_falling
from tsfm_lens.studies.rank_theory.attention import AttentionWeights, attention

__all__ = ["HeadSketch", "effective_index", "head_sketch", "sketching_distance", "sparse_sketch"]


def sketching_distance(matrix: np.ndarray, sketch: np.ndarray) -> float:
    """Compute the part of a matrix's rows outside the rows of its sketch, ‖QQᵀXᵀ − Xᵀ‖₂ with Q = orth(XᵀW₂ᵀ).

    Between σ_{m+1}(X), which no sketch of m rows goes below, and σ_1(X); 0 for a sketch of full rank.

    Args:
        matrix: X, (d, L).
        sketch: W₂, (rows, d); of several heads, one below another.

    Source:
        Flow of ranks, equation 30 (S0-SKETCH), which writes W_R for W₂.

    Raises:
        InputError: the shapes do not fit, or an entry is no number.

    Example:
        >>> round(rank_theory.sketching_distance(np.diag([3.0, 2.0, 1.0]), np.eye(3)[:1]), 9)
        2.0
    """
    x, w = np.asarray(matrix, dtype=np.float64), np.asarray(sketch, dtype=np.float64)
    if x.ndim != 2 or w.ndim != 2 or w.shape[1] != x.shape[0]:
        raise InputError(f"a sketch of shape {w.shape} does not fit a matrix of shape {x.shape}, expected (rows, d)")
    if not (np.isfinite(x).all() and np.isfinite(w).all()):
        raise InputError("the matrix or its sketch holds an entry that is no number")
    basis = orth((w @ x).T)
    residual = x - (x @ basis) @ basis.T
    # the Gram matrix of the residual is small and as exact as this number needs
    gram = residual @ residual.T if len(residual) <= residual.shape[1] else residual.T @ residual
    return float(np.sqrt(max(np.linalg.eigvalsh(gram)[-1], 0.0)))


def effective_index(singular_values: np.ndarray, distance: float) -> int:
    """Count the singular values of at least a sketching distance: as good as that many directions chosen best.

    Args:
        singular_values: in any order.
        distance: see :func:`sketching_distance`.

    Source:
        Flow of ranks, figure 16, which counts one less.

    Example:
        >>> rank_theory.effective_index(np.array([3.0, 2.0, 1.0]), 1.5)
        2
    """
    return int((np.asarray(singular_values) >= distance).sum())


def sparse_sketch(width: int, rank: int, heads: int, *, seed: int = 0) -> np.ndarray:
    """Draw W₂ of several heads: rank · heads rows with width / heads Gaussian entries at random places, else zeros.

    However many heads, it has rank · width entries that are not zero.

    Args:
        width: d.
        rank: rows of each head.
        heads: a divisor of the width.
        seed: of the draw.

    Source:
        Flow of ranks, appendix J.2, which says so of the matrix and means each row.

    Raises:
        InputError: the heads do not divide the width, or there is no row.

    Example:
        >>> (rank_theory.sparse_sketch(8, 1, 4) != 0).sum(axis=1).tolist()
        [2, 2, 2, 2]
    """
    if rank < 1 or heads < 1 or width % heads:
        raise InputError(f"{heads} heads of rank {rank} do not divide a width of {width}")
    rng = np.random.default_rng(seed)
    rows, entries = rank * heads, width // heads
    places = rng.permuted(np.tile(np.arange(width), (rows, 1)), axis=1)[:, :entries]
    sketch = np.zeros((rows, width))
    np.put_along_axis(sketch, places, rng.normal(size=places.shape), axis=1)
    return sketch


@dataclass(frozen=True, eq=False)
class HeadSketch:
    """Input and layer that a sketch of its own for each head approximates, and no one sketch for all does.

    Attributes:
        tokens: U, (d, L).
        weights: of the layer.
        reduced: the layer whose heads have factors of inner size d̃ + 1 for query and key and d̃ for value.
        right: the right factors of query, key and value, (head, d̃ + 1 or d̃, d): the sketches.
        singular_values: of the input, (d,).
        rank: d̃.
    """

    tokens: np.ndarray
    weights: AttentionWeights
    reduced: AttentionWeights
    right: tuple[np.ndarray, np.ndarray, np.ndarray]
    singular_values: np.ndarray
    rank: int

    @property
    def shared_error(self) -> float:
        """Least error, in the spectral norm, with a value matrix of rank d̃ for all heads."""
        output = attention(self.tokens, self.weights)
        return float(np.linalg.svd(output, compute_uv=False)[self.rank])

    @property
    def shared_floor(self) -> float:
        """Lower bound of the shared error: σ_{d̃+1}/2."""
        return float(self.singular_values[self.rank] / 2)

    @property
    def own_error(self) -> float:
        """Error, in the spectral norm, of the layer with a sketch for each head."""
        return float(np.linalg.norm(attention(self.tokens, self.weights) - attention(self.tokens, self.reduced), 2))

    @property
    def own_bound(self) -> float:
        """Upper bound of the own error: 4√h σ_{hd̃+1}."""
        heads = self.weights.heads
        return float(4 * np.sqrt(heads) * self.singular_values[heads * self.rank])


def head_sketch(
    singular_values: np.ndarray, heads: int, rank: int, n_tokens: int, *, stability: float = 1.0, seed: int = 0
) -> HeadSketch:
    """Make the construction by which a sketch for each head does better than one for all.

    Args:
        singular_values: of the input, (d,), from the largest, at most 1, on; d a multiple of ``heads``.
        heads: h, 2 or more.
        rank: d̃, below d / h.
        n_tokens: L, at least d.
        stability: C, how much larger than W_V the one for all heads may be.
        seed: of the directions v.

    Source:
        Flow of ranks, theorem 6 (S0-TH6). Reciprocals in the last rows of the right factors are of the diagonal of U,
        where singular values stand interleaved.

    Raises:
        InputError: the sizes do not fit, or as in :func:`incompressible`.

    Example:
        >>> made = rank_theory.head_sketch(np.exp(-np.arange(18) / 3), heads=3, rank=2, n_tokens=20)
        >>> made.shared_error >= made.shared_floor, made.own_error <= made.own_bound
        (True, True)
    """
    values = positive_and_falling(singular_values, n_tokens)
    width = len(values)
    if heads < 2 or width % heads or not 1 <= rank < width // heads:
        raise InputError(
            f"{heads} heads of rank {rank}: expected 2 heads or more that divide {width}, each of more rows"
        )
    size = width // heads
    # head i has every h-th singular value, from the i-th on
    diagonal = values.reshape(size, heads).T.ravel()
    tokens = np.hstack([np.diag(diagonal), np.zeros((width, n_tokens - width))])
    # more directions than dimensions cannot be orthogonal, but none need be parallel
    directions = np.random.default_rng(seed).normal(size=(size, width))
    directions /= np.linalg.norm(directions, axis=0)
    cosines = directions.T @ directions - 2 * np.eye(width)
    gap = 1 - max(float(cosines.max()), 0.0)
    own = diagonal.reshape(heads, size)[:, rank]
    epsilon = min(values[rank] / 2 / (1 + stability), float((own / 4).min()) / values[0], 1.0)
    alpha = np.sqrt(size) * np.log(np.sqrt(2) * n_tokens**2 / epsilon) / gap
    both = np.tile(np.sqrt(alpha) * directions / diagonal, (heads, 1, 1))
    weights = AttentionWeights(both, both, np.eye(width).reshape(heads, size, width))
    right = tuple(
        np.stack(parts) for parts in zip(*(_right(diagonal, heads, rank, i) for i in range(heads)), strict=True)
    )
    left = np.sqrt(alpha) * np.stack([_left(directions, diagonal, heads, rank, i) for i in range(heads)])
    top = np.vstack([np.eye(rank), np.zeros((size - rank, rank))])
    reduced = AttentionWeights(left @ right[0], left @ right[1], top @ right[2])
    return HeadSketch(tokens, weights, reduced, (right[0], right[1], right[2]), values, rank)


def _left(directions: np.ndarray, diagonal: np.ndarray, heads: int, rank: int, head: int) -> np.ndarray:
    """Return the left factor of query and key, (d_h, d̃ + 1): the head's leading directions, the next head's first."""
    size = len(diagonal) // heads
    own = slice(head * size, head * size + rank)
    following = directions[:, (head + 1) % heads * size]
    return np.column_stack([directions[:, own] / diagonal[own], following])


def _right(diagonal: np.ndarray, heads: int, rank: int, head: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the right factors of query, key and value."""
    width = len(diagonal)
    own = head * (width // heads) + np.arange(rank)
    value = np.zeros((rank, width))
    value[range(rank), own] = 1
    query_row, key_row = np.zeros(width), 1 / diagonal
    outside = rank if head == 0 else 0
    query_row[outside] = 1 / diagonal[outside]
    key_row[own] = 0
    return np.vstack([value, query_row]), np.vstack([value, key_row]), value
