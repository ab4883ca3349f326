"""On every architecture the parts of a stream sum to it, and what TransformerLens's
users ask for is there or told.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from refusals import expect_error
from tiny_lenses import ATTENDING, NAMES, SUMMING, lens_of
from tsfm_lens.core.errors import InputError, UnknownNameError, WiringError
from tsfm_lens.hooks import Activations
from tsfm_lens.hooks.wiring import Mlp, Stack, Writer
from tsfm_lens.models import Lens, Run
from tsfm_lens.probes import attribution
from tsfm_lens.testing import assert_close, example_case, rounding

TOLERANCE = 1e-3
# one hidden layer between the stream and the quantiles; others have more, or a mixture
ONE_LAYER = {
    "chronos-bolt",
    "moirai-2",
    "timesfm-2.5",
    "timesfm-2.5-transformers",
    "timesfm-3",
}


@cache
def recorded(name: str) -> tuple[Lens, Any, Activations]:
    lens = lens_of(name)
    encoded = example_case(lens).encoded
    return lens, encoded, lens.run_with_cache(encoded)[1]


def streams(
    lens: Lens, activations: Activations
) -> list[tuple[str, int, bool, Tensor]]:
    """Stack, layer, whether its MLP's input, and the stream there."""
    found = []
    for stack in lens.wiring.stacks:
        found.append(
            (
                stack.name,
                stack.n_layers,
                False,
                activations["resid_post", stack.n_layers - 1, stack.name],
            )
        )
        for layer in range(stack.n_layers):
            found.append(
                (stack.name, layer, False, activations["resid_pre", layer, stack.name])
            )
            count = len(stack.rows(layer))
            if count == 2:
                middle = "resid_mid"
            else:
                middle = f"resid_mid{count - 1}"
            if any(isinstance(row, Mlp) for row in stack.rows(layer)):
                found.append(
                    (stack.name, layer, True, activations[middle, layer, stack.name])
                )
    return found


@pytest.mark.parametrize("name", SUMMING)
def test_the_parts_sum_to_the_stream(name: str) -> None:
    lens, _, activations = recorded(name)
    for stack, layer, mlp_input, stream in streams(lens, activations):
        where: dict[str, Any] = {"layer": layer, "mlp_input": mlp_input, "stack": stack}
        writes, labels = activations.decompose_resid(**where, return_labels=True)
        assert len(set(labels)) == len(labels) == len(writes)
        assert_close(
            writes.sum(0),
            stream,
            depth=200 * lens.d_model,
            what=f"decompose_resid {where}",
        )
        for expand in (False, True):
            parts, labels = activations.get_full_resid_decomposition(
                **where, expand_neurons=expand, return_labels=True
            )
            assert len(set(labels)) == len(labels) == len(parts)
            what = f"get_full_resid_decomposition {where}"
            assert_close(parts.sum(0), stream, depth=200 * lens.d_model, what=what)
        accumulated: Any = activations.accumulated_resid(**where)
        assert torch.equal(accumulated[-1], stream)
        scaled = activations.apply_ln_to_stack(writes, **where)
        full = activations.apply_ln_to_stack(stream[None], **where)[0]
        assert_close(
            scaled.sum(0),
            full,
            depth=200 * lens.d_model,
            what=f"apply_ln_to_stack {where}",
        )


