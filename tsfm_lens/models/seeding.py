"""Torch's generators, seeded for one run at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tsfm_lens.hooks.state import ONE_RUN


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators while the block runs; their state is left as it was.

    Such blocks of several threads run one after the other. Draws that other code makes meanwhile are not held back.

    Args:
        seed: of the CPU's generator and of the device's.
        device: where the model lives.
    """
    with ONE_RUN, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
