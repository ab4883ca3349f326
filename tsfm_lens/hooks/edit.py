"""Apply interventions at hook points.

Read :func:`edited`, the block that sets the hooks, and :func:`resolve`, which finds the
hook points of a target. The interventions themselves are in
:mod:`tsfm_lens.hooks.interventions`; this module decides which rows, heads and
positions they change.
"""

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
    # the wiring never changes, and beside the target only these two kinds matter, as
    # _points() below shows
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
            registry.targets[cache_key] = [
                point
                for component in select_components(registry.wiring, target)
                for point in _points(registry, component, intervention)
            ]
    return registry.targets[cache_key]


def _points(
    registry: HookRegistry, component: Component, intervention: Intervention
) -> list[tuple[str, int | None]]:
    """Return the hook points, with heads, at which a component is changed."""
    stack = registry.wiring.stack(component.stack)
    block = f"{stack.prefix}.{component.layer}"
    branch = f"{block}.{component.kind}"
    if isinstance(intervention, EditPattern):
        if component.kind is None or not isinstance(
            stack.writer(component.kind, component.layer), Attention
        ):
            found = "an MLP"
            if component.kind is None:
                found = "a whole layer"
            raise HookError(
                f"EditPattern needs an attention branch or head, {component} is {found}"
            )
        return [(f"{branch}.hook_pattern", component.head)]
    if isinstance(intervention, Steer):
        if component.kind is None:
            return [(f"{block}.hook_resid_post", None)]
        return [(f"{branch}.hook_out", None)]
    # to remove a layer is to remove what it writes; its stream also holds all writes
    # before it
    if component.kind is None:
        return [
            (f"{block}.{writer.kind}.hook_out", None)
            for writer in stack.rows(component.layer)
        ]
    if component.head is None:
        return [(f"{branch}.hook_out", None)]
    return [(f"{branch}.hook_z", component.head)]


def edited(
    registry: HookRegistry, interventions: tuple[Intervention, ...], value: T
) -> Block[T]:
    """Apply interventions at their hook points while the block runs.

    Returns:
        A block that yields ``value``. At one point interventions apply in the order
        given.
    """
    edits_by_point: dict[str, list[_PointEdit]] = {}
    reaches: list[_Reach] = []
    for intervention in interventions:
        reach = _Reach(intervention)
        reaches.append(reach)
        for name, head in resolve(registry, intervention):
            change = intervention.change(registry.points[name])
            edits_by_point.setdefault(name, []).append(
                _PointEdit(intervention, head, change, reach)
            )
    hooks: list[Hook] = [
        (name, _EditHook(registry, registry.points[name], edits), "fwd")
        for name, edits in edits_by_point.items()
    ]
    return Block(_EditScope(registry, value, hooks, reaches))


class _EditScope(HookScope[T]):
    """Hooks of interventions, which refuses positions that no run had."""

    def __init__(
        self,
        registry: HookRegistry,
        value: T,
        hooks: list[Hook],
        reaches: list[_Reach],
    ) -> None:
        super().__init__(registry, value, hooks)
        self._reaches = reaches
        self.label = ", ".join(map(str, reaches))

    def check(self) -> None:
        """Raise InputError for positions beyond the end, HookError for idle hooks."""
        super().check()
        for reach in self._reaches:
            reach.check()


class _Reach:
    """How many positions the runs of a block had where an intervention acts.

    A pass of a cached rollout has some positions alone, so what is out of range is
    known at the end of the block.
    """

    def __init__(self, intervention: Intervention) -> None:
        self._intervention = intervention
        self.lengths: dict[str, int] = {}

    def __str__(self) -> str:
        return f"{type(self._intervention).__name__} {self._intervention.target}"

    def note(self, name: str, length: int) -> None:
        """Note the positions up to the end of a pass at a hook point."""
        self.lengths[name] = max(length, self.lengths.get(name, 0))

    def check(self) -> None:
        """Refuse positions that no hook point of the intervention had."""
        if not self.lengths:
            return
        name = max(self.lengths, key=self.lengths.__getitem__)
        length = self.lengths[name]
        what = f"{name}: positions of {type(self._intervention).__name__}"
        positions = unwrapped(self._intervention.positions)
        entries = _selected(_as_entries(positions, length, what))
        if not len(entries):
            raise InputError(f"{what}: {positions} selects none of {length} positions")
        _check_range(entries, length, what)


def is_row_wise(intervention: Intervention, point: Point) -> bool:
    """Return whether an intervention treats every row of a batch by itself."""
    if intervention.rows is not None or point.row_axis:
        return False
    if isinstance(intervention, Steer):
        # a vector with as many axes as the value has rows of its own
        return intervention.vector.ndim < len(point.axes)
    # exact types: a subclass may look at other rows
    return type(intervention) in (Zero, Mean)


