"""Low-rank adapters beside their matrices (peft's LoRA), read as what they add to them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from torch import nn

from tsfm_lens.models.checkpoint import module_of


def beside(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield path and layer of every adapter that is not merged into its matrix."""
    for name, part in model.named_modules():
        if isinstance(getattr(part, "base_layer", None), nn.Module) and getattr(part, "merged", None) is False:
            yield name, part


def merged(native: Any) -> tuple[Any, list[str]]:
    """Return a native model without adapters beside its matrices, and the paths of those that it has.

    The model itself is returned where it has none, else a copy in which they are added to the matrices; a ``PeftModel``
    gives the model inside.
    """
    native = native.get_base_model() if hasattr(native, "peft_config") else native
    if not isinstance(native, nn.Module) and not hasattr(native, "model"):
        # no model of a library; its opening names the fault
        return native, []
    paths = [name for name, _ in beside(module_of(native))]
    if not paths:
        return native, []
    native = copy.deepcopy(native)
    model = module_of(native)
    for name in paths:
        parent, _, leaf = name.rpartition(".")
        layer: Any = model.get_submodule(name)
        layer.merge()
        setattr(model.get_submodule(parent), leaf, layer.base_layer)
    return native, paths
