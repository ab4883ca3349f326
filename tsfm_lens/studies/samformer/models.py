"""Reversible instance normalisation: by each window's own statistics, undone on the forecast."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tsfm_lens.errors import InputError

__all__ = ["RevIN"]


class RevIN(nn.Module):
    """Normalisation of every channel's window by its mean and deviation, undone on the forecast.

    x̃ = γ (x − μ̂) / √(σ̂² + ε) + β and ŷ = √(σ̂² + ε) (ỹ − β) / γ + μ̂, with the biased variance σ̂² of the input
    window alone. A channel that is constant has σ̂² = 0 and becomes β.

    Args:
        channels: K.
        eps: ε.

    Attributes:
        weight, bias: γ and β, (channel,), 1 and 0 at first.

    Source:
        SAMformer, equations 6 to 8 (S1-REVIN); Kim et al., 2021.

    Raises:
        InputError: there is no channel, or ε is not above 0.
    """

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        if channels < 1 or not eps > 0:
            raise InputError(f"channels={channels} and eps={eps}, expected at least 1 channel and an eps above 0")
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return μ̂ and √(σ̂² + ε) of windows (…, channel, time), each (…, channel, 1)."""
        variance, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
        return mean, (variance + self.eps).sqrt()

    def forward(self, x: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        """Normalise windows (…, channel, time) by statistics (…, channel, 1)."""
        return self.weight[:, None] * ((x - mean) / scale) + self.bias[:, None]

    def inverse(self, y: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        """Return forecasts (…, channel, step) in the units of the windows."""
        return scale * ((y - self.bias[:, None]) / self.weight[:, None]) + mean
