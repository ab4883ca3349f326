"""The same lines give the same numbers behind TransformerLens and behind ours."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformer_lens import patching

from language_models import (
    HEADS,
    LAYERS,
    VOCABULARY,
    WIDTH,
    LanguageModel,
    bridge,
    llama,
    neox,
)
from tsfm_lens import testing
from tsfm_lens.core.errors import UnknownNameError
from tsfm_lens.models import Lens, load
from tsfm_lens.testing import assert_close

NATIVE = {"llama": llama, "neox": neox}
BOTH = pytest.mark.parametrize("name", NATIVE)


@cache
def pair(name: str) -> tuple[Lens, Any]:
    """One model behind a lens and its copy behind TransformerLens."""
    torch.manual_seed(0)
    native = NATIVE[name]()
    return Lens(LanguageModel(native), name), bridge(copy.deepcopy(native))


@cache
def ids() -> Tensor:
    return torch.randint(
        0, VOCABULARY, (2, 11), generator=torch.Generator().manual_seed(1)
    )


@cache
def caches(name: str) -> tuple[Any, Any]:
    lens, theirs = pair(name)
    return lens.run_with_cache(ids().numpy())[1], theirs.run_with_cache(ids())[1]


DECOMPOSITIONS = [
    ("decompose_resid", {}),
    (
        "decompose_resid",
        {"layer": 2, "mode": "mlp", "incl_embeds": False, "pos_slice": (1, 5)},
    ),
    ("decompose_resid", {"layer": 1, "mlp_input": True, "apply_ln": True}),
    ("decompose_resid", {"layer": 0}),
    ("accumulated_resid", {}),
    ("accumulated_resid", {"incl_mid": True, "pos_slice": [0, 3]}),
    ("accumulated_resid", {"apply_ln": True}),
    ("stack_head_results", {}),
    ("stack_head_results", {"layer": 2, "apply_ln": True, "pos_slice": -1}),
    ("get_full_resid_decomposition", {}),
    ("get_full_resid_decomposition", {"expand_neurons": False, "apply_ln": True}),
    (
        "get_full_resid_decomposition",
        {"apply_ln": True, "project_output_onto": torch.eye(WIDTH)[:, :3]},
    ),
]


@BOTH
@pytest.mark.parametrize(
    ("method", "arguments"), DECOMPOSITIONS, ids=lambda value: str(value)[:60]
)
def test_streams_are_taken_apart_alike(
    name: str, method: str, arguments: dict[str, Any]
) -> None:
    ours, theirs = caches(name)
    found, labels = getattr(ours, method)(return_labels=True, **arguments)
    expected, known = getattr(theirs, method)(return_labels=True, **arguments)
    assert labels == known
    assert_close(found, expected, depth=20 * WIDTH, what=method)


@BOTH
def test_tuples_and_short_names_agree(name: str) -> None:
    """Tuples and short names mean the same."""
    ours, theirs = caches(name)
    keys: list[Any] = [
        "embed",
        "hook_embed",
        "z1",
        "pattern0",
        "post2",
        "blocks.1.hook_attn_out",
        "blocks.0.hook_out",
    ]
    shorts = ("resid_pre", "resid_mid", "resid_post", "z", "v", "pattern")
    keys += [(short, layer) for short in shorts for layer in (0, -1)]
    keys += [
        ("attn_out", 1),
        ("mlp_out", -1),
        ("attn", 0),
        ("value", 0, "attn"),
        ("post", 1, "mlp"),
        ("pre", 0, "m"),
    ]
    for key in keys:
        assert_close(ours[key], theirs[key], depth=20 * WIDTH, what=str(key))
    # queries and keys are shown as they enter the dot product, which is after the
    # rotary embedding
    for point in ("blocks.1.attn.hook_rot_q", "blocks.1.attn.hook_rot_k"):
        if point in set(theirs):
            assert_close(ours[point], theirs[point], depth=20 * WIDTH)


@BOTH
def test_configurations_agree(name: str) -> None:
    lens, theirs = pair(name)
    for field in (
        "n_layers",
        "n_heads",
        "d_model",
        "d_head",
        "d_mlp",
        "d_vocab",
        "act_fn",
        "normalization_type",
    ):
        assert getattr(lens.cfg, field) == getattr(theirs.cfg, field), field
    assert lens.cfg.gated_mlp == bool(theirs.cfg.gated_mlp)
    assert lens.cfg.n_key_value_heads == (theirs.cfg.n_key_value_heads or HEADS)
    assert (lens.cfg.n_layers, lens.cfg.attn_only) == (LAYERS, False)


@BOTH
def test_hooks_change_the_output_alike(name: str) -> None:
    lens, theirs = pair(name)

    def silence(value: Tensor, hook: Any) -> Tensor:
        value[:, :, 1] = 0
        return value

    hooks = [
        ("blocks.1.attn.hook_z", silence),
        (lambda point: point.endswith("mlp.hook_post"), lambda v, hook: 2 * v),
    ]
    found = lens.run_with_hooks(ids().numpy(), fwd_hooks=hooks)
    expected = theirs.run_with_hooks(ids(), fwd_hooks=hooks)
    assert_close(found, expected, depth=100 * WIDTH)
    plain = lens(ids().numpy())
    assert bool((found - plain).abs().max() > 0.1 * plain.abs().max())
    with lens.hooks(fwd_hooks=hooks), theirs.hooks(fwd_hooks=hooks):
        assert_close(lens(ids().numpy()), theirs(ids()), depth=100 * WIDTH)


@BOTH
@pytest.mark.parametrize("layer", [0, 2, -1, LAYERS])
def test_a_forward_stops_alike(name: str, layer: int) -> None:
    lens, theirs = pair(name)
    if layer == LAYERS:
        expected = caches(name)[1]["resid_post", LAYERS - 1]
    else:
        expected = theirs(ids(), stop_at_layer=layer)
    assert_close(lens(ids().numpy(), stop_at_layer=layer), expected, depth=20 * WIDTH)
    stream, activations = lens.run_with_cache(ids().numpy(), stop_at_layer=layer)
    if layer < LAYERS:
        last = f"blocks.{layer % LAYERS}.hook_resid_pre"
    else:
        last = f"blocks.{LAYERS - 1}.hook_resid_post"
    assert torch.equal(stream, activations[last])
    assert "unembed.hook_out" not in activations


@BOTH
def test_caching_takes_the_same_arguments(name: str) -> None:
    lens, theirs = pair(name)
    for names in (
        "blocks.0.attn.hook_pattern",
        ["hook_embed", "blocks.1.attn.hook_z"],
        lambda n: n.endswith("hook_z"),
    ):
        ours = lens.run_with_cache(ids().numpy(), names_filter=names)[1]
        known = theirs.run_with_cache(ids(), names_filter=names)[1]
        # theirs has other names for some of them, too
        assert (
            len(ours)
            == len([name for name in known if name in lens.registry.points])
            > 0
        )
        assert set(ours) <= set(known)
    one: dict[str, Any] = {"remove_batch_dim": True, "pos_slice": -1}
    ours = lens.run_with_cache(ids()[:1].numpy(), **one)[1]
    known = theirs.run_with_cache(ids()[:1], **one)[1]
    for point in (
        "hook_embed",
        "blocks.1.attn.hook_z",
        "blocks.1.attn.hook_pattern",
        "blocks.2.mlp.hook_post",
    ):
        assert_close(ours[point], known[point], depth=20 * WIDTH, what=point)
    assert ours.axes("blocks.1.attn.hook_pattern") == ("head", "query", "key")
    expected, labels = known.decompose_resid(return_labels=True)
    found, same = ours.decompose_resid(return_labels=True)
    assert labels == same
    assert_close(found, expected, depth=20 * WIDTH)


# --- an encoder and a decoder
# --------------------------------------------------------------------------------------


@cache
def t5() -> tuple[Lens, Any, Any, Any]:
    native = testing.tiny("t5")
    theirs = bridge(copy.deepcopy(native))
    lens = load(native, check=False)
    series = torch.randint(2, 50, (2, 11))
    forced = torch.randint(2, 50, (2, 5))
    shifted = torch.cat([torch.zeros(2, 1, dtype=torch.long), forced[:, :-1]], dim=1)
    given: Any = (
        (series.numpy(), {"tokens": forced}),
        (series, {"decoder_input": shifted}),
    )
    ours = lens.run_with_cache(given[0][0], **given[0][1])
    known = theirs.run_with_cache(given[1][0], **given[1][1])
    return lens, theirs, (ours, known), given


def test_t5_hook_points_equal_both_ways() -> None:
    """T5 passes the same values through the hook points of both libraries."""
    lens, _, ((output, ours), (expected, theirs)), _ = t5()
    assert_close(output, expected, depth=100 * lens.d_model)
    compared = set()
    for name in theirs:
        try:
            found = ours[name]
        except UnknownNameError:
            continue
        finite = theirs[name] > torch.finfo().min / 2
        assert_close(
            found[finite], theirs[name][finite], depth=100 * lens.d_model, what=name
        )
        compared.add(name)
    shorts = {name.rpartition(".")[2] for name in compared}
    assert shorts >= {
        f"hook_{x}"
        for x in (
            "resid_pre",
            "resid_mid",
            "resid_mid2",
            "resid_post",
            "q",
            "k",
            "v",
            "z",
        )
    }
    assert shorts >= {
        "hook_mlp_out",
        "hook_cross_attn_out",
        "hook_post",
        "hook_unembed",
    }
    assert len(compared) >= 70


def test_ambiguous_stacks_must_be_named() -> None:
    """Where there are two stacks, the name says which one is meant."""
    lens, _, ((_, ours), _), (given, _) = t5()
    assert torch.equal(
        ours["resid_post", -1, "decoder"], ours["decoder_blocks.1.hook_resid_post"]
    )
    assert torch.equal(
        ours["pattern", 0, "decoder", "cross_attn"], ours["pattern", 0, "cross_attn"]
    )
    assert torch.equal(ours["resid_mid2", 0], ours["decoder_blocks.0.hook_resid_mid2"])
    with pytest.raises(
        UnknownNameError,
        match=r"encoder_blocks.1.hook_resid_post.*acts\['resid_post', 1, 'decoder'\]",
    ):
        ours["resid_post", -1]
    with pytest.raises(UnknownNameError, match=r"acts\['pattern', 0, 'cross_attn'\]"):
        ours["pattern", 0]
    stream = lens.forward(given[0], stop_at_layer="encoder.1", **given[1])
    assert torch.equal(stream, ours["encoder_blocks.1.hook_resid_pre"])


@BOTH
@pytest.mark.parametrize("patch", ["resid_pre", "attn_head_all_pos_every"])
def test_loops_over_patches(name: str, patch: str) -> None:
    """Of a model that takes ids, the peer's own loops go over its layers, positions and
    heads.
    """
    found = pair(name)
    expected = caches(name)
    other = ids().flip(1)
    results = [
        getattr(patching, f"get_act_patch_{patch}")(
            model, other, activations, lambda logits: logits[:, -1].square().mean()
        )
        for model, activations in zip(found, expected, strict=True)
    ]
    assert_close(*results, depth=1000)
    assert float(results[0].std()) > 0
