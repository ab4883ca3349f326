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
    """Skip layers in the rows of variants that zero their output.

    The rows of a batch are those of the first variant, then of the second, and so on.

    Returns:
        A block in which they are skipped.
    """
    # positions of the variants that do not need a layer, by its path
    idle: dict[str, set[int]] = defaultdict(set)
    for position, variant in enumerate(variants):
        for path in idle_layers(registry, variant):
            idle[path].add(position)
    modules = {path: registry.model.get_submodule(path) for path in idle}
    return shadowed(
        # only of a plain linear layer is the whole forward known: a subclass, such as
        # one of factors or of a quantised matrix, computes something else
        (module, partial(_skip_idle, module, copies=len(variants), idle=idle[path]))
        for path, module in modules.items()
        if type(module) is nn.Linear
    )


def idle_layers(registry: HookRegistry, variant: Variant) -> set[str]:
    """Return the layers whose output a variant does not use in any of its rows.

    They are linear layers, named by their paths in the model.
    """
    branches: set[str] = set()
    heads: dict[str, set[int]] = defaultdict(set)
    edited_layers: set[tuple[str, int]] = set()
    for intervention in variant.interventions:
        # a subclass of Zero may write something else than zeros
        zeroes_all = (
            type(intervention) is Zero
            and intervention.rows is None
            and intervention.positions is None
        )
        for name, head in resolve(registry, intervention):
            point = registry.points[name]
            # outputs without a kind, such as the unembedding's, are no branch's write
            if zeroes_all and name.endswith("hook_out") and point.kind:
                branches.add(name)
            elif zeroes_all and head is not None and name.endswith("hook_z"):
                heads[name].add(head)
            else:
                # Nothing in this layer is skipped: where a branch does not read the
                # stream itself (``aside`` in the wiring), an edit of its input is added
                # to its write.
                edited_layers.add((point.stack, point.layer))
    paths: set[str] = set()
    for name in (*branches, *heads):
        point = registry.points[name]
        stack = registry.wiring.stack(point.stack)
        writer = stack.writer(point.kind, point.layer)
        if (point.stack, point.layer) in edited_layers:
            continue
        if not _rows_lead(registry, writer):
            continue
        is_branch = name in branches
        if is_branch or len(heads[name]) == stack.n_heads:
            paths |= {
                f"{stack.block(point.layer)}.{path}"
                for path in _layers(writer, writes=is_branch)
            }
    return paths


def _layers(writer: Writer, *, writes: bool) -> set[str]:
    """Return the linear layers of a branch; the output one only if ``writes``."""
    if isinstance(writer, Attention):
        # another stack's keys and values need not have this stack's rows
        projections = (
            (writer.q,) if writer.keys_from else (writer.q, writer.k, writer.v)
        )
        paths = {projection.module for projection in projections}
        if writes:
            paths.add(writer.o.module)
        return paths
    # the wiring names no matrices of other branches
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


def _skip_idle(
    module: nn.Linear, forward: Callable[[Tensor], Tensor], copies: int, idle: set[int]
) -> Callable[[Tensor], Tensor]:
    """Return a linear layer's forward that leaves rows of ``idle`` variants at 0."""
    is_live = [position not in idle for position in range(copies)]
    # steps up and down alternate, so that each pair is the first variant of a run of
    # live neighbours, and the one after its last
    runs = np.flatnonzero(np.diff([0, *is_live, 0])).reshape(-1, 2).tolist()

    def skip_idle(x: Tensor) -> Tensor:
        # the rows are not those of the variants, or `out=`, which has no derivative,
        # cannot be used
        if len(x) % copies or torch.is_grad_enabled():
            return forward(x)
        flat = x.reshape(-1, x.shape[-1])
        # of ``flat``, whose rows are those of the batch times the axes between
        rows_per_variant = len(x) // copies * prod(x.shape[1:-1])
        out = x.new_zeros(len(flat), module.out_features)
        for first, stop in runs:
            rows = slice(first * rows_per_variant, stop * rows_per_variant)
            if module.bias is None:
                torch.mm(flat[rows], module.weight.t(), out=out[rows])
            else:
                torch.addmm(module.bias, flat[rows], module.weight.t(), out=out[rows])
        return out.reshape(*x.shape[:-1], -1)

    return skip_idle
