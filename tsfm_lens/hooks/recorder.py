"""Recording activations while a model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformer_lens.hook_points import HookPoint
from transformer_lens.utilities import Slice

from tsfm_lens.hooks.activations import Activations, Call
from tsfm_lens.hooks.axes import axes_after
from tsfm_lens.hooks.block import Block
from tsfm_lens.hooks.names import Point, select
from tsfm_lens.hooks.registry import HookRegistry
from tsfm_lens.hooks.scope import Hook, holding

NamesFilter = str | Iterable[str] | Callable[[str], bool] | None
Reducer = Callable[[Tensor], Tensor]


def resolve_filter(names: Iterable[str], names_filter: NamesFilter) -> list[str]:
    """Return the hook-point names that a filter selects.

    Args:
        names: all names of the model.
        names_filter: a name or glob, several of them, a predicate on names, or None for every point.

    Raises:
        UnknownNameError: a name or glob selects nothing.
    """
    available = list(names)
    if names_filter is None:
        return available
    if callable(names_filter):
        return [name for name in available if names_filter(name)]
    patterns = [names_filter] if isinstance(names_filter, str) else list(names_filter)
    selection = {name for pattern in patterns for name in select(available, pattern)}
    return [name for name in available if name in selection]


_Function = TypeVar("_Function", bound=Callable[..., Any])


def last_query(tensor: Tensor) -> Tensor:
    """Keep the last position (of residual, heads) or the last query row (of patterns); a reducer.

    Example:
        >>> hooks.last_query(torch.zeros(2, 7, 64)).shape
        torch.Size([2, 1, 64])
    """
    return tensor[..., -1:, :] if tensor.ndim < 4 else tensor[:, :, -1:]


def by_row(function: _Function) -> _Function:
    """Mark a hook or reducer that treats every row of a batch by itself, so that a batch may run in parts.

    The result of such a reducer has the rows of its argument along its first axis. It may be called more often than
    there are passes.

    Example:
        >>> first_token = hooks.by_row(lambda tensor: tensor[:, :1])
        >>> name = "decoder_blocks.0.hook_resid_pre"
        >>> _, cache = lens.run_with_cache(run.encoded, names_filter=name, reduce=first_token)
        >>> cache[name].shape
        torch.Size([1, 1, 96])
    """
    function.by_row = True  # type: ignore[attr-defined]
    return function


by_row(last_query)


def record(
    registry: HookRegistry,
    names: Iterable[str],
    into: Activations,
    *,
    device: torch.device | str | None = None,
    reduce: Reducer | Mapping[str, Reducer] | Positions | None = None,
    gradients: bool = False,
) -> Block[Activations]:
    """Record the values of the named hook points while the block runs, in this thread and task.

    Args:
        registry: the model's hook points.
        names: exact names.
        into: the mapping to fill.
        device: where to keep the tensors ("cpu" frees the accelerator's memory).
        reduce: one function for all activations, or by name or glob; applied before storing.
        gradients: also keep gradients, under ``name + "_grad"``; the block must then run backward.

    Raises:
        UnknownNameError: a glob of ``reduce`` matches no recorded name. Nothing has been hooked by then.
        WiringError: compiled or replaced modules would pass a hook by.
        HookError: on leaving, the model ran and never passed one of the points.
    """
    selection = list(names)
    reducers = reducers_of(selection, reduce)
    state = registry.state

    def keep(value: Tensor, hook: HookPoint, *, name: str, suffix: str = "") -> None:
        point = registry.points[name]
        tensor = reducers[name](value.detach()) if name in reducers else value.detach()
        if name in reducers and name not in into.reduced:
            into.reduced[name] = axes_after(point.axes, value, tensor, reducers[name])
        small = name in reducers and tensor.untyped_storage().nbytes() > 2 * tensor.nbytes
        if small or not all(getattr(handle.user_hook, "reads_only", False) for handle in tuple(hook.fwd_hooks)):
            # a later hook may write into the value; a small view would keep the whole tensor alive
            tensor = tensor.clone()
        if device is not None:
            tensor = tensor.to(device)
        call = Call(state.step, state.offset.get(point.stack, 0), tensor)
        into.recorded.setdefault(name + suffix, []).append(call)

    hooks: list[Hook] = []
    for name in selection:
        apart = name not in reducers or getattr(reducers[name], "by_row", False)
        hook = partial(keep, name=name)
        hook.reads_only, hook.by_row = True, apart  # type: ignore[attr-defined]
        hooks.append((name, hook, "fwd"))
        if gradients:
            hooks.append((name, partial(keep, name=name, suffix="_grad"), "bwd"))
    return holding(registry, hooks, into)


@dataclass(frozen=True)
class Positions:
    """Reducers that keep some positions of every activation, queries of patterns; all of what has no positions.

    Attributes:
        points: the hook point of each name.
        which: an index, (start, stop) or a list, as TransformerLens's ``pos_slice``.
    """

    points: Mapping[str, Point]
    which: Any

    def of(self, name: str) -> Reducer:
        """Return the reducer of one hook point."""
        axes, which = self.points[name].axes, Slice.unwrap(self.which)
        place = next((axes.index(axis) for axis in ("pos", "query") if axis in axes), None)
        return by_row(lambda tensor: tensor if place is None else which.apply(tensor, dim=place))


def reducers_of(names: list[str], reduce: Reducer | Mapping[str, Reducer] | Positions | None) -> dict[str, Reducer]:
    """Return the reducer of each name that has one.

    Raises:
        UnknownNameError: a glob of ``reduce`` matches none of the names.
    """
    if reduce is None:
        return {}
    if isinstance(reduce, Positions):
        return {name: reduce.of(name) for name in names}
    if not isinstance(reduce, Mapping):
        return dict.fromkeys(names, reduce)
    return {name: function for glob, function in reduce.items() for name in select(names, glob)}
