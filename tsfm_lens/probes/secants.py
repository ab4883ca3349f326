"""Mean derivatives of a readout along a straight path, by the secants of its
elementwise functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.polynomial import legendre
from torch import Tensor
from torch.overrides import TorchFunctionMode

_ELEMENTWISE = frozenset(
    "relu relu6 silu gelu elu selu celu mish softplus hardswish leaky_relu sigmoid tanh"
    " sinh asinh exp".split()
)
# larger parts cost a difference fewer digits
_ENLARGED = 2**8
Readout = Callable[[Tensor], Tensor]
# straight lines (node, unit) of a call: values and inputs at the nodes, slopes; None
# where nothing moves
_Lines = tuple[Tensor, Tensor, Tensor] | None


class Secants(TorchFunctionMode):
    """Derivative of a readout along the path from an empty stream to a full one, by
    Gauss's rule.

    At each node an elementwise function gets the mean slope of its secants over short
    cells, weighted by the node's Lagrange polynomial, so kinks are exact. One hidden
    layer is exact with one node, whose secant has the mean derivative. All other
    functions have their own derivative at the node.

    Args:
        readout: function from streams (point, …) to outputs (point, …).
        stop: end of the path.
        nodes: of Gauss's rule.

    Attributes:
        affine: whether the readout is affine except for elementwise functions.
        one_hidden: whether it is affine in this sense, with at most one such function
            along the path.

    Source:
        Sundararajan et al. 2017 for the path integral.
    """

    def __init__(self, readout: Readout, stop: Tensor, nodes: int) -> None:
        super().__init__()
        self.readout = readout
        self.stop = stop
        self._lines: list[_Lines] = []
        self._calls: Iterator[_Lines] | None = None
        self._node = 0
        self._cells = 1 if nodes == 1 else 4 * nodes
        self.at, self.weights = legendre.leggauss(nodes)
        edges = np.linspace(-1, 1, self._cells + 1)
        over_cells = np.diff(
            legendre.legval(edges, legendre.legint(np.eye(nodes), axis=0))
        )
        # (node, cell): Lagrange polynomials by their Legendre series
        shares = (
            legendre.legvander(self.at, nodes - 1)
            * (np.arange(nodes) + 0.5)
            @ over_cells
        )
        self._shares = torch.as_tensor(shares)
        points = torch.as_tensor(np.append(edges, self.at) / 2 + 0.5).to(stop)
        with self:
            readout(points.reshape(-1, *[1] * stop.ndim) * stop)
        below, level, above = self._read(
            torch.stack([-stop, torch.zeros_like(stop), stop])
        ).nan_to_num()
        rounding = 1000 * torch.finfo(level.dtype).eps * above.abs().max()
        # then a derivative is a difference, which takes a fraction of the time
        self.affine = bool((above + below - 2 * level).abs().max() <= rounding)
        self.one_hidden = (
            self.affine and sum(lines is not None for lines in self._lines) < 2
        )

    def apply(self, parts: Tensor, at_once: int) -> Tensor:
        """Apply the mean derivative to parts of the stream (part, …), so many at once."""
        total = torch.zeros(())
        points = zip(self.at, self.weights, strict=True)
        for self._node, (at, weight) in enumerate(points):
            if self.affine:
                level = self._read(torch.zeros_like(self.stop))
                some = (parts * _ENLARGED).split(at_once)
                slopes = (
                    torch.cat([self._read(part) - level for part in some]) / _ENLARGED
                )
            else:
                slopes = push_forward(
                    self._read, (at / 2 + 0.5) * self.stop, parts, at_once
                )
            total = total + weight / 2 * slopes
        return total

    def _read(self, stream: Tensor) -> Tensor:
        self._calls = iter(self._lines)
        with self:
            return self.readout(stream)

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(function, "__name__", "") in _ELEMENTWISE and args:
            x, *rest = args
            if self._calls is None:
                self._lines.append(
                    self._line(x, lambda at: function(at.clone(), *rest, **kwargs))
                )
            elif (lines := next(self._calls)) is not None:
                value, at, slope = (line[self._node] for line in lines)
                return (value + slope * (x.reshape(-1, len(slope)) - at)).reshape(
                    x.shape
                )
        return function(*args, **kwargs)

    def _line(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> _Lines:
        """Return the lines of a call whose inputs lie point by point."""
        points = self._cells + 1 + len(self.at)
        if x.numel() % points:
            return None
        # secants of neighbours keep no digits in the precision of the model
        edges, at = (
            x.detach()
            .reshape(points, -1)
            .cpu()
            .double()
            .tensor_split([self._cells + 1])
        )
        run = edges.diff(dim=0)
        flat = run == 0
        if bool(flat.all()):
            return None
        slope = function(edges).diff(dim=0) / run.masked_fill(flat, 1.0)
        still = edges[:-1][flat]
        slope[flat] = torch.func.jvp(function, (still,), (torch.ones_like(still),))[1]
        return function(at).to(x), at.to(x), (self._shares @ slope).to(x)


def push_forward(function: Readout, at: Tensor, parts: Tensor, at_once: int) -> Tensor:
    """Apply the derivative of a readout at a stream to parts of it (part, …), so many
    at once.
    """
    some = ((at.expand_as(part).contiguous(), part) for part in parts.split(at_once))
    return torch.cat(
        [torch.func.jvp(function, (start,), (part,))[1] for start, part in some]
    )
