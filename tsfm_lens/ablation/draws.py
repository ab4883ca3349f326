"""Common random numbers: variants that run side by side draw exactly what each would draw alone.

A run draws for all rows of its batch at once, so that a larger batch would give every row other numbers. While
:class:`BlockDraws` is open, each draw is made block by block, a block being the rows of one variant, and every
block has a random state of its own that begins at the same seed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tsfm_lens.models.draws import draw_from, drawn_shape, draws


class Unsplittable(Exception):
    """Error of a draw without an axis that falls into blocks; the variants have to run one by one."""


class GuardedDraws(TorchDispatchMode):
    """Dispatch mode for draws of indices where probabilities are no numbers.

    A CPU raises there, a GPU is lost to its process.

    Attributes:
        has_failed: whether that has happened; the draws are then meaningless.
    """

    def __init__(self) -> None:
        super().__init__()
        self.has_failed = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func``, with probabilities that can be drawn from."""
        if func.overloadpacket.__name__ == "multinomial":
            probabilities, wrong = _drawable(args[0])
            args = (probabilities, *args[1:])
            self.has_failed |= bool(wrong.any())
        return func(*args, **kwargs or {})


class BlockDraws(TorchDispatchMode):
    """Dispatch mode that draws random numbers block by block.

    Args:
        copies: blocks.
        seed: with which every block begins.
        axis: of elementwise draws, along which rows are counted; draws of indices (multinomial) count along the first.
        outer: how often the blocks repeat along that axis (sample paths that stand outside the blocks).

    Attributes:
        failed_blocks: blocks with draws of indices where probabilities are no numbers; their draws are meaningless.

    Raises:
        Unsplittable: from a draw whose rows are no multiple of the blocks.
    """

    def __init__(self, copies: int, seed: int, *, axis: int = 0, outer: int = 1) -> None:
        super().__init__()
        self._copies, self._axis, self._outer, self._seed = copies, axis, outer, seed
        self._states: dict[torch.device, list[Tensor]] = {}
        self.failed_blocks: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run ``func``, block by block if it draws."""
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if not draws(func) or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        axis = 0 if name == "multinomial" else self._axis
        shape = drawn_shape(args)
        if axis >= len(shape) or shape[axis] % (self._outer * self._copies):
            raise Unsplittable(f"{name} draws {tuple(shape)}: axis {axis} is no multiple of {self._copies} blocks")
        device = next(
            (arg.device for arg in args if isinstance(arg, Tensor)), torch.device(kwargs.get("device") or "cpu")
        )
        if name == "multinomial":
            args = self._guard(args)
        if name == "multinomial" and self._in_step(device) and args[1] == 1 and args[0].ndim == 2:
            return self._indices(func, device, args)
        states, parts = self._at(device), []
        for block in range(self._copies):
            of_block = tuple(self._part(arg, shape, axis, block) for arg in args)
            part, states[block] = draw_from(device, states[block], partial(func, *of_block, **kwargs))
            parts.append(part)
        together = self._join(parts, axis)
        # an operation in place hands its first argument back
        return args[0].copy_(together) if name.endswith("_") else together

    def _guard(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of a draw of indices, with probabilities that can be drawn from."""
        probabilities, wrong = _drawable(args[0])
        if wrong.ndim and bool(wrong.any()):
            blocks = wrong.unflatten(0, (self._outer, self._copies, -1)).any(2).any(0)
            self.failed_blocks |= set(blocks.nonzero().flatten().tolist())
        return probabilities, *args[1:]

    def _at(self, device: torch.device) -> list[Tensor]:
        """Return the random state at which each block stands."""
        if device not in self._states:
            start = torch.Generator(device).manual_seed(self._seed).get_state()
            self._states[device] = [start] * self._copies
        return self._states[device]

    def _in_step(self, device: torch.device) -> bool:
        """Return whether all blocks stand at the same random state, because all have drawn together so far."""
        states = self._at(device)
        return all(state is states[0] for state in states)

    def _indices(self, func: Any, device: torch.device, args: tuple[Any, ...]) -> Tensor:
        """Draw one index a row, from exponential variates that blocks in step have in common.

        An index is drawn as the largest ratio of a probability to such a variate. The first block of every draw checks
        that torch does the same, with as many random numbers.
        """
        parts = [self._part(args[0], args[0].shape, 0, block) for block in range(self._copies)]
        state = self._at(device)[0]
        real, after = draw_from(device, state, partial(func, parts[0], *args[1:]))
        variates, at = draw_from(device, state, torch.empty_like(parts[0]).exponential_)
        indices = [(part / variates).argmax(dim=-1, keepdim=True) for part in parts]
        if torch.equal(indices[0], real) and torch.equal(at, after):
            self._states[device] = [after] * self._copies
        else:
            draws_alone = [draw_from(device, state, partial(func, part, *args[1:])) for part in parts]
            indices, self._states[device] = [index for index, _ in draws_alone], [later for _, later in draws_alone]
        return self._join(indices, 0)

    def _part(self, arg: Any, shape: tuple[int, ...], axis: int, block: int) -> Any:
        """Return the rows of one block of an argument, in the order in which they stand alone."""
        length = shape[axis]
        if isinstance(arg, Tensor):
            # arguments may broadcast from the right
            at_axis = axis - (len(shape) - arg.ndim)
            if at_axis < 0 or arg.shape[at_axis] != length:
                return arg
            part = arg.unflatten(at_axis, (self._outer, self._copies, -1)).select(at_axis + 1, block)
            return part.flatten(at_axis, at_axis + 1).contiguous()
        if isinstance(arg, list | tuple) and len(arg) == len(shape) and all(isinstance(size, int) for size in arg):
            return [size // self._copies if at == axis else size for at, size in enumerate(arg)]
        return arg

    def _join(self, parts: list[Tensor], axis: int) -> Tensor:
        blocks = [part.unflatten(axis, (self._outer, 1, -1)) for part in parts]
        return torch.cat(blocks, dim=axis + 1).flatten(axis, axis + 2)


def _drawable(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Replace invalid probabilities (…, index) by all on the last index, and return where they are invalid (…)."""
    wrong = ~((probabilities >= 0) & probabilities.isfinite()).all(-1) | (probabilities.sum(-1) <= 0)
    last = torch.zeros_like(probabilities)
    last[..., -1] = 1
    return torch.where(wrong[..., None], last, probabilities), wrong
