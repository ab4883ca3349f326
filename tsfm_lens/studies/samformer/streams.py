"""Streams of random numbers that depend on a seed and the quantity drawn alone, not on earlier draws."""

from __future__ import annotations

import numpy as np
import torch

from tsfm_lens.errors import InputError


def stream(seed: int, *parts: int) -> torch.Generator:
    """Make a generator of its own for every seed and tuple of parts; torch's own seeds count 32 bits alone.

    Raises:
        InputError: the seed is negative.
    """
    if seed < 0:
        raise InputError(f"seed={seed}, expected a whole number of at least 0")
    mixed = np.random.SeedSequence((seed, *parts)).generate_state(1)
    return torch.Generator().manual_seed(int(mixed[0]))
