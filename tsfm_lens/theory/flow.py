"""Theorem 4 and corollary 1: how fast rank can grow from one layer's input to the next, and how fast it does."""

from __future__ import annotations

import numpy as np

from tsfm_lens.errors import InputError
from tsfm_lens.theory.attention import AttentionWeights
from tsfm_lens.theory.compression import positive_and_falling

__all__ = ["corollary_index", "flow_bound", "flow_floor", "growing", "measured_bound", "one_layer_bound"]

_E2 = float(np.exp(2.0))


def flow_bound(singular_values: np.ndarray, heads: int, depth: int) -> np.ndarray:
    """What σ_k(Z)/σ_1(Z) of a layer's output cannot exceed, for each k from 1 on, (d,).

    Z = U + attention(U)/√D, for weights with ‖W_Q^(i)ᵀW_K^(i)‖ ≤ √d_h and ‖W_V^(i)‖ ≤ 1, and √D ≥ 2e²h.

    Args:
        singular_values: of the input U, (d,), from the largest on; taken relative to the largest.
        heads: h.
        depth: D, layers of the model.

    Source:
        Flow of ranks, equation 5 (S0-TH4).

    Raises:
        InputError: D is too small for so many heads, or the singular values are not positive and falling.

    Example:
        >>> theory.flow_bound(np.array([1.0, 0.1, 0.01]), 1, 10**6).round(3).tolist()
        [2.015, 0.215, 0.035]
    """
    if np.sqrt(depth) < 2 * _E2 * heads:
        least = int(np.ceil((2 * _E2 * heads) ** 2))
        raise InputError(f"depth is {depth}: with {heads} heads the bound is of models of {least} layers or more")
    values = positive_and_falling(singular_values, len(singular_values))
    return 2 * _sum_bound(values / values[0], heads, _E2 * heads / np.sqrt(depth))


def measured_bound(stream: np.ndarray, written: np.ndarray) -> np.ndarray:
    """What σ_k(U + Σ Y_i) cannot exceed, (d,): the step of the proof of theorem 4 before its constants are put in.

    min over j ≤ k of σ_{k−j+1}(U) + Σ_i w_i,⌊(j−1)/h⌋+1, by Weyl's inequality. It holds for every model.

    Args:
        stream: singular values of U, (d,), from the largest on.
        written: of each of h heads what σ_m(Y_i) cannot exceed, (head, m), from the largest on; 0 beyond the last m.

    Source:
        Flow of ranks, proof of theorem 4 (S0-TH4); Horn and Johnson 1991, Topics in matrix analysis, theorem 3.3.16.

    Raises:
        InputError: values are negative, not finite, or rise.

    Example:
        >>> theory.measured_bound(np.array([1.0, 0.1, 0.01]), np.array([[0.5, 0.2]])).round(3).tolist()
        [1.5, 0.6, 0.3]
    """
    values, heads = np.asarray(stream, dtype=float), np.asarray(written, dtype=float)
    for each in (values, *heads):
        if not (np.isfinite(each).all() and (each >= 0).all() and (np.diff(each) <= 0).all()):
            raise InputError(
                "singular values that are negative, not finite, or rise; expected them from the largest on"
            )
    j = np.arange(len(values))
    places = j // len(heads)
    sums = np.append(heads.sum(axis=0), 0.0)[np.minimum(places, heads.shape[1])]
    return np.array([(values[k - j[: k + 1]] + sums[: k + 1]).min() for k in range(len(values))])


def one_layer_bound(singular_values: np.ndarray, heads: int) -> np.ndarray:
    """What σ_k(U + attention(U)) cannot exceed, (d,): (1 + e²h) σ_⌊(k−1)/(h+1)⌋+1, if weights are as in `flow_bound`.

    Args:
        singular_values: of U, (d,), from the largest on, which is at most 1.
        heads: h.

    Source:
        Flow of ranks, corollary 1 (S0-C1), with the index that its proof gives and the constant of equation 26.

    Raises:
        InputError: the largest is above 1, or the singular values are not positive and falling.

    Example:
        >>> bound = theory.one_layer_bound(np.array([1.0, 0.1, 0.01]), 1)
        >>> (bound / bound[0]).round(6).tolist()
        [1.0, 1.0, 0.1]
    """
    values = positive_and_falling(singular_values, len(singular_values))
    if values[0] > 1:
        raise InputError(f"the largest singular value is {values[0]:g}, expected at most 1")
    k = np.arange(1, len(values) + 1)
    return np.asarray((1 + _E2 * heads) * values[corollary_index(k, heads) - 1])


def corollary_index(k: np.ndarray, heads: int, *, as_printed: bool = False) -> np.ndarray:
    """Which singular value of the input bounds the k-th of the output, counted from 1: ⌊(k−1)/(h+1)⌋ + 1.

    Args:
        k: from 1 on.
        heads: h.
        as_printed: the paper's ⌊(k+1)/(h+1)⌋ + 1, by which one head would make σ_1 of the output smaller than σ_2 of
            the input.

    Source:
        Flow of ranks, corollary 1 (S0-C1).

    Example:
        >>> theory.corollary_index(np.arange(1, 6), 1).tolist()
        [1, 1, 2, 2, 3]
        >>> theory.corollary_index(np.arange(1, 6), 1, as_printed=True).tolist()
        [2, 2, 3, 3, 4]
    """
    return np.asarray((np.asarray(k) + (1 if as_printed else -1)) // (heads + 1) + 1)


def growing(
    singular_values: np.ndarray, heads: int, n_tokens: int, *, depth: int = 1
) -> tuple[np.ndarray, AttentionWeights]:
    """An input of given singular values and a layer that lets rank grow as fast as the bound allows, up to a constant.

    Head i moves the d_h − 1 leading directions of the input to where its directions of block i stand.

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
        >>> tokens, weights = theory.growing(np.array([1.0, 0.5, 0.1, 0.01]), 2, 4)
        >>> np.linalg.svd(theory.residual_layer(tokens, weights), compute_uv=False).round(3).tolist()
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
    """What σ_k(Z)/σ_1(Z) of :func:`growing` is at least, (d,): the largest over i that equation 6 gives, 0 where none.

    Args:
        singular_values: (d,) from the largest, which is taken as 1.
        heads: h.
        depth: D.

    Source:
        Flow of ranks, equation 6 (S0-TH4): (σ_(i−1)d_h+⌈k/i⌉ + σ_⌈k/i⌉/√D) / 4 for i ≤ h with ⌈k/i⌉ < d_h.

    Example:
        >>> theory.flow_floor(np.array([1.0, 0.5, 0.1, 0.01]), 2, 1).tolist()
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
                found = values[(head - 1) * size + place - 1] + values[place - 1] / np.sqrt(depth)
                floor[k - 1] = max(floor[k - 1], found / 4)
    return floor


def _sum_bound(values: np.ndarray, heads: int, factor: float) -> np.ndarray:
    """min over j ≤ k of σ_{k−j+1} + factor · σ_{⌊(j−1)/h⌋+1}, for each k."""
    j = np.arange(len(values))
    written = factor * values[j // heads]
    return np.array([(values[k - j[: k + 1]] + written[: k + 1]).min() for k in range(len(values))])
