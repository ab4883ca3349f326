"""Record activations while a model runs.

Read :func:`record`, the block; reducers (:func:`last_query`, :func:`at_positions`)
shorten what it keeps. :func:`record_stream` ends a forward where a layer begins. What
is recorded comes back as :class:`tsfm_lens.hooks.activations.Activations`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformer_lens.hook_points import HookPoint
from transformer_lens.utilities import Slice

from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.hooks.activations import Activations, Call
from tsfm_lens.hooks.block import Block
from tsfm_lens.hooks.component import Component
from tsfm_lens.hooks.names import Point, select
from tsfm_lens.hooks.registry import HookRegistry
from tsfm_lens.hooks.residual import cut_positions
from tsfm_lens.hooks.scopes import Hook, HookScope

NamesFilter = str | Iterable[str] | Callable[[str], bool] | None
Reducer = Callable[[Tensor], Tensor]
_Function = TypeVar("_Function", bound=Callable[..., Any])


def last_query(tensor: Tensor) -> Tensor:
    """Reduce activations to the last position, patterns to the last query.

    Args:
        tensor: activation (batch, pos, …), or pattern (batch, head, query, key).

    Returns:
        The activation with one position, or the pattern with one query.

    Example:
        >>> hooks.last_query(torch.zeros(2, 7, 64)).shape
        torch.Size([2, 1, 64])
    """
    if tensor.ndim < 4:
        return tensor[..., -1:, :]
    return tensor[:, :, -1:]


def by_row(function: _Function) -> _Function:
    """Mark a hook or reducer that treats every row of a batch by itself.

    A batch may then run in parts.

    The result of such a reducer has the rows of its argument along its first axis. It
    may be called more often than there are passes.

    Args:
        function: hook or reducer that is called with an activation.

    Returns:
        The function itself, marked.

    Example:
        >>> first_token = hooks.by_row(lambda tensor: tensor[:, :1])
        >>> name = "decoder_blocks.0.hook_resid_pre"
        >>> _, cache = lens.run_with_cache(
        ...     run.encoded, names_filter=name, reduce=first_token
        ... )
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
    reduce: Reducer | Mapping[str, Reducer] | None = None,
    gradients: bool = False,
) -> Block[Activations]:
    """Record the values of the named hook points while the block runs.

    Only runs of this thread and task are recorded.

    Returns:
        A block that yields ``into``.
    """
    selection = list(names)
    reducers = select_reducers(selection, reduce)
    state = registry.state

    def keep(value: Tensor, hook: HookPoint, *, name: str, suffix: str = "") -> None:
        point = registry.points[name]
        if name in reducers:
            tensor = reducers[name](value.detach())
        else:
            tensor = value.detach()
        if name in reducers and name not in into.reduced:
            into.reduced[name] = axes_after(point.axes, value, tensor, reducers[name])
        is_small_view = (
            name in reducers and tensor.untyped_storage().nbytes() > 2 * tensor.nbytes
        )
        if is_small_view or not all(
            getattr(handle.user_hook, "reads_only", False)
            for handle in tuple(hook.fwd_hooks)
        ):
            # a later hook may write into the value; a small view would keep the full
            # tensor alive
            tensor = tensor.clone()
        if device is not None:
            tensor = tensor.to(device)
        call = Call(state.step, state.offset.get(point.stack, 0), tensor)
        into.recorded.setdefault(name + suffix, []).append(call)

    hooks: list[Hook] = []
    for name in selection:
        hook = partial(keep, name=name)
        # no copy is made for it, and the native tensor passes on
        hook.reads_only = True  # type: ignore[attr-defined]
        is_by_row = name not in reducers or getattr(reducers[name], "by_row", False)
        hook.by_row = is_by_row  # type: ignore[attr-defined]
        hooks.append((name, hook, "fwd"))
        if gradients:
            hooks.append((name, partial(keep, name=name, suffix="_grad"), "bwd"))
    return Block(HookScope(registry, into, hooks))


def at_positions(
    points: Mapping[str, Point], names: Iterable[str], which: Any
) -> dict[str, Reducer]:
    """Make reducers that keep some positions, or of patterns some queries.

    Activations without positions are kept in full.

    Returns:
        A reducer for each hook point that has an axis of tokens, by name.
    """
    part = Slice.unwrap(which)

    def keep(name: str, axis: int | None, tensor: Tensor) -> Tensor:
        if axis is None:
            return tensor
        return cut_positions(part, tensor, axis, name)

    token_axes = {
        name: [
            axis
            for axis, axis_name in enumerate(points[name].axes)
            if axis_name in ("pos", "query")
        ]
        for name in names
    }
    return {
        name: by_row(partial(keep, name, axes[0] if axes else None))
        for name, axes in token_axes.items()
    }


