"""Writes to the stream that is read out, and its readout, each held against the model's own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from tsfm_lens.errors import InputError, WiringError
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.hooks.names import RESIDUAL_NAMES
from tsfm_lens.hooks.residual import Place, carry_factors, excess, first_deviation, no_sum
from tsfm_lens.models.lens import Lens
from tsfm_lens.models.noise import own_rounding, relative_rounding
from tsfm_lens.models.run import Run

__all__ = ["component_writes"]

_SUMMED = ("hook_out", "hook_result", *RESIDUAL_NAMES, "hook_resid_post")


def component_writes(run: Run) -> tuple[list[Component | str], Tensor]:
    """Return what the embedding, every head and every MLP write: names and (component, series, pos, d_model).

    Raises:
        WiringError: the writes do not sum to the model's own last stream; names where they first differ from it.
        InputError: the same, under hooks that edit the stream itself.

    Example:
        >>> names, writes = probes.component_writes(run)
        >>> names[0], len(names) == len(writes)
        ('embed', True)
    """
    names, writes, _ = writes_and_stream(run)
    return names, writes


def writes_and_stream(run: Run) -> tuple[list[Component | str], Tensor, Tensor]:
    """Return names and writes of :func:`component_writes`, and the model's own last stream (series, pos, d_model).

    All are of one forward, and compared: the writes sum to the stream up to rounding.
    """
    lens, model = run.lens, run.lens.model
    stack = lens.wiring.output_stack
    dot = f"{stack.name}." if stack.name else ""
    components = writers(lens.wiring)
    heads = sorted({f"{stack.prefix}.{c.layer}.{c.kind}.hook_result" for c in components if c.head is not None})
    branches = [f"{stack.prefix}.{c.layer}.{c.kind}.hook_out" for c in components if c.head is None]
    end = f"{stack.prefix}.{stack.n_layers - 1}.hook_resid_post"
    acts = run.in_one_pass().record([f"{dot}hook_embed", *heads, *branches, end])
    with torch.no_grad():
        # where blocks rescale the stream, every later scale is part of a write
        factors = carry_factors(model, stack)
        parts = [acts[f"{dot}hook_embed"] * factors["embed"]]
        for component in components:
            assert component.kind is not None
            at = f"{stack.prefix}.{component.layer}.{component.kind}"
            if component.head is None:
                write = acts[f"{at}.hook_out"]
            else:
                write = acts[f"{at}.hook_result"][..., component.head, :]
            parts.append(write * factors[component.layer, component.kind])
        bias = _biases(lens, factors)
        names: list[Component | str] = ["embed", *components]
        if bias is not None:
            names.append("bias")
            parts.append(bias.expand_as(parts[0]))
        writes, last = torch.stack(parts), acts[end]
        apart = excess(writes.sum(0), writes.abs().sum(0), last, relative_rounding(lens))
        if apart is not None:
            points = [name for name in lens.registry.points if name.startswith(f"{stack.prefix}.")]
            sums = run.in_one_pass().record([name for name in points if name.endswith(_SUMMED)])
            first = first_deviation(model, lens.wiring, stack, sums)
            raise no_sum(lens.wiring, f"that is read out ({end})", apart, first, edited_points(lens))
    return names, writes, last


def own_readout(run: Run, last: Tensor) -> Tensor:
    """Read out the model's own last stream.

    Args:
        run: the forecast.
        last: the stream after the last block, (series, pos, d_model).

    Returns:
        The output of :meth:`Lens.readout`, up to rounding that of the run's own forward.

    Raises:
        WiringError: the outputs differ; the adapter's ``final_norm`` and ``head`` are not the model's.
        InputError: the outputs differ, under hooks.
    """
    single = run.in_one_pass()
    output = run.lens.readout(last, run.encoded)
    forecast = single.read(output.detach()).cpu().double().numpy()
    apart = np.abs(forecast - single.point)
    apart[(forecast == single.point) | (np.isnan(forecast) & np.isnan(single.point))] = 0.0
    bound = own_rounding(single)
    wrong = ~(apart.max(-1) <= bound)
    if wrong.any():
        row = int(wrong.argmax())
        message = (
            f"the last residual stream, read out by {run.lens.wiring.architecture!r}, is off the model's own forecast "
            f"of series {run.batch.ids[row]!r} by up to {apart[row].max():.3g}, and rounding allows {bound[row]:.1g}"
        )
        hooked = edited_points(run.lens)
        if hooked:
            raise InputError(
                f"{message}. Hooks are set at {', '.join(hooked)}, and what they change behind the last block is in no "
                "readout of a stream; decompose a run without them"
            )
        raise WiringError(
            f"{message}. ln_final, or final_norm or head of the adapter, is not what the model does behind its last "
            "block, which testing.check_wiring tells"
        )
    return output


def edited_points(lens: Lens) -> list[str]:
    """Return hook points that have a hook now."""
    return [name for name, point in lens.registry.hooked.items() if point.fwd_hooks]


def _biases(lens: Lens, factors: Mapping[Place, float]) -> Tensor | None:
    """Sum what the attentions' output projections add whatever their heads do, None where there is no bias."""
    stack = lens.wiring.output_stack
    total = None
    for layer in range(stack.n_layers):
        for row in stack.attentions(layer):
            scale = lens.weights.scale(layer, row.kind, stack.name) * factors[layer, row.kind]
            bias = lens.weights.b_O(layer, row.kind, stack.name) * scale
            if not row.post_norm and bool(bias.any()):
                total = bias if total is None else total + bias
    return total