@pytest.mark.parametrize("name", SUMMING)
def test_completeness_error_is_of_own_forecast(name: str) -> None:
    """Wholes by a forward of its own, whose output no decomposition has touched."""
    lens, encoded, _ = recorded(name)
    run = lens.run(encoded.batch, 3)
    parts = attribution(run, decompositions="all", tolerance=TOLERANCE)
    with torch.no_grad():
        output, activations = lens.run_with_cache(
            run.encoded, names_filter="**.hook_resid_post"
        )
        last = activations["resid_post", -1, lens.wiring.output_stack.name]
        assert_close(lens.readout(last, run.encoded), output, depth=100)
        # of a first norm that has a bias, an empty stream has a readout too
        empty = lens.readout(torch.zeros_like(last), run.encoded)
    for decomposition in parts["decomposition"].values:
        found = parts.sel(decomposition=decomposition)
        if lens.emits == "token":
            found = found.squeeze("quantile")
        whole = read_out(run, output, decomposition).double().numpy()
        full = whole - read_out(run, empty, decomposition).double().numpy()
        size = np.abs(full).reshape(len(full), -1).max(1)
        gap = (
            np.abs(found["attribution"].sum("component").values - full)
            .reshape(len(full), -1)
            .max(1)
        )
        # in data units two numbers as large as the level of the series are taken from
        # each other
        magnitude = max(
            1.0,
            (
                float(output.abs().max()) / float(size.min())
                if found["unit"] == "data units"
                else 1.0
            ),
        )
        where = f"{name}: {decomposition}"
        assert_close(
            found["total"].values / size.max(),
            full / size.max(),
            depth=200,
            magnitude=magnitude,
            dtype="float32",
        )
        assert_close(
            found["completeness_error"].values,
            gap / size,
            depth=400,
            magnitude=magnitude,
            dtype="float32",
            what=where,
        )
        # what the start and the parts sum to is the model's own number
        closed = found["start_value"] + found["attribution"].sum("component")
        deviation = np.abs(closed.values - whole).reshape(len(whole), -1).max(1)
        if decomposition != "linearised":
            allowed = TOLERANCE + rounding("float32", magnitude, depth=400)
            assert (deviation <= allowed * size).all(), where
        if decomposition == "integrated" and name not in ONE_LAYER:
            assert float(found["path_error"]) <= TOLERANCE, where
            assert float(found["completeness_error"].max()) < TOLERANCE, where
        elif decomposition != "linearised":
            assert float(found["completeness_error"].max()) < rounding(
                "float32", magnitude, depth=400
            ), where


def read_out(run: Run, output: Tensor, decomposition: str) -> Tensor:
    """What a decomposition is of, from a forward's output."""
    if run.tokens is None:
        return output[..., : run.horizon]
    tokens = run.tokens[..., None]
    if decomposition == "logit":
        return output.gather(-1, tokens)[..., 0] - output.mean(-1)
    if decomposition == "probability":
        return torch.softmax(output, -1).gather(-1, tokens)[..., 0]
    return run.read(output)


def without_the_last_row(stack: Stack) -> Stack:
    """A write that the table forgets."""

    def cut(rows: tuple[Writer, ...]) -> tuple[Writer, ...]:
        return rows[:-1]

    # a row that TransformerLens knows as the MLP's is the last everywhere
    return replace(
        stack,
        writers=cut(stack.writers),
        exceptions={k: cut(v) for k, v in stack.exceptions.items()},
        d_mlp=0,
    )


def with_a_mix(stack: Stack) -> Stack:
    """A stream that is rescaled in the table and not in the model, or not as the table
    says.
    """

    def mixed(rows: tuple[Writer, ...]) -> tuple[Writer, ...]:
        return (*rows[:-1], replace(rows[-1], mix=lambda _block: (1.0, 0.97)))

    return replace(
        stack,
        writers=mixed(stack.writers),
        exceptions={k: mixed(v) for k, v in stack.exceptions.items()},
    )


@pytest.mark.parametrize("change", [without_the_last_row, with_a_mix])
@pytest.mark.parametrize("name", ATTENDING)
def test_foreign_tables_are_not_decomposed(
    name: str, change: Callable[[Stack], Stack]
) -> None:
    """A wiring table that does not fit the model is refused in decompositions."""
    lens, encoded, _ = recorded(name)
    # the model itself is read only
    adapter = copy(lens.adapter)
    *rest, last = adapter.wiring.stacks
    adapter.wiring = replace(adapter.wiring, stacks=(*rest, change(last)))
    wrong = Lens(adapter, f"wrong {name}")
    with pytest.raises(
        WiringError,
        match=rf"first place to differ is {last.prefix}\.0\.hook_resid_post",
    ):
        attribution(wrong.run(encoded.batch, 3))


