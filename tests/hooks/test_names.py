"""The vocabulary: names, globs, components and their error messages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refusals import expect_error
from tiny_lenses import lens_of
from tsfm_lens import testing
from tsfm_lens.core.errors import UnknownNameError
from tsfm_lens.hooks import Component, select_components
from tsfm_lens.hooks.names import RESIDUAL_NAMES, hook_points, nearest, select
from tsfm_lens.hooks.tl_names import Key
from tsfm_lens.models import Lens, architectures

WIRING = architectures()["chronos-bolt"].adapt(testing.tiny("chronos-bolt")).wiring
POINTS = hook_points(WIRING)


@given(
    st.sampled_from(["encoder", "decoder", ""]),
    st.integers(0, 99),
    st.sampled_from([None, "mlp", "self_attn", "cross_attn"]),
    st.none() | st.integers(0, 99),
)
def test_components_read_back_what_they_print(
    stack: str, layer: int, kind: str | None, head: int | None
) -> None:
    component = Component(stack, layer, kind, head if kind else None)
    assert Component.parse(str(component)) == component


@pytest.mark.parametrize(
    "text", ["", "decoder", "decoder.x", "decoder.1.mlp.2.3", "decoder.1.mlp.x"]
)
def test_what_is_no_component_is_refused(text: str) -> None:
    expect_error("A component reads like", Component.parse, text)


def test_globs_match_part_by_part() -> None:
    heads = select_components(WIRING, "decoder.*.cross_attn.*")
    assert [str(head) for head in heads] == [
        f"decoder.{layer}.cross_attn.{h}" for layer in range(3) for h in range(4)
    ]
    assert [str(c) for c in select_components(WIRING, "decoder.*")] == [
        "decoder.0",
        "decoder.1",
        "decoder.2",
    ]
    assert len(select(POINTS, "**.hook_pattern")) == 2 + 2 * 3
    assert select(POINTS, "encoder_blocks.*.mlp.hook_out") == [
        f"encoder_blocks.{layer}.mlp.hook_out" for layer in (0, 1)
    ]


def test_a_typing_error_names_the_nearest() -> None:
    with pytest.raises(
        UnknownNameError,
        match=(
            r"no component 'decoder.1.crossattn.2'. Closest: .*decoder.1.cross_attn.2"
        ),
    ):
        select_components(WIRING, "decoder.1.crossattn.2")
    expect_error(
        r"Closest: decoder_blocks.1.hook_resid_pre",
        select,
        POINTS,
        "decoder_blocks.1.hook_resid_per",
    )


def test_head_labels_need_a_unique_head() -> None:
    """Labels of heads are read where they stand for one head."""
    one = architectures()["chronos-2"]
    single = one.adapt(testing.tiny("chronos-2")).wiring
    for label in ("L1.time_attn.H2", "1.time_attn.2"):
        assert [str(component) for component in select_components(single, label)] == [
            "1.time_attn.2"
        ]
    for label in ("L2.cross_attn.H0", "2.cross_attn.0"):
        assert [str(component) for component in select_components(WIRING, label)] == [
            "decoder.2.cross_attn.0"
        ]
    for label in ("L1H2", "1.2", "(1, 2)", "L1.self_attn.H2"):
        expect_error(
            r"could be encoder.1.self_attn.2, decoder.1.self_attn.2",
            select_components,
            WIRING,
            label,
        )


def test_blocks_of_too_many_branches_are_refused() -> None:
    """A branch for whose stream there is no name is not left out silently."""
    wiring = lens_of("chronos-bolt").wiring
    stack = wiring.stacks[-1]
    mlp = stack.writers[-1]
    extra = [replace(mlp, kind=f"mlp{number}") for number in (2, 3)]
    for count in (1, 2):
        writers = (*stack.writers, *extra[:count])
        wide = replace(
            wiring, stacks=(*wiring.stacks[:-1], replace(stack, writers=writers))
        )
        if len(writers) <= len(RESIDUAL_NAMES):
            assert "decoder_blocks.0.mlp2.hook_out" in hook_points(wide)
        else:
            expect_error("5 branches .*mlp3.* at most 4", hook_points, wide)


@pytest.mark.parametrize(
    ("key", "near"),
    [
        (("pattern", 0, "cross_atn"), "decoder_blocks.0.cross_attn.hook_pattern"),
        (("pattern", 1, "self_atn", "encodr"), "encoder_blocks.1.self_attn.hook_patt"),
        (("patern", 1, "cross_attn"), "decoder_blocks.1.cross_attn.hook_pattern"),
        (("post", 1, "mpl", "decoder"), "decoder_blocks.1.mlp.hook_post"),
    ],
)
def test_misspelt_keys_name_their_place(key: Key, near: str) -> None:
    """A key with a typing error names the hook point of its layer and attention."""
    names = nearest(POINTS, key)
    assert all(name.startswith(near) for name in names)
    assert names


def test_lens_of_no_adapter_is_refused() -> None:
    """A model in place of an adapter is answered with what opens it."""
    model = lens_of("chronos-bolt").model
    expect_error(r"load\(model\).*own-model", Lens, model)
    adapter = lens_of("chronos-bolt").adapter
    assert Lens(adapter).model_id == type(model).__name__
