"""Exactness checks (oracles) of attention: patterns, masks, and the order of heads.

Each yields what it compares with its deviation, see :mod:`tsfm_lens.testing.oracles`.
Read :func:`patterns`, then :func:`head_order`, which finds heads that are split or
ordered wrongly.
"""

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
    """Check that pattern rows sum to 1 and that pattern · v = z.

    Masked keys must get nothing, and a decoder must attend to no later token.

    Yields:
        A label, and the relative deviation there.
    """
    lens = case.lens
    activations = case.acts
    for stack in lens.wiring.stacks:
        for branch in branches(stack):
            attention = branch.row
            at = branch.at
            if not isinstance(attention, Attention):
                continue
            pattern, v, z = (
                activations[f"{at}.hook_{name}"] for name in ("pattern", "v", "z")
            )
            if attention.over == "time":
                keys_stack = lens.wiring.stack(attention.keys_from or stack.name)
                # (query, key): the tokens of the two stacks' streams
                expected = tuple(
                    activations[first_stream(of)].shape[1] for of in (stack, keys_stack)
                )
            else:
                # a pass that notes no number of variates has one per series
                n_variates = lens.registry.state.sizes.get("variate", len(case.batch))
                expected = (n_variates, n_variates)
            fits = tuple(pattern.shape[-2:]) == expected
            # sizes agree or not, and have no deviation in between
            yield f"{at}: over={attention.over!r}", 0.0 if fits else math.inf
            # queries of padding, which attend to nothing, have rows of zeros
            empty = pattern.abs().sum(dim=-1) == 0
            excess = (pattern.sum(dim=-1) - 1).masked_fill(empty, 0)
            yield f"{at}: rows", float(excess.abs().max())
            rebuilt = _attend(lens, attention, pattern, for_every_head(v, z.shape[-2]))
            yield f"{at}: z", relative(_gated(case, attention, at, rebuilt), z)
            scores = activations[f"{at}.hook_attn_scores"]
            # libraries add the smallest number of the type, or one near it, to a score;
            # where all keys have it, softmax spreads evenly and nothing is masked
            mask = scores <= torch.finfo(scores.dtype).min / 2
            mask &= ~mask.all(dim=-1, keepdim=True)
            yield f"{at}: mask", float(pattern.masked_fill(~mask, 0).abs().max())
            if pattern.shape[-1] == pattern.shape[-2] and at.startswith("decoder"):
                yield f"{at}: causal", float(pattern.triu(1).abs().max())


def _attend(lens: Lens, attention: Attention, pattern: Tensor, v: Tensor) -> Tensor:
    """Compute pattern · v as (batch, pos, head, d_head).

    Both are brought into the layouts of the model's own attention call first.

    Returns:
        The product.
    """
    sizes = {**lens.registry.state.sizes, "head": v.shape[-2]}
    values = to_native(v, attention.qkv_layout, HEADS, sizes)
    return to_vocabulary(
        to_native(pattern, attention.pattern_layout, PATTERN, sizes) @ values,
        attention.qkv_layout,
        HEADS,
        sizes,
    )


def _gated(case: Case, attention: Attention, at: str, heads: Tensor) -> Tensor:
    """Multiply pattern · v by the gate, if there is one."""
    if attention.gate:
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
    """Check that each head's pattern and W_V rows rebuild its z.

    Without its rows of W_Q, W_K or W_V, a head must have no q, k or v.

    Yields:
        A label, and the relative deviation there.
    """
    lens = case.lens
    activations = case.acts
    for stack in lens.wiring.stacks:
        attentions = [
            (branch, branch.row)
            for branch in branches(stack)
            if isinstance(branch.row, Attention)
        ]
        # paths of the modules that compute v
        v_paths = {
            branch.at: f"{stack.block(branch.layer)}.{attention.v.module}"
            for branch, attention in attentions
        }
        with recorded_calls(lens.adapter.model, v_paths.values()) as calls:
            lens.forward(case.encoded)
        for branch, attention in attentions:
            # a linear layer has one argument; where the attention module holds W_V
            # itself, its arguments are query, key and value
            argument = 0 if attention.v.weight == "weight" else 2
            v_input = calls[v_paths[branch.at]][-1].given(argument)
            sizes = {**lens.registry.state.sizes, "head": stack.n_heads}
            x = to_vocabulary(
                v_input, attention.x_layout or attention.stream_layout, RESIDUAL, sizes
            )
            weights = lens.weights.heads(branch.layer, attention.kind, stack.name)
            # (batch, pos, head, d_head)
            v = torch.einsum("bpd,hdc->bphc", x, weights.W_V) + weights.b_V
            z = _attend(lens, attention, activations[f"{branch.at}.hook_pattern"], v)
            z = _gated(case, attention, branch.at, z)
            yield branch.at, relative(z, activations[f"{branch.at}.hook_z"])
        for branch, attention in attentions:
            if branch.layer in layers_to_check(stack):
                yield from _zeroed_head_deviations(case, branch, attention)


def _zeroed_head_deviations(
    case: Case, branch: Row, attention: Attention
) -> Deviations:
    """Check that a head without its rows of W_Q, W_K or W_V has no q, k or v.

    All else must stay: q, k and v of the other heads, and the other two of this head.

    Yields:
        A label, and the relative deviation there.
    """
    points = {letter: f"{branch.at}.hook_{letter}" for letter in attention.inputs}
    for letter, projection in attention.inputs.items():
        n_heads = attention.count_heads(letter, branch.stack.n_heads)
        # the second, since a wrong order of axes often leaves the first in its place
        head = min(1, n_heads - 1)
        # rotary embeddings, norms and scales between the projection and the dot product
        # map zero to zero
        with _zeroed_rows(case.lens, branch, projection, head, n_heads):
            _, zeroed = case.lens.run_with_cache(
                case.encoded, names_filter=list(points.values())
            )
        for name, point in points.items():
            expected = case.acts[point].clone()
            if name == letter:
                expected[:, :, head] = 0.0
            yield (
                f"{branch.at}: {name} without W_{letter.upper()}",
                relative(zeroed[point], expected),
            )


@contextmanager
def _zeroed_rows(
    lens: Lens, branch: Row, projection: Projection, head: int, n_heads: int
) -> Iterator[None]:
    """Zero a head's rows of a projection and of its bias in a ``with`` block."""
    module = lens.adapter.model.get_submodule(
        f"{branch.stack.block(branch.layer)}.{projection.module}"
    )
    sizes = {"head": n_heads}
    axes = "head d_head"
    if projection.parts > 1:
        sizes["part"] = projection.parts
        axes = "part head d_head"
    with ExitStack() as changes:
        for name in (projection.weight, projection.bias):
            tensor = getattr(module, name, None)
            if tensor is not None:
                input_axis = ""
                if tensor.ndim > 1:
                    input_axis = " d_model"
                rows = rearrange(
                    tensor.detach(),
                    f"{projection.layout}{input_axis} -> {axes}{input_axis}",
                    **sizes,
                ).clone()
                # a view, so that `rows` loses the head
                part = rows[projection.part] if projection.parts > 1 else rows
                part[head] = 0.0
                values = rearrange(
                    rows, f"{axes}{input_axis} -> {projection.layout}{input_axis}"
                )
                changes.enter_context(with_tensor(module, name, values))
        yield
