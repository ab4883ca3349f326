"""Occlusion: the forecast less that without a segment, and that with one segment alone less the reference."""

from __future__ import annotations

import numpy as np

from tsfm_lens.explain.shapley import Array, Value


def leave_one_out(value: Value, players: int) -> Array:
    """Return the value of all less that of all but one, (player, …)."""
    values = value(np.concatenate([np.ones((1, players), bool), ~np.eye(players, dtype=bool)]))
    return np.asarray(values[0] - values[1:])


def include_one(value: Value, players: int) -> Array:
    """Return the value of one alone less that of none, (player, …)."""
    values = value(np.concatenate([np.zeros((1, players), bool), np.eye(players, dtype=bool)]))
    return np.asarray(values[1:] - values[0])
