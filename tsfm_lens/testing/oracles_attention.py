"""Oracles inside attention: patterns, masks, and the order of heads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from einops import rearrange
from torch import Tensor

from tsfm_lens.hooks.names import HEADS, PATTERN, RESIDUAL
from tsfm_lens.hooks.native import to_native, to_vocabulary
from tsfm_lens.hooks.replay import recorded_calls
from tsfm_lens.hooks.weights import for_every_head
from tsfm_lens.hooks.wiring import Attention, Projection
from tsfm_lens.models.lens import Lens
from tsfm_lens.testing.oracles import (
    ONE_BLOCK,
    Case,
    Deviations,
    Row,
    branches,
    first_stream,
    layers_to_check,
    oracle,
    relative,
    with_tensor,
)


@oracle(
    5,
    "patterns",
    ONE_BLOCK,
    "`qkv_layout`, `z_layout`, `over`, `keys_from`, `n_kv_heads`",
    "no attention",
)
def patterns(case: Case) -> Deviations:
    """Check that pattern rows sum to 1 and pay nothing to masked keys, and that pattern
    · v = z.
    """
    lens = case.lens
    activations = case.acts
    for stack in lens.wiring.stacks:
        for _, _, row, at, _ in branches(stack):
            if not isinstance(row, Attention):
                continue
            pattern, v, z = (
                activations[f"{at}.hook_{name}"] for name in ("pattern", "v", "z")
            )
            if row.over == "time":
                names = (
                    first_stream(stack),
                    first_stream(lens.wiring.stack(row.keys_from or stack.name)),
                )
                expected = tuple(activations[name].shape[1] for name in names)
            else:
                expected = (
                    lens.registry.state.sizes.get("variate", len(case.batch)),
                ) * 2
            yield (
                f"{at}: over={row.over!r}",
                0.0 if tuple(pattern.shape[-2:]) == expected else math.inf,
            )
            empty = pattern.abs().sum(dim=-1) == 0
            yield (
                f"{at}: rows",
                float((pattern.sum(dim=-1) - 1).masked_fill(empty, 0).abs().max()),
            )
            rebuilt = _attend(lens, row, pattern, for_every_head(v, z.shape[-2]))
            yield f"{at}: z", relative(_gated(case, row, at, rebuilt), z)
            scores = activations[f"{at}.hook_attn_scores"]
            mask = scores <= torch.finfo(scores.dtype).min / 2
            mask &= ~mask.all(dim=-1, keepdim=True)
            yield f"{at}: mask", float(pattern.masked_fill(~mask, 0).abs().max())
            if pattern.shape[-1] == pattern.shape[-2] and at.startswith("decoder"):
                yield f"{at}: causal", float(pattern.triu(1).abs().max())


def _attend(lens: Lens, row: Attention, pattern: Tensor, v: Tensor) -> Tensor:
    """Compute pattern · v in the layout of the native attention call, as (batch, pos,
    head, d_head).
    """
    sizes = {**lens.registry.state.sizes, "head": v.shape[-2]}
    values = to_native(v, row.qkv_layout, HEADS, sizes)
    return to_vocabulary(
        to_native(pattern, row.pattern_layout, PATTERN, sizes) @ values,
        row.qkv_layout,
        HEADS,
        sizes,
    )


def _gated(case: Case, row: Attention, at: str, heads: Tensor) -> Tensor:
    """Multiply pattern · v by the gate, if there is one."""
    if row.gate:
        return heads * case.acts[f"{at}.hook_gate"].sigmoid()
    return heads


@oracle(
    10,
    "head order",
    ONE_BLOCK,
    "module, `layout`, `part` of `q`, `k` or `v`; `n_kv_heads`",
    "no attention",
)
def head_order(case: Case) -> Deviations:
    """Check that a head's pattern and W_V rows rebuild its z, and that without W_Q, W_K
    or W_V it has no q, k or v.
    """
    lens = case.lens
    activations = case.acts
    for stack in lens.wiring.stacks:
        positions = [(item, item.row) for item in branches(stack)]
        heads = [
            (branch, row) for branch, row in positions if isinstance(row, Attention)
        ]
        paths = {
            branch.at: f"{stack.block(branch.layer)}.{row.v.module}"
            for branch, row in heads
        }
        with recorded_calls(lens.adapter.model, paths.values()) as calls:
            lens.forward(case.encoded)
        for branch, row in heads:
            # an attention that holds the matrices itself takes query, key and value
            native = calls[paths[branch.at]][-1].given(
                0 if row.v.weight == "weight" else 2
            )
            sizes = {**lens.registry.state.sizes, "head": stack.n_heads}
            x = to_vocabulary(
                native, row.x_layout or row.stream_layout, RESIDUAL, sizes
            )
            weights = lens.weights.heads(branch.layer, row.kind, stack.name)
            v = torch.einsum("bpd,hdc->bphc", x, weights.W_V) + weights.b_V
            z = _attend(lens, row, activations[f"{branch.at}.hook_pattern"], v)
            yield (
                branch.at,
                relative(
                    _gated(case, row, branch.at, z), activations[f"{branch.at}.hook_z"]
                ),
            )
        for branch, row in heads:
            if branch.layer in layers_to_check(stack):
                yield from _owners(case, branch, row)


def _owners(case: Case, branch: Row, row: Attention) -> Deviations:
    """Check that zeroing a head's rows of one input projection zeroes that head's q, k
    or v and nothing else.
    """
    points = {letter: f"{branch.at}.hook_{letter}" for letter in row.inputs}
    for letter, projection in row.inputs.items():
        n_heads = row.count_heads(letter, branch.stack.n_heads)
        head = min(1, n_heads - 1)
        # rotary embeddings, norms and scales between the projection and the dot product
        # map zero to zero
        with _zeroed_rows(case.lens, branch, projection, head, n_heads):
            _, without = case.lens.run_with_cache(
                case.encoded, names_filter=list(points.values())
            )
        for other, point in points.items():
            expected = case.acts[point].clone()
            if other == letter:
                expected[:, :, head] = 0.0
            yield (
                f"{branch.at}: {other} without W_{letter.upper()}",
                relative(without[point], expected),
            )


@contextmanager
def _zeroed_rows(
    lens: Lens, branch: Row, projection: Projection, head: int, n_heads: int
) -> Iterator[None]:
    """Zero a head's rows of an input projection, and of its bias, in the native model
    while the block runs.
    """
    module = lens.adapter.model.get_submodule(
        f"{branch.stack.block(branch.layer)}.{projection.module}"
    )
    sizes = {
        "head": n_heads,
        **({"part": projection.parts} if projection.parts > 1 else {}),
    }
    axes = "head d_head"
    if projection.parts > 1:
        axes = "part head d_head"
    with ExitStack() as changes:
        for name in (projection.weight, projection.bias):
            tensor = getattr(module, name, None)
            if tensor is not None:
                rest = ""
                if tensor.ndim > 1:
                    rest = " d_model"
                rows = rearrange(
                    tensor.detach(),
                    f"{projection.layout}{rest} -> {axes}{rest}",
                    **sizes,
                ).clone()
                (rows[projection.part] if projection.parts > 1 else rows)[head] = 0.0
                values = rearrange(rows, f"{axes}{rest} -> {projection.layout}{rest}")
                changes.enter_context(with_tensor(module, name, values))
        yield
