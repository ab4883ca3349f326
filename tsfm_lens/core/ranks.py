"""Ranks of matrices: measures of singular values, and angles between columns.

:func:`epsilon_rank`, :func:`effective_rank` and :func:`participation_ratio` count the
directions of a matrix in three ways; :func:`flow_bound` and :func:`measured_bound` are
the bounds of Flow of ranks on them. All take arrays of singular values, and know no
model.
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
    """Divide singular values by the largest, (…, j); zeros where all are zero.

    Args:
        singular_values: (…, j) from 0 on, in any order.

    Raises:
        InputError: there is none, or one is negative or no number.

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
    values = -np.sort(-values, axis=-1)
    largest = values[..., :1]
    return ratio(values, largest, 0.0)


def epsilon_rank(
    singular_values: np.ndarray, epsilon: float | Sequence[float]
) -> np.ndarray:
    """Count the singular values larger than ``epsilon`` times the largest.

    This is the numerical rank. Cutting a matrix off at this rank leaves an error of at
    most ``epsilon`` times its spectral norm.

    Args:
        singular_values: (…, j).
        epsilon: above 0 and below 1; several give an axis of their own, the first.

    Returns:
        (…) or (epsilon, …) of int; 0 for the zero matrix.

    Source:
        Flow of ranks, equation 1 (S0-ERANK): strict and relative.

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
    ranks = (relative > levels.reshape(*levels.shape, *[1] * relative.ndim)).sum(-1)
    return np.asarray(ranks)


def effective_rank(singular_values: np.ndarray) -> np.ndarray:
    """Compute exp(entropy) of the singular values as shares of their sum, (…).

    NaN for the zero matrix.

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
    """Compute the squared sum of the variances over their sum of squares, (…).

    NaN for the zero matrix.

    Args:
        singular_values: (…, j); their squares are the variances along the principal
            directions.

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
    """Count the relative singular values in each decade below the largest, (…, decade).

    Args:
        singular_values: (…, j).
        decades: how many; the first counts those above 0.1, up to and with the largest.

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
    # one number is the foot of a decade and the top of the next, or a value between two
    # roundings would be in neither
    edges = np.array([float(f"1e-{decade}") for decade in range(decades + 1)])[:, None]
    return np.asarray(((relative <= edges[:-1]) & (relative > edges[1:])).sum(-1))


def angles(columns: np.ndarray) -> np.ndarray:
    """Compute angles between all pairs of columns as lines, (n, n).

    The lines go through the origin; angles are in radians from 0 to π/2.

    Args:
        columns: (d, n); angles with a column of zeros are NaN, those of parallel lines
            exact to about 2e-8.

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
    """Compute an upper bound of σ_k(Z)/σ_1(Z) of a layer's output, (d,).

    There is one for each k from 1 on. Z = U + attention(U)/√D, for weights with
    ‖W_Q^(i)ᵀW_K^(i)‖ ≤ √d_h and ‖W_V^(i)‖ ≤ 1, and √D ≥ 2e²h.

    Args:
        singular_values: of the input U, (d,), from the largest on; taken relative to
            the largest.
        heads: h.
        depth: D, layers of the model.

    Source:
        Flow of ranks, equation 5 (S0-TH4).

    Raises:
        InputError: D is too small for so many heads, or the singular values are not
            positive and falling.

    Example:
        >>> ranks.flow_bound(np.array([1.0, 0.1, 0.01]), 1, 10**6).round(3).tolist()
        [2.015, 0.215, 0.035]
    """
    if np.sqrt(depth) < 2 * _E2 * heads:
        min_depth = int(np.ceil((2 * _E2 * heads) ** 2))
        raise InputError(
            f"depth is {depth}: with {heads} heads the bound is of models of"
            f" {min_depth} layers or more"
        )
    values = positive_and_falling(singular_values, len(singular_values))
    # min over j ≤ k of σ_{k−j+1} + factor · σ_{⌊(j−1)/h⌋+1}, for each k
    relative = values / values[0]
    j = np.arange(len(values))
    written = _E2 * heads / np.sqrt(depth) * relative[j // heads]
    bounds = [(relative[k - j[: k + 1]] + written[: k + 1]).min() for k in j]
    return 2 * np.array(bounds)


def measured_bound(stream: np.ndarray, written: np.ndarray) -> np.ndarray:
    """Compute an upper bound of σ_k(U + Σ Y_i), (d,), for any model.

    It is the proof of theorem 4 before its constants are put in: min over j ≤ k of
    σ_{k−j+1}(U) + Σ_i w_i,⌊(j−1)/h⌋+1, by Weyl's inequality.

    Args:
        stream: singular values of U, (d,), from the largest on.
        written: upper bounds of σ_m(Y_i) of each of h heads, (head, m), from the
            largest on; 0 beyond the last m.

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
    # the index is shared out evenly among the heads
    m = np.minimum(j // len(heads), heads.shape[1])
    sums = np.append(heads.sum(axis=0), 0.0)[m]
    bounds = [(values[k - j[: k + 1]] + sums[: k + 1]).min() for k in j]
    return np.array(bounds)


def positive_and_falling(singular_values: np.ndarray, n_tokens: int) -> np.ndarray:
    """Check the singular values of a construction.

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
