"""Norms of attention on columns, and attention over channels: known answers and
counterexamples.
"""

from __future__ import annotations

import numpy as np
import pytest

from tsfm_lens.core.errors import InputError
from tsfm_lens.studies import rank_theory
from tsfm_lens.studies.rank_theory.compression import AttentionWeights
from tsfm_lens.testing import assert_close


def test_norms_of_products_can_be_set() -> None:
    """Norms are those of the products of weights, and they can be set."""
    weights = AttentionWeights.random(12, 3)
    for head in range(3):
        product = weights.query[head].T @ weights.key[head]
        assert_close(weights.score_norms[head], np.linalg.norm(product, 2), depth=200)
        assert_close(
            weights.value_norms[head], np.linalg.norm(weights.value[head], 2), depth=200
        )
    within = weights.within(2.0, 0.5)
    assert_close(within.score_norms, np.full(3, 2.0), depth=200)
    assert_close(within.value_norms, np.full(3, 0.5), depth=200)


L = 24
D = 5
WIDTH = 4


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("horizon", [1, D - 1, D, 3 * D])
def test_the_length_decides_not_the_horizon(
    horizon: int, rng: np.random.Generator
) -> None:
    """Whether a readout exists depends on the length, not on the horizon."""
    tokens = rng.standard_normal((D, L))
    assert rank_theory.readout_exists(tokens, rng.standard_normal((D, horizon)))
    # more channels than steps in the window: no full row rank, and in general no
    # readout
    assert not rank_theory.readout_exists(
        rng.standard_normal((L + 1, L)), rng.standard_normal((L + 1, horizon))
    )


def test_only_scaled_identities_have_a_bound(
    rng: np.random.Generator,
) -> None:
    """A multiple of the identity reaches the bound, and other forms have none."""
    x = rng.standard_normal((D, L))
    other = rng.standard_normal((L, L))
    bound = rank_theory.nuclear_norm_bound(x, 3 * np.eye(L), np.eye(L))
    assert_close(rank_theory.nuclear_norm(3 * x @ x.T), bound, depth=1000)
    for queries, keys in (
        (other, np.eye(L)),
        (-np.eye(L), np.eye(L)),
        (other[:, :WIDTH], other[:, WIDTH : 2 * WIDTH]),
    ):
        with pytest.raises(InputError, match="not symmetric with eigenvalues"):
            rank_theory.nuclear_norm_bound(x, queries, keys)
