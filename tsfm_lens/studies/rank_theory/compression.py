"""Attention with tokens as columns, and theorems 3 and 5 on its compression.

On a vocabulary of low rank attention needs matrices of low rank only. Read
:class:`AttentionWeights` and :func:`attention` first, then :func:`compressed` and
:func:`compression_bound`.

Of the paper's names, W_Q acts on the token that is attended to and W_K on the one that
attends: output column j mixes the values of tokens t by softmax over t of q_t · k_j.
Libraries name them the other way round. There is no W_O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import softmax

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.ranks import positive_and_falling

__all__ = [
    "AttentionWeights",
    "SCALINGS",
    "attention",
    "compressed",
    "compression_bound",
    "incompressible",
    "least_value_error",
    "logits",
    "projector",
]

SCALINGS = {"theorem": (-0.25, 0.0), "unit": (0.0, 0.0), "normalised": (-0.5, -0.5)}
"""Powers of the width d that random queries and keys, and values, are drawn with:
entries of queries and keys with variance 1/√d and of values with variance 1, by which
the norms of W_QᵀW_K and W_V grow as √d, as theorem 3 allows; all with variance 1; all
with variance 1/d."""


@dataclass(frozen=True, eq=False)
class AttentionWeights:
    """Matrices of an attention layer, head by head, each (head, d_head, d).

    They act from the left on columns.

    Attributes:
        query: W_Q, which acts on tokens that are attended to.
        key: W_K, which acts on tokens that attend.
        value: W_V.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray

    @classmethod
    def stacked(
        cls, query: np.ndarray, key: np.ndarray, value: np.ndarray, heads: int = 1
    ) -> AttentionWeights:
        """Make weights of three matrices (d, d), split into heads by rows.

        The rows belong to one head after another.
        """
        return cls(*(_by_head(matrix, heads) for matrix in (query, key, value)))

    @classmethod
    def random(
        cls, width: int, heads: int = 1, *, scaling: str = "theorem", seed: int = 0
    ) -> AttentionWeights:
        """Draw weights of Gaussian entries by one of :data:`SCALINGS`.

        The heads divide the width d.
        """
        inner, outer = SCALINGS[scaling]
        query, key, value = np.random.default_rng(seed).normal(size=(3, width, width))
        small = float(width) ** inner
        large = float(width) ** outer
        return cls.stacked(small * query, small * key, large * value, heads)

    @property
    def heads(self) -> int:
        """Number of heads."""
        return self.query.shape[0]

    @property
    def head_width(self) -> int:
        """Rows of one head's output, d_h."""
        return self.query.shape[1]

    @property
    def score_norms(self) -> np.ndarray:
        """Spectral norm of W_QᵀW_K of each head, (head,)."""
        return np.linalg.norm(self.query.mT @ self.key, 2, axis=(1, 2))

    @property
    def value_norms(self) -> np.ndarray:
        """Spectral norm of W_V of each head, (head,)."""
        return np.linalg.norm(self.value, 2, axis=(1, 2))

    def times(self, matrix: np.ndarray) -> AttentionWeights:
        """Multiply each matrix of the layer from the right by one of shape (d, d).

        It is as if that matrix acted on the input first.
        """
        return AttentionWeights(
            self.query @ matrix, self.key @ matrix, self.value @ matrix
        )

    def within(self, score: float, value: float) -> AttentionWeights:
        """Scale the weights so that every head has these norms of W_QᵀW_K and of W_V.

        Directions stay.
        """
        by_score = np.sqrt(score / self.score_norms)[:, None, None]
        by_value = (value / self.value_norms)[:, None, None]
        return AttentionWeights(
            self.query * by_score, self.key * by_score, self.value * by_value
        )

    def with_value(self, value: np.ndarray) -> AttentionWeights:
        """Replace W_V by another, (d, d)."""
        return replace(self, value=_by_head(value, self.heads))


def column_softmax(scores: np.ndarray) -> np.ndarray:
    """Compute the softmax of each column, (…, t, j).

    Every column sums to 1, however large the scores.
    """
    return softmax(scores, axis=-2)


