"""The weights view against what the native model computes with its weights."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tsfm_lens.errors import InputError, UnknownNameError
from tsfm_lens.hooks import Activations
from tsfm_lens.hooks.wiring import Attention, Mlp, Stack
from tsfm_lens.models import Lens, architectures, load
from tsfm_lens.models.extras import status
from tsfm_lens.testing import assert_close, example_case

NAMES = sorted(architectures())
ACTIVATIONS = {
    "t5": partial(F.gelu, approximate="tanh"),
    **dict.fromkeys(["chronos", "chronos-2", "chronos-bolt", "timesfm-3"], F.relu),
}
GATED = {"t5", "moirai-1.1", "moirai-2", "toto-1", "toto-2"}
# what stands between a projection and the attention call turns or scales queries and keys of all others
BARE = {"chronos": ["self_attn", "cross_attn"], "chronos-2": ["group_attn"]}


@cache
def recorded(name: str) -> tuple[Lens, Activations]:
    extra = architectures()[name].extra
    if extra and not status()[extra].importable:
        pytest.skip(f"the extra {extra} is not installed")
    lens = load(architectures()[name].tiny(), check=False)
    return lens, example_case(lens).captured[1]


def branches(lens: Lens, sort: type) -> Iterator[tuple[Stack, int, Any, str, str]]:
    """Every attention, or every MLP: its stack, layer and row, its name, and that of the stream it reads."""
    residual = ("hook_resid_pre", "hook_resid_mid", "hook_resid_mid2")
    for stack in lens.wiring.stacks:
        for layer in range(stack.n_layers):
            for index, row in enumerate(stack.rows(layer)):
                at = f"{stack.prefix}.{layer}"
                if isinstance(row, sort):
                    yield stack, layer, row, f"{at}.{row.kind}", f"{at}.{residual[index]}"


def native(lens: Lens, path: str) -> Any:
    return lens.adapter.model.get_submodule(path)


def normed(lens: Lens, stack: Stack, layer: int, row: Any, stream: Tensor) -> Tensor:
    """What a branch reads, in the vocabulary's axes."""
    return native(lens, f"{stack.block(layer)}.{row.norm}").forward(stream) if row.norm else stream


def unit(norm: Any, stream: Tensor) -> Tensor:
    """The stream divided by its root mean square, without any gain."""
    names = ("variance_epsilon", "epsilon", "eps")
    epsilon = next((e for name in names if (e := getattr(norm, name, None)) is not None), torch.finfo().eps)
    return stream / (stream.pow(2).mean(-1, keepdim=True) + epsilon).sqrt()


def written(lens: Lens, stack: Stack, layer: int, row: Any, out: Tensor) -> Tensor:
    """A branch's output as the stream receives it."""
    block = native(lens, stack.block(layer))
    if row.post_norm:
        return block.get_submodule(row.post_norm).forward(out)
    return out if row.mix is None else out * row.mix(block)[0]


