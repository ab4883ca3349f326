"""Linear layers that leave out what a variant zeroes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import numpy as np
import torch
from torch import Tensor, nn

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.hooks.block import Block
from tsfm_lens.hooks.edit import resolve
from tsfm_lens.hooks.interventions import Zero
from tsfm_lens.hooks.registry import HookRegistry
from tsfm_lens.hooks.replay import shadowed
from tsfm_lens.hooks.wiring import Attention, Branch, Writer


def skipped(registry: HookRegistry, variants: Sequence[Variant]) -> Block[None]:
    """Leave out what is zeroed while the block runs; each variant is a block of rows."""
    dead: dict[str, set[int]] = defaultdict(set)
    for block, variant in enumerate(variants):
        for path in idle_layers(registry, variant):
            dead[path].add(block)
    modules = {path: registry.model.get_submodule(path) for path in dead}
    return shadowed(
        (module, partial(_sparse, module, copies=len(variants), dead=dead[path]))
        for path, module in modules.items()
        if type(module) is nn.Linear
    )


def idle_layers(registry: HookRegistry, variant: Variant) -> set[str]:
    """Return the paths of the layers whose output a variant throws away for all of its
    rows.
    """
    branches: set[str] = set()
    heads: dict[str, set[int]] = defaultdict(set)
    rest: set[tuple[str, int]] = set()
    for intervention in variant.interventions:
        full = (
            type(intervention) is Zero
            and intervention.rows is None
            and intervention.positions is None
        )
        for name, head in resolve(registry, intervention):
            point = registry.points[name]
            if full and name.endswith("hook_out") and point.kind:
                branches.add(name)
            elif full and head is not None and name.endswith("hook_z"):
                heads[name].add(head)
            else:
                # an edit in a layer may be carried around its branches
                rest.add((point.stack, point.layer))
    paths: set[str] = set()
    for name in (*branches, *heads):
        point = registry.points[name]
        stack = registry.wiring.stack(point.stack)
        row = stack.writer(point.kind, point.layer)
        is_whole = name in branches
        if (point.stack, point.layer) in rest or not _rows_lead(registry, row):
            continue
        if is_whole or len(heads[name]) == stack.n_heads:
            paths |= {
                f"{stack.block(point.layer)}.{path}"
                for path in _layers(row, writes=is_whole)
            }
    return paths


def _layers(row: Writer, *, writes: bool) -> set[str]:
    if isinstance(row, Attention):
        # keys and values of another stack have rows of their own
        projections = (row.q,) if row.keys_from else (row.q, row.k, row.v)
        return {part.module for part in projections} | (
            {row.o.module} if writes else set()
        )
    if isinstance(row, Branch):
        return set()
    return {row.i.module, row.o} | (
        {row.gate.module} if row.gate is not None else set()
    )


def _rows_lead(registry: HookRegistry, row: Writer) -> bool:
    """Return whether the variants are contiguous blocks along the first axis of
    everything in a branch.
    """
    layouts = (
        (row.stream_layout, row.z_layout, row.qkv_layout)
        if isinstance(row, Attention)
        else (row.write.layout,)
    )
    return not registry.wiring.sample_major and all(
        layout.startswith("batch ") for layout in layouts
    )


def _sparse(
    module: nn.Linear, forward: Callable[[Tensor], Tensor], copies: int, dead: set[int]
) -> Callable[[Tensor], Tensor]:
    """Return a linear layer that computes some blocks of rows only."""
    live = np.diff([0, *(block not in dead for block in range(copies)), 0])
    # runs of neighbouring blocks, as first and one past the last
    segments = np.flatnonzero(live).reshape(-1, 2).tolist()

    def sparse(x: Tensor) -> Tensor:
        if len(x) % copies or torch.is_grad_enabled():
            return forward(x)
        rows_each = len(x) // copies * prod(x.shape[1:-1])
        flat = x.reshape(-1, x.shape[-1])
        out = x.new_zeros(len(flat), module.out_features)
        for first, stop in segments:
            rows = slice(first * rows_each, stop * rows_each)
            if module.bias is None:
                torch.mm(flat[rows], module.weight.t(), out=out[rows])
            else:
                torch.addmm(module.bias, flat[rows], module.weight.t(), out=out[rows])
        return out.reshape(*x.shape[:-1], -1)

    return sparse