def logits(tokens: np.ndarray, weights: AttentionWeights) -> np.ndarray:
    """Compute UᵀW_QᵀW_KU / √d_h of tokens U (d, L), (head, t, j) (S0-ATT, S0-MHA).

    An entry is the score of t, the token attended to, with j.

    Section 3 of the paper prints W_K transposed, its proofs and equation 18 do not.

    Example:
        >>> weights = rank_theory.AttentionWeights.random(6, heads=2)
        >>> rank_theory.logits(np.ones((6, 4)), weights).shape
        (2, 4, 4)
    """
    return np.stack(
        [_head_logits(tokens, weights, head) for head in range(weights.heads)]
    )


def attention(tokens: np.ndarray, weights: AttentionWeights) -> np.ndarray:
    """Compute W_V U softmax(UᵀW_QᵀW_KU / √d_h) of tokens U (d, L) (S0-ATT, S0-MHA).

    Heads are stacked, (head · d_head, L).

    Example:
        >>> eye = np.eye(2)
        >>> weights = rank_theory.AttentionWeights.stacked(eye, eye, eye)
        >>> rank_theory.attention(np.array([[3.0, 3.0], [1.0, 1.0]]), weights).tolist()
        [[3.0, 3.0], [1.0, 1.0]]
    """
    outputs = []
    for head, value in enumerate(weights.value):
        pattern = column_softmax(_head_logits(tokens, weights, head))
        outputs.append(np.linalg.multi_dot([value, tokens, pattern]))
    return np.concatenate(outputs)


def residual_layer(
    tokens: np.ndarray, weights: AttentionWeights, depth: int = 1
) -> np.ndarray:
    """Compute U + attention(U) / √D of tokens U (d, L), (d, L) (S0-TH4).

    It is the output of one layer of a model of D layers.
    """
    return tokens + attention(tokens, weights) / np.sqrt(depth)


