"""What variants of a rollout share: an encoder that none of them changes, and the keys and values made from it.

Rows of a fanned-out rollout stand variant-major and, within a variant, series by series with the sample paths of
each. All paths of a series, and of all variants that leave the encoder as it is, attend to the same encoder
states. So these are computed once, held once a series, and the queries of all rows concerned are folded into the
query axis of one attention product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from tsfm_lens.hooks.replay import in_this_thread, map_tensors, repeat_rows


class SharedSource(TorchFunctionMode):
    """Runs an encoder once for all variants that share it, and attends to its states without copying them.

    One object serves a whole batch of series: what the encoder gave for it is kept.

    Args:
        encoder: the module.
        rows: series of one variant.
    """

    def __init__(self, encoder: nn.Module, rows: int) -> None:
        super().__init__()
        self._encoder, self._rows, self._copies, self._fold, self._shared = encoder, rows, 1, False, False
        self._kept: tuple[list[Tensor], Any] | None = None
        self._single: list[tuple[Tensor, Tensor]] = []

    @contextmanager
    def serving(self, copies: int, *, shared: bool, fold: bool) -> Iterator[None]:
        """Serve one fanned-out run.

        Args:
            copies: variants in it.
            shared: whether none of them changes the encoder.
            fold: whether keys and values may be held once a series; nobody looks at them.
        """
        before = self._encoder.__dict__.get("forward")
        self._copies, self._fold, self._shared = copies, fold, shared
        forward = self._encoder.forward
        self._encoder.__dict__["forward"] = in_this_thread(forward, self._wrapped(forward))
        try:
            with self:
                yield
        finally:
            self._single.clear()
            self._encoder.__dict__.pop("forward")
            if before is not None:
                self._encoder.__dict__["forward"] = before

    def _wrapped(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def encode(*args: Any, **kwargs: Any) -> Any:
            leaves, spec = tree_flatten((args, kwargs))
            tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
            alike = self._shared and all(map(self._alike, tensors))
            if alike:
                own = [self._first(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
                output = self._once(forward, own, spec)
            else:
                output = forward(*args, **kwargs)
            if not self._fold:
                copies = self._copies if alike else 1
                return map_tensors(output, lambda tensor: repeat_rows(tensor, self._rows, copies))
            self._single += [(tensor, self._first(tensor) if alike else tensor) for tensor in tensors]
            self._single += [(leaf, leaf) for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
            return output

        return encode

    def _once(self, forward: Callable[..., Any], leaves: list[Any], spec: Any) -> Any:
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if self._kept is None or not _same(self._kept[0], tensors):
            args, kwargs = tree_unflatten(leaves, spec)
            output = forward(*args, **kwargs)
            if self._kept is not None:
                # the first pass over the batch is the one that comes again
                return output
            self._kept = [tensor.clone() for tensor in tensors], output
        # a new object with the same tensors: libraries write into what an encoder returns
        return map_tensors(self._kept[1], lambda tensor: tensor)

    def _alike(self, tensor: Tensor) -> bool:
        """Whether a tensor holds the same rows for every variant."""
        if tensor.ndim == 0 or len(tensor) % self._copies:
            return False
        blocks = tensor.unflatten(0, (self._copies, -1))
        return torch.equal(blocks, blocks[:1].expand_as(blocks))

    def _first(self, tensor: Tensor) -> Tensor:
        return tensor[: len(tensor) // self._copies]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Leave encoder states as they are where they would be copied for sample paths, and fold queries onto them."""
        kwargs = kwargs or {}
        if not self._fold:
            return func(*args, **kwargs)
        if func is torch.Tensor.repeat_interleave:
            for tensor, single in self._single:
                if args[0] is tensor:
                    self._single.append((single, single))
                    return single
        if func is F.scaled_dot_product_attention:
            return self._attend(*args, **kwargs)
        return func(*args, **kwargs)

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *args: Any, **kwargs: Any
    ) -> Tensor:
        rows, sources = len(query), len(key)
        if rows == sources:
            return F.scaled_dot_product_attention(query, key, value, attn_mask, *args, **kwargs)
        outer = self._copies if sources == self._rows else 1
        shape = query.unflatten(0, (outer, sources, -1)).shape
        # (variant, series, path, head, query, d) to (series, head, variant · path · query, d)
        folded = query.reshape(shape).permute(1, 3, 0, 2, 4, 5).flatten(2, 4)
        if attn_mask is not None and attn_mask.shape[-2] != 1:
            attn_mask = attn_mask.repeat(1, 1, shape[0] * shape[2], 1)
        out = F.scaled_dot_product_attention(folded, key, value, attn_mask, *args, **kwargs)
        parts = out.unflatten(2, (shape[0], shape[2], shape[4]))
        return parts.permute(2, 0, 3, 1, 4, 5).flatten(0, 2)


def _same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(x.shape == y.shape and torch.equal(x, y) for x, y in zip(a, b, strict=True))
