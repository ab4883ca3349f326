"""Shapley values against their axioms, brute force over orders, and functions whose
values are known.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refusals import expect_error
from tsfm_lens.explain.shapley import (
    Value,
    _pairs,
    all_masks,
    exact_shapley,
    sampled_shapley,
)
from tsfm_lens.testing import assert_close

Game = np.ndarray
# roundings of a weighted sum over all masks
DEPTH = 400


@st.composite
def games(draw: st.DrawFn, least: int = 1, most: int = 5) -> tuple[int, Game]:
    """Players, and a value (two numbers) for each mask."""
    players = draw(st.integers(least, most))
    number = st.floats(-100, 100, allow_subnormal=False)
    values = draw(
        st.lists(st.tuples(number, number), min_size=2**players, max_size=2**players)
    )
    return players, np.array(values)


def by_orders(values: Game, players: int) -> np.ndarray:
    """The definition: what a player adds, averaged over all orders."""
    total = np.zeros((players, values.shape[1]))
    count = 0
    for order in permutations(range(players)):
        visible = 0
        for player in order:
            total[player] += values[visible | 1 << player] - values[visible]
            visible |= 1 << player
        count += 1
    return total / count


@settings(max_examples=60, deadline=None)
@given(games())
def test_exact_values_average_over_all_orders(game: tuple[int, Game]) -> None:
    players, values = game
    assert_close(
        exact_shapley(values, players),
        by_orders(values, players),
        depth=DEPTH,
        magnitude=100.0,
    )


class Planted(NamedTuple):
    """A game of several outputs whose Shapley values (player, output) are known."""

    value: Value
    exact: np.ndarray


def alone_and_in_twos(players: int, seed: int) -> Planted:
    rng = np.random.default_rng(seed)
    alone = rng.normal(size=players)
    pairs = np.triu(rng.normal(size=(players, players)), 1)

    def value(masks: np.ndarray) -> np.ndarray:
        visible = masks.astype(float)
        return (visible @ alone + np.einsum("mi,ij,mj->m", visible, pairs, visible))[
            :, None
        ]

    return Planted(value, (alone + (pairs.sum(0) + pairs.sum(1)) / 2)[:, None])


def unanimity(players: int, seed: int) -> Planted:
    """Sets of players that count if all of them are shown."""
    rng = np.random.default_rng(seed)
    sets = np.stack([rng.permutation(players) < rng.integers(2, 7) for _ in range(20)])
    weights = rng.normal(size=(20, 3))
    return Planted(
        lambda masks: (masks[:, None] >= sets).all(-1) @ weights,
        (sets / sets.sum(1)[:, None]).T @ weights,
    )


def airport(players: int, seed: int) -> Planted:
    """The largest cost of those shown; all that need a part of it share that part."""
    costs = np.sort(np.random.default_rng(seed).exponential(size=players))
    parts = np.diff(costs, prepend=0.0) / np.arange(players, 0, -1)
    return Planted(
        lambda masks: (masks * costs).max(1)[:, None], parts.cumsum()[:, None]
    )


@pytest.mark.parametrize(
    ("players", "budget"), [(12, 80), (12, 300), (20, 160), (40, 300)]
)
@pytest.mark.parametrize("game", [unanimity, airport])
def test_intervals_hold_the_exact_value(
    game: Callable[[int, int], Planted], players: int, budget: int
) -> None:
    """Intervals hold the exact value and are no wider than they must be."""
    held = []
    error = []
    width = []
    for seed in range(20):
        value, exact = game(players, seed)
        found = sampled_shapley(value, players, budget=budget, tolerance=0, seed=seed)
        assert found.masks == budget
        away = np.abs(found.attribution - exact)
        held.append((away <= found.half_width).mean())
        error.append(np.square(away).mean())
        width.append(np.square(found.half_width).mean())
        none, every = value(np.array([[False] * players, [True] * players]))
        full = found.attribution.sum(0)
        assert_close(full, every - none, depth=DEPTH, magnitude=10.0)
    # two standard errors of the share, whose runs are independent
    assert np.mean(held) > 0.93 - 2 * np.std(held, ddof=1) / np.sqrt(len(held))
    assert np.sqrt(np.mean(width) / np.mean(error)) < 2 * 1.96


def one_of_either(players: int, seed: int) -> Planted:
    """One of the first group and one of the second must be shown."""
    one, other = np.random.default_rng(seed).permutation(players)[:4].reshape(2, 2)
    exact = np.zeros((players, 1))
    exact[one] = exact[other] = 1 / 4
    return Planted(
        lambda masks: (masks[:, one].any(1) & masks[:, other].any(1))[:, None].astype(
            float
        ),
        exact,
    )


def product(players: int, seed: int) -> Planted:
    """Each player multiplies the value by a factor of its own; exact by integration
    along the diagonal.
    """
    factors = np.exp(0.5 * np.random.default_rng(seed).normal(size=players))
    nodes, weights = np.polynomial.legendre.leggauss(players // 2 + 1)
    visible = 1 + np.outer((nodes + 1) / 2, factors - 1)
    exact = (factors - 1) * (weights / 2 @ (visible.prod(1, keepdims=True) / visible))
    return Planted(
        lambda masks: np.where(masks, factors, 1.0).prod(1)[:, None], exact[:, None]
    )


@pytest.mark.parametrize(("players", "budget"), [(6, 24), (6, 60), (8, 200), (13, 100)])
@pytest.mark.parametrize("game", [one_of_either, product])
def test_intervals_hold_in_games_with_interactions(
    game: Callable[[int, int], Planted], players: int, budget: int
) -> None:
    """Intervals hold in games of products and of alternatives."""
    held = []
    for seed in range(15):
        value, exact = game(players, seed)
        if players < 9:
            full = exact_shapley(value(all_masks(players)), players)
            assert_close(full, exact, depth=10_000)
        found = sampled_shapley(value, players, budget=budget, tolerance=0, seed=seed)
        held.append((np.abs(found.attribution - exact) <= found.half_width).mean())
        assert not found.settled
        assert (found.half_width > 0).all()
    assert np.mean(held) > 0.9 - 2 * np.std(held, ddof=1) / np.sqrt(len(held))


def test_hidden_interactions_are_not_certain() -> None:
    """Either of two large groups, with opposite signs: the whole changes nothing, and
    no mask drawn holds one alone.
    """
    players = 30
    certain = 0
    for seed in range(10):
        one, other = np.random.default_rng(seed).permutation(players).reshape(2, -1)

        def value(
            masks: np.ndarray, one: np.ndarray = one, other: np.ndarray = other
        ) -> np.ndarray:
            # what all and none share changes no player's value, but shows that masks
            # matter
            bounds = masks.sum(1) % players == 0
            return (
                masks[:, one].all(1).astype(float) - masks[:, other].all(1) + bounds
            )[:, None]

        found = sampled_shapley(value, players, budget=200, seed=seed)
        assert found.settled == bool((found.half_width == 0).all())
        certain += found.settled
    assert certain == 0


@pytest.mark.parametrize("players", [5, 12, 40])
def test_few_masks_suffice_for_simple_games(players: int) -> None:
    """A few masks are exact where players act alone or in twos."""
    value, exact = alone_and_in_twos(players, 2)
    found = sampled_shapley(value, players, budget=4 * players)
    assert found.settled
    assert_close(found.attribution, exact, depth=100 * DEPTH, magnitude=10.0)
    assert_close(found.half_width, 0.0, depth=100 * DEPTH, magnitude=10.0)


@pytest.mark.parametrize("players", [4, 5, 6])
def test_pairs_are_all_masks_once_each(players: int) -> None:
    masks = np.array(list(_pairs(players, np.random.default_rng(0))))
    both = np.concatenate([masks, ~masks])
    assert sorted(both.tolist()) == sorted(all_masks(players).tolist())
    assert masks[0].all()


def test_masks_end_when_they_may() -> None:
    value, exact = unanimity(12, 3)

    def found(**options: float) -> Any:
        return sampled_shapley(value, 12, **options)

    loose, tight = (found(budget=4000, tolerance=share) for share in (0.5, 0.05))
    assert loose.settled
    assert loose.masks < tight.masks
    assert not found(budget=80, tolerance=0).settled
    # where the budget allows, all masks are run
    every = found(budget=4096, tolerance=0)
    assert (every.masks, every.settled) == (4096, True)
    assert_close(every.attribution, exact, depth=100 * DEPTH, magnitude=10.0)


@pytest.mark.parametrize(
    ("game", "message"),
    [
        (lambda: exact_shapley(np.zeros(7), 3), "expected one for each of 8 masks"),
        (lambda: all_masks(21), "Sample masks"),
        (
            lambda: sampled_shapley(lambda masks: masks, 3, tolerance=float("nan")),
            "tolerance",
        ),
        (
            lambda: sampled_shapley(lambda masks: masks, 13, budget=50),
            "at least 52 forecasts",
        ),
    ],
)
def test_what_is_no_game_is_refused(game: Callable[[], object], message: str) -> None:
    expect_error(message, game)
