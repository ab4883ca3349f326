"""Models of a sweep: how they are opened, and what identifies their forecasts.

Read :func:`open_model` and :func:`model_fingerprint` first. Models with the same
fingerprint share the cells of a store.
"""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from typing import Any

import torch

from tsfm_lens.core.errors import InputError
from tsfm_lens.models import Lens, load
from tsfm_lens.models.checkpoint import without_origin
from tsfm_lens.sweep.planner.config import NUMERICS, ModelConfig


def open_model(config: ModelConfig, device: str | None = None) -> Lens:
    """Open the lens of a model of a sweep."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    chosen = device or config.device
    try:
        # the cheapest use of a device; torch raises only then that there is none
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"device {chosen!r} of {config.title} cannot be used: {reason}"
        ) from None
    return load(
        config.source,
        revision=config.revision,
        device=chosen,
        dtype=config.dtype,
        check=False,
    )


def model_fingerprint(lens: Lens, config: ModelConfig) -> dict[str, Any]:
    """Identify a model's forecasts.

    They depend on weights, settings, architecture, library versions, precision and
    context.

    Returns:
        What they depend on, by name.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(lens.adapter.model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        values = tensor.detach().cpu().contiguous().reshape(-1)
        # numpy has no bfloat16, but its bytes
        digest.update(values.view(torch.uint8).numpy().data)
    # a library's next version may compute other numbers from the same weights, or other
    # scores from the same forecasts
    packages = sorted({lens.adapter.package, "gluonts", "torch", "transformers"})
    return {
        "weights": digest.hexdigest(),
        "settings": _settings(lens),
        "architecture": lens.wiring.architecture,
        "versions": {name: version(name) for name in packages},
        "numerics": NUMERICS,
        "dtype": config.dtype,
        "context_length": find_visible_steps(lens, config),
        "univariate": config.univariate or not lens.adapter.multivariate,
    }


def _settings(lens: Lens) -> str:
    """Hash a model's configuration: its network, its sampling and its pipeline."""
    adapter = lens.adapter
    holders = [adapter.model, adapter.native, adapter]
    settings = {
        f"{index}.{name}": _values(getattr(holder, name, None))
        for index, holder in enumerate(holders)
        for name in ("config", "generation_config", "settings", "forecast_config")
    }
    settings["levels"] = list(getattr(adapter, "levels", ()))
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _values(setting: Any) -> Any:
    """Return the plain values of a configuration, in whatever form a library has it."""
    if isinstance(setting, str | int | float | bool | None):
        return setting
    if isinstance(setting, list | tuple):
        return [_values(item) for item in setting]
    if hasattr(setting, "to_dict"):
        setting = setting.to_dict()
    elif not isinstance(setting, dict):
        holds_settings = type(setting).__name__.lower().endswith(("config", "settings"))
        if holds_settings:
            setting = getattr(setting, "__dict__", {})
        else:
            setting = {}
    return {str(key): _values(value) for key, value in without_origin(setting).items()}


def find_visible_steps(lens: Lens, config: ModelConfig) -> int:
    """Return the number of context steps that a model is given."""
    longest = int(lens.adapter.context_length)
    if config.context_length is None:
        return longest
    return min(longest, config.context_length)
