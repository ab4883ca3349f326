"""Values for interventions that come from other runs."""

from __future__ import annotations

import torch
from torch import Tensor

from tsfm_lens.errors import HookError
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.names import Point
from tsfm_lens.hooks.registry import RunState


def position_means(reference: Activations, point: Point) -> tuple[Tensor, Tensor]:
    """Mean over all rows of a reference run, by token position.

    Returns:
        means (pos, …) and counts (pos,): rows that entered each mean, 0 where a position never occurred.

    Raises:
        HookError: the activation has no token axis to average along.
        UnknownNameError: the reference does not hold this hook point.
    """
    if len(point.axes) < 2 or point.axes[1] != "pos":
        raise HookError(f"{point.name} has axes {' '.join(point.axes)}; a mean needs batch pos …")
    calls = reference.calls(point.name)
    length = max(call.offset + call.value.shape[1] for call in calls)
    first = calls[0].value
    total = torch.zeros(length, *first.shape[2:], dtype=torch.float64, device=first.device)
    counts = torch.zeros(length, dtype=torch.float64, device=first.device)
    for call in calls:
        at = slice(call.offset, call.offset + call.value.shape[1])
        total[at] += call.value.sum(dim=0)
        counts[at] += len(call.value)
    means = total / counts.clamp(min=1).reshape(-1, *[1] * (total.ndim - 1))
    return means.to(first.dtype), counts


def source_rows(source: Activations, point: Point, value: Tensor, state: RunState) -> Tensor:
    """The stored activation for the step and token positions at which a run stands now.

    Returns:
        (source rows, …) with the token axes of ``value``.

    Raises:
        HookError: the source run never was at this step and these positions.
        UnknownNameError: the source does not hold this hook point.
    """
    offset = state.offset.get(point.stack, 0)
    calls = source.calls(point.name)
    for call in calls:
        if call.step == state.step and call.offset == offset and call.value.shape[1:] == value.shape[1:]:
            return call.value
    if not source.rollout and len(calls) == 1 and point.axes[1] == "pos":
        whole = calls[0].value
        part = whole[:, offset : offset + value.shape[1]]
        if part.shape[1:] == value.shape[1:]:
            return part
    raise HookError(
        f"{point.name}: the source run has no activation of shape (…, {', '.join(map(str, value.shape[1:]))}) at "
        f"step {state.step}, position {offset}; it has {len(calls)} of shape {tuple(calls[0].value.shape)}. "
        "Both runs need the same context length and horizon."
    )
