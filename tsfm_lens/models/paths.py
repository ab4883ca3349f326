"""Paths along which a token model's decoder can be forced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.hooks.recorder import by_row
from tsfm_lens.models.lens import Lens

if TYPE_CHECKING:
    from transformer_lens.hook_points import HookPoint

    from tsfm_lens.data import SeriesBatch


def median_path(lens: Lens, batch: SeriesBatch, horizon: int) -> np.ndarray:
    """Compute the path on which every step is the median of the model's next value, given the path so far.

    It is one that the model can see: each value is a token's, and each token follows from those before it. (The
    pointwise median of sample paths is none: its values lie between tokens, and its steps belong to different paths.)
    It takes no draw, so that results along it do not depend on a seed. The library's own generation makes
    it, at the cost of a single sample path.

    Args:
        lens: a token model.
        batch: the context.
        horizon: steps, at most what one pass yields.

    Returns:
        (series, step) in data units.
    """
    first: int = lens.adapter.first_value_token  # type: ignore[attr-defined]

    @by_row
    def settle(logits: Tensor, hook: HookPoint) -> Tensor:
        mass = torch.softmax(logits[..., first:].double(), dim=-1).cumsum(-1)
        median = first + (mass < 0.5 * mass[..., -1:]).sum(-1, keepdim=True)
        return torch.full_like(logits, torch.finfo(logits.dtype).min / 4).scatter(-1, median, 0.0)

    with lens.hooks([("unembed.hook_out", settle)]):
        forecast = lens.forecast(batch, horizon, num_samples=1)
    assert forecast.samples is not None
    return forecast.samples[:, 0].astype(float)