@pytest.mark.parametrize("name", ATTENDING)
def test_head_results_equal_hook_points(name: str) -> None:
    """Computed from z and the weights, or recorded: one is the model's own sum taken
    apart, the other is not.
    """
    lens, encoded, activations = recorded(name)
    _, results = lens.run_with_cache(
        encoded, names_filter=["**.hook_result", "**.hook_embed", "**.hook_resid_post"]
    )
    for stack in lens.wiring.stacks:
        computed, labels = activations.stack_head_results(
            stack=stack.name, return_labels=True
        )
        visible, same = results.stack_head_results(stack=stack.name, return_labels=True)
        assert labels == same
        assert len(set(labels)) == len(labels)
        assert_close(
            computed, visible, depth=200 * lens.d_model, what=f"stack {stack.name!r}"
        )


@pytest.mark.parametrize("name", NAMES)
def test_forwards_stop_at_every_layer(name: str) -> None:
    """A forward pass stops at every layer and leaves nothing behind."""
    lens, encoded, activations = recorded(name)
    before = lens.forward(encoded)
    for stack in lens.wiring.stacks:
        for layer in range(stack.n_layers):
            block = lens.model.get_submodule(stack.block(layer))
            ran: list[Any] = []
            handle = block.register_forward_hook(
                lambda module, args, output, ran=ran: ran.append(module)
            )
            stream = lens.forward(
                encoded, stop_at_layer=f"{stack.name}.{layer}".lstrip(".")
            )
            handle.remove()
            assert not ran
            assert_close(
                stream,
                activations[f"{stack.prefix}.{layer}.hook_resid_pre"],
                depth=200 * lens.d_model,
                what=str(layer),
            )
    assert torch.equal(lens.forward(encoded), before)
    assert not lens.registry.busy


def test_unreached_hook_points_are_refused() -> None:
    """Hook points that a forward pass does not come to are refused."""
    lens, encoded, _ = recorded("chronos")
    with pytest.raises(
        InputError, match=r"does not come to decoder_blocks.1.mlp.hook_out"
    ):
        lens.run_with_cache(
            encoded, names_filter=["decoder_blocks.1.mlp.hook_out"], stop_at_layer=1
        )
    expect_error("no layer '7'", lens.forward, encoded, stop_at_layer=7)
    expect_error(
        "is a branch; expected a layer",
        lens.forward,
        encoded,
        stop_at_layer="decoder.1.mlp",
    )
    expect_error("no stack 'encodr'", lens.forward, encoded, stop_at_layer="encodr.1")


KEYS = [
    (("scale", 0, "ln1"), "apply_ln_to_stack"),
    ("pos_embed", "part of hook_embed"),
    (("result", 0, "cross_attn"), r"Closest: .*hook_result.* records it"),
    (("pattern", 7, "cross_attn"), "no layer 7"),
]


@pytest.mark.parametrize(("key", "message"), KEYS)
def test_keys_without_counterpart_name_a_substitute(key: Any, message: str) -> None:
    """What has no counterpart says what to use."""
    activations = recorded("chronos")[2]
    with pytest.raises(UnknownNameError, match=message):
        activations[key]


def test_missing_members_name_a_substitute() -> None:
    """Members that do not exist say what to use."""
    lens, encoded, activations = recorded("chronos")
    for owner, name, text in (
        (activations, "logit_attrs", r"probes\.attribution"),
        (lens, "W_Q", r"lens.weights.heads\(layer\).W_Q"),
        (lens, "blocks", "decoder_blocks and encoder_blocks"),
        (lens.decoder_blocks[0].cross_attn, "W_Q", "only hook points.*lens.weights"),
    ):
        with pytest.raises(AttributeError, match=text):
            getattr(owner, name)
    cache = lens.run_with_cache
    expect_error("a loss is a function of it", cache, encoded, return_type="loss")
    expect_error("Run is not a series", cache, lens.run([1.0, 2.0, 3.0], 1))
    expect_error("Closest: .*hook_pattern", cache, encoded, names_filter="hook_patern")
    expect_error("did you mean horizon", cache, encoded, horizn=3)
    expect_error("layer -3", activations.decompose_resid, layer=-3)
    expect_error("Closest: decoder", activations.decompose_resid, stack="decodr")
    expect_error(
        "last axis of 36", activations.apply_ln_to_stack, torch.zeros(1, 4, 5, 7)
    )
