"""Shared parts of a rollout's variants: an encoder that none of them changes, and the keys and values from it.

Rows of a fanned-out rollout stand variant-major and, within a variant, series by series with the sample paths of
each. All paths of a series, and of all variants that leave the encoder as it is, attend to the same encoder
states. So these are computed once, and handed on as rows stored once (:class:`tsfm_lens.hooks.repeated.Repeated`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from tsfm_lens.hooks.block import Block
from tsfm_lens.hooks.repeated import Repeated
from tsfm_lens.hooks.replay import map_tensors, shadowed


class SharedSource:
    """Encoder that runs once for all variants that share it.

    One object serves a whole batch of series: the encoder's output for it is kept.

    Args:
        encoder: the module.
        rows: series of one variant.
    """

    def __init__(self, encoder: nn.Module, rows: int) -> None:
        self._encoder, self._rows = encoder, rows
        self._memo: tuple[list[Tensor], Any] | None = None

    def serving(self, copies: int, *, is_shared: bool) -> Block[None]:
        """Serve one fanned-out run while the block runs.

        Args:
            copies: variants in it.
            is_shared: whether none of them changes the encoder.
        """
        return shadowed([(self._encoder, lambda forward: self._wrap(forward, copies if is_shared else 1))])

    def _wrap(self, forward: Callable[..., Any], copies: int) -> Callable[..., Any]:
        def encode(*args: Any, **kwargs: Any) -> Any:
            leaves, spec = tree_flatten((args, kwargs))
            if copies == 1 or not all(_alike(leaf, copies) for leaf in leaves if isinstance(leaf, Tensor)):
                # the paths of a series share its states all the same
                return self._repeat(forward(*args, **kwargs), 1)
            of_one_variant = [leaf[: len(leaf) // copies] if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            return self._repeat(self._once(forward, of_one_variant, spec), copies)

        return encode

    def _repeat(self, output: Any, copies: int) -> Any:
        """Repeat the rows of an encoder's output for so many variants."""

        def repeat(tensor: Tensor) -> Tensor:
            rows = tensor.ndim > 0 and not len(tensor) % self._rows
            return Repeated(tensor, copies) if rows else tensor

        return map_tensors(output, repeat)

    def _once(self, forward: Callable[..., Any], leaves: list[Any], spec: Any) -> Any:
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if self._memo is None or not _same(self._memo[0], tensors):
            args, kwargs = tree_unflatten(leaves, spec)
            output = forward(*args, **kwargs)
            if self._memo is not None:
                # the first pass over the batch is the one that comes again
                return output
            self._memo = [tensor.clone() for tensor in tensors], output
        return self._memo[1]


def _alike(tensor: Tensor, copies: int) -> bool:
    """Return whether a tensor holds the same rows for every variant."""
    if tensor.ndim == 0 or len(tensor) % copies:
        return False
    blocks = tensor.unflatten(0, (copies, -1))
    return torch.equal(blocks, blocks[:1].expand_as(blocks))


def _same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(x.shape == y.shape and torch.equal(x, y) for x, y in zip(a, b, strict=True))
