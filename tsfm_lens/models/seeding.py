"""Torch's generators, seeded for one run at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from tsfm_lens.hooks.block import Block
from tsfm_lens.hooks.state import ONE_RUN


class _Seed:
    """Generators under a seed, as the scope of a block."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.is_open, self._seed, self._device = False, seed, device
        self._states: tuple[Tensor, Tensor | None] | None = None

    def open(self) -> None:
        self.is_open = True
        ONE_RUN.take(self)
        on_cuda = self._device.type == "cuda"
        self._states = torch.get_rng_state(), torch.cuda.get_rng_state(self._device) if on_cuda else None
        torch.manual_seed(self._seed)

    def close(self) -> None:
        if self._states is not None:
            torch.set_rng_state(self._states[0])
            if self._states[1] is not None:
                torch.cuda.set_rng_state(self._states[1], self._device)
        self._states = None
        ONE_RUN.give(self)
        self.is_open = False

    def check(self) -> None:
        return


def seeded(seed: int, device: torch.device) -> Block[None]:
    """Seed torch's generators while the block runs; their state is left as it was.

    Such blocks of several threads run one after the other. Draws that other code makes meanwhile are not held back.

    Args:
        seed: of the CPU's generator and of the device's.
        device: where the model lives.
    """
    return Block(_Seed(seed, device))
