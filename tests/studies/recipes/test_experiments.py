"""The small experiments on recipes: every change is run once, and scored on validation alone."""

from __future__ import annotations

import compare_recipes
import pytest

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
