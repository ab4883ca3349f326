"""Embeddings of series as tokens, and how fast their singular values fall.

The bounds are those of theorems 1 and 2 and corollary 2. An :class:`Embedding` maps a
series to tokens as columns; read it first, then :class:`ResidualMlpEmbedding`, the one
that most models have. The embeddings are random or given: weights of real models are
measured in :mod:`tsfm_lens.studies.rank_theory.of_models`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.polynomial import chebyshev
from scipy.special import erf, expit

from tsfm_lens.studies.rank_theory.compression import orthonormal

__all__ = [
    "ACTIVATIONS",
    "ChebyshevEmbedding",
    "Embedding",
    "GatedEmbedding",
    "PatchEmbedding",
    "QuantisedEmbedding",
    "ResidualMlpEmbedding",
    "analytic_bound",
    "differentiable_bound",
    "gated_bound",
    "mlp_count",
    "patches",
]

ACTIVATIONS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + erf(x / np.sqrt(2))) / 2,
    "silu": lambda x: x * expit(x),
    "tanh": np.tanh,
    "sin": np.sin,
    "identity": lambda x: x,
}
"""Functions with |ω(x)| ≤ |x|, as theorem 2 asks, by name."""


def patches(series: np.ndarray, width: int) -> np.ndarray:
    """Cut a series into disjoint patches of a width k, (k, patch) (S0-PATCH).

    The series is (steps,) or (1, steps); patches are in the order of time.

    Example:
        >>> rank_theory.patches(np.arange(6.0), 2).tolist()
        [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]
    """
    return series.astype(np.float64).reshape(-1, width).T


@dataclass(frozen=True, eq=False)
class Embedding:
    """Function of patches.

    Called on a series of T steps it returns the tokens as columns, (d, T / k).
    """

    @property
    def patch(self) -> int:
        """Steps of a patch, k."""
        return 1

    def embed(self, columns: np.ndarray) -> np.ndarray:
        """Map patches (k, L) to tokens (d, L)."""
        raise NotImplementedError

    def __call__(self, series: np.ndarray) -> np.ndarray:
        """Map a series (steps,) or (1, steps) to tokens (d, L)."""
        return self.embed(patches(series, self.patch))


@dataclass(frozen=True, eq=False)
class PatchEmbedding(Embedding):
    """Any function φ of a patch of k steps, applied to each (S0-PATCH).

    It maps (k,) to a token (d,).
    """

    function: Callable[[np.ndarray], np.ndarray]
    patch: int = 1

    def embed(self, columns: np.ndarray) -> np.ndarray:
        return np.stack([self.function(column) for column in columns.T], axis=1)


@dataclass(frozen=True, eq=False)
class QuantisedEmbedding(Embedding):
    """Vector for each of V bins of the value (S0-QEMB).

    Chronos, WaveToken and TOTEM embed in this way; patches are single steps.

    Attributes:
        edges: (V − 1,) edges between the bins, rising; a value on an edge belongs to
            the bin above.
        vectors: (d, V) vocabulary, one column per bin.
    """

    edges: np.ndarray
    vectors: np.ndarray

    @classmethod
    def random(
        cls, dimension: int, bins: int = 4094, *, largest: float = 15.0, seed: int = 0
    ) -> QuantisedEmbedding:
        """Make even bins from −largest to largest, as in Chronos.

        Vectors are Gaussian, of unit length on average.
        """
        centres = np.linspace(-largest, largest, bins)
        vectors = np.random.default_rng(seed).normal(size=(dimension, bins))
        return cls((centres[1:] + centres[:-1]) / 2, vectors / np.sqrt(dimension))

    def embed(self, columns: np.ndarray) -> np.ndarray:
        return self.vectors[:, np.searchsorted(self.edges, columns[0], side="right")]


@dataclass(frozen=True, eq=False)
class ResidualMlpEmbedding(Embedding):
    """W₃X + W₂ω(W₁X), two layers with a skip connection (S0-CEMB).

    Chronos-Bolt, Moirai and TimesFM embed in this way.

    Attributes:
        inner: W₁, (d_f, k).
        outer: W₂, (d, d_f).
        skip: W₃, (d, k).
        activation: ω, one of :data:`ACTIVATIONS`.
    """

    inner: np.ndarray
    outer: np.ndarray
    skip: np.ndarray
    activation: str = "relu"

    @classmethod
    def random(
        cls,
        dimension: int,
        patch: int = 16,
        *,
        activation: str = "relu",
        seed: int = 0,
    ) -> ResidualMlpEmbedding:
        """Draw Gaussian weights whose variance is one over the inputs of each.

        There are 4d hidden units.
        """
        units = 4 * dimension
        rng = np.random.default_rng(seed)
        inner, skip, outer = (
            rng.normal(size=(rows, columns)) / np.sqrt(columns)
            for rows, columns in (
                (units, patch),
                (dimension, patch),
                (dimension, units),
            )
        )
        return cls(inner, outer, skip, activation)

    @property
    def patch(self) -> int:
        return self.inner.shape[1]

    def embed(self, columns: np.ndarray) -> np.ndarray:
        hidden = ACTIVATIONS[self.activation](self.inner @ columns)
        return self.skip @ columns + self.outer @ hidden


@dataclass(frozen=True, eq=False)
class GatedEmbedding(Embedding):
    """Embedding of single steps, swish_β(w_i x) · (v_i x) in coordinate i (S0-CEMB).

    Time-MoE embeds in this way.

    Attributes:
        gate: w, (d,).
        value: v, (d,).
        beta: β, above 0.
    """

    gate: np.ndarray
    value: np.ndarray
    beta: float = 1.0

    @classmethod
    def random(cls, dimension: int, *, seed: int = 0) -> GatedEmbedding:
        """Draw both vectors uniformly between −1 and 1, with β of 1.

        Then |w_i| ≤ 1 and |w_i v_i| ≤ 1, as the bound requires.
        """
        gate, value = np.random.default_rng(seed).uniform(-1, 1, size=(2, dimension))
        return cls(gate, value)

    def embed(self, columns: np.ndarray) -> np.ndarray:
        gated = self.gate[:, None] * columns
        return gated * expit(self.beta * gated) * (self.value[:, None] * columns)


@dataclass(frozen=True, eq=False)
class ChebyshevEmbedding(Embedding):
    """Σ_j T_j(x / x_max) u_j over as many directions as the rank (S0-CHEB).

    j is 1, 2, …; values beyond x_max are clipped to it.

    Attributes:
        directions: u, (d, rank), orthonormal columns.
        largest: x_max, above 0.
    """

    directions: np.ndarray
    largest: float = 15.0

    @classmethod
    def random(
        cls, dimension: int, rank: int, *, largest: float = 15.0, seed: int = 0
    ) -> ChebyshevEmbedding:
        """Draw uniform directions.

        Those of a lower rank and the same seed are not the first of these.
        """
        return cls(orthonormal(dimension, rank, np.random.default_rng(seed)), largest)

    def embed(self, columns: np.ndarray) -> np.ndarray:
        inside = np.clip(columns[0] / self.largest, -1, 1)
        polynomials = chebyshev.chebvander(inside, self.directions.shape[1])
        return self.directions @ polynomials[:, 1:].T


def differentiable_bound(
    dimension: int, n_tokens: int, *, order: int, variation: float
) -> np.ndarray:
    """Bound the k-th singular value of a differentiable embedding, (d,) (S0-TH1).

    It has ν derivatives and embeds L points of [−1, 1]; k starts at 1.

    2V√(dL) / (πν(k − 2 − ν)^ν), infinite for k ≤ ν + 2; the ``order``-th derivative, ν,
    has bounded ``variation`` V.

    Example:
        >>> bound = rank_theory.differentiable_bound(5, 1, order=1, variation=np.pi)
        >>> bound.round(3).tolist()
        [inf, inf, inf, 4.472, 2.236]
    """
    steps = np.arange(1, dimension + 1) - 2.0 - order
    # 0 in the denominator gives the infinite bounds
    with np.errstate(divide="ignore"):
        return (
            2
            * variation
            * np.sqrt(dimension * n_tokens)
            / (np.pi * order * np.maximum(steps, 0) ** order)
        )


def analytic_bound(
    dimension: int, n_tokens: int, *, radius: float, largest: float
) -> np.ndarray:
    """Bound the k-th singular value of an analytic embedding, (d,) (S0-TH1).

    It embeds L points of [−1, 1]; k starts at 1.

    2M√(dL) ρ^(2−k) / (ρ − 1) with ρ, the ``radius`` of a Bernstein ellipse, and M the
    ``largest`` coordinate within it.

    Example:
        >>> rank_theory.analytic_bound(4, 1, radius=2.0, largest=1.0).tolist()
        [8.0, 4.0, 2.0, 1.0]
    """
    k = np.arange(1, dimension + 1)
    size = 2 * largest * np.sqrt(dimension * n_tokens)
    return size * radius ** (2.0 - k) / (radius - 1)


def gated_bound(dimension: int, n_tokens: int, *, beta: float) -> np.ndarray:
    """Bound the k-th singular value of a gated embedding, (d,) (S0-C2).

    It embeds L points of [−1, 1], with |w_i| and |w_i v_i| at most 1.

    Example:
        >>> bound = rank_theory.gated_bound(8, 100, beta=1.0)
        >>> round(float(bound[0] / bound[1]), 4)
        2.5708
    """
    radius = 1 + np.pi / (2 * beta)
    return analytic_bound(
        dimension, n_tokens, radius=radius, largest=((radius + 1 / radius) / 2) ** 2
    )


def mlp_count(
    embedding: ResidualMlpEmbedding,
    columns: np.ndarray,
    epsilon: float | Sequence[float],
) -> tuple[np.ndarray, np.ndarray]:
    """Count singular values of a residual MLP's tokens, and bound them (S0-TH2).

    Those above ε‖W₂‖‖W₁X‖ count; the tokens are of patches (k, L).

    Returns:
        The count for each ε, and its bound min{d, (1 + ε⁻²)k}.

    Example:
        >>> made = rank_theory.ResidualMlpEmbedding.random(32, patch=2)
        >>> columns = np.random.default_rng(0).normal(size=(2, 50))
        >>> count, most = rank_theory.mlp_count(made, columns, [0.5, 1.0])
        >>> most.tolist(), bool((count <= most).all())
        ([10.0, 4.0], True)
    """
    dimension, steps = embedding.skip.shape
    levels = np.asarray(epsilon, dtype=np.float64)
    threshold = (
        levels
        * np.linalg.norm(embedding.outer, 2)
        * np.linalg.norm(embedding.inner @ columns, 2)
    )
    singular = np.linalg.svd(embedding.embed(columns), compute_uv=False)
    count = (singular > threshold[..., None]).sum(-1)
    return count, np.minimum(dimension, (1 + levels**-2) * steps)
