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

__all__ = ["Compressed", "LowRank", "Part", "replace_layer", "widened"]


class _LazyMatrix(Tensor):
    """A matrix that is made when it is first computed with.

    Libraries ask a layer's weight for its type and its device at every pass; that must not cost a product.
    """

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
        """Make the matrix, then call the function on it.

        Raises:
            WiringError: something would be written into it, and be lost.
        """
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

    Attributes:
        bias: (out,), or None.
        gain: factor that the layer puts on its output, as unit-scaled ones do.
        out_features, in_features: of the matrix.
    """

    bias: nn.Parameter | None
    gain: float
    out_features: int
    in_features: int

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


class LowRank(Compressed):
    """A linear layer that holds its matrix as two factors, ``x -> gain · (up (down x) + bias)``.

    Args:
        factors: see :class:`Factors`.
        bias: (out,), kept as it is; None for none.
        gain: see :class:`Compressed`.
    """

    def __init__(self, factors: Factors, bias: Tensor | None = None, gain: float = 1.0) -> None:
        super().__init__()
        self.down = nn.Parameter(factors.down.detach())
        self.up = nn.Parameter(factors.up.detach())
        self.bias = None if bias is None else nn.Parameter(bias.detach())
        self.gain = float(gain)
        self.out_features, self.in_features = factors.shape

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


class Part(Compressed):
    """A linear layer of which some rows, or some columns, are left; the others are zero.

    Args:
        rest: (kept, in), or (out, kept).
        places: of its rows or columns in the whole matrix, ascending.
        size: rows, or columns, of the whole.
        of: "rows" or "columns".
        bias: (out,); None for none.
        gain: see :class:`Compressed`.
    """

    places: Tensor
    of: Literal["rows", "columns"]

    def __init__(
        self,
        rest: Tensor,
        places: Tensor,
        size: int,
        of: Literal["rows", "columns"],
        bias: Tensor | None = None,
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.rest = nn.Parameter(rest.detach())
        self.register_buffer("places", places.clone(), persistent=False)
        self.of = of
        self.bias = None if bias is None else nn.Parameter(bias.detach())
        self.gain = float(gain)
        self.out_features, self.in_features = (size, rest.shape[1]) if of == "rows" else (rest.shape[0], size)

    @property
    def weight(self) -> Tensor:
        """Matrix (out, in) with zeros in the place of what is gone; nothing can be written into it."""
        shape = self.out_features, self.in_features
        rest, places, of = self.rest.detach(), self.places, self.of
        return _LazyMatrix(lambda: widened(rest, places, shape, of), shape, rest)

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


def widened(rest: Tensor, places: Tensor, shape: tuple[int, int], of: str) -> Tensor:
    """Return a matrix (out, in) of rows or columns in their places, zero elsewhere."""
    return rest.new_zeros(shape).index_copy(0 if of == "rows" else 1, places, rest)


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
