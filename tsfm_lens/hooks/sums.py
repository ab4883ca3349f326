"""Residual streams against the sum of their writes: nothing may claim the sum where it does not hold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from tsfm_lens.errors import InputError, LensError, UnknownNameError, WiringError
from tsfm_lens.hooks.hook_table import HookTable
from tsfm_lens.hooks.names import RESIDUAL_NAMES
from tsfm_lens.hooks.stream import Recorded
from tsfm_lens.hooks.weights import Weights
from tsfm_lens.hooks.wiring import Attention, Stack, Wiring
from tsfm_lens.hooks.writes import Before

# half precision may not make a deviation of any size pass for rounding
_MOST = 0.1


def relative_rounding(model: nn.Module, wiring: Wiring) -> float:
    """Estimate the relative rounding error of a forward's numbers: the square root of 100 roundings per block."""
    blocks = sum(stack.n_layers for stack in wiring.stacks)
    kinds = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    float32 = torch.finfo(torch.float32).eps
    return math.sqrt(100 * blocks) * max((torch.finfo(kind).eps for kind in kinds), default=float32)


def excess(total: Tensor, size: Tensor, stream: Tensor, rounding: float) -> tuple[float, float] | None:
    """Return the largest deviation of a sum from a stream, and the rounding there; None where no row exceeds it.

    Args:
        total: sum of the writes, (row, pos, d_model).
        size: sum of their absolute values, likewise; rounding grows with it.
        stream: the target of the sum, likewise.
        rounding: see :func:`relative_rounding`.
    """
    same = (total == stream) | (total.isnan() & stream.isnan())
    gap = _by_row((total - stream).abs().masked_fill(same, 0.0)).amax(1)
    bound = min(rounding, _MOST) * _by_row(size.nan_to_num(0.0, 0.0, 0.0)).amax(1)
    wrong = ~(gap <= bound)
    if not bool(wrong.any()):
        return None
    row = int(gap.nan_to_num(math.inf).masked_fill(~wrong, -1.0).argmax())
    return float(gap[row]), float(bound[row])


def _by_row(tensor: Tensor) -> Tensor:
    """Flatten all axes but the row's; all of them where that one is gone."""
    return tensor.flatten(1) if tensor.ndim > 2 else tensor.reshape(1, -1)


def branch_sums(model: nn.Module, wiring: Wiring, stack: Stack, acts: Recorded) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Compare every branch by itself: its heads with its write, and the stream after it with the one before and that.

    Args:
        acts: all ``hook_resid_*``, ``hook_out`` and ``hook_result`` of the stack.

    Yields:
        The place, the model's value there, and the sum that it should equal, (row, pos, d_model).
    """
    weights = Weights(model, wiring)
    for layer in range(stack.n_layers):
        at, rows = f"{stack.prefix}.{layer}", stack.rows(layer)
        block = model.get_submodule(stack.block(layer))
        if layer > 0:
            before = acts[f"{stack.prefix}.{layer - 1}.hook_resid_post"]
            yield f"{at}.hook_resid_pre", acts[f"{at}.hook_resid_pre"], before
        after = (*RESIDUAL_NAMES[1 : len(rows)], "hook_resid_post")
        for name, row, next_name in zip(RESIDUAL_NAMES, rows, after, strict=False):
            write = acts[f"{at}.{row.kind}.hook_out"]
            if isinstance(row, Attention):
                heads = acts[f"{at}.{row.kind}.hook_result"].sum(dim=-2)
                place = (layer, row.kind, stack.name)
                bias = 0.0 if row.post_norm else weights.b_O(*place) * weights.scale(*place)
                yield f"{at}.{row.kind}: heads", write, heads + bias
            gain = 1.0 if row.mix is None else row.mix(block)[1]
            yield f"{at}.{next_name}", acts[f"{at}.{next_name}"], acts[f"{at}.{name}"] * gain + write


def first_deviation(model: nn.Module, wiring: Wiring, stack: Stack, acts: Recorded) -> str:
    """Name the first place of :func:`branch_sums` that deviates by more than rounding, "" if none does by itself."""
    rounding = relative_rounding(model, wiring)
    for name, actual, target in branch_sums(model, wiring, stack, acts):
        if excess(target, actual.abs() + target.abs(), actual, rounding) is not None:
            return name
    return ""


def no_sum(
    wiring: Wiring, where: str, apart: tuple[float, float], first: str = "", points: Sequence[str] = ()
) -> LensError:
    """Compose the error for a stream that is not the sum of the writes that a wiring declares.

    Args:
        where: the stream.
        apart: see :func:`excess`.
        first: see :func:`first_deviation`.
        points: hook points that are edited now.
    """
    message = (
        f"the writes of the wiring {wiring.architecture!r} do not sum to the residual stream {where}: they are off by "
        f"{apart[0]:.3g}, and rounding allows {apart[1]:.1g}"
        + (f"; the first place to differ is {first}" if first else "")
    )
    if points:
        return InputError(
            f"{message}. Hooks are set at {', '.join(points)}; an edit of the stream itself is no write, and one of an "
            "attention's whole output is no head's. Decompose a run without, or edit hook_z or an MLP's hook_out"
        )
    return WiringError(
        f"{message}. A norm after the sum (post-norm) leaves no sum of writes to decompose, and neither does a hook "
        "that edits the stream itself; else a row is missing there, or its write, post_norm, mix or o is not the "
        "model's, which testing.check_wiring tells"
    )


@torch.no_grad()
def refuse_other_stream(place: Before, source: HookTable) -> None:
    """Refuse a place whose stream is not the sum of the writes before it; nothing where one was not recorded.

    Raises:
        WiringError: says by how much they differ.
    """
    try:
        stream, total = place.stream(), place.embed()
        writes = [place.branch(layer, row) for layer, row in place.writers()]
    except UnknownNameError:
        return
    size = total.abs()
    for write in writes:
        total, size = total + write, size + write.abs()
    apart = excess(total, size, stream, relative_rounding(source.model, source.wiring))
    if apart is not None:
        at = "at its end" if place.at_the_end else f"in layer {place.layer}"
        raise no_sum(source.wiring, f"of stack {place.stack.name!r} {at}", apart)
