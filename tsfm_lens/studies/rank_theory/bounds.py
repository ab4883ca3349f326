"""Theorems 1 and 2 and corollary 2: decay of the singular values of a smooth or a small embedding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.polynomial.chebyshev import chebvander

from tsfm_lens.errors import InputError
from tsfm_lens.studies.rank_theory.embeddings import ResidualMlpEmbedding

__all__ = [
    "analytic_bound",
    "chebyshev_bound",
    "differentiable_bound",
    "gated_bound",
    "mlp_count",
    "quasimatrix_spectrum",
]


def differentiable_bound(dimension: int, n_tokens: int, *, order: int, variation: float) -> np.ndarray:
    """Bound the k-th singular value of an embedding of ν derivatives, for each k from 1 on, (d,).

    Args:
        dimension: d.
        n_tokens: L points from [−1, 1]; see :func:`quasimatrix_spectrum` for all of them, where L is 4.
        order: ν, 1 or more; the ν-th derivative of every coordinate has bounded variation.
        variation: V, its largest over coordinates.

    Returns:
        2V√(dL) / (πν(k − 2 − ν)^ν), infinite for k ≤ ν + 2, where the theorem gives no bound.

    Source:
        Flow of ranks, theorem 1, first statement (S0-TH1).

    Raises:
        InputError: the order is below 1.

    Example:
        >>> rank_theory.differentiable_bound(5, 1, order=1, variation=np.pi).round(3).tolist()
        [inf, inf, inf, 4.472, 2.236]
    """
    if order < 1:
        raise InputError(f"order is {order}, expected 1 derivative or more")
    steps = np.arange(1, dimension + 1) - 2.0 - order
    bound = np.full(dimension, np.inf)
    finite = steps > 0
    bound[finite] = 2 * variation * np.sqrt(dimension * n_tokens) / (np.pi * order * steps[finite] ** order)
    return bound


def analytic_bound(dimension: int, n_tokens: int, *, radius: float, largest: float) -> np.ndarray:
    """Bound the k-th singular value of an analytic embedding, for each k from 1 on, (d,).

    Args:
        dimension: d.
        n_tokens: L points from [−1, 1]; see :func:`quasimatrix_spectrum` for all of them, where L is 4.
        radius: ρ above 1, of a Bernstein ellipse within which every coordinate is analytic.
        largest: M, which no coordinate exceeds there.

    Returns:
        2M√(dL) ρ^(2−k) / (ρ − 1).

    Source:
        Flow of ranks, theorem 1, second statement (S0-TH1).

    Raises:
        InputError: the radius is not above 1.

    Example:
        >>> rank_theory.analytic_bound(4, 1, radius=2.0, largest=1.0).tolist()
        [8.0, 4.0, 2.0, 1.0]
    """
    if not radius > 1:
        raise InputError(f"radius is {radius}, expected above 1")
    k = np.arange(1, dimension + 1)
    return np.asarray(2 * largest * np.sqrt(dimension * n_tokens) * float(radius) ** (2.0 - k) / (radius - 1))


def gated_bound(dimension: int, n_tokens: int, *, beta: float) -> np.ndarray:
    """Bound the k-th singular value of a gated embedding, (d,), if |w_i| ≤ 1 and |w_i v_i| ≤ 1.

    The bound of :func:`analytic_bound` with ρ = 1 + π/(2β): within that ellipse the exponential has a positive real
    part, so that no coordinate exceeds the square of the ellipse's half axis (ρ + 1/ρ)/2.

    Args:
        dimension: d.
        n_tokens: L points from [−1, 1].
        beta: β, above 0.

    Source:
        Flow of ranks, corollary 2 (S0-C2), with its constant written out. Its formula drops w_i from the exponent,
        so that it says nothing of larger ones.

    Raises:
        InputError: β is not above 0.

    Example:
        >>> bound = rank_theory.gated_bound(8, 100, beta=1.0)
        >>> round(float(bound[0] / bound[1]), 4)
        2.5708
    """
    if not beta > 0:
        raise InputError(f"beta is {beta}, expected above 0")
    radius = 1 + np.pi / (2 * beta)
    return analytic_bound(dimension, n_tokens, radius=radius, largest=((radius + 1 / radius) / 2) ** 2)


def chebyshev_bound(
    function: Callable[[np.ndarray], np.ndarray], points: np.ndarray, *, nodes: int = 400
) -> np.ndarray:
    """Bound the k-th singular value of any embedding of points, from Chebyshev projections, (d,).

    √(dL) δ with δ the largest deviation, over coordinates and points, from a polynomial of degree k − 2; the bounds of
    theorem 1 are bounds on this δ.

    Args:
        function: points (n,) of [−1, 1] to tokens (d, n).
        points: x, (L,).
        nodes: of the interpolation in place of the projection; any number gives a true bound, many the tightest.

    Source:
        Flow of ranks, proof of theorem 1, equation 8 (S0-TH1).

    Raises:
        InputError: there are not more nodes than singular values.

    Example:
        >>> rank_theory.chebyshev_bound(lambda x: np.stack([x, x**2, 1 + x]), np.linspace(-1, 1, 4)).round(6).tolist()
        [6.928203, 3.464102, 1.732051]
    """
    grid = np.cos(np.pi * (np.arange(nodes) + 0.5) / nodes)
    values, remainder = function(grid), function(np.asarray(points, dtype=np.float64)).astype(np.float64)
    dimension, n_tokens = remainder.shape
    if nodes <= dimension:
        raise InputError(f"{nodes} nodes for {dimension} singular values, expected more")
    coefficients = 2 / nodes * values @ chebvander(grid, dimension)
    coefficients[:, 0] /= 2
    basis, deviations = chebvander(points, dimension), []
    for degree in range(dimension):
        deviations.append(np.abs(remainder).max())
        remainder -= np.outer(coefficients[:, degree], basis[:, degree])
    return np.asarray(np.sqrt(dimension * n_tokens) * np.array(deviations))


def quasimatrix_spectrum(function: Callable[[np.ndarray], np.ndarray], *, nodes: int = 200) -> np.ndarray:
    """Compute singular values of an embedding of all of [−1, 1], d rows and a column for every point, (d,).

    They are bounded as those of L = 4 points are: of theorem 1's two bounds one is the other at 4.

    Args:
        function: points (n,) to tokens (d, n).
        nodes: of the Gauss-Legendre quadrature, which is exact for polynomials of degree below ``nodes``.

    Source:
        Townsend and Trefethen 2015, Continuous analogues of matrix factorizations.

    Example:
        >>> (rank_theory.quasimatrix_spectrum(lambda x: np.stack([np.ones_like(x), x])) ** 2).round(6).tolist()
        [2.0, 0.666667]
    """
    points, weights = np.polynomial.legendre.leggauss(nodes)
    return np.asarray(np.linalg.svd(function(points) * np.sqrt(weights), compute_uv=False))


def mlp_count(
    embedding: ResidualMlpEmbedding, columns: np.ndarray, epsilon: float | Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    """Count the singular values of a residual MLP's tokens above a threshold, and bound their number.

    Args:
        embedding: of d above k.
        columns: patches X, (k, L).
        epsilon: ε above 0, one or several; the threshold is ε‖W₂‖‖W₁X‖, which is absolute, not a share of the largest.

    Returns:
        For each ε the count, and min{d, (1 + ε⁻²)k}.

    Source:
        Flow of ranks, theorem 2 (S0-TH2): true of any weights and any ω with |ω(x)| ≤ |x|.

    Raises:
        InputError: ε is not above 0, or d is not above k.

    Example:
        >>> made = rank_theory.ResidualMlpEmbedding.random(32, patch=2)
        >>> count, most = rank_theory.mlp_count(made, np.random.default_rng(0).normal(size=(2, 50)), [0.5, 1.0])
        >>> most.tolist(), bool((count <= most).all())
        ([10.0, 4.0], True)
    """
    dimension, steps = np.shape(embedding.skip)
    levels = np.asarray(epsilon, dtype=np.float64)
    if not (levels > 0).all():
        raise InputError(f"epsilon is {epsilon}, expected above 0")
    if dimension <= steps:
        raise InputError(f"tokens of {dimension} coordinates of patches of {steps} steps, expected more coordinates")
    threshold = levels * np.linalg.norm(embedding.outer, 2) * np.linalg.norm(embedding.inner @ columns, 2)
    singular = np.linalg.svd(embedding.embed(columns), compute_uv=False)
    count = (singular > threshold[..., None]).sum(-1)
    return np.asarray(count), np.asarray(np.minimum(dimension, (1 + levels**-2) * steps))
