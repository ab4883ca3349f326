"""Shapley values against their axioms, brute force over orders, and functions whose values are known."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tsfm_lens.errors import InputError
from tsfm_lens.explain.shapley import Value, all_masks, exact_shapley, sampled_shapley
from tsfm_lens.testing import assert_close

Game = np.ndarray
# roundings of a weighted sum over all masks
DEPTH = 400


@st.composite
def games(draw: st.DrawFn, least: int = 1, most: int = 5) -> tuple[int, Game]:
    """Players, and a value (two numbers) for each mask."""
    players = draw(st.integers(least, most))
    number = st.floats(-100, 100, allow_subnormal=False)
    values = draw(st.lists(st.tuples(number, number), min_size=2**players, max_size=2**players))
    return players, np.array(values)


def function(values: Game) -> Value:
    def value(masks: np.ndarray) -> np.ndarray:
        return values[(masks * 2 ** np.arange(masks.shape[1])).sum(1)]

    return value


def by_orders(values: Game, players: int) -> np.ndarray:
    """The definition: what a player adds, averaged over all orders."""
    total, count = np.zeros((players, values.shape[1])), 0
    for order in permutations(range(players)):
        shown = 0
        for player in order:
            total[player] += values[shown | 1 << player] - values[shown]
            shown |= 1 << player
        count += 1
    return total / count


@settings(max_examples=60, deadline=None)
@given(games())
def test_exact_values_are_the_mean_over_all_orders(game: tuple[int, Game]) -> None:
    players, values = game
    assert_close(exact_shapley(values, players), by_orders(values, players), depth=DEPTH, magnitude=100.0)


@pytest.mark.parametrize("orders", [32, 64])
def test_intervals_hold_the_exact_value_as_often_as_they_say(orders: int) -> None:
    """Of few blocks, where a normal interval holds it in 84 and 90 %."""
    players, runs = 7, 120
    values = np.random.default_rng(1).normal(size=(2**players, 3)) * 10
    exact = exact_shapley(values, players)
    found = [sampled_shapley(function(values), players, orders=orders, tolerance=0, seed=seed) for seed in range(runs)]
    held = np.array([np.abs(each.attribution - exact) <= each.half_width for each in found]).mean((1, 2))
    # two standard errors of the share, whose runs are independent
    assert abs(held.mean() - 0.95) < 0.01 + 2 * held.std(ddof=1) / np.sqrt(runs)


def test_antithetic_pairs_are_exact_where_players_interact_in_twos() -> None:
    players = 6
    rng = np.random.default_rng(2)
    alone, pairs = rng.normal(size=players), np.triu(rng.normal(size=(players, players)), 1)

    def value(masks: np.ndarray) -> np.ndarray:
        shown = masks.astype(float)
        return (shown @ alone + np.einsum("mi,ij,mj->m", shown, pairs, shown))[:, None]

    found = sampled_shapley(value, players, orders=1)
    # an order and its reverse share each pair alike between the two
    assert_close(found.attribution[:, 0], alone + (pairs.sum(0) + pairs.sum(1)) / 2, depth=DEPTH, magnitude=10.0)


def test_orders_end_when_they_may() -> None:
    values = np.random.default_rng(3).normal(size=(2**6, 1))
    loose = sampled_shapley(function(values), 6, orders=4000, tolerance=0.5)
    tight = sampled_shapley(function(values), 6, orders=4000, tolerance=0.05)
    assert loose.settled
    assert loose.orders < tight.orders
    # a share of what changes, whatever its unit
    assert sampled_shapley(function(1024 * values), 6, orders=4000, tolerance=0.05).orders == tight.orders
    assert not sampled_shapley(function(values), 6, orders=32, tolerance=0).settled


@pytest.mark.parametrize(
    ("game", "words"),
    [
        (lambda: exact_shapley(np.zeros(7), 3), "expected one for each of 8 masks"),
        (lambda: all_masks(21), "Sample orders"),
        (lambda: sampled_shapley(lambda masks: masks, 3, tolerance=float("nan")), "tolerance"),
        (lambda: sampled_shapley(lambda masks: masks, 1), "2 segments or more"),
    ],
)
def test_what_is_no_game_is_refused(game: Callable[[], object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        game()
