"""Conditions of a run: what its forecast depends on apart from the series.

Read :class:`Conditions` first. A run keeps those under which it was made and refuses to
go on under others, since it would mix the forecast of one model with the measurements
of another. Changes are noticed without reading all weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformer_lens.hook_points import LensHandle

from tsfm_lens.core.errors import InputError
from tsfm_lens.hooks.block import Block
from tsfm_lens.hooks.native import autocast_dtype, list_modules
from tsfm_lens.hooks.scopes import HookScope, ScopedHook, without_blocks
from tsfm_lens.models.lens import Lens

# weights of which a number is looked at
_SAMPLED = 16


class Conditions:
    """Hooks, weights, mode and precision of a lens at one time.

    A weight has changed if torch counts a write to it, or if it has another memory.
    This sees optimisers, ``load_state_dict``, ``half``, and edits under
    ``torch.no_grad()`` even where they are undone. Not counted are writes through
    ``weight.data``, through numpy, and of fused optimisers; they are seen where they
    change the last number of one of some 16 weights that are spread over the model.

    Attributes:
        lens: whose they are.
    """

    def __init__(self, lens: Lens) -> None:
        self.lens = lens
        self._hooks = snapshot_hooks(lens)
        self._mode = _mode(lens)
        weights = _weights(lens.model)
        self._writes = _writes(weights)
        self._numbers = _last_numbers(weights)
        self._text = _format_numbers(self._numbers)

    def __reduce__(self) -> tuple[Any, ...]:
        # a copy of a run has a lens of its own
        return Conditions, (self.lens,)

    def check_unchanged(self) -> None:
        """Refuse to go on under other conditions."""
        if snapshot_hooks(self.lens) != self._hooks:
            raise InputError(
                "this run was made under other hooks than those that are set now, so it"
                f" would mix two models. {self._explain_hooks()}"
            )
        self.check_same_model()

    def _explain_hooks(self) -> str:
        """Name hooks that were set or taken off since, and what to do."""
        hooks = snapshot_hooks(self.lens)
        lasting = [
            (name, handle)
            for name, handle in hooks
            if (name, handle) not in self._hooks and _block_of(handle) is None
        ]
        if lasting:
            names = ", ".join(dict.fromkeys(name for name, _ in lasting))
            call = "lens.reset_hooks()"
            if any(handle.is_permanent for _, handle in lasting):
                call = "lens.reset_hooks(including_permanent=True)"
            return (
                f"add_hook() has set hooks at {names}, and {call} takes them off;"
                " lens.run(series, horizon) makes a run of the model with them"
            )
        gone = dict.fromkeys(name for name, _ in self._hooks)
        if any(hook not in hooks for hook in self._hooks):
            return (
                f"Its hooks at {', '.join(gone)} are no longer set: use it in the block"
                " in which it was made, or make a new one"
            )
        return (
            "Ask the run before the block; inside it lens.forward(run.encoded) runs the"
            " changed model on the same input, and lens.run(series, horizon) makes a"
            " run of the changed model"
        )

    def restored(self) -> Block[None]:
        """Set blocks that were opened later aside, in a ``with`` block.

        Returns:
            A block in which hooks are as they were.

        Raises:
            InputError: hooks have changed otherwise, or weights, mode or precision.
        """
        hooks = snapshot_hooks(self.lens)
        later = [_block_of(hook[1]) for hook in hooks if hook not in self._hooks]
        scopes = [block for block in later if block is not None]
        is_gone = any(hook not in hooks for hook in self._hooks)
        if is_gone or len(scopes) < len(later):
            self.check_unchanged()
        self.check_same_model()
        return without_blocks(scopes)

    def check_same_model(self) -> None:
        """Refuse other weights, another mode or another precision."""
        name = self.lens.model_id
        cure = (
            "so the run would mix two models. Make a new one: lens.run(series, horizon)"
        )
        mode = _mode(self.lens)
        # the numbers are views: they are of the weights of now as long as those have
        # their memory
        if (
            _writes(_weights(self.lens.model)) != self._writes
            or _format_numbers(self._numbers) != self._text
        ):
            raise InputError(
                f"the weights of {name} have changed since this run was made, {cure}"
            )
        if mode != self._mode:
            raise InputError(
                f"this run was made in {self._mode}, and {name} is now in {mode},"
                f" {cure}"
            )


def snapshot_hooks(lens: Lens) -> tuple[tuple[str, LensHandle], ...]:
    """Return the hooks that are set on a lens, with the names of their hook points.

    Two snapshots are equal if no hook was added or removed in between.
    """
    return tuple(
        (name, handle)
        for name, point in lens.registry.hooked.items()
        for handle in (*point.fwd_hooks, *point.bwd_hooks)
    )


def _block_of(handle: LensHandle) -> HookScope[Any] | None:
    """Return the block that has set a hook; None for a hook of ``add_hook``."""
    if isinstance(handle.user_hook, ScopedHook):
        return handle.user_hook.scope
    return None


def _mode(lens: Lens) -> str:
    mode = "evaluation mode"
    if lens.training:
        mode = "training mode"
    precision = autocast_dtype(lens.device)
    if precision is None:
        return f"{mode} and full precision"
    return f"{mode} and autocast to {precision}"


def _weights(model: nn.Module) -> list[Tensor]:
    """List the parameters and buffers of a model's state.

    Buffers outside its state are caches of the library.

    Returns:
        The tensors, in the model's order.
    """
    weights: list[Tensor | None] = []
    for module in list_modules(model):
        if module._parameters:
            weights.extend(module._parameters.values())
        if module._buffers:
            caches = module._non_persistent_buffers_set
            weights += [
                buffer for name, buffer in module._buffers.items() if name not in caches
            ]
    return [tensor for tensor in weights if tensor is not None]


def _writes(weights: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Return the memory address and the number of writes of each weight.

    The number is torch's own count.
    """
    try:
        return [(tensor.data_ptr(), tensor._version) for tensor in weights]
    except RuntimeError:
        # what is made in inference mode has no count
        return [
            (tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version)
            for tensor in weights
        ]


@torch.no_grad()
def _last_numbers(weights: Sequence[Tensor]) -> list[Tensor]:
    """Return the last numbers of some weights, as views of their memory."""
    chosen = weights[:: 1 + len(weights) // _SAMPLED]
    return [tensor[(-1,) * tensor.ndim] for tensor in chosen if tensor.numel()]


@torch.no_grad()
def _format_numbers(numbers: Sequence[Tensor]) -> str:
    """Format numbers as text, in which NaN equals itself."""
    if len({(number.device, number.dtype) for number in numbers}) == 1:
        # one transfer from the device
        return str(torch.stack([*numbers]).tolist())
    return str([number.item() for number in numbers])
