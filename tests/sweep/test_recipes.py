"""Recipes: the published ones on models of the published sizes, files, and what is
refused.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from refusals import expect_error
from tiny_lenses import lens_of
from tsfm_lens.hooks.component import components, select_components
from tsfm_lens.models import Lens, load
from tsfm_lens.probes.recipes import ablated_share, random_heads
from tsfm_lens.sweep.planner import recipes
from tsfm_lens.sweep.planner.orders import rankings
from tsfm_lens.sweep.planner.recipes import (
    Recipe,
    parse_recipe,
    read_recipe,
    select_targets,
)
from tsfm_lens.sweep.planner.variants import PlanEntry, VariantPlanner
from tsfm_lens.testing import last_digit

PUBLISHED = {
    "timesfm-2.5": (20, 16),
    "toto-1": (12, 12),
    "chronos-bolt": (12, 12),
    "moirai-1.1": (12, 12),
}


@cache
def published(name: str) -> Lens:
    """What recipes read of a lens, at the published size: the wiring, without any
    weights.
    """
    wiring = lens_of(name).wiring
    n_layers, n_heads = PUBLISHED[name]
    stack = replace(
        wiring.output_stack, n_layers=n_layers, n_heads=n_heads, exceptions={}
    )
    wiring = replace(wiring, stacks=(*wiring.stacks[:-1], stack))

    def chosen(*patterns: object) -> list:
        if patterns:
            return select_components(wiring, *patterns)
        return list(components(wiring))

    return SimpleNamespace(wiring=wiring, model_id=name, components=chosen)  # type: ignore[return-value]


def to_entries(recipe: Recipe, lens: Lens, **options: Any) -> list[PlanEntry]:
    return recipes.to_entries(recipe, VariantPlanner(lens, "m"), **options)


def any_order(name: str) -> dict[int, list[int]]:
    n_layers, n_heads = PUBLISHED[name]
    return {layer: list(range(n_heads)) for layer in range(n_layers)}


@pytest.mark.parametrize(
    ("recipe", "architecture", "heads", "of", "percent", "mlps"),
    [
        ("timesfm-released", "timesfm-2.5", 177, 320, 55.3, 0),
        ("toto-released", "toto-1", 90, 144, 62.5, 0),
        ("bolt-released", "chronos-bolt", 88, 144, 61.1, 0),
        ("moirai-released", "moirai-1.1", 83, 144, 57.6, 0),
        ("timesfm-28", "timesfm-2.5", 88, 320, 27.5, 2),
        ("timesfm-51", "timesfm-2.5", 164, 320, 51.25, 2),
        ("toto-29", "toto-1", 42, 144, 29.2, 0),
        ("bolt-60", "chronos-bolt", 86, 144, 59.7, 9),
        ("bolt-list-82", "chronos-bolt", 82, 144, 56.9, 0),
    ],
)
def test_published_recipes_match_the_paper(
    monkeypatch: pytest.MonkeyPatch,
    recipe: str,
    architecture: str,
    heads: int,
    of: int,
    percent: float,
    mlps: int,
) -> None:
    """Published recipes take out what the paper says."""
    lens = published(architecture)
    # without weights, any order
    monkeypatch.setattr(
        recipes, "rankings", lambda _, orders: {orders[0]: any_order(architecture)}
    )
    (entry,) = to_entries(read_recipe(recipe), lens)
    assert (entry.tags["ablated"], entry.tags["of"], entry.tags["mlps"]) == (
        heads,
        of,
        mlps,
    )
    assert 100 * heads / of == pytest.approx(percent, abs=last_digit(1))
    # counted once more in the components themselves; an index of Bolt is a head of each
    # of two kinds
    kinds = len(lens.wiring.output_stack.attention_kinds())
    assert ablated_share(lens.wiring, lens.components(*entry.spec.components)) == (
        kinds * heads,
        kinds * of,
        mlps,
    )
    counted = recipe in ("bolt-released", "bolt-60")
    assert entry.tags["selection"] == ("stable_rank" if counted else "listed")


def test_recipe_file_formats_agree(tmp_path: Path) -> None:
    """Recipes in files of both formats say the same."""
    lens = load("bolt-nano")
    content = {
        "heads": {1: [2, 0]},
        "kept_heads": {0: 1},
        "mlps": [2],
        "order": "stable_rank:high",
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "mine.json").write_text(json.dumps(content))
    first, second = (
        to_entries(read_recipe(tmp_path / f"mine.{kind}"), lens)
        for kind in ("yaml", "json")
    )
    assert first == second
    going = rankings(lens, ["stable_rank:high"])["stable_rank:high"][0][:3]
    expected = {
        f"decoder.1.{kind}_attn.{head}" for kind in ("self", "cross") for head in (0, 2)
    }
    expected |= {
        f"decoder.0.{kind}_attn.{head}" for kind in ("self", "cross") for head in going
    }
    assert set(first[0].spec.components) == expected | {"decoder.2.mlp"}
    assert first[0].tags["recipe"] == "mine"
    # the same counts at random, with the same MLP
    drawn = to_entries(read_recipe(tmp_path / "mine.yaml"), lens, random_seeds=[0, 1])[
        1:
    ]
    assert [
        (entry.family, entry.tags["ablated"], entry.tags["seed"]) for entry in drawn
    ] == [
        ("random", 5, 0),
        ("random", 5, 1),
    ]
    assert all("decoder.2.mlp" in entry.spec.components for entry in drawn)


@pytest.mark.parametrize("model", ["bolt-nano", "chronos-nano"])
@pytest.mark.parametrize(
    ("heads", "possible"),
    [({1: [2]}, 3), ({1: [0, 2]}, 5), ({0: [1], 2: [3]}, 15), ({0: [0, 1, 2, 3]}, 0)],
)
def test_random_sets_of_heads_are_distinct(
    heads: dict[int, list[int]], possible: int, model: str
) -> None:
    """No two draws ablate the same heads, and none those of the recipe; more seeds than
    sets give every set once.
    """
    lens = load(model)
    recipe = parse_recipe({"name": "x", "heads": heads})
    for n_seeds in (1, 4, 40):
        chosen, *drawn = to_entries(recipe, lens, random_seeds=range(n_seeds))
        assert len(drawn) == min(n_seeds, possible)
        assert len({entry.spec.id for entry in [chosen, *drawn]}) == 1 + len(drawn)
        assert {entry.tags["possible"] for entry in drawn} <= {possible}
        # a set is named by the seed that draws it
        for entry in drawn:
            keep = {layer: 4 - len(indices) for layer, indices in heads.items()}
            seed = int(entry.tags["seed"])
            expected = random_heads(lens, keep, seed=seed)
            assert set(entry.spec.components) == {str(each) for each in expected}


def test_recipe_uses_measured_heads_at_k() -> None:
    """A recipe is filled in with the heads that were measured at k."""
    lens = load("bolt-nano")
    recipe = parse_recipe(
        {
            "name": "x",
            "layers_at": [{"layers": "middle third"}, {"layers": "others", "extra": 1}],
        }
    )
    assert recipe.measured
    assert select_targets(recipe, lens, measured={0: [3, 1], 1: [2, 0, 1], 2: []}) == (
        {0: [3], 1: [2, 0, 1]},
        [],
    )
    expect_error("not measured", select_targets, recipe, lens)


def test_sizes_are_scaled_only_when_asked() -> None:
    """A recipe for another size of the model is scaled only when asked."""
    lens = load("bolt-nano")
    recipe = read_recipe("timesfm-51")
    expect_error(r"20 layers of 16 heads.*scale: true", to_entries, recipe, lens)
    heads, mlps = select_targets(recipe, lens, scale=True)
    assert select_targets(
        parse_recipe({**recipe.model_dump(), "scale": True}), lens
    ) == (
        heads,
        mlps,
    )
    # the middles of 3 layers lie in layers 3, 10 and 16 of 20, where 7, 0 and 13 of 16
    # heads are kept: of 4 heads 2, 0 and 3, and one more outside layers 7 to 13
    low = rankings(lens, ["stable_rank:low"])["stable_rank:low"]
    assert heads == {0: low[0][:1], 1: low[1]}
    assert mlps == [1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"hads": {0: [1]}}, "nearest is 'heads'"),
        ({}, "ablates nothing"),
        ({"heads": {0: [1]}, "layers_at": [{"layers": [0]}]}, "layer 0 is named twice"),
        ({"mlps": [1], "order": "stable_rnk:low"}, "stable_rank:low"),
        ({"mlps": [1], "order": "stable_rank"}, "stands for 2 orders"),
        ({"layers_at": [{"layers": "all"}], "released": "toto"}, "toto-1"),
        ({"heads": {"first": [0]}}, "heads"),
    ],
)
def test_recipes_that_cannot_be_read(content: dict, message: str) -> None:
    expect_error(message, parse_recipe, {"name": "x", **content})


def test_recipes_must_fit_the_model(tmp_path: Path) -> None:
    """Recipes that do not fit the model are refused."""
    lens = load("bolt-nano")
    for content, text in (
        ({"heads": {3: [0]}}, "'3'"),
        ({"heads": {0: [4]}}, "'4'"),
        ({"mlps": [7]}, "'7'"),
        ({"kept_heads": {0: 5}}, "keep 5 heads, it has 4"),
        ({"heads": {0: [1]}, "architecture": "toto-1"}, "is for toto-1"),
        ({"kept_heads": {0: 1}, "order": "output_norm:low"}, "measured on data"),
    ):
        expect_error(text, to_entries, parse_recipe({"name": "x", **content}), lens)
    expect_error("timesfm-28", read_recipe, "timesfm-29")
    # what the paper leaves open is not made up
    expect_error(
        "does not say which", to_entries, read_recipe("toto-43"), published("toto-1")
    )
    (tmp_path / "list.yaml").write_text("[1, 2]")
    expect_error("holds list", read_recipe, tmp_path / "list.yaml")
