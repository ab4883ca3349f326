"""Equivalence of two tables of one model: everything that a lens gives through them is equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from tsfm_lens.ablation.engine import Variant, run_variants
from tsfm_lens.errors import InputError
from tsfm_lens.hooks.component import Component, writers
from tsfm_lens.hooks.names import HEADS, HIDDEN, PATTERN, RESIDUAL
from tsfm_lens.hooks.wiring import Attention, Mlp
from tsfm_lens.models.lens import Lens
from tsfm_lens.testing.oracles import Case, relative

Shown = tuple[str, Any]
"""(what it is, a tensor or a plain value)."""


def behaviour(case: Case) -> Iterator[Shown]:
    """Yield all results of a lens, in one order: sizes, activations, weights, edits, variants, rollouts.

    Names of branches, of stacks, and of axes past the vocabulary's are left out: they are the table's own choice.
    """
    lens = case.lens
    yield from _sizes(lens)
    vocabulary = {*RESIDUAL, *HEADS, *PATTERN, *HIDDEN}
    for name, point in lens.registry.points.items():
        yield f"axes of {name}", (tuple(axis if axis in vocabulary else "own" for axis in point.axes), point.row_axis)
    with torch.no_grad():
        _, acts = case.captured
        for name in lens.registry.points:
            yield f"activation {name}", acts[name]
        yield from _weights(lens)
        last = lens.wiring.output_stack
        yield "readout", lens.readout(acts[f"{last.prefix}.{last.n_layers - 1}.hook_resid_post"], case.encoded)
        for name in lens.registry.points:
            with lens.hooks([(name, lambda value, hook: value * 1.25)]):
                yield f"edit of {name}", lens.forward(case.encoded)
        for stack in lens.wiring.stacks:
            variants = [Variant.zero(component) for component in writers(lens.wiring, stack.name)]
            yield f"variants of {stack.prefix}", run_variants(lens, case.encoded, variants)
        yield from _rollout(case)


def _sizes(lens: Lens) -> Iterator[Shown]:
    wiring = lens.wiring
    yield "true_gradients", wiring.true_gradients
    yield "number of hook points", len(lens.registry.points)
    order = [stack.name for stack in wiring.stacks]
    for stack in wiring.stacks:
        yield "sizes", (stack.n_layers, stack.n_heads, stack.d_model, stack.d_head, stack.d_mlp, stack.ln_final)
        for layer in range(stack.n_layers):
            for row in stack.rows(layer):
                if isinstance(row, Attention):
                    keys = order.index(row.keys_from) if row.keys_from else -1
                    kv_heads = row.heads_of("k", stack.n_heads)
                    yield "attention", (row.over, keys, kv_heads, row.row_axis, row.post_norm)
                else:
                    yield "mlp", (row.gate is None, row.post_norm)


def _weights(lens: Lens) -> Iterator[Shown]:
    for stack in lens.wiring.stacks:
        for layer in range(stack.n_layers):
            for row in stack.rows(layer):
                for fold in (False, True):
                    view: Any = lens.weights.mlp if isinstance(row, Mlp) else lens.weights.heads
                    for name, part in vars(view(layer, row.kind, stack.name, fold_norm=fold)).items():
                        yield f"{stack.prefix}.{layer}.{row.kind}.{name}", part
    for what in ("W_E", "W_U"):
        try:
            yield what, getattr(lens.weights, what)
        except InputError:
            yield what, None
    yield "embedding", torch.cat([part.flatten() for part in lens.weights.embedding().values()])
    yield "unembedding", torch.cat([part.flatten() for part in lens.weights.unembedding().values()])


def _rollout(case: Case) -> Iterator[Shown]:
    lens = case.lens
    draws: dict[str, Any] = {"num_samples": 2, "seed": 1} if lens.adapter.readout != "quantile" else {}
    longer = lens.adapter.rollout in ("cache", "refeed") and lens.adapter.joint_rollout
    horizon = lens.adapter.prediction_length + 1 if longer else case.horizon
    names = list(lens.registry.points)
    forecast, steps = lens.run_with_cache(case.batch, names_filter=names, rollout=True, horizon=horizon, **draws)
    yield "forecast", torch.as_tensor(forecast.quantiles)
    for name in names:
        for call in steps.calls(name):
            yield f"step and position of {name}", (call.step, call.offset)
            yield f"rollout {name}", call.value
    with lens.ablate(Component(lens.wiring.output_stack.name, 0), rows=[0]):
        yield "rows=[0]", torch.as_tensor(lens.forecast(case.batch, horizon, **draws).quantiles)
    with lens.ablate(Component(lens.wiring.output_stack.name, 0), positions=[1]):
        yield "positions=[1]", torch.as_tensor(lens.forecast(case.batch, horizon, **draws).quantiles)


def difference(case: Case, reference: Sequence[Shown]) -> str:
    """Return the first result of a lens that differs from the reference, in words; "" if there is none.

    Args:
        case: the model through the table in question.
        reference: ``list(behaviour(…))`` of the same model, series and weights through the right table.
    """
    try:
        count = 0
        for (name, value), (_, expected) in zip(behaviour(case), reference, strict=False):
            count += 1
            if not _same(value, expected):
                return name
        return "" if count == len(reference) else "less is given"
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _same(value: Any, expected: Any) -> bool:
    if isinstance(value, Tensor) and isinstance(expected, Tensor):
        if value.shape != expected.shape:
            return False
        value, expected = value.nan_to_num(), expected.nan_to_num()
        return torch.equal(value, expected) or relative(value, expected) <= 1e-5
    return type(value) is type(expected) and value == expected
