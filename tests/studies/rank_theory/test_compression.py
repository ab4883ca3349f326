"""Compression, sketches and growth of rank: exact algebra, bounds with no violation,
constructions that reach them.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tsfm_lens.studies import rank_theory
from tsfm_lens.studies.rank_theory.compression import (
    AttentionWeights,
    column_softmax,
    orthonormal,
    residual_layer,
)
from tsfm_lens.studies.rank_theory.constructions import effective_index
from tsfm_lens.testing import assert_close, rounding

SIZES = st.tuples(
    st.integers(1, 4), st.integers(1, 4), st.integers(1, 20), st.integers(0, 2**32 - 1)
)


def drawn(
    heads: int, size: int, tokens: int, seed: int
) -> tuple[np.ndarray, AttentionWeights, np.random.Generator]:
    rng = np.random.default_rng(seed)
    width = heads * size
    vocabulary = (
        rng.normal(size=(width, tokens))
        * np.exp(-rng.uniform(0, 2) * np.arange(width))[:, None]
    )
    weights = AttentionWeights.random(
        width, heads, scaling=str(rng.choice(list(rank_theory.SCALINGS))), seed=seed
    )
    return vocabulary, weights, rng


@settings(max_examples=40, deadline=None)
@given(SIZES)
def test_compressed_layers_act_on_projected_inputs(
    sizes: tuple[int, int, int, int],
) -> None:
    """The compressed layer is the layer on the projected input."""
    vocabulary, weights, rng = drawn(*sizes)
    width = len(vocabulary)
    rank = int(rng.integers(1, width + 1))
    tokens = rng.normal(size=(width, 6))
    less = rank_theory.compressed(weights, vocabulary, rank)
    onto = rank_theory.projector(vocabulary, rank)
    large = float(weights.value_norms.max() * np.linalg.norm(tokens, 2))
    # scores pass through the exponential, so that their rounding counts relative to the
    # output
    depth = 100 * (10 + int(np.abs(rank_theory.logits(tokens, weights)).max()))
    assert_close(
        rank_theory.attention(tokens, less),
        rank_theory.attention(onto @ tokens, weights),
        depth=depth,
        magnitude=large,
    )
    stacked = np.concatenate(less.query)
    assert np.linalg.matrix_rank(stacked) <= rank
    assert (
        less.score_norms
        <= weights.score_norms * (1 + rounding("float64", 1.0, depth=200))
    ).all()
    assert (
        less.value_norms
        <= weights.value_norms * (1 + rounding("float64", 1.0, depth=200))
    ).all()


def test_repeated_tokens_can_reach_the_bound() -> None:
    """Where scores play no part, a repeated token needs all of the bound."""
    vocabulary = np.diag([1.0, 0.1, 0.1, 0.1])
    nothing = np.zeros((1, 4, 4))
    even = AttentionWeights(nothing, nothing, 2 * np.eye(4)[None])
    less = rank_theory.compressed(even, vocabulary, 1)
    for length in (1, 16, 256):
        tokens = np.repeat(vocabulary[:, 1:2], length, axis=1)
        error = np.linalg.norm(
            rank_theory.attention(tokens, even) - rank_theory.attention(tokens, less)
        )
        assert_close(
            rank_theory.compression_bound(vocabulary, even, [1], length),
            [error],
            depth=1000,
        )


def test_scores_can_make_layers_incompressible() -> None:
    """Scores that keep tokens apart make a layer incompressible."""
    for width, tokens in ((2, 2), (6, 6), (6, 25), (6, 200)):
        singular = np.linspace(1.0, 0.3, width)
        u, weights = rank_theory.incompressible(singular, tokens, seed=width)
        assert_close(np.linalg.svd(u, compute_uv=False), singular, depth=20)
        assert_close(weights.value[0] @ weights.value[0].T, np.eye(width), depth=50)
        full = rank_theory.attention(u, weights)
        for rank in range(1, width):
            least = rank_theory.least_value_error(u, weights, rank)
            assert least >= singular[rank] / 4
            # no value matrix of this rank does better, and the best approximation of
            # the output reaches it
            mixed = u @ column_softmax(rank_theory.logits(u, weights)[0])
            left, values, right = np.linalg.svd(
                weights.value[0] @ mixed, full_matrices=False
            )
            best = (
                (left[:, :rank] * values[:rank]) @ right[:rank] @ np.linalg.pinv(mixed)
            )
            reached = np.linalg.norm(
                rank_theory.attention(u, weights.with_value(best)) - full
            )
            assert_close(reached, least, depth=5000, magnitude=1.0)
            rng = np.random.default_rng(rank)
            for _ in range(5):
                other = rng.normal(size=(width, rank)) @ rng.normal(size=(rank, width))
                assert (
                    np.linalg.norm(
                        rank_theory.attention(u, weights.with_value(other)) - full
                    )
                    > least
                )


def test_the_printed_logarithm_has_a_limit() -> None:
    """The printed logarithm holds for at most 4 d + 1 tokens."""
    smallest = {}
    for tokens in (65, 128, 1024):
        for as_printed in (True, False):
            u, weights = rank_theory.incompressible(
                np.ones(16), tokens, as_printed=as_printed
            )
            sharp = column_softmax(rank_theory.logits(u, weights)[0])[:16, :16]
            smallest[tokens, as_printed] = float(
                np.linalg.svd(sharp, compute_uv=False)[-1]
            )
            if tokens == 1024:
                least = rank_theory.least_value_error(u, weights, 15)
                assert (least < 1 / 4) == as_printed
    # 1/2 and 1/(4d) less a row of them are what the proof asks for
    assert smallest[65, True] > 0.25
    assert round(smallest[128, True], 2) == 0.33
    assert round(smallest[1024, True], 2) == 0.06
    assert (
        min(value for (_, as_printed), value in smallest.items() if not as_printed)
        > 0.75
    )


SLACK = rounding("float64", 1.0, depth=1000)


def spectrum(matrix: np.ndarray) -> np.ndarray:
    return np.linalg.svd(matrix, compute_uv=False)


def test_the_best_sketch_is_optimal() -> None:
    """It errs by the next singular value; a sketch of full rank misses nothing."""
    rng = np.random.default_rng(0)
    left = orthonormal(6, 6, rng)
    right = orthonormal(9, 6, rng)
    singular = np.exp(-np.arange(6.0))
    matrix = left * singular @ right.T
    for rows in range(1, 6):
        assert_close(
            rank_theory.sketching_distance(matrix, left[:, :rows].T),
            singular[rows],
            depth=500,
            magnitude=1.0,
        )
    assert_close(
        rank_theory.sketching_distance(matrix, rng.normal(size=(6, 6))),
        0.0,
        depth=500,
        magnitude=1.0,
    )
    assert effective_index(singular, float(singular[2])) == 3
    assert effective_index(singular, 2.0) == 0


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 4),
    st.integers(2, 5),
    st.floats(0.2, 5.0),
    st.integers(0, 6),
    st.integers(0, 2**32 - 1),
)
def test_sketches_by_head_keep_their_bounds(
    heads: int, size: int, decay: float, more: int, seed: int
) -> None:
    """A sketch for each head keeps the bounds that are promised."""
    width = heads * size
    singular = np.exp(-np.arange(width) / decay)
    for rank in range(1, size):
        made = rank_theory.head_sketch(
            singular, heads, rank, width + more, seed=seed % 1000
        )
        assert_close(np.linalg.svd(made.tokens, compute_uv=False), singular, depth=50)
        for name in ("query", "key", "value"):
            less, full = (
                np.linalg.norm(getattr(side, name))
                for side in (made.reduced, made.weights)
            )
            assert less <= full * (1 + SLACK), name
            for head in getattr(made.reduced, name):
                assert np.linalg.matrix_rank(head) <= rank + (name != "value")
        query, key, value = made.right
        for rows in (query, value, key[:, :-1]):
            assert ((rows != 0).sum(axis=-1) <= size).all()


@pytest.mark.parametrize("heads", [1, 2, 3, 6])
@pytest.mark.parametrize("depth", [1, 30])
@pytest.mark.parametrize("rate", [2.0, 8.0])
def test_the_construction_grows_by_the_theorem(
    heads: int, depth: int, rate: float
) -> None:
    singular = np.exp(-np.arange(24) / rate)
    for n_tokens in (24, 60):
        u, weights = rank_theory.growing(singular, heads, n_tokens, depth=depth)
        assert_close(spectrum(u), singular, depth=20)
        assert_close(weights.value_norms, np.ones(heads), depth=20)
        found = spectrum(residual_layer(u, weights, depth))
        floor = rank_theory.flow_floor(singular, heads, depth)
        assert (found / found[0] >= floor).all()
        # without the columns past d, the proof's lead block has exactly these singular
        # values
        if n_tokens == 24:
            size = 24 // heads
            lead = np.sort(
                [
                    singular[i * size + j]
                    + singular[j] * (j < size - 1) / np.sqrt(depth)
                    for i in range(heads)
                    for j in range(size)
                ]
            )[::-1]
            assert np.abs(found - lead).max() <= singular[-1] / 5 + SLACK


def test_the_construction_has_the_largest_floor() -> None:
    """The floor of the construction is the largest of those that are printed."""
    singular = np.exp(-np.arange(12) / 3)
    heads = 3
    depth = 4
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
