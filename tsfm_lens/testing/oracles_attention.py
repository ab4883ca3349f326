"""Oracles inside attention: patterns, masks, and the order of heads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from einops import rearrange
from torch import Tensor

from tsfm_lens.hooks.activations import Activations
from tsfm_lens.hooks.names import HEADS, PATTERN, RESIDUAL
from tsfm_lens.hooks.native import to_native, to_vocabulary
from tsfm_lens.hooks.replay import recorded_calls
from tsfm_lens.hooks.weights import for_every_head
from tsfm_lens.hooks.wiring import Attention, Projection, Stack
from tsfm_lens.models.lens import Lens
from tsfm_lens.testing.oracles import ONE_BLOCK, Case, OracleResult, _worst, layers_to_check, relative, with_tensor


def patterns(case: Case) -> OracleResult:
    """Check oracle 5: pattern rows sum to 1, pay nothing to masked keys, and pattern · v = z.

    Holds of a model without attention, and says so.
    """
    _, acts = case.captured
    deviations = {}
    for name in acts:
        if not name.endswith("hook_pattern"):
            continue
        at = name.removesuffix(".hook_pattern")
        pattern, v, z = acts[name], acts[f"{at}.hook_v"], acts[f"{at}.hook_z"]
        point = case.lens.registry.points[name]
        row = case.lens.wiring.stack(point.stack).attention(point.kind, point.layer)
        deviations[f"{at}: over={row.over!r}"] = _size_error(case, row, point.stack, pattern)
        rows = pattern.sum(dim=-1)
        empty = pattern.abs().sum(dim=-1) == 0
        deviations[f"{at}: rows"] = float((rows - 1).masked_fill(empty, 0).abs().max())
        deviations[f"{at}: z"] = relative(_attend(case.lens, row, pattern, for_every_head(v, z.shape[-2])), z)
        scores = acts[f"{at}.hook_attn_scores"]
        mask = scores <= torch.finfo(scores.dtype).min / 2
        mask &= ~mask.all(dim=-1, keepdim=True)
        deviations[f"{at}: mask"] = float(pattern.masked_fill(~mask, 0).abs().max())
        if pattern.shape[-1] == pattern.shape[-2] and at.startswith("decoder"):
            deviations[f"{at}: causal"] = float(pattern.triu(1).abs().max())
    if not deviations:
        return OracleResult("5 patterns", 0.0, ONE_BLOCK, "no attention")
    return _worst("5 patterns", ONE_BLOCK, deviations)


def _size_error(case: Case, row: Attention, stack: str, pattern: Tensor) -> float:
    """Compare the number of queries and keys with ``over``: tokens of a stream, or series of an item or batch."""
    _, acts = case.captured

    def tokens(name: str) -> int:
        return acts[f"{name}.hook_embed" if name else "hook_embed"].shape[1]

    if row.over == "time":
        expected = (tokens(stack), tokens(row.keys_from or stack))
    else:
        series = case.lens.registry.state.sizes.get("variate", len(case.batch))
        expected = (series, series)
    return 0.0 if tuple(pattern.shape[-2:]) == expected else math.inf


def _attend(lens: Lens, row: Attention, pattern: Tensor, v: Tensor) -> Tensor:
    """Compute pattern · v in the layout of the native attention call, as (batch, pos, head, d_head)."""
    sizes = {**lens.registry.state.sizes, "head": v.shape[-2]}
    values = to_native(v, row.qkv_layout, HEADS, sizes)
    z = to_native(pattern, row.pattern_layout, PATTERN, sizes) @ values
    return to_vocabulary(z, row.qkv_layout, HEADS, sizes)


def head_order(case: Case) -> OracleResult:
    """Check oracle 10: a head's pattern and W_V rows rebuild its z; without W_Q, W_K or W_V it has no q, k or v.

    Holds of a model without attention, and says so.
    """
    lens = case.lens
    _, acts = case.captured
    deviations = {}
    for stack in lens.wiring.stacks:
        places = [(layer, row) for layer in range(stack.n_layers) for row in stack.attentions(layer)]
        paths = {(layer, row.kind): f"{stack.block(layer)}.{row.v.module}" for layer, row in places}
        with torch.no_grad(), recorded_calls(lens.adapter.model, paths.values()) as calls:
            lens.forward(case.encoded)
        for layer, row in places:
            # an attention that holds the matrices itself takes query, key and value
            x = calls[paths[layer, row.kind]][-1].given(0 if row.v.weight == "weight" else 2)
            deviations[f"{stack.prefix}.{layer}.{row.kind}"] = _rebuild_error(lens, stack, layer, row, acts, x)
        for layer, row in places:
            if layer in layers_to_check(stack):
                deviations |= _owners(case, stack, layer, row)
    if not deviations:
        return OracleResult("10 head order", 0.0, ONE_BLOCK, "no attention")
    return _worst("10 head order", ONE_BLOCK, deviations)


def _owners(case: Case, stack: Stack, layer: int, row: Attention) -> dict[str, float]:
    """Check that zeroing a head's rows of one input projection zeroes that head's q, k or v and nothing else.

    Rotary embeddings, norms and scales between the projection and the dot product map zero to zero.
    """
    lens = case.lens
    at = f"{stack.prefix}.{layer}.{row.kind}"
    points = {letter: f"{at}.hook_{letter}" for letter in "qkv"}
    _, acts = case.captured
    deviations = {}
    for letter, projection in (("q", row.q), ("k", row.k), ("v", row.v)):
        n_heads = row.heads_of(letter, stack.n_heads)
        head = min(1, n_heads - 1)
        with torch.no_grad(), _zeroed_rows(lens, stack, layer, projection, head, n_heads):
            _, without = lens.run_with_cache(case.encoded, names_filter=list(points.values()))
        for other, point in points.items():
            expected = acts[point].clone()
            if other == letter:
                expected[:, :, head] = 0.0
            deviations[f"{at}: {other} without W_{letter.upper()}"] = relative(without[point], expected)
    return deviations


@contextmanager
def _zeroed_rows(
    lens: Lens, stack: Stack, layer: int, projection: Projection, head: int, n_heads: int
) -> Iterator[None]:
    """Zero a head's rows of an input projection, and of its bias, in the native model while the block runs."""
    module = lens.adapter.model.get_submodule(f"{stack.block(layer)}.{projection.module}")
    sizes = {"head": n_heads, **({"part": projection.parts} if projection.parts > 1 else {})}
    axes = "part head d_head" if projection.parts > 1 else "head d_head"
    with ExitStack() as changes:
        for name in (projection.weight, projection.bias):
            tensor = getattr(module, name, None)
            if tensor is not None:
                rest = " d_model" if tensor.ndim > 1 else ""
                rows = rearrange(tensor.detach(), f"{projection.layout}{rest} -> {axes}{rest}", **sizes).clone()
                (rows[projection.part] if projection.parts > 1 else rows)[head] = 0.0
                values = rearrange(rows, f"{axes}{rest} -> {projection.layout}{rest}")
                changes.enter_context(with_tensor(module, name, values))
        yield


def _rebuild_error(lens: Lens, stack: Stack, layer: int, row: Attention, acts: Activations, native: Tensor) -> float:
    at = f"{stack.prefix}.{layer}.{row.kind}"
    x = to_vocabulary(
        native, row.x_layout or row.stream_layout, RESIDUAL, {**lens.registry.state.sizes, "head": stack.n_heads}
    )
    with torch.no_grad():
        weights = lens.weights.heads(layer, row.kind, stack.name)
        v = torch.einsum("bpd,hdc->bphc", x, weights.W_V) + weights.b_V
        z = _attend(lens, row, acts[f"{at}.hook_pattern"], v)
    return relative(z, acts[f"{at}.hook_z"])
