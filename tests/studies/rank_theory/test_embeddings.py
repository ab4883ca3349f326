"""Embeddings as objects: shapes, values by hand, and the rank that each must have."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import eval_chebyt

from tsfm_lens.errors import InputError
from tsfm_lens.studies import rank_theory
from tsfm_lens.testing import assert_close

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


def test_a_patch_embedding_applies_its_function() -> None:
    made = rank_theory.PatchEmbedding(lambda x: np.array([x.sum(), x[0]]), 3)
    np.testing.assert_array_equal(made(np.arange(6.0)), [[3.0, 12.0], [0.0, 3.0]])


def test_a_quantised_embedding_looks_up_bins() -> None:
    made = rank_theory.QuantisedEmbedding(np.array([-1.0, 1.0]), np.eye(3))
    np.testing.assert_array_equal(made(np.array([-5.0, -1.0, 0.0, 1.0, 9.0])).argmax(axis=0), [0, 1, 1, 2, 2])
    chronos = rank_theory.QuantisedEmbedding.random(4, 4094)
    centres = np.linspace(-15, 15, 4094)
    np.testing.assert_array_equal(chronos(centres), chronos.vectors)


@pytest.mark.parametrize("name", rank_theory.ACTIVATIONS)
def test_activations_are_contractions_and_those_of_torch(name: str) -> None:
    x = np.linspace(-8, 8, 4001)
    ours = rank_theory.ACTIVATIONS[name](x)
    assert (np.abs(ours) <= np.abs(x)).all()
    theirs = {"identity": lambda t: t, "sin": torch.sin, "tanh": torch.tanh}.get(name)
    theirs = theirs or getattr(torch.nn.functional, name)
    assert_close(ours, theirs(torch.tensor(x)).numpy(), depth=20)


def test_a_residual_mlp_is_two_layers_and_a_path_past_them() -> None:
    made = rank_theory.ResidualMlpEmbedding.random(10, 4, 7, activation="gelu", seed=3)
    columns = rank_theory.patches(SERIES, 4)
    by_hand = made.skip @ columns + made.outer @ rank_theory.ACTIVATIONS["gelu"](made.inner @ columns)
    np.testing.assert_array_equal(made(SERIES), by_hand)
    assert ranks(rank_theory.ResidualMlpEmbedding.random(10, 4, activation="identity")(SERIES)) == 2  # a sine has two


def test_a_gated_embedding_is_swish_times_the_value() -> None:
    made = rank_theory.GatedEmbedding(np.array([0.5, -1.0]), np.array([1.0, 2.0]), beta=3.0)
    x = np.array([-2.0, 0.0, 0.7])
    for i, (w, v) in enumerate(((0.5, 1.0), (-1.0, 2.0))):
        assert_close(made(x)[i], w * x / (1 + np.exp(-3 * w * x)) * v * x, depth=20)
    drawn = rank_theory.GatedEmbedding.random(50, seed=1)
    assert np.abs(drawn.gate).max() <= 1
    assert np.abs(drawn.gate * drawn.value).max() <= 1


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
