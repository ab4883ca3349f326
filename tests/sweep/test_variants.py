"""Variants: names by content, families of every architecture, and forecasts against
edited weights.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from closeness import close_in_float32
from edited_weights import silenced
from refusals import expect_error
from tiny_lenses import NAMES, archetypes, lens_of
from tsfm_lens.ablation import run_variants
from tsfm_lens.data import bundled
from tsfm_lens.hooks import writers
from tsfm_lens.models import load
from tsfm_lens.sweep.planner.variants import (
    PlanEntry,
    VariantPlanner,
    VariantSpec,
    plan_frame,
    variant_spec,
)
from tsfm_lens.testing import example_case


def labelled(entries: list[PlanEntry]) -> dict[str, VariantSpec]:
    found = {entry.label: entry.spec for entry in entries}
    assert len(found) == len(entries), "labels repeat"
    return found


def test_families_equal_zeroed_weights() -> None:
    """A family is the model with the weights of its members set to zero."""
    lens = load("bolt-nano")
    planner = VariantPlanner(lens, "m")
    ranking = [2, 0, 3, 1]
    found = labelled(
        [
            *planner.layers(sizes=(1, 2)),
            *planner.head_counts(1, "stable_rank:low", ranking),
            *planner.heads_per_layer("random:0", {0: ranking, 2: [3, 1, 0, 2]}, [2]),
            *planner.heads(),
            *planner.heads(paired=True),
        ]
    )
    found["recipe"] = planner.recipe("r", {1: [0, 2], 2: [3]}, [0, 1]).spec
    cases = {
        "layer 1": ["1.*_attn.*", "1.mlp"],
        "layers 1 to 2": ["[12].*_attn.*", "[12].mlp"],
        "MLP of layer 2": ["2.mlp"],
        "all heads of layer 0": ["0.*_attn.*"],
        "3 of 4 heads of layer 1, low stable rank first": ["1.*_attn.[023]"],
        "2 of 4 heads in each of 2 layers, random order 0": [
            "0.*_attn.[02]",
            "2.*_attn.[13]",
        ],
        "head 1 of layer 0 (cross_attn)": ["0.cross_attn.1"],
        "head 3 of layer 0 (self_attn+cross_attn)": ["0.*_attn.3"],
        "recipe": ["1.*_attn.[02]", "2.*_attn.3", "[01].mlp"],
    }
    context = bundled("co2", "electricity").tail(96)
    plain = lens.forecast(context, 33).quantiles
    for label, names in cases.items():
        gone = lens.components(*(f"decoder.{name}" for name in names))
        expected = silenced(lens, gone).forecast(context, 33).quantiles
        with lens.edit(*found[label].to_variant(lens).interventions):
            ablated = lens.forecast(context, 33).quantiles
        close_in_float32(ablated, expected, depth=200, what=label)
        moved = np.abs(expected - plain).max()
        assert moved > 5e-4 * np.abs(plain).max(), f"{label}: nothing was ablated"
    nothing = found["0 of 4 heads of layer 1, low stable rank first"]
    assert nothing == planner.plain().spec


def test_variant_names_say_what_is_ablated() -> None:
    lens = load("bolt-nano")
    spec = variant_spec(
        lens, ["decoder.1.cross_attn.2", "decoder.0.mlp", "decoder.1.cross_attn.0"]
    )
    assert spec.components == (
        "decoder.0.mlp",
        "decoder.1.cross_attn.0",
        "decoder.1.cross_attn.2",
    )
    shuffled = [
        "decoder.1.cross_attn.0",
        *lens.components("decoder.1.cross_attn.[02]"),
        "decoder.0.mlp",
    ]
    assert variant_spec(lens, shuffled).id == spec.id
    assert len(spec.id) == 16
    assert int(spec.id, 16) >= 0
    # a layer is its branches, and what a branch replaces leaves nothing of its heads
    layer = variant_spec(lens, ["decoder.1"])
    assert (
        layer
        == variant_spec(lens, ["decoder.1.*"])
        == variant_spec(lens, ["decoder.1", "decoder.1.cross_attn.*"])
    )
    # the output projection's bias stays where only the heads go
    assert (
        variant_spec(
            lens, ["decoder.1.mlp", "decoder.1.self_attn.*", "decoder.1.cross_attn.*"]
        ).id
        != layer.id
    )
    noise = [
        variant_spec(lens, patterns, "noise")
        for patterns in (["decoder.1"], ["decoder.1", "decoder.1.*.0"])
    ]
    assert noise[0].id != noise[1].id
    seeds = {
        variant_spec(lens, ["decoder.1"], how, seed).id
        for how in ("zero", "mean", "noise")
        for seed in (1, 2)
    }
    assert len(seeds) == 1 + 1 + 2
    assert VariantSpec(how="noise", seed=3) == VariantSpec()
    assert VariantSpec().id == "plain"
    assert VariantSpec(("a", "b")).id == VariantSpec(("b", "a", "b")).id


@pytest.mark.parametrize("name", archetypes(NAMES))
def test_every_family_of_every_architecture_runs(name: str) -> None:
    lens = lens_of(name)
    stack = lens.wiring.output_stack
    ranking = list(range(stack.n_heads))[::-1]
    planner = VariantPlanner(lens, "m")
    entries = [
        planner.plain(),
        *planner.layers(sizes=(1, "all")),
        *planner.ranges(),
        *planner.heads(paired=True),
        *planner.components({"last": [str(writers(lens.wiring)[-1])]}),
    ]
    if stack.n_heads:
        entries += planner.head_counts(stack.n_layers - 1, "stable_rank:high", ranking)
        entries += planner.heads_per_layer(
            "random:1", dict.fromkeys(range(stack.n_layers), ranking), [1]
        )
        entries += [
            planner.recipe("r", {0: [0]}, [0]),
            *planner.random("r", {0: 1}, [0, 1]),
        ]
    variants = {entry.spec.id: entry.spec for entry in entries}
    case = example_case(lens)
    with torch.no_grad():
        outputs = run_variants(
            lens, case.encoded, [spec.to_variant(lens) for spec in variants.values()]
        )
        plain = lens.forward(case.encoded)
    assert torch.isfinite(outputs).all()
    moved = {
        key: float((out - plain).abs().max())
        for key, out in zip(variants, outputs, strict=True)
    }
    assert moved["plain"] <= 1e-5 * float(plain.abs().max())
    # a layer that attends between series may be without effect on one series; most must
    # not be
    assert np.mean([value > 0 for key, value in moved.items() if key != "plain"]) > 0.8
    frame = plan_frame(entries)
    assert set(frame["variant"]) == set(variants)
    assert (frame["components"].map(len) > 0).equals(frame["variant"] != "plain")


def test_groups_cover_the_stated_layers() -> None:
    """Groups and ranges cover the layers that they say."""
    planner = VariantPlanner(lens_of("toto-1"), "m")
    groups = planner.layers(parts=("mlp",), sizes=(1, 3, "all"))
    spans = [(entry.tags["first"], entry.tags["last"]) for entry in groups]
    assert spans == [(0, 0), (1, 1), (2, 2), (3, 3), (0, 2), (1, 3), (0, 3)]
    assert [entry.family for entry in groups] == ["layers"] * 4 + ["groups"] * 3
    for entry in groups:
        layers = range(int(entry.tags["first"]), int(entry.tags["last"]) + 1)
        assert entry.spec.components == tuple(f"{layer}.mlp" for layer in layers)
    for grow, expected in (
        ("outward", [(2, 2), (2, 3), (1, 3), (0, 3)]),
        ("up", [(0, 0), (0, 1), (0, 2), (0, 3)]),
        ("down", [(3, 3), (2, 3), (1, 3), (0, 3)]),
    ):
        assert [
            (entry.tags["first"], entry.tags["last"])
            for entry in planner.ranges(grow, ("both",))
        ] == expected


def test_what_cannot_be_planned_is_named() -> None:
    planner = VariantPlanner(load("bolt-nano"), "m")
    expect_error("4 layers does not fit", planner.layers, sizes=(4,))
    expect_error(
        "5 heads cannot be ablated",
        planner.heads_per_layer,
        "x",
        {0: [0, 1, 2, 3]},
        [5],
    )
    expect_error("ablates nothing", planner.recipe, "r", {})
    expect_error(
        "reference", VariantSpec(("decoder.0.mlp",), "mean").to_variant, planner.lens
    )
    expect_error("zero", VariantSpec, ("decoder.0.mlp",), "zeros")
    expect_error("list of components", planner.components, {"x": []})
