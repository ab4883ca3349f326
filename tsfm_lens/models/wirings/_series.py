"""Series as the native libraries take them; always copies, so that nobody writes to the caller's data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from tsfm_lens.data import SeriesBatch
from tsfm_lens.errors import InputError


def contexts(values: Iterable[Any]) -> list[Tensor]:
    """Return one float64 tensor per row."""
    return [torch.tensor(series, dtype=torch.float64) for series in values]


def items(batch: SeriesBatch) -> list[Tensor]:
    """Return one tensor per item: (time,), or (variate, time) where an item has several variates."""
    groups: list[list[Tensor]] = []
    for row, group in zip(contexts(batch.values), batch.group_index, strict=True):
        if group == len(groups):
            groups.append([])
        groups[group].append(row)
    return [item[0] if len(item) == 1 else torch.stack(item) for item in groups]


def padded(batch: SeriesBatch, length: int) -> Tensor:
    """Return (batch, length), float32; shorter series are padded with NaN on the left, longer ones cut there."""
    out = torch.full((len(batch), length), float("nan"))
    for row, series in zip(out, contexts(batch.values), strict=True):
        tail = series[-length:]
        row[length - len(tail) :] = tail.float()
    return out


def by_item(batch: SeriesBatch, length: int) -> Tensor:
    """Return (item, variate, length), float32, padded as in :func:`padded`.

    Raises:
        InputError: the items have different numbers of variates.
    """
    return padded(batch, length).unflatten(0, (-1, batch.n_variates))


def by_role(batch: SeriesBatch, length: int, horizon: int) -> dict[str, Tensor]:
    """Return (item, variate, time), float32, of each role that occurs; known covariates go on over the horizon.

    Raises:
        InputError: the items have different numbers of variates of one role, or a covariate ends before the horizon.
    """
    shapes = {
        group: tuple(role for role, other in zip(batch.roles, batch.groups, strict=True) if other == group)
        for group in dict.fromkeys(batch.groups)
    }
    first, n_variates = batch.groups[0], batch.n_variates
    for group, roles in shapes.items():
        if roles != shapes[first]:
            raise InputError(
                f"{group!r} has {_counts(roles)} and {first!r} {_counts(shapes[first])}; this model takes items alike"
            )
    whole = by_item(batch, length)
    ahead = torch.tensor(batch.known_future(horizon)).float().unflatten(0, (-1, n_variates))
    parts = {}
    for role in dict.fromkeys(shapes[first]):
        rows = torch.tensor([each == role for each in shapes[first]])
        parts[role] = torch.cat([whole[:, rows], ahead[:, rows]], -1) if role == "known" else whole[:, rows]
    return parts


def _counts(roles: tuple[str, ...]) -> str:
    return ", ".join(f"{roles.count(role)} {role}" for role in dict.fromkeys(roles))
