"""Features in superposition: more directions than dimensions, of which one is present.

:func:`draw_features` draws the directions, and :func:`draw_staircase` says which level
of a series stands for which and what is forecast for each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.zoo.planted.rules import Staircase

FEATURES = 16
DIMENSIONS = 8
"""Dimensions that hold the features."""
LARGEST_COSINE = 0.7
"""Largest cosine of two features: a reader takes what is longer for present."""
STEEPEST = 1.2
"""Levels between the first and the last feature reach so far on both sides of 0."""


def draw_features() -> Tensor:
    """Draw unit vectors (feature, dimension) in double precision.

    No two of them have a cosine above :data:`LARGEST_COSINE`.

    Returns:
        The vectors.
    """
    features: list[Tensor] = []
    while len(features) < FEATURES:
        draw = torch.randn(DIMENSIONS, dtype=torch.float64)
        draw /= draw.norm()
        if all(float(draw @ other) <= LARGEST_COSINE for other in features):
            features.append(draw)
    return torch.stack(features)


def draw_staircase(**fields: Any) -> Staircase:
    """Return a rule with a stair for each feature, whose height is drawn.

    ``fields`` are the other fields of the rule.
    """
    edges = np.linspace(-STEEPEST, STEEPEST, FEATURES - 1)
    heights = torch.linspace(-1.5, 1.5, FEATURES)[torch.randperm(FEATURES)]
    return Staircase(
        edges=tuple(edges.tolist()), heights=tuple(heights.tolist()), **fields
    )
