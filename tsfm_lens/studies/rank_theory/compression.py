"""Theorems 3 and 5: attention on a vocabulary of low rank needs matrices of low rank only, and its exceptions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tsfm_lens.errors import InputError
from tsfm_lens.ranks import positive_and_falling
from tsfm_lens.studies.rank_theory.attention import AttentionWeights, attention, column_softmax, logits, orthonormal

__all__ = [
    "compressed",
    "compression_bound",
    "compression_errors",
    "compression_rate",
    "incompressible",
    "least_value_error",
    "projector",
]


def projector(vocabulary: np.ndarray, rank: int) -> np.ndarray:
    """Compute P, the projector onto the leading left singular vectors of a vocabulary, (d, d).

    Args:
        vocabulary: Ξ, (d, N), a token a column.
        rank: how many directions are kept, 1 to d.

    Source:
        Flow of ranks, proof of theorem 5.

    Raises:
        InputError: the vocabulary is no finite matrix, or the rank is not from 1 to d.

    Example:
        >>> rank_theory.projector(np.diag([2.0, 3.0, 1.0]), 1).tolist()
        [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    """
    matrix = _vocabulary(vocabulary)
    _check_ranks([rank], len(matrix))
    directions = np.linalg.svd(matrix, full_matrices=matrix.shape[1] < rank)[0][:, :rank]
    return np.asarray(directions @ directions.T)


def compressed(weights: AttentionWeights, vocabulary: np.ndarray, rank: int) -> AttentionWeights:
    """Return the layer for a vocabulary whose three matrices, all heads together, have at most this rank.

    Its output on any input is that of the layer itself on the projected input, Att(U; W̃) = Att(PU; W): exact algebra.

    Args:
        weights: of the layer.
        vocabulary: Ξ, (d, N).
        rank: d̃.

    Source:
        Flow of ranks, theorem 5 (S0-TH3, S0-TH5): W̃ = W P.

    Raises:
        InputError: see :func:`projector`.

    Example:
        >>> tokens, weights = np.outer([1.0, 2.0], [1.0, -1.0, 3.0]), rank_theory.AttentionWeights.random(2)
        >>> less = rank_theory.compressed(weights, tokens, 1)
        >>> bool(np.allclose(rank_theory.attention(tokens, less), rank_theory.attention(tokens, weights)))
        True
    """
    return weights.times(projector(vocabulary, rank))


def compression_errors(vocabulary: np.ndarray, weights: AttentionWeights, ranks: Sequence[int]) -> np.ndarray:
    """Compute ‖Att(Ξ; W) − Att(Ξ; W̃)‖_F of the whole vocabulary at several ranks, (rank,).

    Computed as the layer on the projected vocabulary, which has so few coordinates that a rank costs 4 N² d̃
    operations and never more memory than a few matrices of the vocabulary's size.

    Args:
        vocabulary: Ξ, (d, N).
        weights: of the layer.
        ranks: d̃, each 1 to d.

    Source:
        Flow of ranks, appendix J.1 (S0-J1a).

    Raises:
        InputError: see :func:`projector`.

    Example:
        >>> tokens = np.outer([1.0, 2.0], [1.0, -1.0, 3.0])
        >>> float(rank_theory.compression_errors(tokens, rank_theory.AttentionWeights.random(2), [1])[0].round(12))
        0.0
    """
    matrix = _vocabulary(vocabulary)
    _check_ranks(ranks, len(matrix))
    directions, singular, right = np.linalg.svd(matrix, full_matrices=False)
    coordinates, inner = singular[:, None] * right, weights.times(directions)
    whole = attention(coordinates, inner)

    def error(rank: int) -> float:
        truncated = AttentionWeights(*(part[..., :rank] for part in (inner.query, inner.key, inner.value)))
        return float(np.linalg.norm(whole - attention(coordinates[:rank], truncated)))

    return np.array([error(rank) for rank in ranks])


def compression_bound(
    vocabulary: np.ndarray, weights: AttentionWeights, ranks: Sequence[int], n_tokens: int
) -> np.ndarray:
    """Bound the error of compression on any tokens of a vocabulary, (rank,): √L times a rate in σ_{d̃+1}.

    For each head the values lose ‖W_V‖σ, and scores move by 2Cσ‖W_QᵀW_K‖/√d_h, by which softmax moves values of length
    C: together √L σ √Σ_i (‖W_V^(i)‖ (1 + 2C²‖W_Q^(i)ᵀW_K^(i)‖/√d_h))², with C the longest token.

    Args:
        vocabulary: Ξ, (d, N).
        weights: of the layer.
        ranks: d̃, each 1 to d.
        n_tokens: L; tokens may repeat.

    Source:
        Flow of ranks, theorem 5, with the factor √L that its proof loses: an input that repeats one token has it.

    Raises:
        InputError: see :func:`projector`.

    Example:
        >>> tokens, weights = np.diag([1.0, 0.1]), rank_theory.AttentionWeights.random(2)
        >>> once, often = (rank_theory.compression_bound(tokens, weights, [1], length)[0] for length in (1, 100))
        >>> round(float(often / once), 9)
        10.0
    """
    matrix = _vocabulary(vocabulary)
    longest = float(np.linalg.norm(matrix, axis=0).max())
    scores = weights.score_norms / np.sqrt(weights.head_width)
    constant = np.linalg.norm(weights.value_norms * (1 + 2 * longest**2 * scores))
    return np.asarray(np.sqrt(n_tokens) * constant * _next_singular_value(matrix, ranks))


def compression_rate(vocabulary: np.ndarray, ranks: Sequence[int]) -> np.ndarray:
    """Compute √d σ_{d̃+1}, the rate that the paper prints, without its constant, (rank,).

    Args:
        vocabulary: Ξ, (d, N).
        ranks: d̃, each 1 to d.

    Source:
        Flow of ranks, equation 3. It holds on average over generic inputs; :func:`compression_bound` for all.

    Raises:
        InputError: see :func:`projector`.

    Example:
        >>> rank_theory.compression_rate(np.diag([1.0, 0.5, 0.25, 0.0]), [1, 2, 3, 4]).tolist()
        [1.0, 0.5, 0.0, 0.0]
    """
    matrix = _vocabulary(vocabulary)
    return np.asarray(np.sqrt(len(matrix)) * _next_singular_value(matrix, ranks))


def incompressible(
    singular_values: np.ndarray, n_tokens: int, *, seed: int = 0, as_printed: bool = False
) -> tuple[np.ndarray, AttentionWeights]:
    """Make tokens of given singular values and a layer that loses σ_{d̃+1}/4 or more with any value matrix of rank d̃.

    Args:
        singular_values: (d,) from the largest on, above 0.
        n_tokens: L, at least d.
        seed: of the orthogonal value matrix.
        as_printed: take the logarithm of 4d, as the paper does, for any L; the proof then needs L ≤ 4d + 1. Otherwise
            that of the larger of 4d and 4L, by which it holds for all.

    Returns:
        U, (d, L), and the layer.

    Source:
        Flow of ranks, second statement of theorem 3 (S0-TH3).

    Raises:
        InputError: singular values that are not positive and falling, or fewer tokens than singular values.

    Example:
        >>> tokens, weights = rank_theory.incompressible(np.array([1.0, 0.5]), 3)
        >>> bool(rank_theory.least_value_error(tokens, weights, 1) >= 0.5 / 4)
        True
    """
    values = positive_and_falling(singular_values, n_tokens)
    width = len(values)
    tokens = np.hstack([np.diag(values), np.zeros((width, n_tokens - width))])
    within = 4 * (width if as_printed else max(width, n_tokens))
    root = np.sqrt(np.log(within) * np.sqrt(width)) / values[-1] * np.eye(width)
    value = orthonormal(width, width, np.random.default_rng(seed))
    return tokens, AttentionWeights.stacked(root, root, value)


def least_value_error(tokens: np.ndarray, weights: AttentionWeights, rank: int) -> float:
    """Compute the smallest error, in the Frobenius norm, of a value matrix of a rank beside the layer's own scores.

    That of the best approximation of W_V U G of this rank, which some value matrix reaches if U G has full row rank.

    Args:
        tokens: U, (d, L).
        weights: of a layer of one head.
        rank: d̃, 1 to d.

    Source:
        Eckart and Young 1936.

    Raises:
        InputError: the layer has several heads, or the rank is not from 1 to d.

    Example:
        >>> alike = rank_theory.AttentionWeights.stacked(30 * np.eye(2), 30 * np.eye(2), np.eye(2))
        >>> round(rank_theory.least_value_error(np.eye(2), alike, 1), 9)
        1.0
    """
    if weights.heads > 1:
        raise InputError(f"the layer has {weights.heads} heads, expected one")
    _check_ranks([rank], weights.width)
    output = weights.value[0] @ tokens @ column_softmax(logits(tokens, weights)[0])
    return float(np.linalg.norm(np.linalg.svd(output, compute_uv=False)[rank:]))


def _vocabulary(vocabulary: np.ndarray) -> np.ndarray:
    matrix = np.asarray(vocabulary, dtype=np.float64)
    if matrix.ndim != 2 or not matrix.size or not np.isfinite(matrix).all():
        raise InputError(f"the vocabulary has shape {matrix.shape}, expected a finite matrix (d, tokens)")
    return matrix


def _check_ranks(ranks: Sequence[int], width: int) -> None:
    wrong = [rank for rank in ranks if not 1 <= rank <= width]
    if wrong:
        raise InputError(f"rank is {wrong[0]}, expected 1 to {width}")


def _next_singular_value(matrix: np.ndarray, ranks: Sequence[int]) -> np.ndarray:
    _check_ranks(ranks, len(matrix))
    values = np.zeros(len(matrix) + 1)
    singular = np.linalg.svd(matrix, compute_uv=False)
    values[: len(singular)] = singular
    return values[list(ranks)]