def projected(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.einsum("bpd,hdc->bphc", x, weight) + bias


@pytest.mark.parametrize("name", NAMES)
def test_heads_read_and_write_with_their_weights(name: str) -> None:
    lens, acts = recorded(name)
    kinds = set()
    with torch.no_grad():
        for stack, layer, row, at, stream in branches(lens, Attention):
            kinds.add(row.kind)
            heads = lens.weights.heads(layer, row.kind, stack.name)
            x = normed(lens, stack, layer, row, acts[stream])
            keys = acts[f"{row.keys_from}.ln_final.hook_normalized"] if row.keys_from else x
            assert_close(projected(keys, heads.W_V, heads.b_V), acts[f"{at}.hook_v"], depth=1000)
            if row.kind in BARE.get(name, []):
                assert_close(projected(x, heads.W_Q, heads.b_Q), acts[f"{at}.hook_q"], depth=1000)
                assert_close(projected(keys, heads.W_K, heads.b_K), acts[f"{at}.hook_k"], depth=1000)
            out = torch.einsum("bphc,hcd->bpd", acts[f"{at}.hook_z"], heads.W_O)
            expected = written(lens, stack, layer, row, out) + heads.scale * heads.b_O
            assert_close(expected, acts[f"{at}.hook_out"], depth=1000)
    assert kinds == {kind for stack in lens.wiring.stacks for kind in stack.attention_kinds()}


@pytest.mark.parametrize("name", NAMES)
def test_gains_of_norms_fold_into_the_weights(name: str) -> None:
    lens, acts = recorded(name)
    with torch.no_grad():
        for stack, layer, row, at, stream in branches(lens, Attention):
            heads = lens.weights.heads(layer, row.kind, stack.name, fold_norm=True)
            x, path = acts[stream], f"{stack.block(layer)}.{row.norm}"
            if row.keys_from:
                other = lens.wiring.stack(row.keys_from)
                x, path = acts[f"{other.prefix}.{other.n_layers - 1}.hook_resid_post"], other.ln_final
            x = unit(native(lens, path), x) if row.norm else x
            assert_close(projected(x, heads.W_V, heads.b_V), acts[f"{at}.hook_v"], depth=1000)
        for stack, layer, row, at, stream in branches(lens, Mlp):
            mlp = lens.weights.mlp(layer, row.kind, stack.name, fold_norm=True)
            x = unit(native(lens, f"{stack.block(layer)}.{row.norm}"), acts[stream])
            own = hidden(name, mlp, x)
            assert_close(own, acts[f"{at}.hook_post"], depth=1000)


def hidden(name: str, mlp: Any, x: Tensor) -> Tensor:
    inner = ACTIVATIONS.get(name, F.silu)(x @ mlp.W_in + mlp.b_in)
    return inner if mlp.W_gate is None else inner * (x @ mlp.W_gate + mlp.b_gate)


@pytest.mark.parametrize("name", NAMES)
def test_mlps_compute_with_their_weights(name: str) -> None:
    lens, acts = recorded(name)
    with torch.no_grad():
        for stack, layer, row, at, stream in branches(lens, Mlp):
            mlp = lens.weights.mlp(layer, row.kind, stack.name)
            assert (mlp.W_gate is not None) == (mlp.b_gate is not None) == (name in GATED)
            inner = hidden(name, mlp, normed(lens, stack, layer, row, acts[stream]))
            assert_close(inner, acts[f"{at}.hook_post"], depth=1000)
            out = written(lens, stack, layer, row, inner @ mlp.W_out + mlp.b_out)
            assert_close(out, acts[f"{at}.hook_out"], depth=1000)


@pytest.mark.parametrize("name", NAMES)
def test_each_head_shows_the_parameters_that_its_queries_keys_and_values_depend_on(name: str) -> None:
    """Not by arithmetic, which rotary embeddings and norms would need, but by which entries have a gradient."""
    lens, _ = recorded(name)
    stack, layer = lens.wiring.output_stack, 1
    head = 2
    for row in stack.attentions(layer):
        for letter, part in (("q", row.q), ("k", row.k), ("v", row.v)):
            parameter = native(lens, f"{stack.block(layer)}.{part.module}").weight
            seen: list[Tensor] = []
            at = f"{stack.prefix}.{layer}.{row.kind}.hook_{letter}"
            with lens.hooks([(at, lambda value, hook, seen=seen: seen.append(value))]):
                lens.forward(example_case(lens).encoded)
            assert seen[0].shape[2] == stack.n_heads > head
            # another power of every entry, so that no sum cancels
            (depends,) = torch.autograd.grad(seen[0][:, :, head].pow(3).sum(), parameter)
            view = getattr(lens.weights.heads(layer, row.kind), f"W_{letter.upper()}")
            (shown,) = torch.autograd.grad(view[head].sum(), parameter)
            assert torch.equal(depends != 0, shown != 0), at
            assert int((shown != 0).sum()) == stack.d_head * stack.d_model


@pytest.mark.parametrize("name", NAMES)
def test_circuits_are_products(name: str) -> None:
    from transformer_lens import FactoredMatrix

    lens, _ = recorded(name)
    for stack, layer, row, _, _ in branches(lens, Attention):
        heads = lens.weights.heads(layer, row.kind, stack.name)
        for circuit, product in (
            (heads.W_QK, heads.W_Q @ heads.W_K.mT),
            (heads.W_OV, heads.W_V @ heads.W_O),
        ):
            assert isinstance(circuit, FactoredMatrix)
            assert circuit.AB.shape == (stack.n_heads, stack.d_model, stack.d_model)
            assert_close(circuit.AB, product, depth=100)


SINGLE_EMBEDDINGS = {"chronos", "t5", "toto-1"}
SINGLE_UNEMBEDDINGS = {"chronos", "t5", "toto-1", "timesfm-3"}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("what", ["embedding", "unembedding"])
def test_the_ends_are_one_matrix_or_the_error_names_their_parts(name: str, what: str) -> None:
    lens, _ = recorded(name)
    weights = lens.weights
    parts = getattr(weights, what)()
    assert parts
    single, letter = (SINGLE_EMBEDDINGS, "E") if what == "embedding" else (SINGLE_UNEMBEDDINGS, "U")
    if name in single:
        matrix = getattr(weights, f"W_{letter}")
        assert matrix.shape[1 if letter == "E" else 0] == lens.d_model
        assert matrix.ndim == 2
        return
    with pytest.raises(InputError, match=f"not one matrix.*{next(iter(parts))}.*weights.{what}"):
        getattr(weights, f"W_{letter}")


def test_single_matrices_embed_and_unembed() -> None:
    lens, acts = recorded("chronos")
    encoded, weights = example_case(lens).encoded, lens.weights
    assert_close(weights.W_E[encoded.inputs["decoder_input_ids"]], acts["decoder.hook_embed"], depth=100)
    # T5 scales its stream before tied embeddings
    logits = acts["decoder.ln_final.hook_normalized"] @ weights.W_U * lens.d_model**-0.5
    assert_close(logits, acts["unembed.hook_out"], depth=1000)
    if status()["toto"].importable:
        lens, acts = recorded("toto-1")
        last = acts["blocks.3.hook_resid_post"]
        out = last @ lens.weights.W_U + lens.weights.unembedding()["bias"]
        assert_close(out, acts["unembed.hook_out"].reshape(out.shape), depth=1000)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layer": 2}, "no layer '2'.*Closest: 0, 1"),
        ({"layer": -1}, "no layer '-1'"),
        ({"layer": 0, "kind": "atn"}, "no branch 'atn'.*self_attn"),
        ({"layer": 0, "kind": "mlp"}, "no branch 'mlp'"),
        ({"layer": 0, "stack": "decoders"}, "no stack 'decoders'. Closest: decoder"),
    ],
)
def test_unknown_places_are_named(arguments: dict, message: str) -> None:
    weights = recorded("chronos")[0].weights
    with pytest.raises(UnknownNameError, match=message):
        weights.heads(**arguments)
    if arguments.get("kind") != "mlp":
        with pytest.raises(UnknownNameError):
            weights.mlp(**arguments)


def test_a_branch_left_out_is_the_first_of_the_stack_that_is_read_out() -> None:
    weights = recorded("chronos")[0].weights
    assert torch.equal(weights.heads(1).W_Q, weights.heads(1, "self_attn", "decoder").W_Q)
    assert not torch.equal(weights.heads(1).W_Q, weights.heads(1, "cross_attn").W_Q)
    assert not np.array_equal(weights.heads(1).W_Q.detach(), weights.heads(1, stack="encoder").W_Q.detach())
