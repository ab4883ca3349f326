"""Copies of a lens: a new one around a copy of the native model, with the hooks that belong to the lens."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeVar

from transformer_lens.hook_points import LensHandle

from tsfm_lens.errors import HookError
from tsfm_lens.hooks.registry import HookRegistry
from tsfm_lens.models.architecture import Adapter
from tsfm_lens.models.base import LensBase

L = TypeVar("L", bound=LensBase)
Lasting = list[tuple[str, str, LensHandle]]


def lasting_hooks(registry: HookRegistry) -> Lasting:
    """Return the hooks set by ``add_hook``, as (name of the point, "fwd" or "bwd", handle).

    Raises:
        HookError: a context is open, whose hooks would stay on the copy for ever.
    """
    if registry.busy:
        raise HookError("a context is open on this lens, and its hooks would stay on a copy; leave it first")
    points = registry.hooked.items()
    forward = [(name, "fwd", handle) for name, point in points for handle in point.fwd_hooks]
    return forward + [(name, "bwd", handle) for name, point in points for handle in point.bwd_hooks]


def copied(lens: L, memo: dict[int, Any]) -> L:
    """Copy a lens for ``copy.deepcopy``; errors as in :func:`lasting_hooks`."""
    hooks = lasting_hooks(lens.registry)
    for module in lens.adapter.model.modules():
        # some libraries keep functions as attributes in a wrapping that cannot be copied, and need not be
        memo |= {id(value): value for value in vars(module).values() if isinstance(value, staticmethod)}
    return rebuilt(type(lens), copy.deepcopy(lens.adapter, memo), lens.model_id, lens.revision, hooks)


def rebuilt(
    kind: Callable[[Adapter, str, str | None], L], adapter: Adapter, model_id: str, revision: str | None, hooks: Lasting
) -> L:
    """Build a lens with hooks of its own points."""
    lens = kind(adapter, model_id, revision)
    for name, direction, handle in hooks:
        lens.registry.hooked[name].add_hook(handle.user_hook, direction, handle.is_permanent)
    return lens
