"""Growth of rank in one layer: the bound on random layers, the construction that reaches it, and the corollary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tsfm_lens import ranks
from tsfm_lens.studies import rank_theory
from tsfm_lens.studies.rank_theory import AttentionWeights
from tsfm_lens.testing import assert_close, rounding

E2 = float(np.exp(2))
SLACK = rounding("float64", 1.0, depth=1000)


def drawn(heads: int, size: int, seed: int) -> tuple[np.ndarray, np.ndarray, AttentionWeights]:
    """An input, its singular values with the first at 1, and a layer as large as the theorem allows."""
    rng = np.random.default_rng(seed)
    width = heads * size
    n_tokens = int(rng.integers(width, 3 * width + 1))
    singular = np.exp(-np.sort(rng.uniform(0, 8, width)))
    singular /= singular[0]
    u = rank_theory.orthonormal(width, width, rng) * singular @ rank_theory.orthonormal(n_tokens, width, rng).T
    weights = AttentionWeights.random(width, heads, scaling="unit", seed=seed).within(np.sqrt(size), 1.0)
    return u, singular, weights


def spectrum(matrix: np.ndarray) -> np.ndarray:
    return np.linalg.svd(matrix, compute_uv=False)


SIZES = st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**32 - 1))


@settings(max_examples=50, deadline=None)
@given(SIZES)
def test_no_layer_lets_rank_grow_past_the_bound(sizes: tuple[int, int, int]) -> None:
    u, singular, weights = drawn(*sizes)
    heads, n_tokens = weights.heads, u.shape[1]
    depth = int(np.ceil((2 * E2 * heads) ** 2))
    found = spectrum(rank_theory.residual_layer(u, weights, depth))
    assert (found / found[0] <= ranks.flow_bound(singular, heads, depth) + SLACK).all()
    alone = spectrum(rank_theory.residual_layer(u, weights))
    assert (alone <= rank_theory.one_layer_bound(singular, heads) + SLACK).all()
    # on the way: what the proof says of the softmax and of each head
    softmax = rank_theory.column_softmax(rank_theory.logits(u, weights))
    assert softmax.min() >= (1 - SLACK) / E2 / n_tokens
    assert softmax.max() <= (1 + SLACK) * E2 / n_tokens
    assert np.linalg.norm(softmax, axis=(1, 2)).max() <= E2 * (1 + SLACK)
    for head in rank_theory.attention(u, weights).reshape(heads, -1, n_tokens):
        written = spectrum(head)
        assert (written <= E2 * singular[: len(written)] + SLACK).all()


def test_the_bound_is_the_least_over_its_sums() -> None:
    singular, heads, depth = np.exp(-np.arange(9) / 2), 2, 4000
    by_hand = [
        2 * min(singular[k - j] + E2 * heads / np.sqrt(depth) * singular[(j - 1) // heads] for j in range(1, k + 1))
        for k in range(1, 10)
    ]
    assert_close(ranks.flow_bound(singular, heads, depth), np.array(by_hand), depth=20)
    # relative to the largest
    assert_close(ranks.flow_bound(5 * singular, heads, depth), np.array(by_hand), depth=20)


@pytest.mark.parametrize("heads", [1, 2, 3, 6])
@pytest.mark.parametrize("depth", [1, 30])
@pytest.mark.parametrize("rate", [2.0, 8.0])
def test_the_construction_grows_as_fast_as_the_theorem_says(heads: int, depth: int, rate: float) -> None:
    singular = np.exp(-np.arange(24) / rate)
    for n_tokens in (24, 60):
        u, weights = rank_theory.growing(singular, heads, n_tokens, depth=depth)
        assert_close(spectrum(u), singular, depth=20)
        assert_close(weights.value_norms, np.ones(heads), depth=20)
        found = spectrum(rank_theory.residual_layer(u, weights, depth))
        floor = rank_theory.flow_floor(singular, heads, depth)
        assert (found / found[0] >= floor).all()
        # without the columns past d, the proof's lead block has exactly these singular values
        if n_tokens == 24:
            size = 24 // heads
            lead = np.sort(
                [
                    singular[i * size + j] + singular[j] * (j < size - 1) / np.sqrt(depth)
                    for i in range(heads)
                    for j in range(size)
                ]
            )[::-1]
            assert np.abs(found - lead).max() <= singular[-1] / 5 + SLACK


def test_the_floor_of_the_construction_is_the_largest_that_is_printed() -> None:
    singular, heads, depth = np.exp(-np.arange(12) / 3), 3, 4
    floor = rank_theory.flow_floor(singular, heads, depth)
    for k in range(1, 13):
        known = [
            (singular[(i - 1) * 4 + -(-k // i) - 1] + singular[-(-k // i) - 1] / 2) / 4
            for i in (1, 2, 3)
            if -(-k // i) < 4
        ]
        assert floor[k - 1] == max(known, default=0.0)
    # the range is k ≤ d − h
    assert np.flatnonzero(floor).max() + 1 == 12 - heads


@given(st.integers(1, 50), st.integers(1, 12))
def test_the_index_of_the_corollary_follows_from_the_theorem(k: int, heads: int) -> None:
    """At j = ⌊(hk + 1)/(h + 1)⌋ both sums of the theorem have an index of at least the corollary's."""
    j = (heads * k + 1) // (heads + 1)
    index = int(rank_theory.corollary_index(np.array(k), heads))
    assert 1 <= j <= k
    assert index <= k - j + 1
    assert index == (j - 1) // heads + 1


def test_the_printed_index_is_wrong_for_the_first_singular_value() -> None:
    singular = np.array([1.0, 1e-3])
    u = np.diag(singular)
    weights = AttentionWeights.random(2, scaling="unit").within(np.sqrt(2), 1.0)
    found = spectrum(rank_theory.residual_layer(u, weights))[0]
    index = [int(rank_theory.corollary_index(np.array(1), 1, as_printed=printed)) for printed in (False, True)]
    assert index == [1, 2]
    assert found <= (1 + E2) * singular[index[0] - 1]
    assert found > (1 + E2) * singular[index[1] - 1]
