"""What the axes of an activation are called after a reducer took some of them away."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import torch
from torch import Tensor


def axes_after(
    axes: tuple[str, ...], value: Tensor, kept: Tensor, reducer: Callable[[Tensor], Tensor]
) -> tuple[str, ...]:
    """Names of the axes of what a reducer kept; "axis_0", … for those that cannot be told.

    Axes keep their order, so their lengths tell most. Where lengths are equal, a part of the activation is told by its
    place in the memory, and a reducer marked with ``by_row``, which may be called again, by what changes with an axis.

    Args:
        axes: of the activation.
        value: the activation.
        kept: what the reducer made of it.
        reducer: the function.
    """
    if kept.ndim == value.ndim == len(axes):
        return axes
    unknown = tuple(f"axis_{index}" for index in range(kept.ndim))
    if kept.ndim > value.ndim or value.ndim != len(axes):
        return unknown
    ways = list(combinations(range(value.ndim), kept.ndim))
    known = [way for way in ways if all(value.shape[axis] == size for axis, size in zip(way, kept.shape, strict=True))]
    if kept.untyped_storage()._cdata == value.untyped_storage()._cdata:
        part = [way for way in known if all(value.stride(a) == s for a, s in zip(way, kept.stride(), strict=True))]
        known = part or known
    if len(known) != 1 and getattr(reducer, "by_row", False):
        grown = _grown(value.shape, reducer)
        known = [way for way in ways if grown is not None and _follows(way, grown)] or known
    if not known:
        return unknown
    told = [{way[index] for way in known} for index in range(kept.ndim)]
    return tuple(
        axes[next(iter(which))] if len(which) == 1 else name for which, name in zip(told, unknown, strict=True)
    )


def _grown(shape: torch.Size, reducer: Callable[[Tensor], Tensor]) -> list[set[int]] | None:
    """Which axes of a reducer's result grow with each of its argument's; None if that cannot be told."""
    try:
        before = reducer(torch.empty(shape, device="meta")).shape
        grown = []
        for axis in range(len(shape)):
            longer = [size + (index == axis) for index, size in enumerate(shape)]
            after = reducer(torch.empty(longer, device="meta")).shape
            grown.append({index for index, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]})
    except (RuntimeError, NotImplementedError, ValueError):
        # what has no sizes on torch's meta device
        return None
    return grown


def _follows(way: tuple[int, ...], grown: list[set[int]]) -> bool:
    """Whether no axis of the result grows with another axis of the argument than this way has it."""
    return all(each <= {way.index(axis)} if axis in way else not each for axis, each in enumerate(grown))
