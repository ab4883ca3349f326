"""Random weights with which exactness tests mean something."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


def spread_weights(
    model: Any, gains: Mapping[str, float], *, seed: int = 0, std: float = 1.0, unit_scaled: bool = False
) -> Any:
    """Redraw a model's weights so large that every head and MLP moves the forecast.

    With most libraries' own initialisation, zeroing a head moves a forecast by 1e-7, and any check passes.

    Args:
        model: a native module; changed in place and set to evaluation mode.
        gains: part of a parameter's name -> factor on its standard deviation, beside 1/sqrt(fan_in); the
            first that matches counts. The gain of an "embed" table is not divided by its fan-in.
        seed: of the draw.
        std: factor on the standard deviation of every matrix that no gain names.
        unit_scaled: the layers divide by their fan-in themselves, so the weights do not.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            draw = torch.randn(weight.shape, generator=generator)
            gain = next((factor for part, factor in gains.items() if part in name), std)
            if weight.ndim > 1:
                table = any(part in name for part in ("embed_tokens", "shared", "emb.weight", "attention_bias"))
                weight.copy_(draw * gain * (1.0 if table or unit_scaled else weight.shape[-1] ** -0.5))
            elif "norm" in name or "_ln" in name:
                weight.copy_(1.0 + 0.2 * draw)
            elif "scale" in name or "bias" in name:
                weight.copy_(0.1 * draw)
    return model.eval()
