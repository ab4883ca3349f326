"""Ranks of matrices: measures of singular values, and angles between columns.

:func:`epsilon_rank`, :func:`effective_rank` and :func:`participation_ratio` count the
directions of a matrix in three ways; :func:`flow_bound` and :func:`measured_bound` are
the bounds on singular values in the paper "Flow of ranks". All functions take arrays;
none knows a model. Codes such as S0-ERANK name the paper's claims in docs/papers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.stats import ratio

__all__ = [
    "angles",
    "decade_histogram",
    "effective_rank",
    "epsilon_rank",
    "flow_bound",
    "measured_bound",
    "participation_ratio",
    "relative_spectrum",
]

_E2 = float(np.exp(2.0))


def relative_spectrum(singular_values: np.ndarray) -> np.ndarray:
    """Sort singular values from the largest on and divide them by it, (…, j).

    Args:
        singular_values: (…, j), 0 or more, in any order.

    Returns:
        Shares of the largest value, (…, j), from 1 on; zeros for the zero matrix.

    Raises:
        InputError: there is none, or one is negative or not finite.

    Example:
        >>> ranks.relative_spectrum(np.array([4.0, 2.0, 1.0])).tolist()
        [1.0, 0.5, 0.25]
    """
    values = np.asarray(singular_values, dtype=np.float64)
    if values.ndim == 0 or not values.shape[-1]:
        raise InputError(
            f"singular values of shape {values.shape}, expected at least one on the"
            " last axis"
        )
    if not np.isfinite(values).all() or (values < 0).any():
        raise InputError(
            "singular values hold a negative number or none; they are finite and from"
            " 0 on"
        )
    falling = -np.sort(-values, axis=-1)
    largest = falling[..., :1]
    return ratio(falling, largest, 0.0)


def epsilon_rank(
    singular_values: np.ndarray, epsilon: float | Sequence[float]
) -> np.ndarray:
    """Count the singular values larger than ``epsilon`` times the largest.

    This is the numerical rank. Cutting a matrix off at this rank leaves an error of at
    most ``epsilon`` times its spectral norm.

    Args:
        singular_values: (…, j).
        epsilon: above 0 and below 1, one or several.

    Returns:
        Counts (…), or (epsilon, …) for several epsilons; 0 for the zero matrix.

    Source:
        Flow of ranks, equation 1 (S0-ERANK), whose inequality is strict.

    Raises:
        InputError: an epsilon is not between 0 and 1, or as in
            :func:`relative_spectrum`.

    Example:
        >>> ranks.epsilon_rank(np.array([1.0, 0.1, 0.001]), [0.5, 0.1, 0.01]).tolist()
        [1, 1, 2]
    """
    levels = np.asarray(epsilon, dtype=np.float64)
    if not ((levels > 0) & (levels < 1)).all():
        raise InputError(f"epsilon is {epsilon}, expected above 0 and below 1")
    relative = relative_spectrum(singular_values)
    # (epsilon, 1, …, 1) for several epsilons, else (1, …, 1)
    last_axes = tuple(range(-relative.ndim, 0))
    is_larger = relative > np.expand_dims(levels, last_axes)
    return np.asarray(is_larger.sum(-1))


def effective_rank(singular_values: np.ndarray) -> np.ndarray:
    """Compute exp(entropy) of the singular values as shares of their sum.

    Args:
        singular_values: (…, j), 0 or more.

    Returns:
        Ranks, (…), from 1 to j; NaN for the zero matrix.

    Source:
        Roy and Vetterli 2007, The effective rank.

    Example:
        >>> float(ranks.effective_rank(np.array([2.0, 2.0, 0.0])).round(12))
        2.0
    """
    relative = relative_spectrum(singular_values)
    with np.errstate(invalid="ignore"):
        shares = relative / relative.sum(-1, keepdims=True)
    # 0 · log 0 counts as 0
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    return np.asarray(np.exp(-(shares * logs).sum(-1)))


def participation_ratio(singular_values: np.ndarray) -> np.ndarray:
    """Compute (Σ v)² / Σ v² of the variances v, the squared singular values.

    It counts equal variances.

    Args:
        singular_values: (…, j).

    Returns:
        Ratios, (…), from 1 to j; NaN for the zero matrix.

    Source:
        Gao et al. 2017, A theory of multineuronal dimensionality.

    Example:
        >>> float(ranks.participation_ratio(np.array([2.0, 2.0, 0.0])))
        2.0
    """
    variances = np.square(relative_spectrum(singular_values))
    with np.errstate(invalid="ignore"):
        return np.asarray(np.square(variances.sum(-1)) / np.square(variances).sum(-1))


def decade_histogram(singular_values: np.ndarray, decades: int = 5) -> np.ndarray:
    """Count the relative singular values in each decade below the largest.

    Args:
        singular_values: (…, j).
        decades: how many; the first is (0.1, 1], with the largest value itself.

    Returns:
        Counts, (…, decade).

    Source:
        Flow of ranks, figure 10 (S0-HIST): intervals (1e-5, 1e-4] to (1e-1, 1].

    Raises:
        InputError: fewer than one decade.

    Example:
        >>> ranks.decade_histogram(np.array([1.0, 0.5, 0.1, 0.002]), 3).tolist()
        [2, 1, 1]
    """
    if decades < 1:
        raise InputError(f"decades is {decades}, expected 1 or more")
    relative = relative_spectrum(singular_values)[..., None, :]
    # neighbouring decades share the very same edge: with edges rounded in two ways, a
    # value could lie in neither or in both; read from a text, since numpy's powers of
    # ten are not all the nearest number
    edges = np.array([float(f"1e-{decade}") for decade in range(decades + 1)])[:, None]
    return np.asarray(((relative <= edges[:-1]) & (relative > edges[1:])).sum(-1))


def angles(columns: np.ndarray) -> np.ndarray:
    """Compute the angles between the lines along all pairs of columns.

    A line has no direction, so angles are from 0 to π/2 (radians).

    Args:
        columns: (d, n). Angles with a column of zeros are NaN; those of parallel lines
            are rounded to about 2e-8.

    Returns:
        Angles in radians, (n, n).

    Source:
        Flow of ranks, equation 2 with the arccos of appendix H (S0-ANG).

    Raises:
        InputError: no matrix, or an entry that is not a number.

    Example:
        >>> columns = np.array([[1.0, 0.0, -2.0], [0.0, 1.0, 0.0]])
        >>> np.degrees(ranks.angles(columns))[0].round(9).tolist()
        [0.0, 90.0, 0.0]
    """
    matrix = np.asarray(columns, dtype=np.float64)
    if matrix.ndim != 2 or not np.isfinite(matrix).all():
        raise InputError(
            f"columns of shape {matrix.shape}, expected a finite matrix (d, n)"
        )
    length = np.linalg.norm(matrix, axis=0)
    unit = ratio(matrix, length)
    # rounding may lift the cosine of parallel columns above 1
    cosine = np.minimum(np.abs(unit.T @ unit), 1.0)
    return np.asarray(np.arccos(cosine))


def flow_bound(singular_values: np.ndarray, heads: int, depth: int) -> np.ndarray:
    """Compute upper bounds of σ_k(Z)/σ_1(Z) of a layer's output Z.

    Z = U + attention(U)/√D for a layer's input U in a model of D layers. The bounds
    hold for weights with ‖W_Q^(i)ᵀW_K^(i)‖ ≤ √d_h and ‖W_V^(i)‖ ≤ 1, and √D ≥ 2e²h.

    Args:
        singular_values: (k,), those of U from the largest on, in any unit.
        heads: number of heads, h.
        depth: number of layers, D.

    Returns:
        Bounds, (k,).

    Source:
        Flow of ranks, equation 5 (S0-TH4).

    Raises:
        InputError: D is too small for so many heads, or the singular values are not
            positive and falling.

    Example:
        >>> ranks.flow_bound(np.array([1.0, 0.1, 0.01]), 1, 10**6).round(3).tolist()
        [2.015, 0.215, 0.035]
    """
    # else the heads might cancel the stream, and σ_1(Z), which is divided by, be 0
    if np.sqrt(depth) < 2 * _E2 * heads:
        min_depth = int(np.ceil((2 * _E2 * heads) ** 2))
        raise InputError(
            f"depth is {depth}: with {heads} heads the bound is of models of"
            f" {min_depth} layers or more"
        )
    values = positive_and_falling(singular_values, len(singular_values))
    relative = values / values[0]
    j = np.arange(len(values))
    # bounds on what the heads add: of each index, all h heads have one
    written = _E2 * heads / np.sqrt(depth) * relative[j // heads]
    # σ_1(Z) ≥ σ_1(U)/2, since all heads together add at most e²h/√D ≤ 1/2 of σ_1(U)
    return 2 * _weyl_bounds(relative, written)


def measured_bound(stream: np.ndarray, written: np.ndarray) -> np.ndarray:
    """Compute upper bounds of σ_k(U + Σ_i Y_i) for any model.

    U is the stream and Y_i what head i of h heads adds to it. By Weyl's inequality the
    bound is the minimum over j ≤ k of σ_{k−j+1}(U) + Σ_i σ_{⌊(j−1)/h⌋+1}(Y_i). The
    proof of theorem 4 starts from this, and then bounds the heads by constants.

    Args:
        stream: singular values of U, (k,), from the largest on.
        written: singular values of the Y_i or upper bounds of them, (head, m), from the
            largest on; those beyond the last are 0.

    Returns:
        Bounds, (k,), in the unit of the singular values.

    Source:
        Flow of ranks, proof of theorem 4 (S0-TH4); Horn and Johnson 1991, Topics in
        matrix analysis, theorem 3.3.16.

    Raises:
        InputError: values are negative, not finite, or rise.

    Example:
        >>> stream = np.array([1.0, 0.1, 0.01])
        >>> ranks.measured_bound(stream, np.array([[0.5, 0.2]])).round(3).tolist()
        [1.5, 0.6, 0.3]
    """
    values = np.asarray(stream, dtype=float)
    heads = np.asarray(written, dtype=float)
    for head in (values, *heads):
        is_spectrum = np.isfinite(head).all() and (head >= 0).all()
        if not (is_spectrum and (np.diff(head) <= 0).all()):
            raise InputError(
                "singular values that are negative, not finite, or rise; expected them"
                " from the largest on"
            )
    j = np.arange(len(values))
    # j is split evenly among the heads; the index behind the last gets the zero
    m = np.minimum(j // len(heads), heads.shape[1])
    sums = np.append(heads.sum(axis=0), 0.0)
    return _weyl_bounds(values, sums[m])


def _weyl_bounds(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return min over j ≤ k of first[k − j] + second[j] for each k; all count from 0.

    By Weyl's inequality it bounds the k-th singular value of a sum of two matrices by
    those of the matrices.
    """
    return np.array([(first[k::-1] + second[: k + 1]).min() for k in range(len(first))])


def positive_and_falling(singular_values: np.ndarray, n_tokens: int) -> np.ndarray:
    """Check and return the singular values of a matrix of so many tokens.

    Returns:
        The singular values as an array.

    Raises:
        InputError: they are not positive and falling, or there are fewer tokens than
            singular values.
    """
    values = np.asarray(singular_values, dtype=np.float64)
    if (
        values.ndim != 1
        or not len(values)
        or not (np.isfinite(values).all() and values[-1] > 0)
    ):
        raise InputError(
            f"singular values of shape {values.shape}, expected one axis of finite"
            " numbers above 0"
        )
    if (np.diff(values) > 0).any():
        raise InputError(
            "singular values rise, expected them from the largest to the smallest"
        )
    if n_tokens < len(values):
        raise InputError(
            f"{n_tokens} tokens cannot have {len(values)} singular values; give"
            f" {len(values)} or more"
        )
    return values
