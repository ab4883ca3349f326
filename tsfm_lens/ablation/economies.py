"""Savings of a fanned-out rollout: an encoder that variants share runs once, and zeroed layers do not run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from tsfm_lens.ablation.engine import Variant
from tsfm_lens.hooks.edit import resolve
from tsfm_lens.hooks.interventions import Zero
from tsfm_lens.hooks.registry import HookRegistry
from tsfm_lens.hooks.repeated import Repeated
from tsfm_lens.hooks.replay import map_tensors, shadowed
from tsfm_lens.hooks.wiring import Attention, Writer


class SharedSource:
    """Encoder that runs once for all variants of a batch that share it; ``rows`` are the series of one variant."""

    def __init__(self, encoder: nn.Module, rows: int) -> None:
        self._encoder, self._rows = encoder, rows
        self._memo: tuple[list[Tensor], Any] | None = None

    def serving(self, copies: int, *, is_shared: bool) -> AbstractContextManager[None]:
        """Serve a run of so many variants while the block runs; shared if none of them changes the encoder."""
        return shadowed([(self._encoder, lambda forward: partial(self._encode, forward, copies if is_shared else 1))])

    def _encode(self, forward: Callable[..., Any], copies: int, *args: Any, **kwargs: Any) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        if copies == 1 or not all(_alike(leaf, copies) for leaf in leaves if isinstance(leaf, Tensor)):
            # the paths of a series share its states all the same
            return self._repeat(forward(*args, **kwargs), 1)
        leaves = [leaf[: len(leaf) // copies] if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if self._memo is not None and _same(self._memo[0], tensors):
            return self._repeat(self._memo[1], copies)
        args, kwargs = tree_unflatten(leaves, spec)
        output = forward(*args, **kwargs)
        # the first pass over the batch is the one that comes again
        self._memo = self._memo or ([tensor.clone() for tensor in tensors], output)
        return self._repeat(output, copies)

    def _repeat(self, output: Any, copies: int) -> Any:
        """Repeat the rows of an encoder's output for so many variants."""

        def repeat(tensor: Tensor) -> Tensor:
            return Repeated(tensor, copies) if tensor.ndim > 0 and not len(tensor) % self._rows else tensor

        return map_tensors(output, repeat)


def _alike(tensor: Tensor, copies: int) -> bool:
    """Return whether a tensor holds the same rows for every variant."""
    if tensor.ndim == 0 or len(tensor) % copies:
        return False
    blocks = tensor.unflatten(0, (copies, -1))
    return torch.equal(blocks, blocks[:1].expand_as(blocks))


def _same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(x.shape == y.shape and torch.equal(x, y) for x, y in zip(a, b, strict=True))


def skipped(registry: HookRegistry, variants: Sequence[Variant]) -> AbstractContextManager[None]:
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
    """Return the paths of the layers whose output a variant throws away for all of its rows."""
    branches: set[str] = set()
    heads: dict[str, set[int]] = defaultdict(set)
    others: set[tuple[str, int]] = set()
    for intervention in variant.interventions:
        whole = type(intervention) is Zero and intervention.rows is None and intervention.positions is None
        for name, head in resolve(registry, intervention):
            point = registry.points[name]
            if whole and name.endswith("hook_out") and point.kind:
                branches.add(name)
            elif whole and head is not None and name.endswith("hook_z"):
                heads[name].add(head)
            else:
                # an edit in a layer may be carried around its branches
                others.add((point.stack, point.layer))
    paths: set[str] = set()
    for name in (*branches, *heads):
        point = registry.points[name]
        stack = registry.wiring.stack(point.stack)
        row, is_whole = stack.writer(point.kind, point.layer), name in branches
        if (point.stack, point.layer) in others or not _rows_lead(registry, row):
            continue
        if is_whole or len(heads[name]) == stack.n_heads:
            paths |= {f"{stack.block(point.layer)}.{path}" for path in _layers(row, writes=is_whole)}
    return paths


def _layers(row: Writer, *, writes: bool) -> set[str]:
    if isinstance(row, Attention):
        # keys and values of another stack have rows of their own
        projections = (row.q,) if row.keys_from else (row.q, row.k, row.v)
        return {part.module for part in projections} | ({row.o.module} if writes else set())
    return {row.i.module, row.o} | ({row.gate.module} if row.gate is not None else set())


def _rows_lead(registry: HookRegistry, row: Writer) -> bool:
    """Return whether the variants are contiguous blocks along the first axis of everything in a branch."""
    layouts = (row.stream_layout, row.z_layout, row.qkv_layout) if isinstance(row, Attention) else (row.pre.layout,)
    return not registry.wiring.sample_major and all(layout.startswith("batch ") for layout in layouts)


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
