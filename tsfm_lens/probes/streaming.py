"""Singular values of a tall matrix whose rows come in parts, without ever holding it."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.errors import InputError
from tsfm_lens.probes.weight_ranks import rounding_floor

__all__: list[str] = []


class StreamedSpectrum:
    """Triangular factor of a QR factorisation, brought up to date with every part.

    It has the singular values of all rows so far, to rounding in float64 of the largest one. The Gram matrix would be
    cheaper, but has their squares and loses all below √eps, 1.5e-8, of the largest.

    Args:
        width: columns of the matrix.

    Attributes:
        rows: number of rows so far.

    Source:
        Demmel, Grigori, Hoemmen and Langou 2012, Communication-optimal parallel and sequential QR and LU
        factorizations: the sequential TSQR.
    """

    def __init__(self, width: int) -> None:
        self._factor = torch.zeros(0, width, dtype=torch.float64)
        self._longest = 0.0
        self._eps = torch.finfo(torch.float64).eps
        self.rows = 0

    def add(self, rows: Tensor) -> None:
        """Add a part of the rows, (n, width), of any precision.

        Raises:
            InputError: a value is not finite.
        """
        if not len(rows):
            return
        if not torch.isfinite(rows).all():
            raise InputError("the model holds values that are not finite, so its tokens have no singular values")
        self._eps = max(self._eps, torch.finfo(rows.dtype).eps)
        part = rows.cpu().double()
        self.rows += len(part)
        self._longest = max(self._longest, float(part.norm(dim=1).max()))
        self._factor = torch.linalg.qr(torch.cat([self._factor, part]), mode="r").R

    def singular_values(self) -> np.ndarray:
        """Compute all of them, descending: as many as the shorter side of the matrix is long."""
        return torch.linalg.svdvals(self._factor).numpy()

    def singular_values_through(self, map_of_rows: Tensor) -> np.ndarray:
        """Compute those of the matrix times another one, (width, any), descending."""
        return torch.linalg.svdvals(self._factor @ map_of_rows.detach().cpu().double()).numpy()

    def rounding_floor(self, values: np.ndarray, blocks: int) -> float:
        """Bound how far the rounding of a forward moves singular values, over the largest.

        Args:
            values: singular values.
            blocks: number of blocks before the stream, with about 100 roundings each.
        """
        longest = self._longest + float(self._factor.norm(dim=0).max())
        error = self._eps / 2 / math.sqrt(3) * math.sqrt(1 + 100 * blocks)
        return rounding_floor(values, longest, error, max(self.rows, self._factor.shape[1]))
