"""Embeddings have the values and ranks that they must, and spectra keep the bounds of
known smoothness.
"""

from __future__ import annotations

from collections.abc import Callable
from math import factorial

import numpy as np
import pytest
import torch
from scipy.special import eval_chebyt

from tsfm_lens.studies import rank_theory
from tsfm_lens.testing import assert_close, rounding

RNG = np.random.default_rng(7)
D = 40
L = 300
POINTS = np.sort(RNG.uniform(-1, 1, L))
RATES = RNG.uniform(-2, 2, D)[:, None]
KNOTS = RNG.uniform(-0.9, 0.9, D)[:, None]
Function = Callable[[np.ndarray], np.ndarray]


def spectrum(matrix: np.ndarray) -> np.ndarray:
    return np.linalg.svd(matrix, compute_uv=False)


def holds(singular: np.ndarray, bound: np.ndarray) -> bool:
    return bool(
        (singular <= bound + rounding("float64", float(singular[0]), depth=1000)).all()
    )


def runge(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + RATES**2 * x**2)


def exponentials(x: np.ndarray) -> np.ndarray:
    return np.exp(RATES * x)


@pytest.mark.parametrize("order", [1, 3])
def test_embeddings_with_kinks_keep_their_bound(order: int) -> None:
    """Embeddings with a kink keep the bound that their derivatives allow."""

    def kinked(x: np.ndarray) -> np.ndarray:
        return np.abs(x - KNOTS) ** order

    bound = rank_theory.differentiable_bound(
        D, L, order=order, variation=2.0 * factorial(order)
    )
    singular = spectrum(kinked(POINTS))
    assert np.isinf(bound[: order + 2]).all()
    assert np.isfinite(bound[order + 2 :]).all()
    assert holds(singular, bound)
    # they do not fall as fast as those of a function of more derivatives must
    assert not holds(
        singular, 1e-3 * rank_theory.differentiable_bound(D, L, order=6, variation=2.0)
    )


def test_steep_gates_need_not_keep_it() -> None:
    gates = np.geomspace(1, 1000, D)
    steep = rank_theory.GatedEmbedding(gates, 1 / gates, 0.3)
    assert not holds(spectrum(steep(POINTS)), rank_theory.gated_bound(D, L, beta=0.3))


def ranks(matrix: np.ndarray) -> int:
    return int(np.linalg.matrix_rank(matrix))


@pytest.mark.parametrize("name", rank_theory.ACTIVATIONS)
def test_activations_are_torch_s_and_contract(name: str) -> None:
    """Activations are those of torch, and contractions."""
    x = np.linspace(-8, 8, 4001)
    ours = rank_theory.ACTIVATIONS[name](x)
    assert (np.abs(ours) <= np.abs(x)).all()
    theirs = {"identity": lambda t: t, "sin": torch.sin, "tanh": torch.tanh}.get(name)
    theirs = theirs or getattr(torch.nn.functional, name)
    assert_close(ours, theirs(torch.tensor(x)).numpy(), depth=20)


@pytest.mark.parametrize("rank", [1, 2, 5, 16])
def test_chebyshev_embeddings_have_exactly_their_rank(rank: int) -> None:
    made = rank_theory.ChebyshevEmbedding.random(40, rank, seed=rank)
    points = np.linspace(-15, 15, 200)
    tokens = made(points)
    assert_close(made.directions.T @ made.directions, np.eye(rank), depth=200)
    assert ranks(tokens) == rank
    by_hand = sum(
        np.outer(made.directions[:, j - 1], eval_chebyt(j, points / 15))
        for j in range(1, rank + 1)
    )
    assert_close(tokens, by_hand, depth=500)
    # polynomials would explode outside
    np.testing.assert_array_equal(made(np.array([400.0])), made(np.array([15.0])))
