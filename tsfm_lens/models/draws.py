"""Random numbers of a batch that does not run as one native call: every series has the draws that it would have there.

A run draws for all rows of its batch at once. Sample paths are therefore defined by *blocks* of series, each with a
seed of its own: a block is one native call under that seed. :class:`BlockwiseDraws` gives the rows of a
run their numbers where the run is not exactly one block: a part of one, or several together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tsfm_lens.errors import HookError

# their tag speaks of dropout, of which there is none in evaluation
_WITHOUT_DRAWS = ("attention", "dropout")


@dataclass(frozen=True)
class Piece:
    """Consecutive units of a run that belong to one block.

    Attributes:
        seed: of the block.
        count: units of the run.
        first: place of the first of them in the block.
        size: units of the whole block.
    """

    seed: int
    count: int
    first: int
    size: int

    @property
    def whole(self) -> bool:
        """True if the block has no other units."""
        return self.count == self.size


def block_seed(seed: int, block: int) -> int:
    """Return the seed of one block; that of the first is the caller's own."""
    if block == 0:
        return seed
    return int(np.random.SeedSequence((seed, block)).generate_state(1, np.uint64)[0]) >> 1


class BlockwiseDraws(TorchDispatchMode):
    """Dispatch mode that draws random numbers as the native calls on whole blocks do.

    Args:
        pieces: of the run, in order.
        axis: of elementwise draws, along which rows are counted; draws of indices (multinomial) count along the first.
        outer: how often the units repeat along that axis (sample paths that stand outside the units).

    Raises:
        HookError: from a draw whose rows are no multiple of the units, or of a part of a block where the numbers of
            one row depend on the rows before it.
    """

    def __init__(self, pieces: Sequence[Piece], *, axis: int = 0, outer: int = 1) -> None:
        super().__init__()
        self._pieces, self._axis, self._outer = list(pieces), axis, outer
        self._units = sum(piece.count for piece in pieces)
        self._states: dict[torch.device, list[Tensor]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func``, block by block if it draws."""
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if not draws(func) or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        axis, shape = 0 if name == "multinomial" else self._axis, drawn_shape(args)
        if axis >= len(shape) or shape[axis] % (self._outer * self._units):
            raise HookError(f"{name} draws {tuple(shape)}: axis {axis} is no multiple of {self._units} series")
        device = next(
            (arg.device for arg in args if isinstance(arg, Tensor)), torch.device(kwargs.get("device") or "cpu")
        )
        states, parts, start = self._at(device), [], 0
        for index, piece in enumerate(self._pieces):
            args_of_piece = tuple(self._part(arg, shape, axis, start, piece.count) for arg in args)
            if not piece.whole:
                args_of_piece = (self._widen(name, args_of_piece[0], piece), *args_of_piece[1:])
            numbers, states[index] = draw_from(device, states[index], partial(func, *args_of_piece, **kwargs))
            if not piece.whole:
                rows = numbers.unflatten(0, (self._outer, piece.size, -1)).narrow(1, piece.first, piece.count)
                numbers = rows.flatten(0, 2)
            parts.append(numbers.unflatten(axis, (self._outer, piece.count, -1)))
            start += piece.count
        together = torch.cat(parts, dim=axis + 1).flatten(axis, axis + 2)
        # an operation in place hands its first argument back
        return args[0].copy_(together) if name.endswith("_") else together

    def _at(self, device: torch.device) -> list[Tensor]:
        """Return the random state at which each block stands."""
        if device not in self._states:
            self._states[device] = [
                torch.Generator(device).manual_seed(piece.seed).get_state() for piece in self._pieces
            ]
        return self._states[device]

    def _part(self, arg: Any, shape: tuple[int, ...], axis: int, start: int, count: int) -> Any:
        """Return the rows of some units of an argument."""
        if isinstance(arg, Tensor):
            # arguments may broadcast from the right
            axis_here = axis - (len(shape) - arg.ndim)
            if axis_here < 0 or arg.shape[axis_here] != shape[axis]:
                return arg
            part = arg.unflatten(axis_here, (self._outer, self._units, -1)).narrow(axis_here + 1, start, count)
            return part.flatten(axis_here, axis_here + 2).contiguous()
        if isinstance(arg, list | tuple) and len(arg) == len(shape) and all(isinstance(size, int) for size in arg):
            return [size // self._units * count if at == axis else size for at, size in enumerate(arg)]
        return arg

    def _widen(self, name: str, probabilities: Tensor, piece: Piece) -> Tensor:
        """Extend the probabilities of some units to those of their whole block; the others are even."""
        if name != "multinomial":
            raise HookError(
                f"{name} cannot be drawn for a part of a batch: how many random numbers it takes depends on the rows"
            )
        own_units = probabilities.unflatten(0, (self._outer, piece.count, -1))
        all_units = own_units.new_ones(self._outer, piece.size, *own_units.shape[2:])
        all_units.narrow(1, piece.first, piece.count).copy_(own_units)
        return all_units.flatten(0, 2)


def draws(func: Any) -> bool:
    """Return whether an operation takes random numbers from torch's generators."""
    name = func.overloadpacket.__name__
    return torch.Tag.nondeterministic_seeded in func.tags and not any(word in name for word in _WITHOUT_DRAWS)


def draw_from(device: torch.device, state: Tensor, draw: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    """Draw from a random state, and return the state after it, too."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
        return draw(), torch.cuda.get_rng_state(device)
    torch.set_rng_state(state)
    return draw(), torch.get_rng_state()


def drawn_shape(args: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the shape of an operation's draw: that of its tensors together, or the requested one."""
    tensors = [arg.shape for arg in args if isinstance(arg, Tensor)]
    if tensors:
        return tuple(torch.broadcast_shapes(*tensors))
    sizes = [arg for arg in args if isinstance(arg, list | tuple)]
    return tuple(sizes[-1]) if sizes else ()