def select_reducers(
    names: list[str], reduce: Reducer | Mapping[str, Reducer] | None
) -> dict[str, Reducer]:
    """Return the reducer of each name that has one."""
    if reduce is None:
        return {}
    if not isinstance(reduce, Mapping):
        return dict.fromkeys(names, reduce)
    return {
        name: function
        for glob, function in reduce.items()
        for name in select(names, glob)
    }


def axes_after(
    axes: tuple[str, ...], value: Tensor, result: Tensor, reducer: Reducer
) -> tuple[str, ...]:
    """Return the names of the axes of a reduced activation.

    They are "axis_0", … where it is ambiguous which axes are left.
    """
    if result.ndim == value.ndim == len(axes):
        return axes
    unknown = tuple(f"axis_{index}" for index in range(result.ndim))
    if result.ndim > value.ndim or value.ndim != len(axes):
        return unknown

    # each candidate: the axes of ``value`` that the result may have kept
    def candidates(shape: Sequence[int], left: Sequence[int]) -> list[tuple[int, ...]]:
        choices = combinations(range(len(shape)), len(left))
        return [
            choice
            for choice in choices
            if [shape[axis] for axis in choice] == list(left)
        ]

    matches = candidates(value.shape, result.shape)
    if result.untyped_storage()._cdata == value.untyped_storage()._cdata:
        # of a view, strides decide between axes of one length
        same_strides = [
            match
            for match in matches
            if tuple(value.stride(axis) for axis in match) == result.stride()
        ]
        matches = same_strides or matches
    if len(matches) != 1 and getattr(reducer, "by_row", False):
        # run on a tensor without numbers whose axes all differ in length; an operation
        # may have no sizes on torch's meta device
        with suppress(RuntimeError, NotImplementedError, ValueError):
            lengths = [
                value.ndim * size + axis for axis, size in enumerate(value.shape)
            ]
            reduced = reducer(torch.empty(lengths, device="meta"))
            matches = candidates(lengths, reduced.shape) or matches
    if not matches:
        return unknown
    sources = [{match[index] for match in matches} for index in range(result.ndim)]
    return tuple(
        # an axis keeps its name if every candidate takes it from the same axis
        axes[min(source)] if len(source) == 1 else name
        for source, name in zip(sources, unknown, strict=True)
    )


class _Arrival(Exception):
    """Arrival of the stream at a layer, raised to leave the native model."""


def _stopping_point(registry: HookRegistry, layer: int | str | Component) -> str:
    """Return the hook point at which a forward ends that stops at a layer.

    The name of a hook point means itself.
    """
    if isinstance(layer, str) and layer in registry.points:
        return layer
    wiring = registry.wiring
    if isinstance(layer, int):
        stack = wiring.output_stack
        index = layer
    else:
        location = Component.parse(str(layer))
        if location.kind is not None:
            raise InputError(
                f"stop_at_layer {str(layer)!r} is a {location.level}; expected a layer,"
                f" such as {location.layer}"
            )
        stack = wiring.stack(location.stack)
        index = location.layer
    if index < 0:
        index += stack.n_layers
    # no block begins at the end of the stack, where the stream is what the last one
    # gives
    if index == stack.n_layers:
        return f"{stack.prefix}.{index - 1}.hook_resid_post"
    if not 0 <= index < stack.n_layers:
        raise unknown_name(
            "layer", layer, [str(number) for number in range(stack.n_layers + 1)]
        )
    return f"{stack.prefix}.{index}.hook_resid_pre"


def passed_before(registry: HookRegistry, layer: int | str | Component) -> list[str]:
    """Return every hook point that a forward has passed when it ends at a layer."""
    names = list(registry.points)
    return names[: names.index(_stopping_point(registry, layer)) + 1]


def record_stream(
    registry: HookRegistry, layer: int | str | Component, run: Callable[[], Any]
) -> Tensor:
    """Run a forward up to a layer and return its input stream.

    Returns:
        The stream with the edits of other hooks, (row, pos, d_model).
    """

    def stop(value: Tensor, hook: Any) -> None:
        # an exception leaves the native model from any depth, and skips the rest of its
        # layers
        raise _Arrival(value)

    stop.reads_only = True  # type: ignore[attr-defined]
    point = _stopping_point(registry, layer)
    with Block(HookScope(registry, None, [(point, stop, "fwd")])):
        try:
            run()
        except _Arrival as arrival:
            stream: Tensor = arrival.args[0]
            return stream
    raise AssertionError("the forward never came to the layer, which its block refuses")
