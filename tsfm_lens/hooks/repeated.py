"""Rows that variants share, stored once and passed on as if copied.

Read :class:`Repeated`, a tensor subclass. The functions in ``_HANDLERS`` compute on the
rows stored once; any other function gets the copies.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_map


class Repeated(Tensor):
    """Tensor of rows that are stored once.

    It stands for ``blocks`` copies of all rows of ``single``, one for each variant, in
    which each row occurs ``repeats`` times in a row, once for each sample path. So row
    ``(block * len(single) + r) * repeats + repeat`` is row r of ``single``.

    Attributes:
        single: the stored rows; None once a function has written into the copies.
        times: (blocks, repeats).
    """

    single: Tensor | None
    times: tuple[int, int]
    _copies: Tensor | None

    @staticmethod
    def __new__(cls, single: Tensor, blocks: int, repeats: int = 1) -> Repeated:
        """Create a tensor with the shape of the copies, without making them."""
        shape = (blocks * len(single) * repeats, *single.shape[1:])
        tensor: Repeated = Tensor._make_wrapper_subclass(
            cls, shape, dtype=single.dtype, device=single.device
        )
        tensor.single = single
        tensor._copies = None
        tensor.times = (blocks, repeats)
        return tensor

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        """Leave all to ``__new__``."""

    def __repr__(self, **_kwargs: Any) -> str:  # type: ignore[override]
        return f"Repeated(shape={tuple(self.shape)}, times={self.times})"

    def whole(self) -> Tensor:
        """Return the copies, made once."""
        if self._copies is None:
            assert self.single is not None
            rows = len(self.single)
            rest = self.single.shape[1:]
            blocks, repeats = self.times
            # (block, row, repeat, …), whose first three axes are the rows in order
            view = self.single.reshape(1, rows, 1, *rest).expand(
                blocks, rows, repeats, *rest
            )
            self._copies = view.reshape(len(self), *rest)
            if blocks * repeats == 1:
                # a write into copies must not reach the stored rows
                self._copies = self._copies.clone()
        return self._copies

    def like(self, other: object) -> bool:
        """Return whether another tensor repeats as many rows as often."""
        return (
            isinstance(other, Repeated)
            and self.single is not None
            and other.single is not None
            and (self.times, len(self.single)) == (other.times, len(other.single))
        )

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func`` on the rows stored once if it can, else on the copies."""
        kwargs = kwargs or {}
        # the shape is that of the copies, which need not be made to tell it
        if func in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        handler = _HANDLERS.get(func)
        if handler is not None:
            result = handler(func, *args, **kwargs)
            if result is not NotImplemented:
                return result
        return _run_on_copies(func, args, kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run on the copies any function that ``__torch_function__`` does not see."""
        return _run_on_copies(func, args, kwargs or {})


def _materialize(value: Any) -> Any:
    """Return the copies of repeated rows; another value as it is."""
    if isinstance(value, Repeated):
        return value.whole()
    return value


def _run_on_copies(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function on the copies of repeated rows.

    A tensor that the function writes into holds only its copies from then on.

    Returns:
        What the function returns.
    """
    # overloads are named as "add_.Tensor"
    name = getattr(func, "__name__", "").split(".")[0]
    # x[…] = …, x += … (__iadd__ and its like), and methods such as add_()
    is_in_place = (
        name == "__setitem__"
        or name.startswith("__i")
        or (name.endswith("_") and not name.endswith("__"))
    )
    written = [kwargs.get("out")]
    if is_in_place:
        written += args[:1]
    for value in written:
        if isinstance(value, Repeated):
            # makes the copies, and keeps them
            value.whole()
            value.single = None
    return func(*tree_map(_materialize, args), **tree_map(_materialize, kwargs))


def _repeat_like(tensor: Repeated, single: Tensor) -> Repeated:
    """Repeat rows as often as those of another tensor."""
    return Repeated(single, *tensor.times)


# the handlers below compute on the stored rows; each returns NotImplemented where the
# function does not treat every row by itself


def _elementwise(func: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply a function that acts on single numbers, or along the last axis."""
    # the last axis of a vector is that of the rows, which a linear layer would mix
    if not isinstance(tensor, Repeated) or tensor.single is None or tensor.ndim < 2:
        return NotImplemented
    if any(isinstance(value, Repeated) for value in (*args, *kwargs.values())):
        return NotImplemented
    return _repeat_like(tensor, func(tensor.single, *args, **kwargs))


def _reshape(func: Any, tensor: Any, *shape: Any) -> Any:
    """Give every row another shape."""
    sizes = shape
    if len(shape) == 1 and not isinstance(shape[0], int):
        sizes = shape[0]
    if (
        not isinstance(sizes, tuple | list | torch.Size)
        or tensor.single is None
        or not len(sizes)
    ):
        return NotImplemented
    rest = [int(size) for size in sizes[1:]]
    # rows must stay rows, and keep their number of entries
    keeps_entries = -1 in rest or prod(rest) == prod(tensor.shape[1:])
    if sizes[0] != len(tensor) or not keeps_entries:
        return NotImplemented
    return _repeat_like(tensor, func(tensor.single, len(tensor.single), *rest))


def _swap(func: Any, tensor: Any, first: int, second: int) -> Any:
    """Swap two axes of every row."""
    if tensor.single is None or 0 in (first % tensor.ndim, second % tensor.ndim):
        return NotImplemented
    return _repeat_like(tensor, func(tensor.single, first, second))


def _concatenate(
    func: Any, tensors: Any, dim: int = 0, *, out: Tensor | None = None
) -> Any:
    """Concatenate every row with the same row of others.

    As torch does, it ignores an empty vector among them.

    Returns:
        The rows, still repeated, or NotImplemented where the copies differ.
    """
    parts = [
        part
        for part in tensors
        if isinstance(part, Repeated) or part.ndim != 1 or len(part)
    ]
    first = parts[0]
    if out is not None or not all(
        isinstance(part, Repeated) and part.like(first) for part in parts
    ):
        return NotImplemented
    if dim % first.ndim:
        return _repeat_like(first, func([part.single for part in parts], dim))
    return NotImplemented


def _repeat_rows(
    _func: Any, tensor: Any, repeats: Any, dim: int | None = None, **_kwargs: Any
) -> Any:
    """Repeat every row ``repeats`` times."""
    if (
        not isinstance(repeats, int)
        or dim != 0
        or not isinstance(tensor, Repeated)
        or tensor.single is None
    ):
        return NotImplemented
    # repeat_interleave puts copies next to their row, as the inner count does
    blocks, inner = tensor.times
    return Repeated(tensor.single, blocks, inner * repeats)


def _attend(
    func: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **kwargs: Any,
) -> Any:
    """Attend with the queries of all copies at once.

    They are folded into the query axis of the rows that they attend to.

    Returns:
        The output of all copies, or NotImplemented where keys differ between copies.
    """
    # folded queries of one copy follow those of another, so that the positions of a
    # causal mask would be wrong
    if (
        not isinstance(key, Repeated)
        or not key.like(value)
        or is_causal
        or query.ndim != 4
    ):
        return NotImplemented
    assert isinstance(value, Repeated)
    assert key.single is not None
    query = _materialize(query)
    mask = _materialize(attn_mask)
    if len(query) != len(key):
        return NotImplemented
    blocks, repeats = key.times
    copies = blocks, len(key.single), repeats

    def fold(rows: Tensor) -> Tensor:
        # (variant · series · path, head, query, d) to (series, head, variant · path ·
        # query, d)
        result: Tensor = (
            rows.unflatten(0, copies).permute(1, 3, 0, 2, 4, 5).flatten(2, 4)
        )
        return result

    # a mask that differs neither by row nor by query holds for the folded queries as it
    # is
    if mask is not None and (mask.ndim != 4 or mask.shape[-2] != 1 or len(mask) != 1):
        mask = mask.expand(
            len(query), *torch.broadcast_shapes(mask.shape[-3:], (1, query.shape[2], 1))
        )
        mask = fold(mask)
    out = func(
        fold(query), key.single, value.single, mask, dropout_p, is_causal, **kwargs
    )
    # (series, head, variant, path, query, d) to (variant · series · path, head, query,
    # d)
    parts = out.unflatten(2, (blocks, repeats, query.shape[2]))
    return parts.permute(2, 0, 3, 1, 4, 5).flatten(0, 2)


_METADATA = {
    Tensor.shape.__get__,  # type: ignore[attr-defined]
    Tensor.ndim.__get__,  # type: ignore[attr-defined]
    Tensor.dtype.__get__,  # type: ignore[attr-defined]
    Tensor.device.__get__,
    Tensor.layout.__get__,  # type: ignore[attr-defined]
    Tensor.requires_grad.__get__,  # type: ignore[attr-defined]
    Tensor.is_cuda.__get__,  # type: ignore[attr-defined]
    *(
        Tensor.size,
        Tensor.dim,
        Tensor.numel,
        Tensor.__len__,
        Tensor.is_floating_point,
        torch.is_floating_point,
    ),
}
_HANDLERS: dict[Any, Callable[..., Any]] = {
    F.linear: _elementwise,
    Tensor.to: _elementwise,
    Tensor.float: _elementwise,
    Tensor.contiguous: _elementwise,
    Tensor.detach: _elementwise,
    Tensor.view: _reshape,
    Tensor.reshape: _reshape,
    Tensor.transpose: _swap,
    torch.cat: _concatenate,
    Tensor.repeat_interleave: _repeat_rows,
    F.scaled_dot_product_attention: _attend,
}
