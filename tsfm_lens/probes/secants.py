"""Mean derivatives of a readout along a straight path, by the secants of its elementwise functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_ELEMENTWISE = frozenset(
    "relu relu6 silu gelu elu selu celu mish softplus hardswish leaky_relu sigmoid tanh sinh asinh exp".split()
)
# what is affine takes larger parts as well, and the level of a series then costs them fewer digits
_ENLARGED = 2**8


class Secants(TorchFunctionMode):
    """Elementwise functions of a readout, replaced by their secants between points of a path.

    Along a straight path, the mean derivative of an elementwise function is its secant's slope. So the mean derivative
    of a readout with one hidden layer is exact with one stretch of path; of one with more layers, the product of their
    mean derivatives on every stretch has an error that falls with the square of the number of stretches.

    Args:
        readout: streams (point, …) -> what is read out (point, …); affine but for elementwise functions.
        start, stop: ends of the path.
        stretches: number of equal stretches.

    Source:
        Sundararajan et al. 2017 for the path; Shrikumar et al. 2017, section 3.5.1, for slopes passed on by layers.
    """

    def __init__(self, readout: Callable[[Tensor], Tensor], start: Tensor, stop: Tensor, stretches: int) -> None:
        super().__init__()
        self.readout, self.start, self.stretches = readout, start, stretches
        # of every call: start, value there and slope by stretch; None where the input is the same all along
        self.lines: list[tuple[Tensor, Tensor, Tensor] | None] = []
        self._calls: Iterator[tuple[Tensor, Tensor, Tensor] | None] | None = None
        self._stretch = 0
        points = torch.linspace(0, 1, stretches + 1, dtype=start.dtype, device=start.device)
        with self:
            readout(torch.lerp(start, stop, points.reshape(-1, *[1] * start.ndim)))

    @property
    def layers(self) -> int:
        """Number of elementwise functions that the path passes through."""
        return sum(line is not None for line in self.lines)

    def push(self, parts: Tensor, at_once: int) -> Tensor:
        """Apply the mean derivative to parts of the stream (part, …), so many at once."""
        whole: Any = 0.0
        for stretch in range(self.stretches):
            self._stretch = stretch
            empty, *moved = map(self._read, (self.start[None], *(self.start + _ENLARGED * parts).split(at_once)))
            whole = whole + (torch.cat(moved) - empty) / (_ENLARGED * self.stretches)
        return whole

    def _read(self, streams: Tensor) -> Tensor:
        self._calls = iter(self.lines)
        with self:
            return self.readout(streams)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__name__", "") not in _ELEMENTWISE or not args:
            return function(*args, **kwargs)
        x, *others = args
        if self._calls is None:
            # before a function that works in place
            self.lines.append(self._line(x.detach().clone(), lambda at: function(at, *others, **kwargs)))
            return function(*args, **kwargs)
        line = next(self._calls)
        if line is None:
            return function(*args, **kwargs)
        start, value, slope = (each[self._stretch].to(x) for each in line)
        return (value + slope * (x.reshape(-1, len(slope)) - start)).reshape(x.shape)

    def _line(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return starts, values and slopes (stretch, unit) of a call whose inputs lie point by point."""
        if len(x.reshape(-1)) % (self.stretches + 1):
            return None
        # secants of neighbours keep no digits in the precision of the model
        at = x.reshape(self.stretches + 1, -1).cpu().double()
        run, values = at.diff(dim=0), function(at.clone())
        flat = run == 0
        if bool(flat.all()):
            return None
        slope = values.diff(dim=0) / run.masked_fill(flat, 1.0)
        still = at[:-1][flat]
        slope[flat] = torch.func.jvp(function, (still,), (torch.ones_like(still),))[1]
        return at[:-1], values[:-1], slope
