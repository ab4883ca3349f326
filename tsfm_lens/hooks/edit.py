"""Interventions on hook points."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from transformer_lens.hook_points import HookPoint
from transformer_lens.utilities import Slice

from tsfm_lens.core.errors import HookError, InputError
from tsfm_lens.hooks.block import Block
from tsfm_lens.hooks.component import Component, select_components
from tsfm_lens.hooks.interventions import (
    Change,
    EditPattern,
    Intervention,
    Mean,
    PatchFrom,
    Rows,
    Steer,
    Zero,
)
from tsfm_lens.hooks.names import PATTERN, Point, select
from tsfm_lens.hooks.registry import HookRegistry
from tsfm_lens.hooks.scopes import Hook, HookScope, RunState
from tsfm_lens.hooks.wiring import Attention

T = TypeVar("T")


def resolve(
    registry: HookRegistry, intervention: Intervention
) -> list[tuple[str, int | None]]:
    """Resolve the hook points that an intervention concerns, and the head at each."""
    target = intervention.target
    # a table never changes, and of interventions only these two have targets of their
    # own
    cache_key = (
        target,
        isinstance(intervention, EditPattern),
        isinstance(intervention, Steer),
    )
    if cache_key not in registry.targets:
        if isinstance(target, str) and "hook_" in target:
            registry.targets[cache_key] = [
                (name, None) for name in select(registry.points, target)
            ]
        else:
            parts = select_components(registry.wiring, target)
            registry.targets[cache_key] = [
                point
                for part in parts
                for point in _points(registry, part, intervention)
            ]
    return registry.targets[cache_key]


def _points(
    registry: HookRegistry, part: Component, intervention: Intervention
) -> list[tuple[str, int | None]]:
    stack = registry.wiring.stack(part.stack)
    block = f"{stack.prefix}.{part.layer}"
    at = f"{stack.prefix}.{part.layer}.{part.kind}"
    if isinstance(intervention, EditPattern):
        if part.kind is None or not isinstance(
            stack.writer(part.kind, part.layer), Attention
        ):
            other = "an MLP"
            if part.kind is None:
                other = "a whole layer"
            raise HookError(
                f"EditPattern needs an attention branch or head, {part} is {other}"
            )
        return [(f"{at}.hook_pattern", part.head)]
    if isinstance(intervention, Steer):
        return [
            (
                f"{block}.hook_resid_post" if part.kind is None else f"{at}.hook_out",
                None,
            )
        ]
    if part.kind is None:
        return [
            (f"{block}.{writer.kind}.hook_out", None)
            for writer in stack.rows(part.layer)
        ]
    return [
        (f"{at}.hook_out", None) if part.head is None else (f"{at}.hook_z", part.head)
    ]


def edited(
    registry: HookRegistry, interventions: tuple[Intervention, ...], value: T
) -> Block[T]:
    """Apply interventions at their hook points, in the order given, while the block
    runs; it yields ``value``.
    """
    activations: dict[str, list[_Act]] = {}
    for intervention in interventions:
        for name, head in resolve(registry, intervention):
            change = intervention.change(registry.points[name])
            activations.setdefault(name, []).append(_Act(intervention, head, change))
    # TransformerLens keeps them in the order in which they are set
    hooks: list[Hook] = [
        (name, _Edit(registry, registry.points[name], own), "fwd")
        for name, own in activations.items()
    ]
    return Block(HookScope(registry, value, hooks))


def acts_by_row(intervention: Intervention, point: Point) -> bool:
    """Return whether an intervention treats every row of a batch by itself."""
    if intervention.rows is not None or point.row_axis:
        return False
    if isinstance(intervention, Steer):
        return intervention.vector.ndim < len(point.axes)
    return type(intervention) in (Zero, Mean)


def acts_by_place(intervention: Intervention, point: Point) -> bool:
    """Return whether an intervention can act on a part of a batch, if it knows which
    rows run.
    """
    is_placed = isinstance(intervention, PatchFrom) or getattr(
        intervention, "by_place", False
    )
    return acts_by_row(intervention, point) or (
        is_placed and intervention.rows is None and not point.row_axis
    )


Index = tuple[slice | Tensor, ...]
"""Selection along each axis of an activation; () selects all."""


class _Act(NamedTuple):
    """An intervention at one hook point."""

    intervention: Intervention
    head: int | None
    change: Change


class _Edit:
    """Hook of all interventions of a block at one point, one after the other."""

    def __init__(self, registry: HookRegistry, point: Point, acts: list[_Act]) -> None:
        self._registry = registry
        self._point = point
        self._acts = acts
        self.by_row = all(acts_by_row(act.intervention, point) for act in acts)
        self.by_place = all(acts_by_place(act.intervention, point) for act in acts)

    def __call__(self, value: Tensor, hook: HookPoint) -> Tensor:
        """Return the edited activation; the argument may be another hook's own, and is
        not written to.
        """
        mine = False
        for act in self._acts:
            here, part, new = self._change(act, value)
            region = _region(part, self._point, act, self._registry.state)
            if (
                new is part
                and region is None
                and (not here or isinstance(here[-1], slice))
            ):
                continue
            if not here and region is None:
                value = new
                mine = False
                continue
            # a graph keeps what it has seen
            if not mine or torch.is_grad_enabled():
                value = value.clone()
                mine = True
            if region is None:
                value[here] = new.to(value.dtype)
                continue
            # a view, unless rows lie apart
            part = value[here] if here else value
            part[region] = new[region].to(value.dtype)
            if here and not isinstance(here[-1], slice):
                value[here] = part
        return value

    def _change(self, act: _Act, value: Tensor) -> tuple[Index, Tensor, Tensor]:
        """Return the rows where an intervention acts, () being all, their values, and
        the new values.
        """
        state, point, axis = self._registry.state, self._point, self._point.row_axis
        rows = _row_index(
            unwrapped(act.intervention.rows), value.shape[axis], self._registry, point
        )
        here = (
            ()
            if rows is None
            else (*[slice(None)] * axis, _stretch(rows.to(value.device)))
        )
        part = value[here] if here else value
        if rows is not None and axis != 0 and state.block_rows is not None:
            # several variants run as rows of one batch: of the attention between
            # series, that of one variant only
            first = int(rows[0]) // state.block_rows * state.block_rows
            own = slice(first, first + state.block_rows)
            new = part.clone()
            new[..., own] = act.change(part[..., own], state)
        else:
            new = act.change(part, state)
        if new.shape != part.shape:
            raise HookError(
                f"{point.name}: {type(act.intervention).__name__} gave shape"
                f" {tuple(new.shape)}, expected {tuple(part.shape)}"
                f" ({' '.join(point.axes)})"
            )
        return here, part, new


def _stretch(index: Tensor) -> slice | Tensor:
    """Return consecutive rows as a slice, which takes no copy; others as they are."""
    if not len(index):
        return index
    first = int(index[0])
    follows = torch.equal(
        index, torch.arange(first, first + len(index), device=index.device)
    )
    if follows:
        return slice(first, first + len(index))
    return index


def _row_index(
    rows: Rows, n_rows: int, registry: HookRegistry, point: Point
) -> Tensor | None:
    """Return the rows of the activation for the chosen series; a series may have
    several (samples, quantile paths).
    """
    if rows is None:
        return None
    state = registry.state
    variates = state.sizes.get("variate", 1)
    series = state.n_series or n_rows
    tokens = point.over == "variate" and point.axes == PATTERN and point.row_axis == 0
    units = series
    if tokens:
        units = series // variates
    if units < 1 or n_rows % units:
        raise HookError(
            f"{point.name} has {n_rows} rows in a run of {series} series; rows=… cannot"
            " be told apart"
        )
    index = as_index(rows, units * variates if tokens else units, f"{point.name}: rows")
    if tokens:
        index = torch.unique(index // variates)
    rows_of_unit = n_rows // units
    if rows_of_unit == 1:
        return index
    if not registry.wiring.sample_major or not state.sizes:
        return (
            index[:, None] * rows_of_unit + torch.arange(rows_of_unit)[None]
        ).reshape(-1)
    copies = max(1, state.sizes["series"] * variates // series)
    inner = rows_of_unit // copies
    starts = (
        torch.arange(copies)[:, None, None] * units * inner
        + index[None, :, None] * inner
    )
    return (starts + torch.arange(inner)[None, None]).reshape(-1)


def _region(part: Tensor, point: Point, act: _Act, state: RunState) -> Index | None:
    """Return the head and positions of an activation that change; None for all of it."""
    positions = unwrapped(act.intervention.positions)
    if act.head is None and positions is None:
        return None
    region: list[slice | Tensor] = [slice(None)] * part.ndim
    if act.head is not None:
        region[point.axes.index("head")] = slice(act.head, act.head + 1)
    if positions is not None:
        if "pos" in point.axes:
            axis = point.axes.index("pos")
        else:
            axis = point.axes.index("query")
        offset = state.offset.get(point.stack, 0)
        stop = offset + part.shape[axis]
        if isinstance(positions, slice) or (
            isinstance(positions, Tensor) and positions.dtype == torch.bool
        ):
            index = as_index(positions, stop, f"{point.name}: positions", clip=True)
        else:
            entries = torch.as_tensor(positions).reshape(-1)
            index = torch.where(entries < 0, entries + stop, entries)
        region[axis] = _stretch(
            (index[(index >= offset) & (index < stop)] - offset).to(part.device)
        )
    return tuple(region)


def unwrapped(rows: Rows | Slice) -> Rows:
    """Return what a ``Slice`` of TransformerLens holds; anything else as it is."""
    if isinstance(rows, Slice):
        return rows.slice
    return rows


def as_index(rows: Rows, length: int, what: str, *, clip: bool = False) -> Tensor:
    """Return an integer index for an int, a slice, integers or a boolean mask."""
    if isinstance(rows, slice):
        return torch.arange(length)[rows]
    index = torch.as_tensor(rows)
    if index.dtype == torch.bool:
        if len(index) != length and not clip:
            raise InputError(
                f"{what}: a mask of length {len(index)} for {length} entries"
            )
        return torch.nonzero(index).reshape(-1)
    index = index.reshape(-1).long()
    if len(index) and not bool(((index >= -length) & (index < length)).all()):
        raise InputError(
            f"{what}: {index.tolist()} is out of range for {length} entries"
        )
    if length:
        return index % length
    return index
