"""Common random numbers: variants that run side by side draw exactly what each would draw alone.

A run draws for all rows of its batch at once, so that a larger batch would give every row other numbers. While
:class:`BlockDraws` is open, each draw is made block by block, a block being the rows of one variant, and every
block has a random state of its own that begins at the same seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# their tag speaks of dropout, of which there is none in evaluation
_NOT_DRAWN = ("attention", "dropout")


class Unsplittable(Exception):
    """A draw has no axis that falls into blocks; the variants have to run one by one."""


class BlockDraws(TorchDispatchMode):
    """Makes every draw of random numbers block by block.

    Args:
        copies: blocks.
        seed: with which every block begins.
        axis: of elementwise draws, along which rows are counted; draws of indices (multinomial) count along the first.
        outer: how often the blocks repeat along that axis (sample paths that stand outside the blocks).

    Raises:
        Unsplittable: from a draw whose rows are no multiple of the blocks.
    """

    def __init__(self, copies: int, seed: int, *, axis: int = 0, outer: int = 1) -> None:
        super().__init__()
        self._copies, self._axis, self._outer, self._seed = copies, axis, outer, seed
        self._states: dict[torch.device, list[Tensor]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func``, block by block if it draws."""
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        drawn = torch.Tag.nondeterministic_seeded in func.tags and not any(word in name for word in _NOT_DRAWN)
        if not drawn or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        axis = 0 if name == "multinomial" else self._axis
        shape = _shape(args)
        if axis >= len(shape) or shape[axis] % (self._outer * self._copies):
            raise Unsplittable(f"{name} draws {tuple(shape)}: axis {axis} is no multiple of {self._copies} blocks")
        device = next(
            (arg.device for arg in args if isinstance(arg, Tensor)), torch.device(kwargs.get("device") or "cpu")
        )
        parts = []
        for block in range(self._copies):
            own = tuple(self._part(arg, shape, axis, block) for arg in args)
            parts.append(self._with_state(device, block, lambda own=own: func(*own, **kwargs)))
        together = self._joined(parts, axis)
        # an operation in place hands its first argument back
        return args[0].copy_(together) if name.endswith("_") else together

    def _with_state(self, device: torch.device, block: int, draw: Callable[[], Tensor]) -> Tensor:
        on_gpu = device.type == "cuda"
        if device not in self._states:
            start = torch.Generator(device).manual_seed(self._seed).get_state()
            self._states[device] = [start] * self._copies
        states = self._states[device]
        if on_gpu:
            torch.cuda.set_rng_state(states[block], device)
        else:
            torch.set_rng_state(states[block])
        drawn = draw()
        states[block] = torch.cuda.get_rng_state(device) if on_gpu else torch.get_rng_state()
        return drawn

    def _part(self, arg: Any, shape: tuple[int, ...], axis: int, block: int) -> Any:
        """The rows of one block of an argument, in the order in which they stand alone."""
        length = shape[axis]
        if isinstance(arg, Tensor):
            # arguments may broadcast from the right
            own = axis - (len(shape) - arg.ndim)
            if own < 0 or arg.shape[own] != length:
                return arg
            cut = arg.unflatten(own, (self._outer, self._copies, -1)).select(own + 1, block)
            return cut.flatten(own, own + 1).contiguous()
        if isinstance(arg, list | tuple) and len(arg) == len(shape) and all(isinstance(size, int) for size in arg):
            return [size // self._copies if at == axis else size for at, size in enumerate(arg)]
        return arg

    def _joined(self, parts: list[Tensor], axis: int) -> Tensor:
        split = [part.unflatten(axis, (self._outer, 1, -1)) for part in parts]
        return torch.cat(split, dim=axis + 1).flatten(axis, axis + 2)


def _shape(args: tuple[Any, ...]) -> tuple[int, ...]:
    """Shape of what an operation draws over: that of its tensors together, or the one asked for."""
    tensors = [arg.shape for arg in args if isinstance(arg, Tensor)]
    if tensors:
        return tuple(torch.broadcast_shapes(*tensors))
    sizes = [arg for arg in args if isinstance(arg, list | tuple)]
    return tuple(sizes[-1]) if sizes else ()
