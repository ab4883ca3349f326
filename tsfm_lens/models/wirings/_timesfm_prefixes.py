"""TimesFM 2.5 over rows that begin alike: their common patches are computed once and read from the cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor


@contextmanager
def shared_prefixes(model: Any, prefixes: np.ndarray) -> Iterator[None]:
    """Let a native module compute common beginnings once while the block runs.

    Attention is causal, and so are the statistics by which patches are normalised: up to rounding, the result of a
    patch depends on it and those before it alone.

    Args:
        model: the ``TimesFM_2p5_200M_torch_module``.
        prefixes: (row, patch) for the last patches of the context; rows with the same number at a patch are alike up
            to and including it.
    """

    def forward(inputs: Tensor, masks: Tensor, decode_caches: Any = None) -> Any:
        plain = type(model).forward
        first = decode_caches is not None and int(decode_caches[0].next_index[0]) == 0
        if not first or len(inputs) != len(prefixes) or inputs.shape[1] < prefixes.shape[1]:
            return plain(model, inputs, masks, decode_caches)
        padding = inputs.shape[1] - prefixes.shape[1]
        numbers = np.concatenate([np.repeat(prefixes[:, :1], padding, axis=1), prefixes], axis=1)
        return _in_pieces(model, inputs, masks, decode_caches, numbers)

    model.__dict__["forward"] = forward
    try:
        yield
    finally:
        del model.__dict__["forward"]


def _in_pieces(model: Any, inputs: Tensor, masks: Tensor, caches: Any, prefixes: np.ndarray) -> Any:
    """Compute the outputs and caches of all rows, piece by piece of patches over which no two rows part."""
    outputs: list[tuple[Tensor, ...]] = []
    # by row, which row of the last piece is its beginning; at first all begin with nothing
    previous, state = np.zeros(len(inputs), dtype=int), caches
    for start, stop in pieces(prefixes):
        _, firsts, group = np.unique(prefixes[:, stop - 1], return_index=True, return_inverse=True)
        rows, back = (torch.as_tensor(each.reshape(-1), device=inputs.device) for each in (firsts, group))
        state = [_rows(cache, previous[firsts]) for cache in state]
        results, state = type(model).forward(model, inputs[rows, start:stop], masks[rows, start:stop], state)
        outputs.append(tuple(each[back] for each in results))
        previous = group.reshape(-1)
    whole = tuple(torch.cat(parts, dim=1) for parts in zip(*outputs, strict=True))
    return whole, [_rows(cache, previous) for cache in state]


def _rows(cache: Any, rows: np.ndarray) -> Any:
    """Return rows of a cache, as copies that can be written to."""
    parts = {name: part[torch.as_tensor(rows, device=part.device)] for name, part in vars(cache).items()}
    return type(cache)(**parts)


def pieces(prefixes: np.ndarray) -> list[tuple[int, int]]:
    """Return ranges of patches within which rows that are alike at the first are so at the last, (start, stop) each.

    Args:
        prefixes: (row, patch), see :func:`shared_prefixes`.
    """
    counts = [len(np.unique(column)) for column in prefixes.T]
    cuts = [0, *(place for place in range(1, len(counts)) if counts[place] > counts[place - 1]), len(counts)]
    return list(pairwise(cuts))
