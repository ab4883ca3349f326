"""Random native models of every architecture, in which every head and MLP matters."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch

from tsfm_lens.errors import WiringError, unknown_name
from tsfm_lens.models import wirings
from tsfm_lens.models.architecture import architecture_by_name

__all__ = ["published", "spread_weights", "tiny"]

_BUILDERS = f"{__package__}.builders"
_TABLES = ("embed_tokens", "shared", "emb.weight", "attention_bias")


def tiny(name: str) -> Any:
    """Build a small native model of an architecture, no two of whose sizes are equal by accident.

    Raises:
        UnknownNameError: no architecture has this name.
        WiringError: no function ``tiny`` stands where its builder is looked for.
        MissingExtraError: its library is not installed.

    Example:
        >>> tsfm_lens.load(testing.tiny("chronos-bolt")).wiring.architecture
        'chronos-bolt'
    """
    return _builder(name, "tiny")()


def published(name: str, size: str) -> Any:
    """Build a native model of a published size.

    Raises:
        UnknownNameError: no architecture has this name, or it is published in no such size.
        WiringError: no function ``published`` stands where its builder is looked for.
        MissingExtraError: its library is not installed.

    Example:
        >>> tsfm_lens.load(testing.published("chronos-bolt", "tiny")).cfg.d_model
        256
    """
    sizes = architecture_by_name(name).published
    if size not in sizes:
        raise unknown_name(f"size of {name}", size, sizes)
    return _builder(name, "published")(size)


def _builder(name: str, function: str) -> Any:
    """Return a builder's function: of the file here for a wiring of ours, of the module of any other wiring."""
    module = import_module(
        architecture_by_name(name).adapter.__module__.replace(
            wirings.__name__, _BUILDERS
        )
    )
    if not hasattr(module, function):
        raise WiringError(
            f"{module.__name__} has no function {function}, which builds a random model of {name!r}"
        )
    return getattr(module, function)


def random_model(
    name: str, config: Mapping[str, Any], gains: Mapping[str, float], **options: Any
) -> Any:
    """Build the torch module of a config.json, with weights of :func:`spread_weights`."""
    blank = architecture_by_name(name).blank
    assert blank is not None
    return spread_weights(blank(config), gains, **options)


def spread_weights(
    model: Any,
    gains: Mapping[str, float],
    *,
    seed: int = 0,
    std: float = 1.0,
    unit_scaled: bool = False,
) -> Any:
    """Redraw a model's weights so large that every head and MLP moves the forecast.

    Args:
        model: torch module, which is changed in place.
        gains: part of a parameter's name -> factor on its weights; the first that fits.
        seed: of the random numbers.
        std: factor on all other matrices.
        unit_scaled: whether layers divide by the root of their fan-in themselves.

    Example:
        >>> layer = testing.spread_weights(torch.nn.Linear(4, 2), {}, std=3.0)
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            draw = torch.randn(weight.shape, generator=generator)
            gain = next((factor for part, factor in gains.items() if part in name), std)
            if weight.ndim > 1:
                is_table = any(part in name for part in _TABLES)
                fan_in = 1.0 if is_table or unit_scaled else weight.shape[-1]
                weight.copy_(draw * gain * fan_in**-0.5)
            elif "norm" in name or "_ln" in name:
                weight.copy_(1.0 + 0.2 * draw)
            elif "scale" in name or "bias" in name:
                weight.copy_(0.1 * draw)
    return model.eval()
