"""What the weights view adds to the matrices themselves, which the oracles hold against
the native model.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from refusals import expect_error
from tiny_lenses import ATTENDING, OURS, archetypes, lens_of
from tsfm_lens.core.errors import UnknownNameError
from tsfm_lens.hooks import Activations
from tsfm_lens.hooks.wiring import Attention, Stack
from tsfm_lens.models import Lens, architectures
from tsfm_lens.testing import assert_close, example_case


@cache
def recorded(name: str) -> tuple[Lens, Activations]:
    return lens_of(name), example_case(lens_of(name)).captured[1]


def branches(lens: Lens) -> Iterator[tuple[Stack, int, Any, str, str]]:
    """Every attention and MLP: its stack, layer and row, its name, and that of the
    stream it reads.
    """
    residual = ("hook_resid_pre", "hook_resid_mid", "hook_resid_mid2")
    for stack in lens.wiring.stacks:
        for layer in range(stack.n_layers):
            for index, row in enumerate(stack.rows(layer)):
                at = f"{stack.prefix}.{layer}"
                yield stack, layer, row, f"{at}.{row.kind}", f"{at}.{residual[index]}"


def native(lens: Lens, path: str) -> Any:
    return lens.adapter.model.get_submodule(path)


def unit(norm: Any, stream: Tensor) -> Tensor:
    """The stream as the norm leaves it, without any gain."""
    if isinstance(norm, torch.nn.LayerNorm):
        return torch.nn.functional.layer_norm(stream, norm.normalized_shape)
    names = ("variance_epsilon", "epsilon", "eps")
    epsilon = next(
        (e for name in names if (e := getattr(norm, name, None)) is not None),
        torch.finfo().eps,
    )
    return stream / (stream.pow(2).mean(-1, keepdim=True) + epsilon).sqrt()


def projected(x: Tensor, weights: Any, letter: str) -> Tensor:
    """What one matrix, of every head or of the hidden layer, and its bias make of a
    stream.
    """
    matrix = getattr(weights, f"W_{letter}")
    bias = getattr(weights, f"b_{letter}")
    return torch.einsum("bpd,...dc->bp...c", x, matrix) + bias


@pytest.mark.parametrize("name", archetypes(ATTENDING))
def test_norm_gains_fold_into_weights(name: str) -> None:
    """What folded matrices make of the bare stream is what the matrices themselves make
    of the stream's norm.
    """
    lens, activations = recorded(name)
    with torch.no_grad():
        for stack, layer, row, at, stream in branches(lens):
            read: Any = (
                lens.weights.heads if isinstance(row, Attention) else lens.weights.mlp
            )
            plain, folded = (
                read(layer, row.kind, stack.name, fold_norm=fold)
                for fold in (False, True)
            )
            normed_input = (
                activations[stream],
                f"{stack.block(layer)}.{row.norm}" if row.norm else "",
            )
            if isinstance(row, Attention):
                letters = "QKV"
            else:
                letters = ("in", "gate")
            for letter in letters:
                matrix = f"W_{letter}"
                if getattr(plain, matrix) is None:
                    assert getattr(folded, matrix) is None
                    continue
                x, path = normed_input
                if letter in "KV" and row.keys_from:
                    other = lens.wiring.stack(row.keys_from)
                    x = activations[
                        f"{other.prefix}.{other.n_layers - 1}.hook_resid_post"
                    ]
                    path = other.ln_final
                expected = projected(
                    native(lens, path).forward(x) if path else x, plain, letter
                )
                found = projected(
                    unit(native(lens, path), x) if path else x, folded, letter
                )
                assert_close(
                    found, expected, depth=20 * stack.d_model, what=f"{at} {matrix}"
                )


def test_single_matrices_embed_and_unembed() -> None:
    lens, activations = recorded("chronos")
    encoded = example_case(lens).encoded
    weights = lens.weights
    assert not any(
        item.requires_grad
        for item in (weights.W_E, weights.W_U, *weights.unembedding().values())
    )
    assert torch.equal(
        weights.W_E[encoded.inputs["decoder_input_ids"]],
        activations["decoder.hook_embed"],
    )
    # T5 scales its stream before tied embeddings
    logits = (
        activations["decoder.ln_final.hook_normalized"]
        @ weights.W_U
        * lens.d_model**-0.5
    )
    assert_close(logits, activations["unembed.hook_out"], depth=lens.d_model)
    if architectures()["toto-1"].importable:
        lens, activations = recorded("toto-1")
        last = activations["blocks.3.hook_resid_post"]
        out = last @ lens.weights.W_U + lens.weights.unembedding()["bias"]
        assert_close(
            out, activations["unembed.hook_out"].reshape(out.shape), depth=lens.d_model
        )


def test_unknown_weights_are_named_with_defaults() -> None:
    """Unknown places are named; what is left out is the first of the output stack."""
    weights = recorded("chronos")[0].weights
    for arguments, message in (
        ({"layer": 2}, "no layer '2'.*Closest: 0, 1"),
        ({"layer": -1}, "no layer '-1'"),
        ({"layer": 0, "kind": "atn"}, "no branch 'atn'"),
        ({"layer": 0, "stack": "decoders"}, "no stack 'decoders'"),
    ):
        for read in (weights.heads, weights.mlp):
            with pytest.raises(UnknownNameError, match=message):
                read(**arguments)
    expect_error("no branch 'mlp'", weights.heads, 0, "mlp")
    bolt = recorded("chronos-bolt")[0].weights
    for end in ("W_E", "W_U"):
        expect_error(r"not one matrix.*weights\.", getattr, bolt, end)
    assert torch.equal(
        weights.heads(1).W_Q, weights.heads(1, "self_attn", "decoder").W_Q
    )
    assert not torch.equal(weights.heads(1).W_Q, weights.heads(1, "cross_attn").W_Q)
    assert not np.array_equal(
        weights.heads(1).W_Q, weights.heads(1, stack="encoder").W_Q
    )


@pytest.mark.parametrize("name", archetypes(ATTENDING))
def test_the_table_names_the_activation_function(name: str) -> None:
    """The hidden layer after it is that function of the layer before it, times the
    other half of a gated one.
    """
    from transformers.activations import ACT2FN

    lens, activations = recorded(name)
    with torch.no_grad():
        for stack, layer, row, at, stream in branches(lens):
            if isinstance(row, Attention) or not (row.act or name in OURS):
                continue
            mlp = lens.weights.mlp(layer, row.kind, stack.name)
            x = native(lens, f"{stack.block(layer)}.{row.norm}").forward(
                activations[stream]
            )
            expected = ACT2FN[row.act](projected(x, mlp, "in"))
            if mlp.W_gate is not None:
                expected = expected * projected(x, mlp, "gate")
            assert_close(
                activations[f"{at}.hook_post"],
                expected,
                depth=20 * stack.d_model,
                what=f"{at}.hook_post",
            )
    assert lens.cfg.act_fn == lens.wiring.output_stack.writer("mlp").act
