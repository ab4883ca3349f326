"""Linear layers that leave out what a variant zeroes.

Read :func:`skipped`: where a variant throws a layer's output away, the layer is not
computed for that variant's rows. The zeros themselves are set by the interventions of
:mod:`tsfm_lens.hooks.edit`, not here.
"""

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
    """Leave out what variants zero, while the block runs.

    Each variant is a block of rows.
    """
    dead: dict[str, set[int]] = defaultdict(set)
    for block, variant in enumerate(variants):
        for path in idle_layers(registry, variant):
            dead[path].add(block)
    modules = {path: registry.model.get_submodule(path) for path in dead}
    return shadowed(
        # only of a plain linear layer is the whole forward known: a subclass, such as
        # one of factors or of a quantised matrix, computes something else
        (module, partial(_sparse, module, copies=len(variants), dead=dead[path]))
        for path, module in modules.items()
        if type(module) is nn.Linear
    )


def idle_layers(registry: HookRegistry, variant: Variant) -> set[str]:
    """Return the layers whose output a variant throws away for all its rows.

    Layers are named by their paths in the model.
    """
    branches: set[str] = set()
    heads: dict[str, set[int]] = defaultdict(set)
    edited_layers: set[tuple[str, int]] = set()
    for intervention in variant.interventions:
        # the very class: a subclass may put anything in place
        zeroes_all = (
            type(intervention) is Zero
            and intervention.rows is None
            and intervention.positions is None
        )
        for name, head in resolve(registry, intervention):
            point = registry.points[name]
            if zeroes_all and name.endswith("hook_out") and point.kind:
                branches.add(name)
            elif zeroes_all and head is not None and name.endswith("hook_z"):
                heads[name].add(head)
            else:
                # an edit in a layer may be carried around its branches
                edited_layers.add((point.stack, point.layer))
    paths: set[str] = set()
    for name in (*branches, *heads):
        point = registry.points[name]
        stack = registry.wiring.stack(point.stack)
        writer = stack.writer(point.kind, point.layer)
        is_branch = name in branches
        if (point.stack, point.layer) in edited_layers or not _rows_lead(
            registry, writer
        ):
            continue
        if is_branch or len(heads[name]) == stack.n_heads:
            paths |= {
                f"{stack.block(point.layer)}.{path}"
                for path in _layers(writer, writes=is_branch)
            }
    return paths


def _layers(writer: Writer, *, writes: bool) -> set[str]:
    """Return the linear layers of a branch; the output one only if ``writes``."""
    if isinstance(writer, Attention):
        # keys and values of another stack have rows of their own
        projections = (
            (writer.q,) if writer.keys_from else (writer.q, writer.k, writer.v)
        )
        paths = {projection.module for projection in projections}
        if writes:
            paths.add(writer.o.module)
        return paths
    # its matrices are not in the table
    if isinstance(writer, Branch):
        return set()
    paths = {writer.i.module, writer.o}
    if writer.gate is not None:
        paths.add(writer.gate.module)
    return paths


def _rows_lead(registry: HookRegistry, writer: Writer) -> bool:
    """Return whether variants are contiguous blocks of a branch's first axis.

    This must hold for every tensor in the branch.
    """
    layouts: tuple[str, ...]
    if isinstance(writer, Attention):
        layouts = (writer.stream_layout, writer.z_layout, writer.qkv_layout)
    else:
        layouts = (writer.write.layout,)
    return not registry.wiring.sample_major and all(
        layout.startswith("batch ") for layout in layouts
    )


def _sparse(
    module: nn.Linear, forward: Callable[[Tensor], Tensor], copies: int, dead: set[int]
) -> Callable[[Tensor], Tensor]:
    """Return a linear layer's forward that leaves the ``dead`` blocks of rows at 0."""
    # 1 where a run of live blocks begins, and -1 where it ends
    live = np.diff([0, *(block not in dead for block in range(copies)), 0])
    # runs of neighbouring blocks, as first and one past the last
    segments = np.flatnonzero(live).reshape(-1, 2).tolist()

    def sparse(x: Tensor) -> Tensor:
        # `out=` has no derivative, and rows must fall into as many equal blocks
        if len(x) % copies or torch.is_grad_enabled():
            return forward(x)
        # rows of the matrix that x is for a linear layer, (batch · pos, features)
        block_rows = len(x) // copies * prod(x.shape[1:-1])
        flat = x.reshape(-1, x.shape[-1])
        out = x.new_zeros(len(flat), module.out_features)
        for first, stop in segments:
            rows = slice(first * block_rows, stop * block_rows)
            if module.bias is None:
                torch.mm(flat[rows], module.weight.t(), out=out[rows])
            else:
                torch.addmm(module.bias, flat[rows], module.weight.t(), out=out[rows])
        return out.reshape(*x.shape[:-1], -1)

    return sparse