def orthonormal(rows: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """Draw random orthonormal columns (rows, columns).

    They are uniform over all directions (Mezzadri 2007).
    """
    if not 0 < columns <= rows:
        raise InputError(
            f"{columns} orthonormal columns of {rows} entries were asked for, expected"
            f" 1 to {rows}"
        )
    q, r = np.linalg.qr(rng.normal(size=(rows, columns)))
    return q * np.sign(np.diagonal(r))


def projector(vocabulary: np.ndarray, rank: int) -> np.ndarray:
    """Compute P (d, d), the projector onto a vocabulary's leading directions (S0-TH5).

    They are the left singular vectors of Ξ (d, N).

    Example:
        >>> rank_theory.projector(np.diag([2.0, 3.0, 1.0]), 1).tolist()
        [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    """
    full = vocabulary.shape[1] < rank
    directions = np.linalg.svd(vocabulary, full_matrices=full)[0][:, :rank]
    return directions @ directions.T


def compressed(
    weights: AttentionWeights, vocabulary: np.ndarray, rank: int
) -> AttentionWeights:
    """Return the layer W P for a vocabulary Ξ (d, N) (S0-TH3, S0-TH5).

    Its matrices, all heads together, have rank d̃.

    Example:
        >>> tokens = np.outer([1.0, 2.0], [1.0, -1.0, 3.0])
        >>> weights = rank_theory.AttentionWeights.random(2)
        >>> full = rank_theory.attention(tokens, weights)
        >>> less = rank_theory.compressed(weights, tokens, 1)
        >>> bool(np.allclose(rank_theory.attention(tokens, less), full))
        True
    """
    return weights.times(projector(vocabulary, rank))


def compression_errors(
    vocabulary: np.ndarray, weights: AttentionWeights, ranks: Sequence[int]
) -> np.ndarray:
    """Compute ‖Att(Ξ; W) − Att(Ξ; W̃)‖_F at several ranks, (rank,) (S0-J1a).

    Ξ (d, N) is the full vocabulary.
    """
    # in coordinates along the singular vectors, to project is to drop coordinates
    directions, singular, right = np.linalg.svd(vocabulary, full_matrices=False)
    coordinates = singular[:, None] * right
    inner = weights.times(directions)
    full = attention(coordinates, inner)
    errors = []
    for rank in ranks:
        truncated = AttentionWeights(
            *(part[..., :rank] for part in (inner.query, inner.key, inner.value))
        )
        errors.append(np.linalg.norm(full - attention(coordinates[:rank], truncated)))
    return np.array(errors)


def compression_bound(
    vocabulary: np.ndarray,
    weights: AttentionWeights,
    ranks: Sequence[int],
    n_tokens: int,
) -> np.ndarray:
    """Bound the error of compression on any L tokens of a vocabulary, (rank,) (S0-TH5).

    The vocabulary Ξ is (d, N), and tokens may repeat.

    √L σ √Σ_i (‖W_V^(i)‖ (1 + 2C²‖W_Q^(i)ᵀW_K^(i)‖/√d_h))² with σ = σ_{d̃+1} and C the
    longest token; the proof loses √L.

    Example:
        >>> tokens = np.diag([1.0, 0.1])
        >>> weights = rank_theory.AttentionWeights.random(2)
        >>> once = rank_theory.compression_bound(tokens, weights, [1], 1)[0]
        >>> often = rank_theory.compression_bound(tokens, weights, [1], 100)[0]
        >>> round(float(often / once), 9)
        10.0
    """
    longest = float(np.linalg.norm(vocabulary, axis=0).max())
    scores = weights.score_norms / np.sqrt(weights.head_width)
    constant = np.linalg.norm(weights.value_norms * (1 + 2 * longest**2 * scores))
    singular = np.linalg.svd(vocabulary, compute_uv=False)
    # a singular value past the last one is 0
    following = np.append(singular, np.zeros(len(vocabulary)))[list(ranks)]
    return np.sqrt(n_tokens) * constant * following


def incompressible(
    singular_values: np.ndarray,
    n_tokens: int,
    *,
    seed: int = 0,
    as_printed: bool = False,
) -> tuple[np.ndarray, AttentionWeights]:
    """Make tokens U (d, L) and a layer that no value matrix compresses well (S0-TH3).

    Any value matrix of rank d̃ loses σ_{d̃+1}/4 or more.

    Args:
        singular_values: singular values of U, (d,), falling and above 0.
        n_tokens: number of tokens L, at least d.
        seed: seed of the value matrix.
        as_printed: take the logarithm of 4d for any L, where the proof needs L ≤ 4d +
            1; otherwise that of 4 max(d, L).

    Raises:
        InputError: singular values that are not positive and falling, or fewer tokens
            than singular values.

    Example:
        >>> tokens, weights = rank_theory.incompressible(np.array([1.0, 0.5]), 3)
        >>> bool(rank_theory.least_value_error(tokens, weights, 1) >= 0.5 / 4)
        True
    """
    values = positive_and_falling(singular_values, n_tokens)
    width = len(values)
    tokens = values[:, None] * np.eye(width, n_tokens)
    size = width if as_printed else max(width, n_tokens)
    root = np.sqrt(np.log(4 * size) * np.sqrt(width)) / values[-1] * np.eye(width)
    value = orthonormal(width, width, np.random.default_rng(seed))
    return tokens, AttentionWeights.stacked(root, root, value)


def least_value_error(
    tokens: np.ndarray, weights: AttentionWeights, rank: int
) -> float:
    """Compute the smallest error that a value matrix of a rank can have.

    The scores are those of one head; the error is in the Frobenius norm (Eckart-Young).

    Raises:
        InputError: the layer has several heads.

    Example:
        >>> sharp = 30 * np.eye(2)
        >>> weights = rank_theory.AttentionWeights.stacked(sharp, sharp, np.eye(2))
        >>> round(rank_theory.least_value_error(np.eye(2), weights, 1), 9)
        1.0
    """
    if weights.heads > 1:
        raise InputError(f"the layer has {weights.heads} heads, expected one")
    output = weights.value[0] @ tokens @ column_softmax(logits(tokens, weights)[0])
    return float(np.linalg.norm(np.linalg.svd(output, compute_uv=False)[rank:]))


def _by_head(matrix: np.ndarray, heads: int) -> np.ndarray:
    return matrix.reshape(heads, len(matrix) // heads, matrix.shape[1])


def _head_logits(
    tokens: np.ndarray, weights: AttentionWeights, head: int
) -> np.ndarray:
    """Compute the scores (t, j) of one head."""
    key = weights.key[head] / np.sqrt(weights.head_width)
    # in the order of the fewest operations: a head may be wider than the tokens
    return np.linalg.multi_dot([tokens.T, weights.query[head].T, key, tokens])
