"""Theorem 4 and corollary 1: the largest growth of rank from one layer's input to the next, and a layer that has it."""

from __future__ import annotations

import numpy as np

from tsfm_lens.errors import InputError
from tsfm_lens.ranks import positive_and_falling
from tsfm_lens.studies.rank_theory.attention import AttentionWeights

__all__ = ["corollary_index", "flow_floor", "growing", "one_layer_bound"]

_E2 = float(np.exp(2.0))


def one_layer_bound(singular_values: np.ndarray, heads: int) -> np.ndarray:
    """Bound σ_k(U + attention(U)), (d,): (1 + e²h) σ_⌊(k−1)/(h+1)⌋+1, if weights are as in `flow_bound`.

    Args:
        singular_values: of U, (d,), from the largest on, which is at most 1.
        heads: h.

    Source:
        Flow of ranks, corollary 1 (S0-C1), with the index that its proof gives and the constant of equation 26.

    Raises:
        InputError: the largest is above 1, or the singular values are not positive and falling.

    Example:
        >>> bound = rank_theory.one_layer_bound(np.array([1.0, 0.1, 0.01]), 1)
        >>> (bound / bound[0]).round(6).tolist()
        [1.0, 1.0, 0.1]
    """
    values = positive_and_falling(singular_values, len(singular_values))
    if values[0] > 1:
        raise InputError(f"the largest singular value is {values[0]:g}, expected at most 1")
    k = np.arange(1, len(values) + 1)
    return np.asarray((1 + _E2 * heads) * values[corollary_index(k, heads) - 1])


def corollary_index(k: np.ndarray, heads: int, *, as_printed: bool = False) -> np.ndarray:
    """Return the input's singular value that bounds the output's k-th, counted from 1: ⌊(k−1)/(h+1)⌋ + 1.

    Args:
        k: from 1 on.
        heads: h.
        as_printed: the paper's ⌊(k+1)/(h+1)⌋ + 1, by which one head would make σ_1 of the output smaller than σ_2 of
            the input.

    Source:
        Flow of ranks, corollary 1 (S0-C1).

    Example:
        >>> rank_theory.corollary_index(np.arange(1, 6), 1).tolist()
        [1, 1, 2, 2, 3]
        >>> rank_theory.corollary_index(np.arange(1, 6), 1, as_printed=True).tolist()
        [2, 2, 3, 3, 4]
    """
    return np.asarray((np.asarray(k) + (1 if as_printed else -1)) // (heads + 1) + 1)


def growing(
    singular_values: np.ndarray, heads: int, n_tokens: int, *, depth: int = 1
) -> tuple[np.ndarray, AttentionWeights]:
    """Make an input of given singular values and a layer in which rank grows as fast as the bound, up to a constant.

    Head i moves the d_h − 1 leading directions of the input to its directions of block i.

    Args:
        singular_values: (d,) from the largest on, above 0, d a multiple of ``heads``.
        heads: h.
        n_tokens: L, at least d.
        depth: D; the softmax is made so sharp that the proof's ε = √D σ_d/(5h) is kept.

    Returns:
        U, (d, L), and the layer.

    Source:
        Flow of ranks, second statement of theorem 4 (S0-TH4), whose proof writes N for D.

    Raises:
        InputError: no so many heads fit, or as in :func:`incompressible`.

    Example:
        >>> tokens, weights = rank_theory.growing(np.array([1.0, 0.5, 0.1, 0.01]), 2, 4)
        >>> np.linalg.svd(rank_theory.residual_layer(tokens, weights), compute_uv=False).round(3).tolist()
        [2.0, 1.1, 0.5, 0.01]
    """
    values = positive_and_falling(singular_values, n_tokens)
    width = len(values)
    if heads < 1 or width % heads:
        raise InputError(f"{width} singular values cannot be shared out over {heads} heads")
    size = width // heads
    epsilon = np.sqrt(depth) * values[-1] / (5 * heads)
    # each wrong entry of the softmax is below exp(−sharpness), and there are fewer than L²
    sharpness = np.log(np.sqrt(2) * n_tokens**2 / epsilon)
    query, key, value = (np.zeros((heads, size, width)) for _ in range(3))
    query[:, range(size), range(size)] = np.sqrt(size) * sharpness / values[:size]
    value[:, range(size - 1), range(size - 1)] = 1
    for head in range(heads):
        block = np.arange(head * size, (head + 1) * size)
        key[head, size - 1] = 1 / values
        key[head, size - 1, block] = 0
        key[head, range(size), block] = 1 / values[block]
    tokens = np.hstack([np.diag(values), np.zeros((width, n_tokens - width))])
    return tokens, AttentionWeights(query, key, value)


def flow_floor(singular_values: np.ndarray, heads: int, depth: int) -> np.ndarray:
    """Compute the lower bound on σ_k(Z)/σ_1(Z) of :func:`growing`, (d,): the largest over i by equation 6, else 0.

    Args:
        singular_values: (d,) from the largest, which is taken as 1.
        heads: h.
        depth: D.

    Source:
        Flow of ranks, equation 6 (S0-TH4): (σ_(i−1)d_h+⌈k/i⌉ + σ_⌈k/i⌉/√D) / 4 for i ≤ h with ⌈k/i⌉ < d_h.

    Example:
        >>> rank_theory.flow_floor(np.array([1.0, 0.5, 0.1, 0.01]), 2, 1).tolist()
        [0.5, 0.275, 0.0, 0.0]
    """
    values = positive_and_falling(singular_values, len(singular_values))
    values = values / values[0]
    size = len(values) // heads
    floor = np.zeros(len(values))
    for k in range(1, len(values) + 1):
        for head in range(1, heads + 1):
            place = -(-k // head)
            if place < size:
                bound = values[(head - 1) * size + place - 1] + values[place - 1] / np.sqrt(depth)
                floor[k - 1] = max(floor[k - 1], bound / 4)
    return floor
