"""Random native models of every architecture, in which every head and MLP matters.

Read :func:`tiny`. Sizes and gains are in the YAML files of
:mod:`tsfm_lens.testing.builders`, or, where a model needs code, in its modules. Nothing
is downloaded, and no model is trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from tsfm_lens.core.errors import WiringError, unknown_name
from tsfm_lens.core.registry import declarations
from tsfm_lens.models import wirings
from tsfm_lens.models.architecture import architecture_by_name
from tsfm_lens.testing import builders

__all__ = ["published", "spread_weights", "tiny"]

# parameters that are looked up or added, not summed over: their size is no fan-in
_TABLES = ("embed_tokens", "shared", "emb.weight", "attention_bias")


def tiny(name: str) -> Any:
    """Build a small native model of an architecture.

    No two of its sizes are equal by accident.

    Args:
        name: of the architecture, such as "chronos-bolt".

    Returns:
        The native model with random weights, which :func:`tsfm_lens.load` takes.

    Raises:
        UnknownNameError: no architecture has this name.
        WiringError: nothing says how to build it.
        MissingExtraError: its library is not installed.

    Example:
        >>> tsfm_lens.load(testing.tiny("chronos-bolt")).wiring.architecture
        'chronos-bolt'
    """
    return _build(name, "tiny")


def published(name: str, size: str) -> Any:
    """Build a native model of a published size.

    Args:
        name: of the architecture, such as "chronos-bolt".
        size: name of the published size, such as "tiny".

    Returns:
        The native model with random weights, which :func:`tsfm_lens.load` takes.

    Raises:
        UnknownNameError: no architecture has this name, or it is published in no such
            size.
        WiringError: nothing says how to build it.
        MissingExtraError: its library is not installed.

    Example:
        >>> tsfm_lens.load(testing.published("chronos-bolt", "tiny")).cfg.d_model
        256
    """
    sizes = architecture_by_name(name).published
    if size not in sizes:
        raise unknown_name(f"size of {name}", size, sizes)
    return _build(name, "published", size)


def _build(name: str, function: str, *size: str) -> Any:
    """Call the function of an architecture's builder, or read its file.

    The builder of a wiring that is not ours is in the wiring's own module.

    Returns:
        The native model.
    """
    # the builder of `…wirings.NAME` is `…builders.NAME`; a module elsewhere is its own
    wiring = architecture_by_name(name).adapter.__module__
    builder = wiring.replace(wirings.__name__, builders.__name__)
    if builder != wiring and find_spec(builder) is None:
        return random_model(name, *size)
    module = import_module(builder)
    if not hasattr(module, function):
        raise WiringError(
            f"{builder} has no function {function}, which builds a random model of"
            f" {name!r}"
        )
    return getattr(module, function)(*size)


def random_config(name: str, size: str = "") -> dict[str, Any]:
    """Read the configuration of a random model: config.json, gains, further options.

    It is of the published size, or of the small model if ``size`` is "".

    The file of an architecture has what all sizes share, then what is of the small
    model, of all published ones, and of each of them.

    Returns:
        Settings by name.
    """
    file = Path(*builders.__path__, f"{architecture_by_name(name).module}.yaml")
    parts = declarations(file)
    if not parts:
        raise WiringError(
            f"{file} is not there, which says how a random model of {name!r} is built"
        )
    if not size:
        return _merged(parts["shared"], parts["tiny"])
    return _merged(parts["shared"], parts.get("published", {}), parts["sizes"][size])


def _merged(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings, nested ones too; a later value replaces an earlier one."""
    merged: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            if isinstance(value, Mapping):
                merged[key] = _merged(merged.get(key, {}), value)
            else:
                merged[key] = value
    return merged


def random_model(name: str, size: str = "") -> Any:
    """Build the torch module of :func:`random_config`.

    No object of a library is put around it.

    Returns:
        The module.
    """
    options = random_config(name, size)
    config = options.pop("config")
    gains = options.pop("gains")
    model = architecture_by_name(name).blank(config)
    return spread_weights(model, gains, **options)


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

    Returns:
        The model itself, in evaluation mode.

    Example:
        >>> layer = testing.spread_weights(torch.nn.Linear(4, 2), {}, std=3.0)
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # drawn for every parameter, so that the rest does not depend on what is
            # used
            draw = torch.randn(weight.shape, generator=generator)
            gain = next((factor for part, factor in gains.items() if part in name), std)
            if weight.ndim > 1:
                is_table = any(part in name for part in _TABLES)
                if is_table or unit_scaled:
                    fan_in = 1.0
                else:
                    fan_in = weight.shape[-1]
                weight.copy_(draw * gain * fan_in**-0.5)
            elif "norm" in name or "_ln" in name:
                # not 1 throughout, so that a forgotten gain of a norm shows
                weight.copy_(1.0 + 0.2 * draw)
            elif "scale" in name or "bias" in name:
                weight.copy_(0.1 * draw)
    return model.eval()
