"""KernelSynth: Gaussian-process draws under randomly composed kernels.

The kernel bank and the composition rule follow Ansari et al., "Chronos: Learning the Language of Time
Series" (2024), appendix A: between one and five kernels of a bank of 33, joined left to right by + or x.
Periods of the bank are in steps, so a shorter series sees the same cycles, only fewer of them.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

PERIODS: tuple[int, ...] = (
    *(24, 48, 96, 168, 336, 672, 7, 14, 30, 60, 365),
    *(730, 4, 26, 52, 4, 6, 12, 4, 40, 10),
)
"""Periods of the bank in steps; 4 stands three times because three sampling rates share it."""

MAX_KERNELS = 5
JITTER = 1e-6


def kernel_bank(length: int, *, device: str | torch.device = "cpu", period_scale: float = 1.0) -> Tensor:
    """Compute the covariances (33, length, length) of the bank for a series of `length` steps on [0, 1].

    Args:
        length: steps.
        device: where to compute.
        period_scale: multiplies the 21 periods; 1 gives the paper's.
    """
    grid = torch.linspace(0.0, 1.0, length, dtype=torch.float64, device=device)
    gap = (grid[:, None] - grid[None, :]).abs()
    steps = gap * (length - 1) if length > 1 else gap
    product = grid[:, None] * grid[None, :]
    same = torch.eye(length, dtype=torch.float64, device=device)
    return torch.stack(
        [
            *(torch.exp(-2.0 * torch.sin(torch.pi * steps / (period * period_scale)) ** 2) for period in PERIODS),
            *(sigma0**2 + product for sigma0 in (0.0, 1.0, 10.0)),
            *(torch.exp(-0.5 * (gap / scale) ** 2) for scale in (0.1, 1.0, 10.0)),
            *((1.0 + gap**2 / (2.0 * alpha)) ** (-alpha) for alpha in (0.1, 1.0, 10.0)),
            *(level * same for level in (0.1, 1.0)),
            torch.ones_like(gap),
        ]
    )


def compose(bank: Tensor, indices: np.ndarray, sums: np.ndarray) -> Tensor:
    """Join kernels of the bank left to right: a covariance (length, length).

    Args:
        bank: (kernels, length, length).
        indices: into the bank, (kernel,).
        sums: whether each kernel but the first is added; otherwise it multiplies. Same shape.
    """
    covariance = bank[indices[0]].clone()
    for index, by_sum in zip(indices[1:], sums[1:], strict=True):
        covariance = covariance.add_(bank[index]) if by_sum else covariance.mul_(bank[index])
    return covariance


def kernelsynth(
    rng: np.random.Generator, count: int, length: int, *, device: str | torch.device = "cpu", period_scale: float = 1.0
) -> np.ndarray:
    """Draw `count` series of `length` steps: array (count, length); covariances that do not factor are drawn anew."""
    bank = kernel_bank(length, device=device, period_scale=period_scale)
    series = np.empty((count, length))
    row = 0
    while row < count:
        kernels = int(rng.integers(1, MAX_KERNELS + 1))
        covariance = compose(bank, rng.integers(len(bank), size=kernels), rng.random(kernels) < 0.5)
        # jitter relative to the variance: a product of linear kernels reaches 1e8
        diagonal = covariance.diagonal()
        diagonal += JITTER * max(float(diagonal.mean()), 1e-12)
        factor, failure = torch.linalg.cholesky_ex(covariance)
        if not failure:
            series[row] = (factor @ torch.from_numpy(rng.standard_normal(length)).to(device)).cpu().numpy()
            row += 1
    return series
