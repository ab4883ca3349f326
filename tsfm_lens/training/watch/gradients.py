"""Gradient noise: how far the gradients of batches lie from their mean."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tsfm_lens.errors import InputError
from tsfm_lens.training.watch.guard import Loss, draws_kept, finite, listed, trainable

__all__ = ["GradientNoise", "gradient_noise"]


@dataclass(frozen=True)
class GradientNoise:
    """Noise that single batches add to the gradient.

    Attributes:
        variance: trace of the covariance of the gradient of a batch.
        squared_norm: of the gradient of all data, without the part that the noise adds to that of the mean; below 0
            where the batches do not tell it from 0.
        scale: examples in a batch of which noise and gradient are alike, batch_size · variance / squared_norm; NaN
            where the squared norm is not above 0.
        batches: how many were looked at.
    """

    variance: float
    squared_norm: float
    scale: float
    batches: int


def gradient_noise(
    losses: Sequence[Loss], parameters: nn.Module | Iterable[Tensor], *, batch_size: int = 1
) -> GradientNoise:
    """Compute the variance of the gradient from batch to batch, against its mean.

    Args:
        losses: each gives the mean loss of another batch; batches of one size, drawn by themselves.
        parameters: the weights, or the model of which all that are trained are meant.
        batch_size: examples in a batch; 1 gives the scale in batches.

    Source:
        McCandlish et al. 2018, arXiv:1812.06162, section 2.2 ("simple noise scale"), with its unbiased estimates.

    Raises:
        InputError: fewer than two losses, or as in :func:`tsfm_lens.training.sharpness`.

    Example:
        >>> w = torch.zeros(1, requires_grad=True)
        >>> found = training.gradient_noise([lambda: (w * 1).sum(), lambda: (w * 3).sum()], [w])
        >>> found.variance, found.squared_norm
        (2.0, 3.0)
    """
    each, weights = listed(losses), trainable(parameters)
    if len(each) < 2:
        raise InputError(f"got {len(each)} batch; a variance needs the losses of at least 2")
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size}; expected 1 or more")
    mean: Tensor | None = None
    squares, connected = 0.0, False
    with draws_kept() as again:
        for count, loss in enumerate(each, start=1):
            # a loss that draws its batch from a generator of its own draws another each time
            again(own=False)
            with torch.enable_grad():
                value = finite(loss())
                connected = connected or value.requires_grad
                gradient = _gradient(value, weights)
            if mean is None:
                mean = gradient
                continue
            # Welford's way: sums of squares of differences, never a difference of large squares
            apart = gradient - mean
            mean = mean + apart / count
            squares += float(torch.dot(apart, gradient - mean))
    if not connected or mean is None:
        raise InputError("the losses depend on none of the parameters; give those of the model that they run")
    variance = squares / (len(each) - 1)
    squared_norm = float(torch.dot(mean, mean)) - variance / len(each)
    scale = batch_size * variance / squared_norm if squared_norm > 0 else math.nan
    return GradientNoise(variance, squared_norm, scale, len(each))


def _gradient(value: Tensor, weights: list[Tensor]) -> Tensor:
    """Compute the gradient as one vector of float64, 0 where the loss does not depend on a weight."""
    if not value.requires_grad:
        return torch.zeros(sum(weight.numel() for weight in weights), dtype=torch.float64, device=weights[0].device)
    gradients = torch.autograd.grad(value, weights, allow_unused=True, materialize_grads=True)
    return torch.cat([part.reshape(-1).double() for part in gradients])
