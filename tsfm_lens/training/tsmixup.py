"""TSMixup: convex combinations of scaled slices of several series.

Ansari et al., "Chronos: Learning the Language of Time Series" (2024), algorithm 1: up to three slices, each divided
by its mean absolute value, weighted by a symmetric Dirichlet draw.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]

MAX_SERIES = 3
CONCENTRATION = 1.5


def draw_weights(rng: np.random.Generator, count: int) -> Array:
    """Draw Dirichlet(1.5) weights over the first k of three slots, k uniform in 1..3: array (count, 3)."""
    # normalised gamma draws are a Dirichlet draw, and dropping slots first gives one of lower dimension
    gamma = rng.gamma(CONCENTRATION, size=(count, MAX_SERIES))
    gamma *= np.arange(MAX_SERIES)[None] < rng.integers(1, MAX_SERIES + 1, size=count)[:, None]
    return gamma / gamma.sum(axis=1, keepdims=True)


def tsmixup(slices: Tensor, weights: Tensor, context: int) -> Tensor:
    """Mix `slices` (count, 3, length) by `weights` (count, 3) to series (count, length).

    A slice is scaled by its first `context` steps, so that the mixture tells nothing of what is to be forecast. Slices
    of weight 0 count as nothing even where they have gaps.
    """
    scale = slices[..., :context].abs().nanmean(-1, keepdim=True).nan_to_num(1.0)
    parts = weights[..., None] * slices / torch.where(scale > 0, scale, 1.0)
    return torch.where(weights[..., None] > 0, parts, 0.0).sum(1)
