"""Shapley values of a function of visible segments: exact over all masks, or by sampled orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import factorial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tsfm_lens.errors import InputError
from tsfm_lens.stats import half_width

Array = NDArray[np.float64]
Value = Callable[[NDArray[np.bool_]], Array]
"""Masks (mask, player) -> values (mask, …)."""

# all masks of more players would take days
_MOST = 20
# orders of a block: as many antithetic pairs, which put each player into each quarter of the order
_QUARTERS = 4
# blocks from which on their spread is an error
_FEWEST = 4


def all_masks(players: int) -> NDArray[np.bool_]:
    """Return every mask of 1 to 20 players, (2 ** players, player): the first shows none, the last all."""
    if not 1 <= players <= _MOST:
        raise InputError(
            f"{players} segments have {2**players} masks; exact values need 1 to {_MOST}. Sample orders, or cut coarser"
        )
    return (np.arange(2**players)[:, None] >> np.arange(players)) & 1 == 1


def exact_shapley(values: Any, players: int) -> Array:
    """Compute Shapley values (player, …) from values (2 ** player, …) of :func:`all_masks`."""
    table = np.asarray(values, dtype=float)
    masks = all_masks(players)
    if table.shape[:1] != (len(masks),):
        raise InputError(f"values have shape {table.shape}, expected one for each of {len(masks)} masks")
    size = masks.sum(1)
    share = np.array([factorial(k) * factorial(players - k - 1) / factorial(players) for k in range(players)])
    return np.tensordot(np.where(masks.T, share[size - 1], -share[np.minimum(size, players - 1)]), table, 1)


@dataclass(frozen=True)
class Sampled:
    """Shapley values (player, …), half of 95 % intervals, number of orders, and whether errors met the tolerance."""

    attribution: Array
    half_width: Array
    orders: int
    settled: bool


def sampled_shapley(
    value: Value, players: int, *, orders: int = 400, tolerance: float = 0.02, seed: int = 0
) -> Sampled:
    """Estimate Shapley values by independent blocks of eight orders, until standard errors are within the tolerance.

    The 95 % interval is Student's t over blocks, because a normal interval over few blocks is too narrow.
    """
    if players < 2 or orders < 1 or not tolerance >= 0:
        raise InputError(
            f"{players} segments, orders={orders!r}, tolerance={tolerance!r}; expected 2 segments or more, at least "
            "one order and a share of 0 or more"
        )
    rng = np.random.default_rng(seed)
    most = max(-(-orders // (2 * _QUARTERS)), _FEWEST)
    ends = value(np.array([[False] * players, [True] * players]))
    size, converged = float(np.abs(ends[1] - ends[0]).mean()), False
    blocks = np.empty((0, players, *ends.shape[1:]))
    while len(blocks) < most and not converged:
        permutations = [rng.permutation(players) for _ in range(min(_FEWEST, most - len(blocks)))]
        blocks = np.concatenate([blocks, _contributions(value, permutations)])
        error = blocks.std(0, ddof=1) / np.sqrt(len(blocks))
        converged = bool(error.reshape(players, -1).mean(1).max() <= tolerance * size)
    return Sampled(blocks.mean(0), half_width(np.moveaxis(blocks, 0, -1)), 2 * _QUARTERS * len(blocks), converged)


def _contributions(value: Value, permutations: Sequence[NDArray[np.int64]]) -> Array:
    """Average each player's contribution over the orders of each block, (block, player, …)."""
    players = len(permutations[0])
    turns = [np.roll(order, quarter * players // _QUARTERS) for order in permutations for quarter in range(_QUARTERS)]
    orders = np.array([each for turn in turns for each in (turn, turn[::-1])])
    masks = np.zeros((len(orders), players + 1, players), dtype=bool)
    for row, each in enumerate(orders):
        for place, player in enumerate(each):
            masks[row, place + 1 :, player] = True
    values = value(masks.reshape(-1, players))
    values = values.reshape(len(orders), players + 1, *values.shape[1:])
    contributions = np.zeros((len(orders), players, *values.shape[2:]))
    for row, each in enumerate(orders):
        contributions[row, each] = np.diff(values[row], axis=0)
    return np.asarray(contributions.reshape(len(permutations), 2 * _QUARTERS, *contributions.shape[1:]).mean(1))
