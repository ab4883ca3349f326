"""Series as the native libraries take them; always copies, so that nobody writes to the caller's data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from tsfm_lens.data import SeriesBatch


def contexts(values: Iterable[Any]) -> list[Tensor]:
    """One float64 tensor per row."""
    return [torch.tensor(series, dtype=torch.float64) for series in values]


def items(batch: SeriesBatch) -> list[Tensor]:
    """One tensor per item: (time,), or (variate, time) where an item has several variates."""
    grouped: list[list[Tensor]] = []
    for row, group in zip(contexts(batch.values), batch.group_index, strict=True):
        if group == len(grouped):
            grouped.append([])
        grouped[group].append(row)
    return [item[0] if len(item) == 1 else torch.stack(item) for item in grouped]


def padded(batch: SeriesBatch, length: int) -> Tensor:
    """(batch, length), float32; shorter series are padded with NaN on the left, longer ones cut there."""
    out = torch.full((len(batch), length), float("nan"))
    for row, series in zip(out, contexts(batch.values), strict=True):
        tail = series[-length:]
        row[length - len(tail) :] = tail.float()
    return out


def by_item(batch: SeriesBatch, length: int) -> Tensor:
    """(item, variate, length), float32, padded as in :func:`padded`.

    Raises:
        InputError: the items have different numbers of variates.
    """
    return padded(batch, length).unflatten(0, (-1, batch.n_variates))
