"""Named directions of a residual stream, turned at random, and noise on the weights that are written in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tsfm_lens.errors import InputError

__all__ = ["Basis", "add_weight_noise", "orthogonal"]


@dataclass(frozen=True)
class Basis:
    """Orthonormal directions of a residual stream, in named blocks.

    A root-mean-square norm with unit gain commutes with every orthogonal matrix, so a model whose matrices are all
    written in these directions computes the same in any basis. (A LayerNorm does not: it singles out the mean.)

    Attributes:
        directions: (width, width), a direction a row, in double precision.
        blocks: rows of each name; the remaining ones are "junk".
    """

    directions: Tensor
    blocks: Mapping[str, slice]

    @classmethod
    def draw(cls, width: int, sizes: Mapping[str, int], *, seed: int, rotate: bool) -> Basis:
        """Lay blocks of the given sizes into a stream; along its axes, or turned at random with `rotate`."""
        if sum(sizes.values()) > width:
            raise InputError(f"blocks of {sum(sizes.values())} directions do not fit into a stream of width {width}")
        blocks, start = {}, 0
        for name, size in sizes.items():
            blocks[name] = slice(start, start + size)
            start += size
        blocks["junk"] = slice(start, width)
        return cls(orthogonal(width, seed) if rotate else torch.eye(width, dtype=torch.float64), blocks)

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
