"""Random numbers of a run, the same whether its batch is split or not.

Read :class:`BlockDraws` first: under it, every block of rows draws what it would draw
alone. :func:`seeded` seeds torch's generators for the time of a block of code. Which
series make a block is decided in :mod:`tsfm_lens.models.batching`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tsfm_lens.core.errors import HookError
from tsfm_lens.hooks.block import Block, Steps
from tsfm_lens.hooks.replay import ONE_RUN

# torch tags these as drawing because of their dropout, which is off in evaluation
_WITHOUT_DRAWS = ("attention", "dropout")


def seeded(seed: int, device: torch.device) -> Block[None]:
    """Seed torch's generators of the CPU and of a device while the block runs.

    Their state is restored afterwards.

    Returns:
        A block with a seed of its own.
    """
    token = object()
    states = list[tuple[Tensor, Tensor | None]]()

    def begin() -> None:
        # torch's generators are those of the process, so that threads take turns
        ONE_RUN.take(token)
        on_cuda = None
        # not torch.manual_seed(), which seeds every device, and not this one alone, and
        # takes a tenth of a small forecast
        if device.type == "cuda":
            on_cuda = torch.cuda.get_rng_state(device)
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        states.append((torch.get_rng_state(), on_cuda))
        torch.default_generator.manual_seed(seed)

    def end() -> None:
        for on_cpu, on_cuda in states:
            torch.set_rng_state(on_cpu)
            if on_cuda is not None:
                torch.cuda.set_rng_state(on_cuda, device)
        ONE_RUN.give(token)

    return Block(Steps(None, begin, end))


def check_drawable(_head: nn.Module, _args: Any, logits: Tensor) -> None:
    """Raise for logits that give no probabilities, as torch does on a CPU.

    On a GPU, drawing from them would end all work there.
    """
    # the largest logit is NaN if any is, and infinite if one is +inf or all are -inf
    if not bool(logits.detach().amax(dim=-1).isfinite().all()):
        raise RuntimeError(
            "probability tensor contains either `inf`, `nan` or element < 0"
        )


def block_seed(seed: int, block: int) -> int:
    """Return the seed of a block of series; the first has the caller's own."""
    if block == 0:
        return seed
    # seeds of neighbouring blocks, or of neighbouring forecasts, are unrelated in this
    # way
    state = np.random.SeedSequence((seed, block)).generate_state(1, np.uint64)
    # seeds of forecasts are below 2**63
    return int(state[0]) >> 1


@dataclass(frozen=True)
class Piece:
    """Consecutive units of a run that belong to one block.

    Units are series, items or variants.

    Attributes:
        seed: of the block.
        count: number of units of the piece.
        first: index of the first of them in the block.
        size: number of units of the block.
    """

    seed: int
    count: int
    first: int
    size: int

    @property
    def is_full_block(self) -> bool:
        """True if the block has no other units."""
        return self.count == self.size


class Unsplittable(HookError):
    """Error of a draw that does not fall into blocks."""


