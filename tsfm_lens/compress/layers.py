"""Linear layers that hold less than their matrix: two factors of it, or some of its rows or columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.utils._pytree import tree_map

from tsfm_lens.compress.factors import Factors, product
from tsfm_lens.errors import WiringError

__all__ = ["Compressed", "LowRankLinear", "PartialLinear", "replace_layer"]


class _LazyMatrix(Tensor):
    """A matrix that is computed when an operation needs it: libraries ask for type and device at every pass."""

    make: Callable[[], Tensor]
    # transformers initialises what has no such mark, also inside of modules that it has loaded
    _is_hf_initialized = True

    @staticmethod
    def __new__(cls, make: Callable[[], Tensor], shape: tuple[int, int], like: Tensor) -> _LazyMatrix:
        matrix = Tensor._make_wrapper_subclass(cls, shape, dtype=like.dtype, device=like.device)
        matrix.make = make
        return matrix

    def __repr__(self) -> str:  # type: ignore[override]
        return f"a matrix {tuple(self.shape)} that is not held as such"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Make the matrix, then call the function on it; refuse to write into it, which would be lost."""
        if func._schema.is_mutable:
            raise WiringError(
                f"{func} on the weight of a compressed layer: it is made of the parameters that the layer holds, which "
                "can be written into; as_matrix() puts another matrix in its place"
            )
        args, kwargs = tree_map(lambda x: x.make() if isinstance(x, cls) else x, (args, kwargs or {}))
        return func(*args, **kwargs)


class Compressed(nn.Module):
    """A linear layer that holds less than its matrix; ``weight`` still reads as the matrix.

    Wirings, hooks and ``lens.weights`` find what they find in a dense layer.

    Args:
        shape: (out, in) of the matrix.
        bias: (out,), kept as it is; None for none.
        gain: factor that the layer puts on its output, as unit-scaled ones do.
        parts: tensors that are held, by name.
    """

    bias: nn.Parameter | None

    def __init__(self, shape: tuple[int, int], bias: Tensor | None, gain: float, **parts: Tensor) -> None:
        super().__init__()
        for name, part in parts.items():
            self.register_parameter(name, nn.Parameter(part.detach()))
        self.bias = None if bias is None else nn.Parameter(bias.detach())
        self.gain = float(gain)
        self.out_features, self.in_features = shape

    @contextmanager
    def as_matrix(self, matrix: Tensor) -> Iterator[None]:
        """Compute with another matrix (out, in) while the block runs."""
        self.__dict__["forward"] = lambda x: linear(x, matrix, self.bias) * self.gain
        try:
            yield
        finally:
            del self.__dict__["forward"]

    @property
    def entries(self) -> int:
        """Numbers held in the matrix's place."""
        return sum(part.numel() for name, part in self.named_parameters() if name != "bias")


class LowRankLinear(Compressed):
    """A linear layer that holds its matrix as two factors, ``x -> gain · (up (down x) + bias)``.

    Args:
        factors: see :class:`Factors`.
        bias, gain: see :class:`Compressed`.
    """

    down: nn.Parameter
    up: nn.Parameter

    def __init__(self, factors: Factors, bias: Tensor | None = None, gain: float = 1.0) -> None:
        super().__init__(factors.shape, bias, gain, down=factors.down, up=factors.up)

    @property
    def factors(self) -> Factors:
        """Both factors, as they are held."""
        return Factors(self.down, self.up)

    @property
    def weight(self) -> Tensor:
        """Matrix (out, in), multiplied when it is computed with; nothing can be written into it."""
        factors = Factors(self.down.detach(), self.up.detach())
        return _LazyMatrix(lambda: product(factors), factors.shape, factors.up)

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, in) to (…, out)."""
        narrow = _by_head(x, self.down) if self.down.ndim == 3 else linear(x, self.down)
        if self.up.ndim == 3:
            out = _by_head(narrow, self.up)
            out = out if self.bias is None else out + self.bias
        else:
            out = linear(narrow, self.up, self.bias)
        return out if self.gain == 1.0 else out * self.gain

    def extra_repr(self) -> str:
        """Describe the sizes."""
        return f"{self.in_features} -> {self.factors.rank} -> {self.out_features}, bias={self.bias is not None}"


class PartialLinear(Compressed):
    """A linear layer of which some rows, or some columns, are left; the others are zero.

    Args:
        rest: (kept, in), or (out, kept).
        places: of its rows or columns in the whole matrix, ascending.
        size: rows, or columns, of the whole.
        of: "rows" or "columns".
        bias, gain: see :class:`Compressed`.
    """

    rest: nn.Parameter
    places: Tensor

    def __init__(
        self,
        rest: Tensor,
        places: Tensor,
        size: int,
        of: Literal["rows", "columns"],
        bias: Tensor | None = None,
        gain: float = 1.0,
    ) -> None:
        super().__init__((size, rest.shape[1]) if of == "rows" else (rest.shape[0], size), bias, gain, rest=rest)
        self.register_buffer("places", places.clone(), persistent=False)
        self.of = of

    @property
    def weight(self) -> Tensor:
        """Matrix (out, in) with zeros in the place of what is gone; nothing can be written into it."""
        shape, axis = (self.out_features, self.in_features), 0 if self.of == "rows" else 1
        rest, places = self.rest.detach(), self.places
        return _LazyMatrix(lambda: rest.new_zeros(shape).index_copy(axis, places, rest), shape, rest)

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, in) to (…, out)."""
        if self.of == "columns":
            out = linear(x.index_select(-1, self.places), self.rest, self.bias)
        else:
            some = linear(x, self.rest)
            out = some.new_zeros(*some.shape[:-1], self.out_features).index_copy(-1, self.places, some)
            out = out if self.bias is None else out + self.bias
        return out if self.gain == 1.0 else out * self.gain

    def extra_repr(self) -> str:
        """Describe the sizes."""
        whole = self.out_features if self.of == "rows" else self.in_features
        return f"{self.in_features} -> {self.out_features}, {len(self.places)} of {whole} {self.of}"


def _by_head(x: Tensor, matrices: Tensor) -> Tensor:
    """Multiply (…, head · in) by a matrix of each head, (head, out, in), to (…, head · out)."""
    apart = x.reshape(-1, len(matrices), matrices.shape[-1]).transpose(0, 1)
    out = torch.bmm(apart, matrices.transpose(1, 2)).transpose(0, 1)
    return out.reshape(*x.shape[:-1], -1)


def replace_layer(model: nn.Module, path: str, layer: nn.Module, device: torch.device | None = None) -> None:
    """Put another layer in the place of one, with its mode, in its type, on its device or on the one given."""
    parent, _, last = path.rpartition(".")
    owner = model.get_submodule(parent)
    old = owner.get_submodule(last)
    weight: Any = old.weight
    setattr(owner, last, layer.to(device=device or weight.device, dtype=weight.dtype).train(old.training))