def is_part_wise(intervention: Intervention, point: Point) -> bool:
    """Return whether an intervention can act on a part of a batch.

    It must treat each row by itself, or know which rows run.
    """
    if is_row_wise(intervention, point):
        return True
    knows_rows = isinstance(intervention, PatchFrom) or getattr(
        intervention, "by_place", False
    )
    return knows_rows and intervention.rows is None and not point.row_axis


Index = tuple[slice | Tensor, ...]
"""Selection along each axis of an activation; () selects all."""


class _PointEdit(NamedTuple):
    """Intervention at one hook point, with the head that it changes."""

    intervention: Intervention
    head: int | None
    change: Change
    reach: _Reach


class _EditHook:
    """Hook of all interventions of a block at one point, one after the other."""

    def __init__(
        self, registry: HookRegistry, point: Point, edits: list[_PointEdit]
    ) -> None:
        self._registry = registry
        self._point = point
        self._edits = edits
        self.by_row = all(is_row_wise(edit.intervention, point) for edit in edits)
        self.by_place = all(is_part_wise(edit.intervention, point) for edit in edits)

    def __call__(self, value: Tensor, hook: HookPoint) -> Tensor:
        """Return the edited activation.

        The argument may belong to another hook, and is not written to.
        """
        # all edits of a point share one copy, where a copy for each would cost memory
        is_copy = False
        for edit in self._edits:
            rows, part, new = self._change(edit, value)
            region = _region(part, self._point, edit, self._registry.state)
            is_view = not rows or isinstance(rows[-1], slice)
            # the intervention gave back what it got
            if new is part and region is None and is_view:
                continue
            # the whole activation is new
            if not rows and region is None:
                value = new
                is_copy = False
                continue
            # with gradients a copy for each edit: autograd needs the former values
            if not is_copy or torch.is_grad_enabled():
                value = value.clone()
                is_copy = True
            if region is None:
                value[rows] = new.to(value.dtype)
                continue
            # a view where the rows are a slice, else a copy that is put back below
            part = value[rows] if rows else value
            part[region] = new[region].to(value.dtype)
            if not is_view:
                value[rows] = part
        return value

    def _change(self, edit: _PointEdit, value: Tensor) -> tuple[Index, Tensor, Tensor]:
        """Return the rows that an edit concerns, their values, and the new values.

        The rows are an index into the activation; () selects all.
        """
        state = self._registry.state
        point = self._point
        axis = point.row_axis
        rows = _row_index(
            unwrapped(edit.intervention.rows), value.shape[axis], self._registry, point
        )
        index: Index = ()
        if rows is not None:
            if not isinstance(rows, slice):
                rows = _as_slice(rows.to(value.device))
            # rows lie along axis 2 in patterns between series, else along the first
            index = (*[slice(None)] * axis, rows)
        part = value[index] if index else value
        if rows is not None and axis != 0 and state.block_rows is not None:
            # several variants run as rows of one batch: in attention between series,
            # show the edit only the keys of its own variant's series
            first = rows.start if isinstance(rows, slice) else int(rows[0])
            first = first // state.block_rows * state.block_rows
            variant_keys = slice(first, first + state.block_rows)
            new = part.clone()
            new[..., variant_keys] = edit.change(part[..., variant_keys], state)
        else:
            new = edit.change(part, state)
        if new.shape != part.shape:
            raise HookError(
                f"{point.name}: {type(edit.intervention).__name__} gave shape"
                f" {tuple(new.shape)}, expected {tuple(part.shape)}"
                f" ({' '.join(point.axes)})"
            )
        return index, part, new


def _as_slice(index: Tensor) -> slice | Tensor:
    """Return consecutive rows as a slice, which selects a view; others as given."""
    if not len(index):
        return index
    first = int(index[0])
    is_consecutive = torch.equal(
        index, torch.arange(first, first + len(index), device=index.device)
    )
    if is_consecutive:
        return slice(first, first + len(index))
    return index


