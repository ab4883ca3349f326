"""Putting interventions on hook points."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from tsfm_lens.errors import HookError, InputError, UnknownNameError, unknown_name
from tsfm_lens.hooks.component import Component, components, select_components
from tsfm_lens.hooks.holding import Direction, holding
from tsfm_lens.hooks.interventions import Change, EditPattern, Intervention, Mean, PatchFrom, Rows, Steer, Zero
from tsfm_lens.hooks.names import PATTERN, Point, select
from tsfm_lens.hooks.registry import HookRegistry, RunState
from tsfm_lens.hooks.wiring import Attention, Stack


def resolve(registry: HookRegistry, intervention: Intervention) -> list[tuple[str, int | None]]:
    """The hook points, and the head at each, that an intervention concerns.

    Raises:
        UnknownNameError: the target is neither a component nor a hook point of this model.
        HookError: the intervention cannot act on such a target.
    """
    target = intervention.target
    if isinstance(target, str) and "hook_" in target:
        return [(name, None) for name in select(registry.points, target)]
    try:
        meant = select_components(registry.wiring, target)
    except UnknownNameError as error:
        known = [str(component) for component in components(registry.wiring)]
        hint = "A target is a component (decoder.3.cross_attn.5) or a hook point."
        raise unknown_name("component", target, known, hint=hint) from error
    spots: list[tuple[str, int | None]] = []
    for component in meant:
        spots += _spots(registry.wiring.stack(component.stack), component, intervention)
    return spots


def _spots(stack: Stack, component: Component, intervention: Intervention) -> list[tuple[str, int | None]]:
    block = f"{stack.prefix}.{component.layer}"
    if component.kind is None:
        if isinstance(intervention, EditPattern):
            raise HookError(f"EditPattern needs an attention branch or head, {component} is a whole layer")
        if isinstance(intervention, Steer):
            return [(f"{block}.hook_resid_post", None)]
        return [(f"{block}.{writer.kind}.hook_out", None) for writer in stack.rows(component.layer)]
    at = f"{block}.{component.kind}"
    if isinstance(intervention, EditPattern):
        if not isinstance(stack.writer(component.kind, component.layer), Attention):
            raise HookError(f"EditPattern needs an attention branch or head, {component} is an MLP")
        return [(f"{at}.hook_pattern", component.head)]
    if component.head is None or isinstance(intervention, Steer):
        return [(f"{at}.hook_out", None)]
    return [(f"{at}.hook_z", component.head)]


@contextmanager
def edited(registry: HookRegistry, interventions: tuple[Intervention, ...]) -> Iterator[None]:
    """Put interventions on their hook points, in the order given, while the block runs.

    Every target is resolved before the first hook is set.

    Raises:
        UnknownNameError: a target does not exist.
        HookError: an intervention cannot act on its target, or on leaving, the model ran and never passed a target.
        WiringError: compiled or replaced modules would pass an intervention by.
    """
    planned: list[tuple[str, partial[Tensor], Direction]] = []
    for intervention in interventions:
        for name, head in resolve(registry, intervention):
            point = registry.points[name]
            change = intervention.change(point)
            hook = _accept(partial(_apply, registry, point, head, intervention, change))
            hook.by_row = acts_by_row(intervention, point)  # type: ignore[attr-defined]
            hook.by_place = acts_by_place(intervention, point)  # type: ignore[attr-defined]
            planned.append((name, hook, "fwd"))
    with holding(registry, planned):
        yield


def acts_by_row(intervention: Intervention, point: Point) -> bool:
    """Whether an intervention does the same to every row of a batch, whatever the others are."""
    if intervention.rows is not None or point.row_axis:
        return False
    if isinstance(intervention, Steer):
        return intervention.vector.ndim < len(point.axes)
    return type(intervention) in (Zero, Mean)


def acts_by_place(intervention: Intervention, point: Point) -> bool:
    """Whether an intervention does to each row what it does in the whole batch, once it knows which rows run."""
    knows_place = isinstance(intervention, PatchFrom) or getattr(intervention, "by_place", False)
    return acts_by_row(intervention, point) or (knows_place and intervention.rows is None and not point.row_axis)


def _accept(hook: partial[Tensor]) -> partial[Tensor]:
    """Drop TransformerLens's ``hook`` keyword, which interventions do not need."""

    def run(value: Tensor, hook: HookPoint, *, function: partial[Tensor]) -> Tensor:
        return function(value)

    return partial(run, function=hook)