class BlockDraws(TorchDispatchMode):
    """Dispatch mode under which blocks of rows draw independently.

    Every block draws what a native call on it alone would draw.

    Args:
        pieces: of blocks, in the order of the rows that run.
        axis: of random tensors, along which the rows lie.
        outer: number of groups of rows, such as sample paths, each of which holds all
            pieces.
        guarded: note invalid probabilities of a categorical draw and go on, where torch
            would raise.

    Attributes:
        seed: of the first block, under which the run itself is seeded.
        failures: indices of the pieces that gave invalid probabilities.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        *,
        axis: int = 0,
        outer: int = 1,
        guarded: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._pieces = list(pieces)
        self._axis = axis
        self._outer = outer
        self.guarded = guarded
        self._stops = list(accumulate(piece.count for piece in pieces))
        self._is_one_block = len(self._pieces) == 1 and self._pieces[0].is_full_block
        # variants of one batch draw alike, block by block, so that one set of random
        # numbers may serve them all (see ``_indices``)
        self._equal_blocks = (
            len(set(self._pieces)) == 1 and self._pieces[0].is_full_block
        )
        self._states: dict[torch.device, list[Tensor]] = {}
        self.seed = self._pieces[0].seed
        self.failures: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func``, block by block if it draws."""
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        # torch marks each operation that takes numbers of the global generator
        draws = torch.Tag.nondeterministic_seeded in func.tags and not any(
            word in name for word in _WITHOUT_DRAWS
        )
        # a generator of the caller's own has a state that blocks do not share
        if not draws or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        of_indices = name == "multinomial"
        # categorical draws have flattened their rows by then, whatever the model's axis
        axis = 0 if of_indices else self._axis
        shape = _shape(args)
        units = self._outer * self._stops[-1]
        if not self._is_one_block and (axis >= len(shape) or shape[axis] % units):
            raise Unsplittable(
                f"{name} draws {tuple(shape)}: axis {axis} is not a multiple of {units}"
                " units"
            )
        if of_indices and self.guarded:
            args = (self._drawable(args[0]), *args[1:])
        if self._is_one_block:
            return func(*args, **kwargs)
        device = next(
            (arg.device for arg in args if isinstance(arg, Tensor)),
            torch.device(kwargs.get("device") or "cpu"),
        )
        args_of = [
            tuple(self._part(arg, shape, axis, index) for arg in args)
            for index in range(len(self._pieces))
        ]
        states = self._at(device)
        in_step = self._equal_blocks and all(state is states[0] for state in states)
        if of_indices and args[1] == 1 and args[0].ndim == 2 and in_step:
            parts = self._indices(func, device, args_of)
        else:
            parts = []
            for index, piece in enumerate(self._pieces):
                part, states[index] = _draw(
                    device,
                    states[index],
                    partial(self._of_piece, func, name, piece, args_of[index], kwargs),
                )
                parts.append(part)
        counts = [piece.count for piece in self._pieces]
        blocks = [
            part.unflatten(axis, (self._outer, count, -1))
            for part, count in zip(parts, counts, strict=True)
        ]
        # rows are (outer, unit, rest of a unit), and blocks are ranges of units
        joined = torch.cat(blocks, dim=axis + 1).flatten(axis, axis + 2)
        # an operation in place hands its first argument back
        return args[0].copy_(joined) if name.endswith("_") else joined

    def _drawable(self, probabilities: Tensor) -> Tensor:
        """Replace invalid probabilities (…, index) by certainty of the last index.

        The pieces of such rows are noted in ``failures``.

        Returns:
            Probabilities of the same shape that can be drawn from.
        """
        # NaN is neither above 0 nor finite, so that it counts as out of range
        in_range = ((probabilities >= 0) & probabilities.isfinite()).all(-1)
        wrong = ~in_range | (probabilities.sum(-1) <= 0)
        if bool(wrong.any()):
            if self._is_one_block:
                units = [0]
            else:
                # (outer, unit, rest of a unit): a unit fails with any of its rows
                by_unit = wrong.unflatten(0, (self._outer, self._stops[-1], -1))
                units = by_unit.any(2).any(0).nonzero()
            self.failures |= {
                # a stop is the first unit of the next piece
                int(np.searchsorted(self._stops, int(unit), side="right"))
                for unit in units
            }
        last = torch.zeros_like(probabilities)
        last[..., -1] = 1
        return torch.where(wrong[..., None], last, probabilities)

    def _at(self, device: torch.device) -> list[Tensor]:
        """Return the present random state of each block.

        Equal states are one object.
        """
        if device not in self._states:
            seeds = {piece.seed for piece in self._pieces}
            states = {
                seed: torch.Generator(device).manual_seed(seed).get_state()
                for seed in seeds
            }
            self._states[device] = [states[piece.seed] for piece in self._pieces]
        return self._states[device]

    def _indices(
        self, func: Any, device: torch.device, args_of: list[tuple[Any, ...]]
    ) -> list[Tensor]:
        """Draw one index per row for all blocks with shared random numbers.

        The index is that of the largest ratio of a probability to an exponential
        variate, as torch draws it.

        Returns:
            The indices of each block.
        """
        # the first block of every draw checks that torch does the same, with as many
        # random numbers
        state = self._at(device)[0]
        expected, after = _draw(device, state, partial(func, *args_of[0]))
        variates, at = _draw(
            device, state, torch.empty_like(args_of[0][0]).exponential_
        )
        parts = [(args[0] / variates).argmax(dim=-1, keepdim=True) for args in args_of]
        if torch.equal(parts[0], expected) and torch.equal(at, after):
            self._states[device] = [after] * len(parts)
            return parts
        draws = [_draw(device, state, partial(func, *args)) for args in args_of]
        self._states[device] = [later for _, later in draws]
        return [part for part, _ in draws]

    def _part(self, arg: Any, shape: tuple[int, ...], axis: int, index: int) -> Any:
        """Return the rows of one piece of an argument.

        They are in the order in which they would be without the other pieces.
        """
        units = self._stops[-1]
        count = self._pieces[index].count
        if isinstance(arg, Tensor):
            # arguments may broadcast from the right
            at = axis - (len(shape) - arg.ndim)
            if at < 0 or arg.shape[at] != shape[axis]:
                return arg
            part = arg.unflatten(at, (self._outer, units, -1)).narrow(
                at + 1, self._stops[index] - count, count
            )
            # kernels draw in the order of memory, which has to be that of a batch of
            # its own
            return part.flatten(at, at + 2).contiguous()
        if (
            isinstance(arg, list | tuple)
            and len(arg) == len(shape)
            and all(isinstance(size, int) for size in arg)
        ):
            return [
                size // units * count if dim == axis else size
                for dim, size in enumerate(arg)
            ]
        return arg

    def _of_piece(
        self,
        func: Any,
        name: str,
        piece: Piece,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Tensor:
        """Draw for one piece.

        A part of a block draws as the whole block does, with equal probabilities for
        the rest.

        Returns:
            The draws of the piece.

        Raises:
            Unsplittable: the function takes other random numbers for a part of a block.
        """
        if piece.is_full_block:
            result: Tensor = func(*args, **kwargs)
            return result
        if name != "multinomial":
            raise Unsplittable(
                f"{name} cannot be drawn for a part of a batch: how many random numbers"
                " it takes depends on the rows"
            )
        weights = args[0].unflatten(0, (self._outer, piece.count, -1))
        # how many random numbers a row takes does not depend on its weights, so that
        # rows of ones take those of the rest of the block
        block = weights.new_ones(self._outer, piece.size, *weights.shape[2:])
        block.narrow(1, piece.first, piece.count).copy_(weights)
        drawn = func(block.flatten(0, 2), *args[1:], **kwargs)
        by_unit = drawn.unflatten(0, (self._outer, piece.size, -1))
        draws: Tensor = by_unit.narrow(1, piece.first, piece.count).flatten(0, 2)
        return draws


def _draw(
    device: torch.device, state: Tensor, draw: Callable[[], Tensor]
) -> tuple[Tensor, Tensor]:
    """Draw from a random state, and return the draw and the state after it."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
        return draw(), torch.cuda.get_rng_state(device)
    torch.set_rng_state(state)
    return draw(), torch.get_rng_state()


def _shape(args: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the shape of what an operation draws.

    It is that of its tensors after broadcasting, or else the requested one.
    """
    tensors = [arg.shape for arg in args if isinstance(arg, Tensor)]
    if tensors:
        return tuple(torch.broadcast_shapes(*tensors))
    sizes = [arg for arg in args if isinstance(arg, list | tuple)]
    if sizes:
        return tuple(sizes[-1])
    return ()
