"""Names of an activation's axes after a reducer removed some of them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import torch
from torch import Tensor


def axes_after(
    axes: tuple[str, ...], value: Tensor, result: Tensor, reducer: Callable[[Tensor], Tensor]
) -> tuple[str, ...]:
    """Return the names of the axes of a reduced activation; "axis_0", … for those that are ambiguous.

    Axes keep their order, so their lengths identify most of them. Where lengths are equal, strides identify a view of
    the activation. A reducer marked ``by_row`` may be called again: the axes that grow with its argument identify it.

    Args:
        axes: of the activation.
        value: the activation.
        result: the reduced activation.
        reducer: the function.
    """
    if result.ndim == value.ndim == len(axes):
        return axes
    unknown = tuple(f"axis_{index}" for index in range(result.ndim))
    if result.ndim > value.ndim or value.ndim != len(axes):
        return unknown
    ways = list(combinations(range(value.ndim), result.ndim))
    matches = [
        way for way in ways if all(value.shape[axis] == size for axis, size in zip(way, result.shape, strict=True))
    ]
    if result.untyped_storage()._cdata == value.untyped_storage()._cdata:
        part = [way for way in matches if all(value.stride(a) == s for a, s in zip(way, result.stride(), strict=True))]
        matches = part or matches
    if len(matches) != 1 and getattr(reducer, "by_row", False):
        growth = _growth_by_axis(value.shape, reducer)
        matches = [way for way in ways if growth is not None and _follows(way, growth)] or matches
    if not matches:
        return unknown
    candidates = [{way[index] for way in matches} for index in range(result.ndim)]
    return tuple(
        axes[next(iter(which))] if len(which) == 1 else name for which, name in zip(candidates, unknown, strict=True)
    )


def _growth_by_axis(shape: torch.Size, reducer: Callable[[Tensor], Tensor]) -> list[set[int]] | None:
    """Find the axes of a reducer's result that grow with each of its argument's; None if that is not possible."""
    try:
        before = reducer(torch.empty(shape, device="meta")).shape
        growth = []
        for axis in range(len(shape)):
            longer = [size + (index == axis) for index, size in enumerate(shape)]
            after = reducer(torch.empty(longer, device="meta")).shape
            growth.append({index for index, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]})
    except (RuntimeError, NotImplementedError, ValueError):
        # an operation without sizes on torch's meta device
        return None
    return growth


def _follows(way: tuple[int, ...], growth: list[set[int]]) -> bool:
    """Return whether no axis of the result grows with another axis of the argument than this way has it."""
    return all(each <= {way.index(axis)} if axis in way else not each for axis, each in enumerate(growth))