def _apply(
    registry: HookRegistry,
    point: Point,
    head: int | None,
    intervention: Intervention,
    change: Change,
    value: Tensor,
) -> Tensor:
    state = registry.state
    axis = point.row_axis
    rows = _row_index(intervention.rows, value.shape[axis], registry, point)
    part = value if rows is None else value.index_select(axis, rows.to(value.device))
    if axis != 0 and rows is not None and state.block_rows is not None:
        return _edit_own_keys(value, rows, part, change, state)
    new = change(part, state)
    if new.shape != part.shape:
        raise HookError(
            f"{point.name}: {type(intervention).__name__} gave shape {tuple(new.shape)}, "
            f"expected {tuple(part.shape)} ({' '.join(point.axes)})"
        )
    region = _region(part, point, head, intervention.positions, state.offset.get(point.stack, 0))
    if region is not None:
        new = torch.where(region, new, part)
    return new if rows is None else value.index_copy(axis, rows.to(value.device), new.to(value.dtype))


def _edit_own_keys(value: Tensor, rows: Tensor, part: Tensor, change: Change, state: RunState) -> Tensor:
    """Edit the attention between series of one variant only, where several variants run as rows of one batch."""
    size = state.block_rows
    assert size is not None
    first = int(rows[0]) // size * size
    new = part.clone()
    new[..., first : first + size] = change(part[..., first : first + size], state)
    return value.index_copy(2, rows.to(value.device), new)


def _row_index(rows: Rows, n_rows: int, registry: HookRegistry, point: Point) -> Tensor | None:
    """Rows of the activation for the chosen series; a series may have several (samples, quantile paths).

    Patterns between variates have a row per token, so a series stands for the whole group that it belongs to.
    """
    if rows is None:
        return None
    state = registry.state
    variates = state.sizes.get("variate", 1)
    series = state.n_series or n_rows
    tokens = point.over == "variate" and point.axes == PATTERN and point.row_axis == 0
    units = series // variates if tokens else series
    if units < 1 or n_rows % units:
        raise HookError(f"{point.name} has {n_rows} rows in a run of {series} series; rows=… cannot be told apart")
    chosen = as_index(rows, units * variates if tokens else units, f"{point.name}: rows")
    if tokens:
        chosen = torch.unique(chosen // variates)
    rows_of_unit = n_rows // units
    if not registry.wiring.sample_major or not state.sizes:
        return (chosen[:, None] * rows_of_unit + torch.arange(rows_of_unit)[None]).reshape(-1)
    copies = max(1, state.sizes["series"] * variates // series)
    inner = rows_of_unit // copies
    starts = torch.arange(copies)[:, None, None] * units * inner + chosen[None, :, None] * inner
    return (starts + torch.arange(inner)[None, None]).reshape(-1)


def _region(part: Tensor, point: Point, head: int | None, positions: Rows, offset: int) -> Tensor | None:
    """Boolean mask over the part of an activation that changes, None for all of it."""
    masks = []
    if head is not None:
        masks.append(_along(part, point.axes.index("head"), torch.tensor([head])))
    if positions is not None:
        axis = point.axes.index("pos") if "pos" in point.axes else point.axes.index("query")
        length = part.shape[axis]
        if isinstance(positions, slice | torch.Tensor) and not _is_integers(positions):
            wanted = as_index(positions, offset + length, f"{point.name}: positions", clip=True)
        else:
            listed = torch.as_tensor(positions).reshape(-1)
            wanted = torch.where(listed < 0, listed + offset + length, listed)
        here = wanted[(wanted >= offset) & (wanted < offset + length)] - offset
        masks.append(_along(part, axis, here))
    if not masks:
        return None
    return masks[0] if len(masks) == 1 else masks[0] & masks[1]


def _is_integers(positions: object) -> bool:
    return isinstance(positions, Tensor) and positions.dtype != torch.bool


def _along(part: Tensor, axis: int, index: Tensor) -> Tensor:
    mask = torch.zeros(part.shape[axis], dtype=torch.bool)
    mask[index] = True
    return mask.reshape([-1 if i == axis else 1 for i in range(part.ndim)]).to(part.device)


def as_index(rows: Rows, length: int, what: str, *, clip: bool = False) -> Tensor:
    """Integer index from an int, a slice, integers or a boolean mask.

    Raises:
        InputError: an index is out of range, or a mask has the wrong length.
    """
    if isinstance(rows, slice):
        return torch.arange(length)[rows]
    index = torch.as_tensor(rows)
    if index.dtype == torch.bool:
        if len(index) != length and not clip:
            raise InputError(f"{what}: a mask of length {len(index)} for {length} entries")
        return torch.nonzero(index).reshape(-1)
    index = index.reshape(-1).long()
    if len(index) and not bool(((index >= -length) & (index < length)).all()):
        raise InputError(f"{what}: {index.tolist()} is out of range for {length} entries")
    return index % length if length else index
