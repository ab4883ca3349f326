"""Mean derivatives of a readout along a straight path, by the secants of its elementwise functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_ELEMENTWISE = frozenset(
    "relu relu6 silu gelu elu selu celu mish softplus hardswish leaky_relu sigmoid tanh sinh asinh exp".split()
)
# what is affine takes larger parts as well, and the level of a series then costs them fewer digits
_ENLARGED = 2**8


class Secants(TorchFunctionMode):
    """Elementwise functions of a readout, replaced by straight lines with their mean slopes along a path.

    Along a straight path, the mean derivative of an elementwise function is the slope of its secant. So the mean
    derivative of a readout with one hidden layer is exact with one node. With more layers it is the integral of a
    product, by Gauss's rule: at each node every unit has its slope averaged by the node's Lagrange polynomial, over
    secants of short cells, so that kinks lose nothing.

    Args:
        readout: streams (point, …) -> what is read out (point, …); affine but for elementwise functions.
        start, stop: ends of the path.
        nodes: of Gauss's rule.

    Source:
        Sundararajan et al. 2017 for the path integral.
    """

    def __init__(self, readout: Callable[[Tensor], Tensor], start: Tensor, stop: Tensor, nodes: int) -> None:
        super().__init__()
        self.readout, self.start = readout, start
        # of every call: offsets and slopes of straight lines (node, unit); None where nothing moves
        self.lines: list[tuple[Tensor, Tensor] | None] = []
        self._calls: Iterator[tuple[Tensor, Tensor] | None] | None = None
        self._node, self._cells = 0, 1 if nodes == 1 else 4 * nodes
        places, self.weights = np.polynomial.legendre.leggauss(nodes)
        integrals = np.polynomial.legendre.legint(np.eye(nodes), axis=0)
        over_cells = np.diff(np.polynomial.legendre.legval(np.linspace(-1, 1, self._cells + 1), integrals))
        degrees = np.arange(nodes) + 0.5
        # (node, cell): Lagrange polynomials by their Legendre series
        shares = np.polynomial.legendre.legvander(places, nodes - 1) * degrees @ over_cells
        self._shares = torch.as_tensor(shares)
        points = torch.linspace(0, 1, self._cells + 1, dtype=start.dtype, device=start.device)
        with self:
            readout(torch.lerp(start, stop, points.reshape(-1, *[1] * start.ndim)))
        # elementwise functions that the path passes through
        self.layers = sum(line is not None for line in self.lines)

    def apply(self, parts: Tensor, at_once: int) -> Tensor:
        """Apply the mean derivative to parts of the stream (part, …), so many at once."""
        moved, results = torch.add(self.start, parts, alpha=_ENLARGED).split(at_once), []
        for self._node, weight in enumerate(self.weights / 2 / _ENLARGED):  # noqa: B020
            outputs = []
            for streams in (self.start[None], *moved):
                self._calls = iter(self.lines)
                with self:
                    outputs.append(self.readout(streams))
            results.append([(output - outputs[0]) * weight for output in outputs[1:]])
        return torch.cat([torch.stack(of_nodes).sum(0) for of_nodes in zip(*results, strict=True)])

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__name__", "") not in _ELEMENTWISE or not args:
            return function(*args, **kwargs)
        x, *others = args
        if self._calls is None:
            self.lines.append(self._line(x, lambda at: function(at.clone(), *others, **kwargs)))
            return function(*args, **kwargs)
        line = next(self._calls)
        if line is None:
            return function(*args, **kwargs)
        offset, slope = (each[self._node] for each in line)
        return torch.addcmul(offset, slope, x.reshape(-1, len(slope))).reshape(x.shape)

    def _line(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor] | None:
        """Return the lines of a call whose inputs lie point by point."""
        if x.numel() % (self._cells + 1):
            return None
        # secants of neighbours keep no digits in the precision of the model
        at = x.detach().reshape(self._cells + 1, -1).cpu().double()
        run, values = at.diff(dim=0), function(at)
        flat = run == 0
        if bool(flat.all()):
            return None
        slope = values.diff(dim=0) / run.masked_fill(flat, 1.0)
        still = at[:-1][flat]
        slope[flat] = torch.func.jvp(function, (still,), (torch.ones_like(still),))[1]
        slope = self._shares @ slope
        return (values[0] - slope * at[0]).to(x), slope.to(x)
