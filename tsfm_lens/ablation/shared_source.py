"""Saving of a fanned-out rollout: an encoder that variants share runs once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from tsfm_lens.hooks.repeated import Repeated
from tsfm_lens.hooks.replay import map_tensors, shadowed


class SharedSource:
    """Encoder that runs once for all variants of a batch that share it; ``rows`` are the series of one variant."""

    def __init__(self, encoder: nn.Module, rows: int) -> None:
        self._encoder, self._rows = encoder, rows
        self._memo: tuple[list[Tensor], Any] | None = None

    def serving(self, copies: int, *, is_shared: bool) -> AbstractContextManager[None]:
        """Serve a run of so many variants while the block runs; shared if none of them changes the encoder."""
        return shadowed([(self._encoder, lambda forward: partial(self._encode, forward, copies if is_shared else 1))])

    def _encode(self, forward: Callable[..., Any], copies: int, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        if copies == 1 or not all(_alike(leaf, copies) for leaf in leaves if isinstance(leaf, Tensor)):
            # the paths of a series share its states all the same
            return self._repeat(forward(*args, **kwargs), 1)
        leaves = [leaf[: len(leaf) // copies] if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if self._memo is not None and _same(self._memo[0], tensors):
            return self._repeat(self._memo[1], copies)
        args, kwargs = tree_unflatten(leaves, spec)
        output = forward(*args, **kwargs)
        # the first pass over the batch is the one that comes again
        self._memo = self._memo or ([tensor.clone() for tensor in tensors], output)
        return self._repeat(output, copies)

    def _repeat(self, output: Any, copies: int) -> Any:
        """Repeat the rows of an encoder's output for so many variants."""

        def repeat(tensor: Tensor) -> Tensor:
            return Repeated(tensor, copies) if tensor.ndim > 0 and not len(tensor) % self._rows else tensor

        return map_tensors(output, repeat)


def _alike(tensor: Tensor, copies: int) -> bool:
    """Return whether a tensor holds the same rows for every variant."""
    if tensor.ndim == 0 or len(tensor) % copies:
        return False
    blocks = tensor.unflatten(0, (copies, -1))
    return torch.equal(blocks, blocks[:1].expand_as(blocks))


def _same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(x.shape == y.shape and torch.equal(x, y) for x, y in zip(a, b, strict=True))
