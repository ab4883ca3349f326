"""Embeddings of series as tokens: patches, bins, small networks and polynomials, as functions to a matrix of tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.polynomial import chebyshev
from scipy.special import erf, expit

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.studies.rank_theory.attention import orthonormal

__all__ = [
    "ACTIVATIONS",
    "ChebyshevEmbedding",
    "Embedding",
    "GatedEmbedding",
    "PatchEmbedding",
    "QuantisedEmbedding",
    "ResidualMlpEmbedding",
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
    """Cut a series into disjoint patches, (width, patch), in order of time.

    Args:
        series: (steps,) or (1, steps).
        width: steps of a patch, k.

    Source:
        Flow of ranks, section 2 (S0-PATCH).

    Raises:
        InputError: no series of numbers, or its steps are no whole number of patches.

    Example:
        >>> rank_theory.patches(np.arange(6.0), 2).tolist()
        [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]
    """
    values = np.asarray(series, dtype=np.float64)
    flat = values.reshape(-1)
    if values.ndim > 2 or (values.ndim == 2 and len(values) != 1) or not len(flat) or not np.isfinite(flat).all():
        raise InputError(f"the series has shape {values.shape}, expected (steps,) or (1, steps) of finite numbers")
    if width < 1 or len(flat) % width:
        whole = max(len(flat) // max(width, 1), 1) * max(width, 1)
        raise InputError(f"{len(flat)} steps are no whole number of patches of {width}; take {whole} steps")
    return flat.reshape(-1, width).T.copy()


@dataclass(frozen=True, eq=False)
class Embedding:
    """Function of patches. Called on a series of T steps it returns the tokens as columns, (d, T / k).

    The series is taken as it is: the scaling of a model is not part of the embedding.
    """

    @property
    def patch(self) -> int:
        """Steps of a patch, k."""
        return 1

    def embed(self, columns: np.ndarray) -> np.ndarray:
        """Map patches (k, L) to tokens (d, L)."""
        raise NotImplementedError

    def __call__(self, series: np.ndarray) -> np.ndarray:
        """Map a series (steps,) or (1, steps) to tokens (d, L).

        Raises:
            InputError: see :func:`patches`.
        """
        return np.asarray(self.embed(patches(series, self.patch)))


@dataclass(frozen=True, eq=False)
class PatchEmbedding(Embedding):
    """Any function of one patch, applied to each.

    Attributes:
        function: φ, of a patch (k,) to a token (d,).
        steps: k.

    Source:
        Flow of ranks, section 2 (S0-PATCH).
    """

    function: Callable[[np.ndarray], np.ndarray]
    steps: int = 1

    @property
    def patch(self) -> int:
        """Steps of a patch, k."""
        return self.steps

    def embed(self, columns: np.ndarray) -> np.ndarray:
        """Map patches (k, L) to tokens (d, L)."""
        return np.stack([np.asarray(self.function(column), dtype=np.float64) for column in columns.T], axis=1)


@dataclass(frozen=True, eq=False)
class QuantisedEmbedding(Embedding):
    """Vector for each of V bins of the value; patches are single steps.

    Attributes:
        edges: (V − 1,) between the bins, rising; a value on an edge belongs to the bin above.
        vectors: (d, V), a bin a column: the vocabulary.

    Source:
        Flow of ranks, section 2 (S0-QEMB): Chronos, WaveToken and TOTEM.

    Raises:
        InputError: the edges do not rise, or are not one fewer than the vectors.
    """

    edges: np.ndarray
    vectors: np.ndarray

    def __post_init__(self) -> None:
        if np.shape(self.edges) != (np.shape(self.vectors)[-1] - 1,) or (np.diff(self.edges) <= 0).any():
            raise InputError(
                f"{np.shape(self.edges)} edges for vectors of shape {np.shape(self.vectors)}, expected rising edges, "
                "one fewer than vectors"
            )

    @classmethod
    def random(cls, dimension: int, bins: int = 4094, *, largest: float = 15.0, seed: int = 0) -> QuantisedEmbedding:
        """Make even bins from −largest to largest, as in Chronos, and Gaussian vectors of unit length on average."""
        centres = np.linspace(-largest, largest, bins)
        vectors = np.random.default_rng(seed).normal(size=(dimension, bins)) / np.sqrt(dimension)
        return cls((centres[1:] + centres[:-1]) / 2, vectors)

    def embed(self, columns: np.ndarray) -> np.ndarray:
        """Map values (1, L) to tokens (d, L)."""
        return np.asarray(self.vectors)[:, np.searchsorted(self.edges, columns[0], side="right")]


@dataclass(frozen=True, eq=False)
class ResidualMlpEmbedding(Embedding):
    """Two layers with a skip connection, W₃X + W₂ω(W₁X).

    Attributes:
        inner: W₁, (d_f, k).
        outer: W₂, (d, d_f).
        skip: W₃, (d, k).
        activation: ω, one of :data:`ACTIVATIONS`.

    Source:
        Flow of ranks, theorem 2 (S0-CEMB): Chronos-Bolt, Moirai and TimesFM.

    Raises:
        InputError: the shapes do not fit.
        UnknownNameError: no such activation.
    """

    inner: np.ndarray
    outer: np.ndarray
    skip: np.ndarray
    activation: str = "relu"

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise unknown_name("activation", self.activation, ACTIVATIONS)
        inner, outer, skip = (np.shape(part) for part in (self.inner, self.outer, self.skip))
        if inner[0] != outer[1] or skip != (outer[0], inner[1]):
            raise InputError(f"W₁ {inner}, W₂ {outer} and W₃ {skip} do not fit, expected (d_f, k), (d, d_f) and (d, k)")

    @classmethod
    def random(
        cls, dimension: int, patch: int = 16, hidden: int | None = None, *, activation: str = "relu", seed: int = 0
    ) -> ResidualMlpEmbedding:
        """Draw Gaussian weights whose variance is one over the inputs of each, with 4d hidden units unless given."""
        units, rng = hidden or 4 * dimension, np.random.default_rng(seed)
        inner, skip = (rng.normal(size=(rows, patch)) / np.sqrt(patch) for rows in (units, dimension))
        return cls(inner, rng.normal(size=(dimension, units)) / np.sqrt(units), skip, activation)

    @property
    def patch(self) -> int:
        """Steps of a patch, k."""
        return int(np.shape(self.inner)[1])

    def embed(self, columns: np.ndarray) -> np.ndarray:
        """Map patches (k, L) to tokens (d, L)."""
        return np.asarray(self.skip @ columns + self.outer @ ACTIVATIONS[self.activation](self.inner @ columns))


@dataclass(frozen=True, eq=False)
class GatedEmbedding(Embedding):
    """Embedding of single steps, swish_β(w_i x) · (v_i x) for each coordinate i.

    Attributes:
        gate: w, (d,).
        value: v, (d,).
        beta: β, above 0.

    Source:
        Flow of ranks, corollary 2 (S0-CEMB): Time-MoE.

    Raises:
        InputError: w and v have different shapes, or β is not above 0.
    """

    gate: np.ndarray
    value: np.ndarray
    beta: float = 1.0

    def __post_init__(self) -> None:
        if np.ndim(self.gate) != 1 or np.shape(self.gate) != np.shape(self.value) or not self.beta > 0:
            raise InputError(
                f"w of shape {np.shape(self.gate)}, v of shape {np.shape(self.value)} and β={self.beta}: expected "
                "two vectors of one length and β above 0"
            )

    @classmethod
    def random(cls, dimension: int, *, beta: float = 1.0, seed: int = 0) -> GatedEmbedding:
        """Draw both vectors uniformly between −1 and 1, so that |w_i| ≤ 1 and |w_i v_i| ≤ 1, as the bound requires."""
        gate, value = np.random.default_rng(seed).uniform(-1, 1, size=(2, dimension))
        return cls(gate, value, beta)

    def embed(self, columns: np.ndarray) -> np.ndarray:
        """Map values (1, L) to tokens (d, L)."""
        gated = np.asarray(self.gate)[:, None] * columns
        return np.asarray(gated * expit(self.beta * gated) * (np.asarray(self.value)[:, None] * columns))


@dataclass(frozen=True, eq=False)
class ChebyshevEmbedding(Embedding):
    """Σ_j T_j(x / x_max) u_j over as many directions as the rank is to be, from j = 1 on; larger values are cut off.

    Attributes:
        directions: u, (d, rank), orthonormal columns.
        largest: x_max, above 0, which Chronos has at 15.

    Source:
        Flow of ranks, appendix I (S0-CHEB).

    Raises:
        InputError: the directions are no matrix, or x_max is not above 0.
    """

    directions: np.ndarray
    largest: float = 15.0

    def __post_init__(self) -> None:
        if np.ndim(self.directions) != 2 or not self.largest > 0:
            raise InputError(
                f"directions of shape {np.shape(self.directions)} and x_max={self.largest}: expected a matrix "
                "(d, rank) and a number above 0"
            )

    @classmethod
    def random(cls, dimension: int, rank: int, *, largest: float = 15.0, seed: int = 0) -> ChebyshevEmbedding:
        """Draw uniform directions; those of a lower rank and the same seed are not the first of these.

        Raises:
            InputError: the rank is not from 1 to the dimension.
        """
        return cls(orthonormal(dimension, rank, np.random.default_rng(seed)), largest)

    def embed(self, columns: np.ndarray) -> np.ndarray:
        """Map values (1, L) to tokens (d, L)."""
        inside = np.clip(columns[0] / self.largest, -1, 1)
        polynomials = chebyshev.chebvander(inside, np.shape(self.directions)[1])[:, 1:].T
        return np.asarray(self.directions @ polynomials)