def _row_index(
    rows: Rows, n_rows: int, registry: HookRegistry, point: Point
) -> slice | Tensor | None:
    """Return the rows of the activation for the chosen series.

    A series may have several rows: sample paths, or quantile paths.
    """
    if rows is None:
        return None
    state = registry.state
    variates = state.sizes.get("variate", 1)
    series = state.n_series or n_rows
    rows_are_tokens = (
        point.over == "variate" and point.axes == PATTERN and point.row_axis == 0
    )
    # a unit has rows of its own: a series; or, where rows are (item, token), an item,
    # whose variates share rows
    units = series
    if rows_are_tokens:
        units = series // variates
    if units < 1 or n_rows % units:
        raise HookError(
            f"{point.name} has {n_rows} rows in a run of {series} series; rows=… cannot"
            " be told apart"
        )
    n_series = units * variates if rows_are_tokens else units
    rows_of_unit = n_rows // units
    if isinstance(rows, slice) and rows_of_unit == 1 and not rows_are_tokens:
        # as a sweep gives them for every variant, pass and point
        chosen = range(n_series)[rows]
        if len(chosen) and chosen.step == 1:
            return slice(chosen.start, chosen.stop)
    index = as_index(rows, n_series, f"{point.name}: rows")
    if rows_are_tokens:
        index = torch.unique(index // variates)
    if rows_of_unit == 1:
        return index
    if not registry.wiring.sample_major or not state.sizes:
        return (
            index[:, None] * rows_of_unit + torch.arange(rows_of_unit)[None]
        ).reshape(-1)
    # rows are (path, unit, inner) here, and (unit, path) above
    paths = max(1, state.sizes["series"] * variates // series)
    inner = rows_of_unit // paths
    starts = (
        torch.arange(paths)[:, None, None] * units * inner
        + index[None, :, None] * inner
    )
    return (starts + torch.arange(inner)[None, None]).reshape(-1)


def _region(
    part: Tensor, point: Point, edit: _PointEdit, state: RunState
) -> Index | None:
    """Return the head and positions of an activation that change; None for all."""
    positions = unwrapped(edit.intervention.positions)
    if edit.head is None and positions is None:
        return None
    region: list[slice | Tensor] = [slice(None)] * part.ndim
    if edit.head is not None:
        # a slice, as an index would drop the axis
        region[point.axes.index("head")] = slice(edit.head, edit.head + 1)
    if positions is not None:
        if "pos" in point.axes:
            axis = point.axes.index("pos")
        else:
            axis = point.axes.index("query")
        offset = state.offset.get(point.stack, 0)
        stop = offset + part.shape[axis]
        edit.reach.note(point.name, stop)
        entries = _selected(_as_entries(positions, stop, f"{point.name}: positions"))
        # unlike in as_index(), a position out of range is no error yet: a later pass of
        # the rollout may reach it, see _Reach
        index = torch.where(entries < 0, entries + stop, entries)
        # the activation holds only the positions of this pass
        present = index[(index >= offset) & (index < stop)]
        region[axis] = _as_slice((present - offset).to(part.device))
    return tuple(region)


def unwrapped(rows: Rows | Slice) -> Rows:
    """Return what a ``Slice`` of TransformerLens holds; anything else as it is."""
    if isinstance(rows, Slice):
        result: Rows = rows.slice
        return result
    return rows


def as_index(rows: Rows, length: int, what: str) -> Tensor:
    """Return an integer index for an int, a slice, integers or a boolean mask."""
    entries = _as_entries(rows, length, what)
    if entries.dtype == torch.bool and len(entries) != length:
        raise InputError(
            f"{what}: a mask of length {len(entries)} for {length} entries"
        )
    index = _selected(entries)
    if isinstance(unwrapped(rows), slice) and not len(index):
        raise InputError(f"{what}: {rows} selects none of {length} entries")
    _check_range(index, length, what)
    return torch.where(index < 0, index + length, index)


def _as_entries(rows: Rows, length: int, what: str) -> Tensor:
    """Return what is chosen of ``length`` entries: integers, or a mask as it is."""
    rows = unwrapped(rows)
    try:
        if isinstance(rows, slice):
            return torch.arange(length)[rows]
        entries = torch.as_tensor(rows).reshape(-1)
        is_known = not len(entries) or not entries.is_floating_point()
    # a text, a list of texts, or a slice with a step below 1
    except (TypeError, ValueError, RuntimeError):
        is_known = False
    if not is_known:
        hint = ""
        if what.endswith("rows"):
            hint = ". run.batch.rows(ids) are the rows of series by their ids"
        raise InputError(
            f"{what}: {rows!r} is not known; expected integers that count from 0, a"
            f" slice that goes forwards, or a mask{hint}"
        )
    if entries.dtype == torch.bool:
        return entries
    return entries.long()


def _selected(entries: Tensor) -> Tensor:
    """Return the integers that a mask selects; integers as they are."""
    if entries.dtype == torch.bool:
        return torch.nonzero(entries).reshape(-1)
    return entries


def _check_range(entries: Tensor, length: int, what: str) -> None:
    """Refuse integers beyond the first or the last entry."""
    outside = entries[(entries < -length) | (entries >= length)]
    if len(outside):
        raise InputError(
            f"{what}: {int(outside[0])} is out of range for length {length};"
            f" expected 0 to {length - 1}, or -1 to {-length} from the end"
        )
