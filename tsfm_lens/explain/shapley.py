"""Shapley values of a function of masks: exact, or by regression on some masks.

Read :func:`exact_shapley`, then :func:`sampled_shapley`. A mask says which players,
such as segments of an input, are shown. The function may return values of any shape for
each mask; forecasts under masks are in :mod:`tsfm_lens.explain.values`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import comb, factorial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.stats import CONFIDENCE, ratio
from tsfm_lens.models.arguments import is_count

Array = NDArray[np.float64]
Value = Callable[[NDArray[np.bool_]], Array]
"""Function of masks (mask, player) that returns values (mask, …)."""

# largest number of players whose masks are all run; those of more would take days
_MAX_EXACT = 20
_JOINT = 2.0  # expected strength of a player's interactions with all others
_LEAST = 0.1  # share of the mean size that is added to the size of every player
_NOISE = 1e-9  # variance of half differences that no interaction explains


def all_masks(players: int) -> NDArray[np.bool_]:
    """Return every mask of 1 to 20 players, (2 ** players, player).

    The first shows none, the last all.
    """
    if not 1 <= players <= _MAX_EXACT:
        raise InputError(
            f"{players} segments have {2**players} masks; exact values need 1 to"
            f" {_MAX_EXACT}. Sample masks, or cut coarser"
        )
    # player i is bit i of the number of a mask
    return (np.arange(2**players)[:, None] >> np.arange(players)) & 1 == 1


def exact_shapley(values: Any, players: int) -> Array:
    """Return Shapley values (player, …) from the values of :func:`all_masks`.

    Values are (2 ** players, …).
    """
    table = np.asarray(values, dtype=float)
    masks = all_masks(players)
    if table.shape[:1] != (len(masks),):
        raise InputError(
            f"values have shape {table.shape}, expected one for each of {len(masks)}"
            " masks"
        )
    size = masks.sum(1)
    # share[k]: of all orders of the players, those in which k given players, and no
    # others, come before the one in question
    share = np.array(
        [
            factorial(k) * factorial(players - k - 1) / factorial(players)
            for k in range(players)
        ]
    )
    # A Shapley value is a mean, over orders, of the value with the player less that
    # without it, so masks with the player have positive weights and others negative
    # ones. Indices beyond the ends of ``share`` are of the side that is not chosen.
    with_player = share[size - 1]
    without_player = -share[np.minimum(size, players - 1)]
    return np.tensordot(np.where(masks.T, with_player, without_player), table, 1)


@dataclass(frozen=True)
class Sampled:
    """Shapley values that were estimated from masks.

    Attributes:
        attribution: (player, …).
        half_width: half of 95 % intervals, (player, …).
        masks: number of masks.
        settled: whether standard errors met the tolerance, or no mask changed a value.
    """

    attribution: Array
    half_width: Array
    masks: int
    settled: bool


def sampled_shapley(
    value: Value,
    players: int,
    *,
    budget: int = 1024,
    tolerance: float = 0.02,
    seed: int = 0,
) -> Sampled:
    """Estimate Shapley values by regression on masks and their complements.

    Masks are added until errors are within the tolerance. Estimates are exact up to
    rounding where players act alone or in pairs, and always sum to the total change.
    Masks are drawn without replacement, equally often of each size, which is sampling
    by leverage. In the regression each player's slope is free, while interactions are
    polynomial, and expected to be small where their players are. Standard errors are
    the larger of two: those of the jackknife, with the correction for a finite
    population, and those of the regression's own model of the masks that are not run.
    The degrees of freedom of intervals are the number of pairs that carry the errors.
    Intervals hold at least 90 % of the exact values in games of products and of
    alternatives, about 88 % where a few masks outweigh all others a hundredfold. Time
    grows with the cube of the budget.

    Args:
        value: function of masks (mask, player) that returns values (mask, …).
        players: number of players.
        budget: largest number of masks, at least four for each player. If it suffices,
            all masks are run, and values are exact.
        tolerance: largest standard error, mean over values, of any player, as a share
            of the mean change that all players make together.
        seed: of the masks.

    Returns:
        The values, their intervals and the number of masks.

    Source:
        Musco and Witter 2024, arXiv:2410.01917 (leverage, pairs); Fumagalli et al.
        2026, arXiv:2601.18608 (regression).
    """
    if not is_count(budget) or budget < 4 * players or not tolerance >= 0:
        raise InputError(
            f"budget={budget!r}, tolerance={tolerance!r} for {players} segments;"
            f" expected at least {4 * players} forecasts and a share of 0 or more"
        )
    if 2**players <= budget:
        exact = exact_shapley(value(all_masks(players)), players)
        return Sampled(exact, np.zeros_like(exact), 2**players, True)
    pairs = _pairs(players, np.random.default_rng(seed))
    count = 0
    settled = False
    chunks = []
    half_differences = []
    lowest = np.array(np.inf)
    highest = np.array(-np.inf)
    # a pair is two masks; the smallest budget, four a player, allows one turn
    while count < budget // 2 and not settled:
        # half as many masks again: each regression takes time with the cube of their
        # number, and masks beyond the tolerance are wasted
        wanted = min(max(count // 2, 2 * players), budget // 2 - count)
        # the pairs never run out, since a budget for all of them is exact
        new_masks = np.array(list(islice(pairs, wanted)))
        values = value(np.concatenate([new_masks, ~new_masks]))
        chunks.append(new_masks)
        # Shapley values depend on interactions (with players as ±1) of odd numbers of
        # players alone. The difference of a pair has these; even ones cancel in it.
        half_differences.append(
            (values[: len(new_masks)] - values[len(new_masks) :]) / 2
        )
        lowest = np.minimum(lowest, values.min(0))
        highest = np.maximum(highest, values.max(0))
        masks = np.concatenate(chunks)
        halves = np.concatenate(half_differences)
        count = len(masks)
        attribution, error, freedom = _regressed(masks, halves.reshape(count, -1))
        # Where every mask has the value of its complement, although masks differ, no
        # pair was drawn that tells players apart. What n draws have not met has a
        # probability of at most 3 / n (rule of three).
        silent = ~halves.reshape(count, -1).any(0)
        change = (highest - lowest).reshape(-1)
        error[:, silent] = change[silent] * min(1.0, 3 * players / count) / 2
        changes = bool(change.any())
        settled = changes and bool(
            # the first pair is all players against none, so twice its half is the
            # change of the whole
            error.mean(1).max() <= tolerance * 2 * np.abs(halves[0]).mean()
        )
    widths = stdtrit(freedom, 0.5 + CONFIDENCE / 2) * error
    shape = (players, *halves.shape[1:])
    # also if no mask of the whole budget changes a value
    settled = settled or not changes
    return Sampled(
        attribution.reshape(shape), widths.reshape(shape), 2 * count, settled
    )


def _pairs(players: int, rng: np.random.Generator) -> Iterator[NDArray[np.bool_]]:
    """Yield one mask of each pair of complements, in random order within a size.

    The mask of all players comes first; then all sizes take turns.
    """
    yield np.ones(players, dtype=bool)
    # pairs that are left, by the size of the smaller mask
    remaining = {size: _number(players, size) for size in range(1, players // 2 + 1)}
    drawn = set()
    turn = 0
    while remaining:
        # A mask of half of the players has a complement of the same size, so that one
        # pair has two masks of it. It is drawn in every second turn.
        in_turn = [
            size
            for size in remaining
            if 2 * size < players or turn % 2 == 0 or len(remaining) == 1
        ]
        for size in in_turn:
            mask = np.zeros(players, dtype=bool)
            while not mask.any() or mask.tobytes() in drawn:
                mask = rng.permutation(players) < size
                # of two such halves, the one with the first player stands for the pair
                mask ^= 2 * size == players and not mask[0]
            drawn.add(mask.tobytes())
            remaining[size] -= 1
            yield mask
        remaining = {size: number for size, number in remaining.items() if number}
        turn += 1


def _number(players: int, size: int) -> int:
    """Count the pairs of complementary masks of which one has this size."""
    return comb(players, size) // (1 + (2 * size == players))


def _regressed(masks: NDArray[np.bool_], halves: Array) -> tuple[Array, Array, Array]:
    """Regress half differences (pair, value) on masks (pair, player).

    Returns:
        Shapley values and standard errors, (player, value), and degrees of freedom of
        the latter, (value,).
    """
    count, players = masks.shape
    # with players as ±1, products over sets of players are orthogonal, and a complement
    # has the opposite signs
    signs = np.where(masks, 1.0, -1.0)
    # A Shapley value is the integral of the player's slope along the diagonal of the
    # multilinear extension (Owen 1972). Along it, slopes are polynomials of a degree
    # below the number of players, for which this number of nodes is exact.
    nodes, weights = np.polynomial.legendre.leggauss(players // 2 + 1)
    size = np.full(players, 1 / players)
    # the first fit assumes that all players have the same size, the second takes sizes
    # from the first
    for _ in range(2):
        # Covariances of interactions of all orders at once: for signs s and t of two
        # masks, the product over players of 1 + scale · s · t is a sum over all sets of
        # players. Half of its difference to the product with -scale has the odd sets.
        plus = np.ones((count, count))
        minus = np.ones((count, count))
        # the same between masks and points of the diagonal
        along = np.ones((count, len(nodes)))
        # below 1, so that no factor is 0, by which ``along`` is divided
        scales = np.minimum(_JOINT * size, 0.9)
        for scale, sign in zip(scales, signs.T, strict=True):
            plus *= 1 + scale * np.outer(sign, sign)
            minus *= 1 - scale * np.outer(sign, sign)
            along *= 1 + scale * np.outer(sign, nodes)
        # for each player, the product over all others
        along_others = [
            along / (1 + scale * np.outer(sign, nodes))
            for scale, sign in zip(scales, signs.T, strict=True)
        ]
        # covariance of each player's integrated slope with each pair, (player, pair)
        slopes = np.stack(along_others) @ weights * scales[:, None] * signs.T
        # the diagonal keeps the matrix invertible where rows of two pairs are equal
        kernel = (plus - minus) / 2 + _NOISE * np.eye(count)
        inverse = np.linalg.inv(kernel)
        # universal kriging: slopes of single players are free, without a penalty, and
        # interactions have the covariance ``kernel``
        free = inverse @ signs
        linear = np.linalg.pinv(signs.T @ free) @ free.T
        residual = inverse - free @ linear
        # (player, pair): Shapley values are linear in the half differences. A player
        # goes from -1 to 1, so that its slope counts twice.
        by_half = 2 * linear + slopes @ residual
        attribution = by_half @ halves
        strength = np.sqrt(np.sqrt(np.square(attribution).mean(1)))
        # Every size is above 0: with a player of size 0, pairs that differ in it alone
        # would have equal rows.
        if strength.any():
            size = (strength + _LEAST * strength.mean()) / (1 + _LEAST) / strength.sum()
    # the values have to sum to the change of the whole (efficiency); what is missing is
    # spread evenly
    attribution += (2 * halves[0] - attribution.sum(0)) / players
    # 0 for a pair that no other pair predicts
    diagonal = np.diag(residual)[:, None]
    diagonal = np.where(diagonal > np.finfo(float).eps, diagonal, 0.0)
    # errors of leave-one-out predictions, each pair by all others, without refitting
    # (Dubrule 1983)
    prediction_errors = ratio(residual @ halves, diagonal, 0.0)
    sizes = np.minimum(masks.sum(1), (~masks).sum(1))
    counts = np.bincount(sizes)
    # correction for a finite population: a size whose masks were all run has no error
    unsampled = np.array(
        [1 - counts[size] / _number(players, int(size)) for size in sizes]
    )
    jackknife = (np.square(by_half) * unsampled) @ np.square(prediction_errors)
    # The kriging variance: that of Shapley values under the regression's own model of
    # masks that were not run, in units of ``spread`` below. Without any pair, it would
    # be ``scales * along_twice``, the variance of the integrated slope.
    products = np.outer(nodes, nodes)[..., None] * scales
    factors = 1 + products
    along_twice = np.einsum(
        "a,b,abi->i", weights, weights, factors.prod(-1, keepdims=True) / factors
    )
    unseen = (
        scales * along_twice
        - 2 * (by_half * slopes).sum(1)
        + (by_half * (by_half @ kernel)).sum(1)
    )
    # without the linear part, whose rounding the inverse would enlarge
    interactions = halves - signs @ (linear @ halves)
    spread = (interactions * (inverse @ interactions)).sum(0) / (count - players)
    model = np.outer(np.maximum(unseen, 0.0), np.maximum(spread, 0.0))
    # Where a few pairs carry the errors, pairs that were not drawn may have large ones
    # too, so that degrees of freedom are few. The fourth moment of normal errors is 3
    # times their squared variance: n of them count as n, and a single large one as 3.
    squares = np.square(prediction_errors)
    shares = squares / np.maximum(squares.max(0), np.finfo(float).tiny)
    fourth = np.square(shares).sum(0)
    effective = 3 * np.square(shares.sum(0)) / np.where(fourth > 0, fourth, 1.0)
    freedom = np.clip(effective, 1, count - players)
    return attribution, np.sqrt(np.maximum(jackknife, model)), freedom
