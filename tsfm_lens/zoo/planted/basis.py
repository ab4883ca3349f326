"""Named directions of a residual stream, turned at random, and noise on the weights that are written in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from tsfm_lens.errors import InputError

__all__ = ["Basis", "add_weight_noise", "lay_out", "orthogonal"]


def lay_out(width: int, sizes: Mapping[str, int]) -> dict[str, slice]:
    """Lay blocks of the given sizes into a stream; the remaining directions are "junk"."""
    if sum(sizes.values()) > width:
        raise InputError(f"blocks of {sum(sizes.values())} directions do not fit into a stream of width {width}")
    stops = np.cumsum([0, *sizes.values()]).tolist()
    return {name: slice(*ends) for name, ends in zip([*sizes, "junk"], pairwise([*stops, width]), strict=True)}


@dataclass(frozen=True)
class Basis:
    """Orthonormal directions (width, width) of a residual stream, in named blocks of rows."""

    directions: Tensor
    blocks: Mapping[str, slice]

    @classmethod
    def draw(cls, width: int, sizes: Mapping[str, int], *, seed: int, rotate: bool) -> Basis:
        """Lay blocks of the given sizes into a stream; along its axes, or turned at random with `rotate`."""
        turn = orthogonal(width, seed) if rotate else torch.eye(width, dtype=torch.float64)
        return cls(turn, lay_out(width, sizes))

    def __getitem__(self, name: str) -> Tensor:
        """Return directions of a block: (size, width)."""
        return self.directions[self.blocks[name]]

    def span(self, *names: str) -> Tensor:
        """Concatenate directions of several blocks: (directions, width)."""
        return torch.cat([self[name] for name in names])


def orthogonal(width: int, seed: int) -> Tensor:
    """Draw an orthogonal matrix (width, width) in double precision, uniform over all of them (Mezzadri, 2007)."""
    generator = torch.Generator().manual_seed(seed)
    q, r = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))
    return q * r.diagonal().sign()


def add_weight_noise(model: nn.Module, level: float, seed: int) -> None:
    """Add Gaussian noise to every matrix of a model, in place; vectors, the gains of norms, stay as they are."""
    generator = torch.Generator().manual_seed(seed)
    # tied matrices appear once
    for weight in model.parameters():
        if weight.ndim > 1:
            noise = torch.randn(weight.shape, generator=generator)
            weight.data += level * weight.data.square().mean().sqrt() * noise.to(weight)
