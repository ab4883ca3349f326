"""Toy problem: forecasts that are linear in the window, on which the transformer stays behind least squares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from tsfm_lens.errors import InputError
from tsfm_lens.studies.samformer.streams import stream
from tsfm_lens.studies.samformer.transformer import refuse_sizes

__all__ = ["LinearToy"]

BLOCK = 500
"""Pairs that are drawn together."""
WEIGHT, PAIRS = range(2)


@dataclass(frozen=True)
class LinearToy:
    """Y = X W_toy + ε with independent normal entries: windows (D, L), forecasts (D, H), one W_toy (L, H) for all.

    Everything is a function of the seed, and every pair of the seed and its number, so that any part can be made by
    itself and in any order.

    Attributes:
        length, horizon, channels: L, H and D.
        training, validation: pairs.
        noise: standard deviation of ε.
        seed: of all draws.

    Source:
        SAMformer, equation 2 and section 2.2 (S1-TOY).

    Raises:
        InputError: a size is below 1, or the noise is negative.
    """

    length: int = 512
    horizon: int = 96
    channels: int = 7
    training: int = 10_000
    validation: int = 5_000
    noise: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        sizes = {name: value for name, value in asdict(self).items() if name not in ("noise", "seed")}
        refuse_sizes(**sizes)
        if not 0 <= self.noise < float("inf"):
            raise InputError(f"noise={self.noise}, expected a finite standard deviation of at least 0")

    def weight(self) -> Tensor:
        """Return W_toy, (L, H)."""
        return torch.randn(self.length, self.horizon, generator=stream(self.seed, WEIGHT))

    def pairs(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Draw windows (pair, D, L) and forecasts (pair, D, H); training pairs first, then those of validation.

        Raises:
            InputError: a number is out of range.
        """
        if not 0 <= start < stop <= self.training + self.validation:
            raise InputError(f"pairs {start} to {stop} of {self.training + self.validation}, counted from 0")
        weight, pairs = self.weight(), []
        # drawn in blocks, so that one pair is the same whichever others are asked for
        for block in range(start // BLOCK, -(-stop // BLOCK)):
            generator = stream(self.seed, PAIRS, block)
            x = torch.randn(BLOCK, self.channels, self.length, generator=generator)
            noise = torch.randn(BLOCK, self.channels, self.horizon, generator=generator)
            # the whole product, because how it is rounded may depend on how many rows it has
            y = x @ weight + self.noise * noise
            inside = slice(max(start - block * BLOCK, 0), min(stop - block * BLOCK, BLOCK))
            pairs.append((x[inside], y[inside]))
        windows, forecasts = zip(*pairs, strict=True)
        return torch.cat(windows), torch.cat(forecasts)

    def batches(self, *, validation: bool = False, size: int = BLOCK) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all training pairs, or those of validation, in batches."""
        first, last = (self.training, self.training + self.validation) if validation else (0, self.training)
        for start in range(first, last, size):
            yield self.pairs(start, min(start + size, last))
