"""Joining of the forecasts, distributions and activations of a batch's parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution

from tsfm_lens.data import SeriesBatch
from tsfm_lens.errors import HookError
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.models.forecast import Forecast


class JoinedDistribution(Distribution):
    """Distributions of several parts of a batch as one, along the first axis.

    Args:
        parts: distributions that agree in all but the first axis of their batch shape.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}

    def __init__(self, parts: Sequence[Distribution]) -> None:
        self.parts = list(parts)
        self._sizes = [part.batch_shape[0] for part in self.parts]
        shape = torch.Size((sum(self._sizes), *self.parts[0].batch_shape[1:]))
        super().__init__(shape, self.parts[0].event_shape, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """Mean of each entry."""
        return torch.cat([part.mean for part in self.parts])

    @property
    def variance(self) -> Tensor:
        """Variance of each entry."""
        return torch.cat([part.variance for part in self.parts])

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw samples (sample…, batch…)."""
        shape = torch.Size(sample_shape)
        return torch.cat([part.sample(shape) for part in self.parts], dim=len(shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """Compute the logarithm of the density at values that broadcast with the batch shape."""
        return self._each(lambda part, values: part.log_prob(values), value)

    def cdf(self, value: Tensor) -> Tensor:
        """Compute the cumulative probability at values that broadcast with the batch shape."""
        return self._each(lambda part, values: part.cdf(values), value)

    def _each(self, function: Callable[[Distribution, Tensor], Tensor], value: Tensor) -> Tensor:
        shape = torch.broadcast_shapes(value.shape, self.batch_shape)
        axis = len(shape) - len(self.batch_shape)
        cuts = value.expand(shape).split(self._sizes, dim=axis)
        return torch.cat([function(part, values) for part, values in zip(self.parts, cuts, strict=True)], dim=axis)


def joined_forecast(parts: Sequence[Forecast], context: SeriesBatch) -> Forecast:
    """Join the forecast of a batch from those of its parts, in order."""
    if len(parts) == 1:
        return parts[0]
    samples = [part.samples for part in parts if part.samples is not None]
    distributions = [part.distribution for part in parts if part.distribution is not None]
    return replace(
        parts[0],
        quantiles=np.concatenate([part.quantiles for part in parts]),
        mean=np.concatenate([part.mean for part in parts]),
        samples=np.concatenate(samples) if samples else None,
        context=context,
        distribution=JoinedDistribution(distributions) if distributions else None,
    )


def joined_activations(parts: Sequence[Activations], into: Activations, *, outer: int = 1) -> None:
    """Fill activations of a batch with those of its parts, which are emptied.

    Args:
        parts: recorded one after the other.
        into: of the whole batch.
        outer: how often the rows of a part repeat (sample paths that stand outside the series).

    Raises:
        HookError: passes of the parts differ in number or shape.
    """
    into.reduced |= parts[0].reduced
    for name in list(parts[0].recorded):
        calls = [part.recorded.pop(name) for part in parts]
        if len({len(part) for part in calls}) > 1:
            raise HookError(f"{name} ran {', '.join(str(len(part)) for part in calls)} times in parts of one batch")
        into.recorded[name] = []
        for same in zip(*calls, strict=True):
            values = [call.value.unflatten(0, (outer, -1)) for call in same]
            into.recorded[name].append(replace(same[0], value=torch.cat(values, dim=1).flatten(0, 1)))
