"""Constructions of theorems 4 and 6, and the bound of corollary 1.

:func:`growing` makes layers that raise rank fastest, with :func:`flow_floor` as their
bound; :func:`head_sketch` shows that a sketch for each head beats one for all. Read
these two first. Attention itself is in
:mod:`tsfm_lens.studies.rank_theory.compression`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import orth

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.ranks import positive_and_falling
from tsfm_lens.studies.rank_theory.compression import AttentionWeights

__all__ = [
    "corollary_index",
    "flow_floor",
    "growing",
    "head_sketch",
    "one_layer_bound",
    "sketching_distance",
    "sparse_sketch",
]

_E2 = float(np.exp(2.0))


def one_layer_bound(singular_values: np.ndarray, heads: int) -> np.ndarray:
    """Bound σ_k(U + attention(U)) of singular values (d,), at most 1, (d,) (S0-C1).

    The bound is (1 + e²h) σ_⌊(k−1)/(h+1)⌋+1.

    Raises:
        InputError: the largest is above 1, or the singular values are not positive and
            falling.

    Example:
        >>> bound = rank_theory.one_layer_bound(np.array([1.0, 0.1, 0.01]), 1)
        >>> (bound / bound[0]).round(6).tolist()
        [1.0, 1.0, 0.1]
    """
    values = positive_and_falling(singular_values, len(singular_values))
    if values[0] > 1:
        raise InputError(
            f"the largest singular value is {values[0]:g}, expected at most 1"
        )
    k = np.arange(1, len(values) + 1)
    return (1 + _E2 * heads) * values[corollary_index(k, heads) - 1]


def corollary_index(
    k: np.ndarray, heads: int, *, as_printed: bool = False
) -> np.ndarray:
    """Return which singular value of the input bounds the output's k-th (S0-C1).

    It is ⌊(k−1)/(h+1)⌋ + 1, counted from 1.

    ``as_printed`` gives ⌊(k+1)/(h+1)⌋ + 1, by which one head would make σ_1 smaller
    than σ_2 of the input.

    Example:
        >>> rank_theory.corollary_index(np.arange(1, 6), 1).tolist()
        [1, 1, 2, 2, 3]
        >>> rank_theory.corollary_index(np.arange(1, 6), 1, as_printed=True).tolist()
        [2, 2, 3, 3, 4]
    """
    return (k + (1 if as_printed else -1)) // (heads + 1) + 1


def growing(
    singular_values: np.ndarray, heads: int, n_tokens: int, *, depth: int = 1
) -> tuple[np.ndarray, AttentionWeights]:
    """Make an input U (d, L) and a layer whose rank grows as fast as the bound.

    The bound is that for D = ``depth`` layers (S0-TH4). ``singular_values`` of U are
    (d,) from the largest on, above 0; the heads divide d, and L is at least d.

    Raises:
        InputError: no so many heads fit.

    Example:
        >>> tokens, weights = rank_theory.growing(np.array([1.0, 0.5, 0.1, 0.01]), 2, 4)
        >>> output = tokens + rank_theory.attention(tokens, weights)
        >>> np.linalg.svd(output, compute_uv=False).round(3).tolist()
        [2.0, 1.1, 0.5, 0.01]
    """
    values = positive_and_falling(singular_values, n_tokens)
    width = len(values)
    if heads < 1 or width % heads:
        raise InputError(
            f"{width} singular values cannot be shared out over {heads} heads"
        )
    size = width // heads
    epsilon = np.sqrt(depth) * values[-1] / (5 * heads)
    # each wrong entry of the softmax is below exp(−sharpness), and there are fewer than
    # L²
    sharpness = np.log(np.sqrt(2) * n_tokens**2 / epsilon)
    query = np.sqrt(size) * sharpness / values * np.eye(size, width)
    value = np.eye(size, width)
    value[-1] = 0
    # (head, row, d); row i of a head has its i-th own column, the last row also the
    # columns of all other heads
    own = np.eye(width).reshape(heads, size, width)
    key = own / values
    key[:, -1] += (1 - own.sum(axis=1)) / values
    tokens = values[:, None] * np.eye(width, n_tokens)
    query, value = (np.tile(part, (heads, 1, 1)) for part in (query, value))
    return tokens, AttentionWeights(query, key, value)


def flow_floor(singular_values: np.ndarray, heads: int, depth: int) -> np.ndarray:
    """Compute the lower bound on σ_k(Z)/σ_1(Z) of :func:`growing`, (d,) (S0-TH4).

    It is for D layers, by equation 6, and 0 where that gives none.

    Example:
        >>> rank_theory.flow_floor(np.array([1.0, 0.5, 0.1, 0.01]), 2, 1).tolist()
        [0.5, 0.275, 0.0, 0.0]
    """
    values = positive_and_falling(singular_values, len(singular_values))
    values = values / values[0]
    size = len(values) // heads
    floor = np.zeros(len(values))
    for head in range(heads):
        index = -(-np.arange(1, len(values) + 1) // (head + 1)) - 1
        k = np.flatnonzero(index < size - 1)
        bounds = (
            values[head * size + index[k]] + values[index[k]] / np.sqrt(depth)
        ) / 4
        floor[k] = np.maximum(floor[k], bounds)
    return floor


def sketching_distance(matrix: np.ndarray, sketch: np.ndarray) -> float:
    """Compute ‖QQᵀXᵀ − Xᵀ‖₂, what a sketch W₂ misses of X (S0-SKETCH).

    X is (d, L), W₂ (rows, d), and Q = orth(XᵀW₂ᵀ).

    It lies between σ_{m+1}(X), which no sketch of m rows goes below, and σ_1(X).

    Example:
        >>> matrix, sketch = np.diag([3.0, 2.0, 1.0]), np.eye(3)[:1]
        >>> round(rank_theory.sketching_distance(matrix, sketch), 9)
        2.0
    """
    basis = orth((sketch @ matrix).T)
    residual = matrix - (matrix @ basis) @ basis.T
    # the Gram matrix is as exact as this number needs, in a quarter of the time
    gram = residual @ residual.T
    return float(np.sqrt(max(np.linalg.eigvalsh(gram)[-1], 0.0)))


def effective_index(singular_values: np.ndarray, distance: np.ndarray | float) -> Any:
    """Count the singular values of at least each sketching distance (S0-F16).

    The counts have the shape of the distances. Figure 16 counts one less.
    """
    return np.less_equal.outer(distance, singular_values).sum(-1)


def sparse_sketch(width: int, rank: int, heads: int, *, seed: int = 0) -> np.ndarray:
    """Draw a sparse sketch W₂ of heads that divide the width (S0-J2).

    It has rank · heads rows of width / heads Gaussian entries, else 0.

    Raises:
        InputError: the heads do not divide the width, or there is no row.

    Example:
        >>> (rank_theory.sparse_sketch(8, 1, 4) != 0).sum(axis=1).tolist()
        [2, 2, 2, 2]
    """
    if rank < 1 or heads < 1 or width % heads:
        raise InputError(
            f"{heads} heads of rank {rank} do not divide a width of {width}"
        )
    rng = np.random.default_rng(seed)
    rows = rank * heads
    entries = width // heads
    columns = rng.permuted(np.tile(np.arange(width), (rows, 1)), axis=1)[:, :entries]
    sketch = np.zeros((rows, width))
    np.put_along_axis(sketch, columns, rng.normal(size=columns.shape), axis=1)
    return sketch


class HeadSketch(NamedTuple):
    """Input U, its layer, and the layer of the sketches.

    ``right`` are the right factors (head, row, d) of its query, key and value.
    """

    tokens: np.ndarray
    weights: AttentionWeights
    reduced: AttentionWeights
    right: tuple[np.ndarray, np.ndarray, np.ndarray]


def head_sketch(
    singular_values: np.ndarray,
    heads: int,
    rank: int,
    n_tokens: int,
    *,
    seed: int = 0,
) -> HeadSketch:
    """Make the construction in which a sketch for each head beats one for all (S0-TH6).

    The spectral error with a value matrix of rank d̃ for all heads is σ_{d̃+1}/2 or
    more, that with the sketches at most 4√h σ_{hd̃+1}. The result has ``tokens``, U,
    ``weights``, ``reduced``, the layer of the sketches, and ``right``, the factors of
    its query, key (head, d̃ + 1, d) and value (head, d̃, d). Singular values of the
    input are (d,), from the largest, at most 1, on; the sketch for all heads may be as
    large as W_V.

    Raises:
        InputError: the sizes do not fit, or as in :func:`incompressible`.

    Example:
        >>> singular = np.exp(-np.arange(18) / 3)
        >>> made = rank_theory.head_sketch(singular, heads=3, rank=2, n_tokens=20)
        >>> np.linalg.matrix_rank(made.reduced.value).tolist()
        [2, 2, 2]
    """
    values = positive_and_falling(singular_values, n_tokens)
    width = len(values)
    if heads < 2 or width % heads or not 1 <= rank < width // heads:
        raise InputError(
            f"{heads} heads of rank {rank}: expected 2 heads or more that divide"
            f" {width}, each of more rows"
        )
    size = width // heads
    # head i has every h-th singular value, from the i-th on
    diagonal = values.reshape(size, heads).T.ravel()
    tokens = diagonal[:, None] * np.eye(width, n_tokens)
    # more directions than dimensions cannot be orthogonal, but none need be parallel
    directions = np.random.default_rng(seed).normal(size=(size, width))
    directions /= np.linalg.norm(directions, axis=0)
    cosines = directions.T @ directions - 2 * np.eye(width)
    gap = 1 - max(float(cosines.max()), 0.0)
    first_dropped = diagonal.reshape(heads, size)[:, rank]
    epsilon = min(values[rank] / 4, float((first_dropped / 4).min()) / values[0], 1.0)
    alpha = np.sqrt(size) * np.log(np.sqrt(2) * n_tokens**2 / epsilon) / gap
    scaled = np.sqrt(alpha) * directions / diagonal
    both = np.tile(scaled, (heads, 1, 1))
    own = np.eye(width).reshape(heads, size, width)
    weights = AttentionWeights(both, both, own)
    # (head, rank, d), the leading columns of each head
    value = own[:, :rank]
    head = np.arange(heads)
    query = np.eye(width)[np.where(head == 0, rank, 0), None] / diagonal
    key = (1 - value.sum(axis=1, keepdims=True)) / diagonal
    right = np.hstack([value, query]), np.hstack([value, key]), value
    # of query and key: the head's leading directions and the first of the next head
    following = np.sqrt(alpha) * directions[:, (head + 1) % heads * size]
    left = np.dstack([scaled @ value.mT, following.T])
    reduced = AttentionWeights(
        left @ right[0], left @ right[1], np.eye(size, rank) @ value
    )
    return HeadSketch(tokens, weights, reduced, right)
