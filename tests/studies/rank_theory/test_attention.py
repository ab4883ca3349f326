"""Attention on columns: against a loop, against the library's attention on rows, and sums of 1 at any score."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import special

from tsfm_lens.studies import rank_theory
from tsfm_lens.studies.rank_theory import AttentionWeights
from tsfm_lens.testing import assert_close


def by_loops(tokens: np.ndarray, weights: AttentionWeights) -> np.ndarray:
    """Output j is the mean of values over tokens t, weighted by the exponential of q_t · k_j."""
    columns = []
    for j in range(tokens.shape[1]):
        parts = []
        for query, key, value in zip(weights.query, weights.key, weights.value, strict=True):
            scores = [
                (query @ tokens[:, t]) @ (key @ tokens[:, j]) / np.sqrt(len(query)) for t in range(tokens.shape[1])
            ]
            mass = np.exp(np.array(scores) - max(scores))
            parts.append(sum(m * (value @ tokens[:, t]) for t, m in enumerate(mass / mass.sum())))
        columns.append(np.concatenate(parts))
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_attention_is_the_mean_of_values_that_scores_choose(heads: int) -> None:
    tokens, weights = np.random.default_rng(heads).normal(size=(6, 5)), AttentionWeights.random(6, heads, seed=heads)
    assert_close(rank_theory.attention(tokens, weights), by_loops(tokens, weights), depth=200)


def test_it_is_attention_on_rows_with_queries_and_keys_exchanged() -> None:
    tokens, weights = np.random.default_rng(0).normal(size=(8, 7)), AttentionWeights.random(8, 2, scaling="unit")
    q, k, v = (torch.tensor(part @ tokens).mT for part in (weights.query, weights.key, weights.value))
    rows = torch.nn.functional.scaled_dot_product_attention(k, q, v)
    assert_close(rank_theory.attention(tokens, weights), rows.mT.reshape(8, 7).numpy(), depth=200)
    # not exchanged it is something else
    other = torch.nn.functional.scaled_dot_product_attention(q, k, v).mT.reshape(8, 7).numpy()
    assert np.abs(rank_theory.attention(tokens, weights) - other).max() > 0.1


@pytest.mark.parametrize("rows", [4, 8])
def test_chunks_change_no_number(rows: int) -> None:
    """Also where tokens have fewer coordinates than a head and are mixed before they become values."""
    rng = np.random.default_rng(0)
    weights = AttentionWeights(*rng.normal(size=(3, 2, 6, rows)))
    tokens = rng.normal(size=(rows, 11))
    whole = rank_theory.attention(tokens, weights)
    assert_close(whole, by_loops(tokens, weights), depth=1000)
    for chunk in (1, 4, 11):
        assert_close(rank_theory.attention(tokens, weights, chunk=chunk), whole, depth=1000)
    assert_close(
        rank_theory.logits(tokens, weights)[1],
        tokens.T @ weights.query[1].T @ weights.key[1] @ tokens / np.sqrt(6),
        depth=200,
    )


def test_columns_of_the_softmax_sum_to_one_at_any_score() -> None:
    scores = np.random.default_rng(0).normal(size=(3, 5, 4)) * np.array([1.0, 1e3, 1e300])[:, None, None]
    weights = rank_theory.column_softmax(scores)
    assert_close(weights.sum(axis=1), np.ones((3, 4)), depth=20)
    assert_close(weights[:2], special.softmax(scores[:2], axis=1), depth=2000, magnitude=1.0)


def test_norms_are_those_of_the_products_and_can_be_set() -> None:
    weights = AttentionWeights.random(12, 3)
    for head in range(3):
        product = weights.query[head].T @ weights.key[head]
        assert_close(weights.score_norms[head], np.linalg.norm(product, 2), depth=200)
        assert_close(weights.value_norms[head], np.linalg.norm(weights.value[head], 2), depth=200)
    within = weights.within(2.0, 0.5)
    assert_close(within.score_norms, np.full(3, 2.0), depth=200)
    assert_close(within.value_norms, np.full(3, 0.5), depth=200)


def test_random_weights_grow_as_their_scaling_says() -> None:
    for scaling, score, value in (("theorem", 0.5, 0.5), ("unit", 1.0, 0.5), ("normalised", 0.0, 0.0)):
        small, large = (AttentionWeights.random(width, scaling=scaling) for width in (16, 144))
        for norm, power in (("score_norms", score), ("value_norms", value)):
            ratio = float(getattr(large, norm)[0] / getattr(small, norm)[0])
            assert abs(np.log(ratio) / np.log(9) - power) < 0.15, (scaling, norm)
