"""The small experiments on recipes: every change is run once, and scored on validation alone."""

from __future__ import annotations

import csv
from pathlib import Path

import compare_recipes
import pytest

from tsfm_lens.studies.recipes.corpus import Corpus
from tsfm_lens.studies.recipes.recipe import TrainingRecipe
from tsfm_lens.studies.recipes.recipe import recipe as find_recipe


@pytest.mark.parametrize("recipe", [find_recipe("bolt-nano"), find_recipe("chronos-nano")], ids=["patch", "token"])
def test_changes_keep_what_they_do_not_change(recipe: TrainingRecipe) -> None:
    short = compare_recipes.short(recipe, 400)
    changes = compare_recipes.COMMON | (compare_recipes.TOKEN if recipe.kind == "token" else {})
    changed = {name: change(short) for name, change in changes.items()}
    assert [(plan.steps, plan.restarts) for plan in changed.values()] == [(400, ())] * len(changed)
    assert [name for name, plan in changed.items() if plan == short] == ["as it is"]
    # each is a recipe that could be written down
    assert all(TrainingRecipe(**plan.model_dump()) == plan for plan in changed.values())


def test_an_experiment_is_run_once(
    tiny: TrainingRecipe, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = tiny.model_copy(update={"stages": (*tiny.stages, tiny.stages[-1].model_copy(update={"start": 6}))})
    scored = []

    def score(model: object, *, real: Path) -> dict[str, object]:
        scored.append(model)
        return {"real": {"mase": float(len(scored))}}

    monkeypatch.setattr(compare_recipes, "find_recipe", lambda name: tiny)
    monkeypatch.setattr(compare_recipes, "load_corpus", lambda *_, **__: corpus)
    monkeypatch.setattr(compare_recipes, "validation", score)
    monkeypatch.setattr(compare_recipes, "TOKEN", {})
    kept = {name: compare_recipes.COMMON[name] for name in ("as it is", "another seed")}
    monkeypatch.setattr(compare_recipes, "COMMON", kept)
    for _ in range(2):
        compare_recipes.main(tmp_path / "real.npz", tmp_path / "runs", steps=2, names="tiny")
    with (tmp_path / "runs" / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["change"], row["real mase"]) for row in rows] == [("as it is", "1.0"), ("another seed", "2.0")]
