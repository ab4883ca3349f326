"""Mean derivatives of a readout along a straight path.

:class:`Secants` replaces each elementwise function of a readout by the secants of its
values along the path, so that a path integral needs few nodes; :func:`push_forward`
applies the plain derivative at one point. ``attribution`` has the integrals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.polynomial import legendre
from torch import Tensor
from torch.overrides import TorchFunctionMode

# functions of one number at a time; those that mix numbers, such as a softmax, have no
# line through their values
_ELEMENTWISE = frozenset(
    "relu relu6 silu gelu elu selu celu mish softplus hardswish leaky_relu sigmoid tanh"
    " sinh asinh exp".split()
)
# factor of the parts: a difference of larger numbers loses fewer digits
_ENLARGED = 2**8
Readout = Callable[[Tensor], Tensor]
_Lines = tuple[Tensor, Tensor, Tensor] | None
"""Straight lines (node, unit) of a call: values and inputs at the nodes, and slopes.

They are None where no input changes along the path.
"""


class Secants(TorchFunctionMode):
    """Derivative of a readout along the path from an empty stream to a full one.

    It is evaluated at the nodes of Gauss's rule. There an elementwise function gets the
    mean slope of its secants over short cells, weighted by the node's Lagrange
    polynomial, so kinks are exact. One hidden layer is exact with one node, whose
    secant has the mean derivative. All other functions have their own derivative at the
    node.

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
        # a single node weighs all cells alike: where inputs move evenly along the path,
        # their mean slope is that of one secant
        self._cells = 1 if nodes == 1 else 4 * nodes
        self.at, self.weights = legendre.leggauss(nodes)
        edges = np.linspace(-1, 1, self._cells + 1)
        # (polynomial, cell): the integral of each Legendre polynomial over each cell,
        # since (2 k + 1) P_k is the derivative of P_{k+1} − P_{k−1}
        heights = np.diff(legendre.legvander(edges, nodes), axis=0).T
        over_cells = heights[1:].copy()
        over_cells[1:] -= heights[:-2]
        over_cells /= 2 * np.arange(nodes)[:, None] + 1
        # (node, cell): Lagrange polynomials by their Legendre series
        polynomials = legendre.legvander(self.at, nodes - 1)
        # the weights of a node sum to 1, as the integral of its Lagrange polynomial is
        # its weight in Gauss's rule
        shares = polynomials * (np.arange(nodes) + 0.5) @ over_cells
        self._shares = torch.as_tensor(shares)
        # from [-1, 1], where Gauss's rule is defined, to shares of the path
        points = torch.as_tensor(np.append(edges, self.at) / 2 + 0.5).to(stop)
        # one forward over all points records the lines of every elementwise call
        with self:
            readout(points.reshape(-1, *[1] * stop.ndim) * stop)
        # The derivative of an affine readout is a difference, which takes a fraction of
        # the time. Asked near by first, since some readouts refuse what lies far out.
        self.affine = not self._bends(1) and not self._bends(_ENLARGED)
        self.one_hidden = (
            self.affine and sum(lines is not None for lines in self._lines) < 2
        )

    def _bends(self, reach: int) -> bool:
        """Return True if the slope is another at ``reach`` times the path's end.

        Near by, a bend may be less than the rounding of a level that is much larger
        than the effects; :meth:`apply` goes as far as ``_ENLARGED``.
        """
        far = reach * self.stop
        below, level, near, above = self._read(
            torch.stack([-far, torch.zeros_like(far), self.stop, far])
        ).nan_to_num()
        # zero for an affine function
        differences = torch.stack(
            [above + below - 2 * level, above - level - reach * (near - level)]
        )
        largest = torch.stack([above, below, reach * level]).abs().max()
        rounding = 1000 * torch.finfo(level.dtype).eps * largest
        return bool(differences.abs().max() > rounding)

    def apply(self, parts: Tensor, at_once: int) -> Tensor:
        """Return the mean derivative applied to parts of the stream (part, …).

        ``at_once`` parts are taken at a time.
        """
        total = torch.zeros(())
        points = zip(self.at, self.weights, strict=True)
        # an attribute, as the calls inside the readout look up the lines of this node
        for self._node, (at, weight) in enumerate(points):
            if self.affine:
                level = self._read(torch.zeros_like(self.stop))
                batches = (parts * _ENLARGED).split(at_once)
                changes = torch.cat([self._read(batch) - level for batch in batches])
                slopes = changes / _ENLARGED
            else:
                slopes = push_forward(
                    self._read, (at / 2 + 0.5) * self.stop, parts, at_once
                )
            total = total + weight / 2 * slopes
        return total

    def _read(self, stream: Tensor) -> Tensor:
        # a readout makes the same calls in the same order each time
        self._calls = iter(self._lines)
        with self:
            return self.readout(stream)

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # torch takes the mode off the stack while this runs, so calls in here do not
        # come back
        kwargs = kwargs or {}
        if getattr(function, "__name__", "") in _ELEMENTWISE and args:
            x, *rest = args
            if self._calls is None:
                self._lines.append(
                    # cloned, as the function may be asked to work in place
                    self._line(x, lambda at: function(at.clone(), *rest, **kwargs))
                )
            elif (lines := next(self._calls)) is not None:
                value, at, slope = (line[self._node] for line in lines)
                outputs = value + slope * (x.reshape(-1, len(slope)) - at)
                return outputs.reshape(x.shape)
        return function(*args, **kwargs)

    def _line(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> _Lines:
        """Return the lines of a call whose inputs are ordered point by point."""
        points = self._cells + 1 + len(self.at)
        # an input that does not have every point is no function of the path
        if x.numel() % points:
            return None
        # in double precision, as secants of close inputs keep no digits in that of the
        # model
        inputs = x.detach().reshape(points, -1).cpu().double()
        edges, at = inputs.tensor_split([self._cells + 1])
        steps = edges.diff(dim=0)
        flat = steps == 0
        if bool(flat.all()):
            return None
        slope = function(edges).diff(dim=0) / steps.masked_fill(flat, 1.0)
        # an input that does not change has no secant, but a derivative
        still = edges[:-1][flat]
        slope[flat] = torch.func.jvp(function, (still,), (torch.ones_like(still),))[1]
        return function(at).to(x), at.to(x), (self._shares @ slope).to(x)


def push_forward(function: Readout, at: Tensor, parts: Tensor, at_once: int) -> Tensor:
    """Return a readout's derivative at a stream, applied to parts of it (part, …).

    ``at_once`` parts are taken at a time.
    """
    batches = (
        (at.expand_as(batch).contiguous(), batch) for batch in parts.split(at_once)
    )
    return torch.cat(
        [torch.func.jvp(function, (start,), (batch,))[1] for start, batch in batches]
    )
