"""Statements on attention over channels and on reversible normalisation, in numpy.

Tokens are rows, as in the paper on SAMformer; in the other modules of this package they
are columns. Each function is the number or the bound of one proposition.
"""

from __future__ import annotations

import numpy as np

from tsfm_lens.core.errors import InputError

EPSILON = 1e-5
"""What RevIN adds to a variance."""

__all__ = [
    "nuclear_norm",
    "nuclear_norm_bound",
    "optimal_readout",
    "readout_exists",
    "revin_linear",
    "revin_offset",
]


def readout_exists(tokens: np.ndarray, targets: np.ndarray) -> bool:
    """Return whether any W has P W = Z, that is rank([P Z]) = rank(P) (S1-P4).

    P is (channel, time) and Z (channel, step).

    Full row rank of P is enough; the paper asks for fewer channels than forecast steps,
    which does not matter (E1-10).

    Example:
        >>> rank_theory.readout_exists(np.eye(2, 3), np.ones((2, 1)))
        True
        >>> rank_theory.readout_exists(np.ones((2, 3)), np.eye(2))
        False
    """
    # scaled alike, so that one threshold serves both ranks
    size = np.linalg.norm(targets, 2) or 1.0
    both = np.hstack([tokens, targets * (np.linalg.norm(tokens, 2) / size)])
    return bool(np.linalg.matrix_rank(both) == np.linalg.matrix_rank(tokens))


def optimal_readout(tokens: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Compute P⁺ Z, the smallest W (time, step) of least ‖P W − Z‖ (S1-P4).

    P is (channel, time) and Z (channel, step).

    Example:
        >>> tokens, targets = np.array([[2.0, 0.0]]), np.array([[6.0]])
        >>> rank_theory.optimal_readout(tokens, targets).tolist()
        [[3.0], [0.0]]
    """
    return np.linalg.pinv(tokens) @ targets


def nuclear_norm(matrix: np.ndarray) -> float:
    """Sum the singular values.

    Example:
        >>> rank_theory.nuclear_norm(np.eye(7))
        7.0
    """
    return float(np.linalg.norm(matrix, "nuc"))


def nuclear_norm_bound(x: np.ndarray, queries: np.ndarray, keys: np.ndarray) -> float:
    """Bound the nuclear norm of the scores X W_Q W_Kᵀ Xᵀ (S1-P5).

    X is (channel, time); the bound is ‖W_Q W_Kᵀ‖₂ ‖X‖²_F.

    Raises:
        InputError: W_Q W_Kᵀ is not symmetric with eigenvalues of at least 0, as the
            bound requires.

    Example:
        >>> rank_theory.nuclear_norm_bound(np.ones((2, 3)), 2 * np.eye(3), np.eye(3))
        12.0
    """
    form = queries @ keys.T
    largest = float(np.linalg.norm(form, 2))
    rounding = len(form) * np.finfo(form.dtype).eps * largest
    asymmetry = np.abs(form - form.T).max()
    if max(asymmetry, -np.linalg.eigvalsh((form + form.T) / 2)[0]) > rounding:
        raise InputError(
            "W_Q W_Kᵀ is not symmetric with eigenvalues of at least 0, and the bound"
            " says nothing of others; it is so where W_Q = W_K"
        )
    return largest * float(np.square(x).sum())


def revin_linear(
    x: np.ndarray, weight: np.ndarray, gamma: np.ndarray, beta: np.ndarray
) -> np.ndarray:
    """Compute a linear map between RevIN and its inverse, in closed form (S1-P9).

    It is Ŷ = X W + ξ, (channel, step).

    X is (channel, time), W (time, step), γ and β (channel,); ε is that of RevIN.

    Example:
        >>> x, weight = np.array([[1.0, 3.0]]), np.array([[0.0], [1.0]])
        >>> rank_theory.revin_linear(x, weight, np.ones(1), np.zeros(1)).tolist()
        [[3.0]]
    """
    return x @ weight + revin_offset(x, weight, gamma, beta)


def revin_offset(
    x: np.ndarray, weight: np.ndarray, gamma: np.ndarray, beta: np.ndarray
) -> np.ndarray:
    """Compute ξ, RevIN's addition to a linear map, (channel, step) (S1-P9).

    ξ = (μ̂ − (β/γ) √(σ̂² + ε)) (1 − Σ_j W_j).

    Example:
        >>> x, weight = np.array([[1.0, 3.0]]), np.array([[0.5], [1.0]])
        >>> rank_theory.revin_offset(x, weight, np.ones(1), np.zeros(1)).tolist()
        [[-1.0]]
    """
    level = x.mean(axis=1) - beta / gamma * np.sqrt(x.var(axis=1) + EPSILON)
    return np.outer(level, 1 - weight.sum(axis=0))
