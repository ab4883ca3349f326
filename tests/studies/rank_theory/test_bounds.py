"""Embeddings have the values and ranks that they must, and spectra keep the bounds of known smoothness."""

from __future__ import annotations

from collections.abc import Callable
from math import factorial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import eval_chebyt

from tsfm_lens.errors import InputError
from tsfm_lens.studies import rank_theory
from tsfm_lens.testing import assert_close, rounding

RNG = np.random.default_rng(7)
D, L = 40, 300
POINTS = np.sort(RNG.uniform(-1, 1, L))
RATES = RNG.uniform(-2, 2, D)[:, None]
KNOTS = RNG.uniform(-0.9, 0.9, D)[:, None]
Function = Callable[[np.ndarray], np.ndarray]


def spectrum(matrix: np.ndarray) -> np.ndarray:
    return np.linalg.svd(matrix, compute_uv=False)


def holds(singular: np.ndarray, bound: np.ndarray) -> bool:
    return bool((singular <= bound + rounding("float64", float(singular[0]), depth=1000)).all())


def runge(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + RATES**2 * x**2)


def exponentials(x: np.ndarray) -> np.ndarray:
    return np.exp(RATES * x)


@pytest.mark.parametrize("radius", [1.1, 1.3, 1.6])
def test_analytic_embeddings_keep_the_bound_of_their_ellipse(radius: float) -> None:
    across, up = (radius + 1 / radius) / 2, (radius - 1 / radius) / 2
    # poles of the first stand at i / rate, at least 1/2 away; its largest modulus is on the imaginary axis
    if up < 0.5:
        for points, n in ((POINTS, L), (POINTS[:25], 25)):
            bound = rank_theory.analytic_bound(D, n, radius=radius, largest=1 / (1 - 4 * up**2))
            singular = spectrum(runge(points))
            assert holds(singular, bound[: len(singular)])
    bound = rank_theory.analytic_bound(D, L, radius=radius, largest=float(np.exp(2 * across)))
    assert holds(spectrum(exponentials(POINTS)), bound)
    # what is not analytic does not
    assert not holds(spectrum(np.abs(POINTS - KNOTS)), rank_theory.analytic_bound(D, L, radius=3.0, largest=2.0))


@pytest.mark.parametrize("order", [1, 3])
def test_embeddings_with_a_kink_keep_the_bound_of_their_derivatives(order: int) -> None:
    def kinked(x: np.ndarray) -> np.ndarray:
        return np.abs(x - KNOTS) ** order

    bound = rank_theory.differentiable_bound(D, L, order=order, variation=2.0 * factorial(order))
    singular = spectrum(kinked(POINTS))
    assert np.isinf(bound[: order + 2]).all()
    assert np.isfinite(bound[order + 2 :]).all()
    assert holds(singular, bound)
    # they do not fall as fast as those of a function of more derivatives must
    assert not holds(singular, 1e-3 * rank_theory.differentiable_bound(D, L, order=6, variation=2.0))
    whole = rank_theory.quasimatrix_spectrum(kinked, nodes=400)
    assert holds(whole, rank_theory.differentiable_bound(D, 4, order=order, variation=2.0 * factorial(order)))


@pytest.mark.parametrize("function", [runge, exponentials, lambda x: np.abs(x - KNOTS)])
def test_the_proof_s_own_bound_holds_for_any_function(function: Function) -> None:
    bound = rank_theory.chebyshev_bound(function, POINTS)
    assert holds(spectrum(function(POINTS)), bound)
    # coarse projections are worse and still true
    assert holds(spectrum(function(POINTS)), rank_theory.chebyshev_bound(function, POINTS, nodes=D + 1))


def test_steep_gates_need_not_keep_it() -> None:
    gates = np.geomspace(1, 1000, D)
    steep = rank_theory.GatedEmbedding(gates, 1 / gates, 0.3)
    assert not holds(spectrum(steep(POINTS)), rank_theory.gated_bound(D, L, beta=0.3))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 20),
    st.sampled_from(sorted(rank_theory.ACTIVATIONS)),
    st.floats(0.05, 3.0),
    st.floats(-2.0, 2.0),
    st.integers(0, 2**32 - 1),
)
def test_residual_mlps_keep_the_bound(
    patch: int, more: int, activation: str, epsilon: float, size: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    made = rank_theory.ResidualMlpEmbedding.random(patch + more, patch, 30, activation=activation, seed=seed % 997)
    columns = 10.0**size * rng.normal(size=(patch, 40))
    count, most = rank_theory.mlp_count(made, columns, epsilon)
    assert count <= most
    if activation == "identity":
        assert np.linalg.matrix_rank(made.embed(columns)) <= patch


SERIES = np.sin(np.arange(96) / 5.0) * 3


def ranks(matrix: np.ndarray) -> int:
    return int(np.linalg.matrix_rank(matrix))


@pytest.mark.parametrize(
    ("embedding", "patch"),
    [
        (rank_theory.PatchEmbedding(lambda x: np.array([x.sum(), x.max(), 1.0]), 8), 8),
        (rank_theory.QuantisedEmbedding.random(12, 40), 1),
        (rank_theory.ResidualMlpEmbedding.random(12, 16), 16),
        (rank_theory.GatedEmbedding.random(12), 1),
        (rank_theory.ChebyshevEmbedding.random(12, 3), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_series_becomes_a_token_a_patch(embedding: rank_theory.Embedding, patch: int) -> None:
    assert embedding.patch == patch
    tokens = embedding(SERIES)
    assert tokens.shape[1] == 96 // patch
    np.testing.assert_array_equal(tokens, embedding(SERIES[None]))
    # each token depends on its own patch alone
    changed = SERIES.copy()
    changed[:patch] += 1
    np.testing.assert_array_equal(embedding(changed)[:, 1:], tokens[:, 1:])
    with pytest.raises(InputError, match="finite"):
        embedding(np.append(SERIES[:-1], np.nan))


@pytest.mark.parametrize("name", rank_theory.ACTIVATIONS)
def test_activations_are_contractions_and_those_of_torch(name: str) -> None:
    x = np.linspace(-8, 8, 4001)
    ours = rank_theory.ACTIVATIONS[name](x)
    assert (np.abs(ours) <= np.abs(x)).all()
    theirs = {"identity": lambda t: t, "sin": torch.sin, "tanh": torch.tanh}.get(name)
    theirs = theirs or getattr(torch.nn.functional, name)
    assert_close(ours, theirs(torch.tensor(x)).numpy(), depth=20)


@pytest.mark.parametrize("rank", [1, 2, 5, 16])
def test_a_chebyshev_embedding_has_its_rank_exactly(rank: int) -> None:
    made = rank_theory.ChebyshevEmbedding.random(40, rank, seed=rank)
    points = np.linspace(-15, 15, 200)
    tokens = made(points)
    assert_close(made.directions.T @ made.directions, np.eye(rank), depth=200)
    assert ranks(tokens) == rank
    by_hand = sum(np.outer(made.directions[:, j - 1], eval_chebyt(j, points / 15)) for j in range(1, rank + 1))
    assert_close(tokens, by_hand, depth=500)
    # columns lie among the directions
    assert_close(made.directions @ made.directions.T @ tokens, tokens, depth=500)
    if rank == 1:
        assert_close(tokens, np.outer(made.directions[:, 0], points / 15), depth=50)
    # polynomials would explode outside
    np.testing.assert_array_equal(made(np.array([400.0])), made(np.array([15.0])))
