"""Null of every method: the same architecture with random weights, in which no mechanism was planted."""

from __future__ import annotations

import copy

from tsfm_lens.models import Lens, load
from tsfm_lens.models.wirings._random import spread_weights
from tsfm_lens.zoo.planted.planting import Planted


def untrained(planted: Planted, seed: int = 0) -> Lens:
    """Build a twin of the planted model whose every weight is drawn anew.

    Weights are so large that every head and MLP moves the forecast: an ablation has effects, but of no mechanism.
    The tables of planted models are of these twins. Weights of :func:`tsfm_lens.explain.untrained_twin` would be the
    planted ones in random order.

    Args:
        planted: the planted model; it stays as it is.
        seed: of the weights.
    """
    lens = load(copy.deepcopy(planted.model))
    width = getattr(getattr(lens.adapter.model, "config", None), "d_kv", None)
    # T5 does not scale q·k: this gain gives attention scores a standard deviation of 3 at any head size
    dot_product = 1.0 if width is None else (3.0 / width**0.5) ** 0.5
    spread_weights(lens.adapter.model, {".q.weight": dot_product, ".k.weight": dot_product}, seed=seed)
    lens.model_id = f"{lens.model_id} (weights drawn anew, seed {seed})"
    return lens
