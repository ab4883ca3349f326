"""Sketches: the distance between what the best subspace misses and all, and theorem 6 by its construction."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tsfm_lens.studies import rank_theory
from tsfm_lens.testing import assert_close, rounding

SLACK = rounding("float64", 1.0, depth=1000)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 8), st.integers(1, 12), st.integers(1, 10), st.integers(0, 2**32 - 1))
def test_no_sketch_misses_less_than_the_best_subspace(rows: int, width: int, n_tokens: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix, sketch = rng.normal(size=(width, n_tokens)), rng.normal(size=(rows, width))
    singular = np.append(np.linalg.svd(matrix, compute_uv=False), np.zeros(width + rows))
    distance = rank_theory.sketching_distance(matrix, sketch)
    assert singular[rows] - SLACK * singular[0] <= distance <= singular[0] * (1 + SLACK)
    # by definition, with an orthonormal basis from another decomposition
    q = np.linalg.qr((sketch @ matrix).T)[0]
    large = float(singular[0])
    if rows <= min(width, n_tokens):
        direct = np.linalg.norm(q @ q.T @ matrix.T - matrix.T, 2)
        condition = float(np.linalg.cond(sketch @ matrix))
        assert_close(distance, direct, depth=int(200 * condition) + 200, magnitude=large)


def test_the_best_sketch_reaches_the_next_singular_value_and_a_full_one_misses_nothing() -> None:
    rng = np.random.default_rng(0)
    left, right = rank_theory.orthonormal(6, 6, rng), rank_theory.orthonormal(9, 6, rng)
    singular = np.exp(-np.arange(6.0))
    matrix = left * singular @ right.T
    for rows in range(1, 6):
        assert_close(rank_theory.sketching_distance(matrix, left[:, :rows].T), singular[rows], depth=500, magnitude=1.0)
    assert_close(rank_theory.sketching_distance(matrix, rng.normal(size=(6, 6))), 0.0, depth=500, magnitude=1.0)
    assert rank_theory.effective_index(singular, float(singular[2])) == 3
    assert rank_theory.effective_index(singular, 2.0) == 0


@pytest.mark.parametrize("heads", [1, 2, 4, 8])
def test_a_sparse_sketch_has_as_many_entries_for_any_number_of_heads(heads: int) -> None:
    sketch = rank_theory.sparse_sketch(16, 3, heads, seed=1)
    assert sketch.shape == (3 * heads, 16)
    assert ((sketch != 0).sum(axis=1) == 16 // heads).all()
    assert (sketch != 0).sum() == 3 * 16
    np.testing.assert_array_equal(sketch, rank_theory.sparse_sketch(16, 3, heads, seed=1))
    # places differ from row to row
    assert heads == 1 or len({tuple(row) for row in sketch != 0}) > 1


KNOWN = {(3, 6, 2): (0.516, 0.257, 0.136, 0.938), (4, 8, 3): (0.368, 0.184, 0.018, 0.147)}


@pytest.mark.parametrize("sizes", KNOWN)
def test_theorem_6_at_known_sizes(sizes: tuple[int, int, int]) -> None:
    heads, size, rank = sizes
    shared, floor, own, bound = KNOWN[sizes]
    # errors depend a little on how many columns there are beyond d
    for more in (0, 5):
        made = rank_theory.head_sketch(np.exp(-np.arange(heads * size) / 3), heads, rank, heads * size + more)
        assert abs(made.shared_error - shared) < 0.01
        assert round(made.shared_floor, 3) == floor
        assert abs(made.own_error - own) < 0.001
        assert round(made.own_bound, 3) == bound


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 4), st.integers(2, 5), st.floats(0.2, 5.0), st.integers(0, 6), st.integers(0, 2**32 - 1))
def test_a_sketch_for_each_head_keeps_its_promises(heads: int, size: int, decay: float, more: int, seed: int) -> None:
    width = heads * size
    singular = np.exp(-np.arange(width) / decay)
    for rank in range(1, size):
        made = rank_theory.head_sketch(singular, heads, rank, width + more, seed=seed % 1000)
        assert_close(np.linalg.svd(made.tokens, compute_uv=False), singular, depth=50)
        assert made.shared_error >= made.shared_floor
        assert made.own_error <= made.own_bound * (1 + SLACK)
        for name in ("query", "key", "value"):
            less, whole = (np.linalg.norm(getattr(side, name)) for side in (made.reduced, made.weights))
            assert less <= whole * (1 + SLACK), name
            for head in getattr(made.reduced, name):
                assert np.linalg.matrix_rank(head) <= rank + (name != "value")
        query, key, value = made.right
        for rows in (query, value, key[:, :-1]):
            assert ((rows != 0).sum(axis=-1) <= size).all()


def test_sorted_reciprocals_would_break_the_promise() -> None:
    """The last rows of the factors need the diagonal of U, on which singular values stand interleaved."""
    singular, heads, rank = np.exp(-np.arange(18) / 3), 3, 2
    made = rank_theory.head_sketch(singular, heads, rank, 18, seed=1)
    right = made.right[0].copy()
    left = made.reduced.query @ np.linalg.pinv(right)
    assert right[0, -1, rank] == 1 / singular[heads * rank]
    # as printed, 1/σ_{d̃+1}
    right[0, -1, rank] = 1 / singular[rank]
    worse = rank_theory.AttentionWeights(left @ right, made.reduced.key, made.reduced.value)
    error = np.linalg.norm(
        rank_theory.attention(made.tokens, made.weights) - rank_theory.attention(made.tokens, worse), 2
    )
    assert made.own_error < made.own_bound < error
