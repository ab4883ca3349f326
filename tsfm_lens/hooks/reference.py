"""Values from other runs, for interventions."""

from __future__ import annotations

import torch
from torch import Tensor

from tsfm_lens.errors import HookError
from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.names import Point
from tsfm_lens.hooks.state import RunState


def position_means(reference: Activations, point: Point) -> tuple[Tensor, Tensor]:
    """Compute the mean over all rows of a reference run, by token position.

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
    """Return the stored activation for the current step and token positions of a run.

    Returns:
        (source rows, …) with the token axes of ``value``.

    Raises:
        HookError: the source run has no activation of this step and these positions.
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
        "Both runs need the same context length and horizon: record the source at the horizon of this run "
        "(lens.ablate has the argument horizon for its reference)."
    )


def rows_in_place(source: Activations, point: Point, value: Tensor, state: RunState) -> Tensor:
    """Return the rows of :func:`source_rows`; of a source of a whole batch, those of the part that runs."""
    rows = source_rows(source, point, value, state)
    if state.whole is None or len(rows) == 1:
        return rows
    if len(rows) < state.whole and state.whole % len(rows) == 0:
        copies = state.whole // len(rows)
        rows = rows.repeat(copies, *[1] * (rows.ndim - 1)) if state.sample_major else rows.repeat_interleave(copies, 0)
    return rows if len(rows) % state.whole else state.own(rows)


def drawn_rows(reference: Activations, n_source: int, n_rows: int, state: RunState, rows: object, seed: int) -> Tensor:
    """Draw the rows of a reference run that replace rows of this one, one reference series per series.

    Args:
        reference: the recorded run.
        n_source, n_rows: rows that the hook point has there and rows to replace here; several a series where it has
            sample or quantile paths.
        state: of this run.
        rows: the series to replace, as an intervention has them; all if None.
        seed: of the draw.

    Returns:
        (n_rows,) indices below ``n_source``.
    """
    series = state.n_series or n_rows
    index = torch.arange(series) if rows is None else torch.as_tensor(_indices(rows, series))
    # rows of several variants side by side draw what each would draw alone
    place = index % (state.block_rows or series)
    n_reference = len(reference.ids) or n_source
    if n_rows % len(place) or n_source % n_reference:
        # rows that are no series: the tokens of a pattern between variates
        place, n_reference = torch.arange(n_rows), n_source
    generator = torch.Generator().manual_seed(seed)
    # drawn in the order of the series, so that a choice of rows draws as all rows do
    draws = torch.randint(n_reference, (max(n_rows, state.block_rows or series),), generator=generator)[place]
    paths, rows_of_source = n_rows // len(place), n_source // n_reference
    path = torch.arange(paths) % rows_of_source
    if state.sample_major:
        return (path[:, None] * n_reference + draws[None]).reshape(-1)
    return (draws[:, None] * rows_of_source + path[None]).reshape(-1)


def _indices(rows: object, series: int) -> list[int]:
    """Return rows, in any of the forms that an intervention takes, as indices from 0."""
    selection = torch.arange(series)[rows if isinstance(rows, slice) else torch.as_tensor(rows)]
    return [int(index) for index in selection.reshape(-1)]
