"""Token models that score by nested blocks: against the definition, and what the arms come to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tsfm_lens.errors import InputError
from tsfm_lens.studies.recipes import levels
from tsfm_lens.studies.recipes.corpus import Corpus
from tsfm_lens.studies.recipes.lowrank import trained
from tsfm_lens.studies.recipes.models import build_model, score_by_levels, spread
from tsfm_lens.studies.recipes.recipe import TrainingRecipe
from tsfm_lens.studies.structured import Reach, level_blocks, reaching_scores, token_blocks
from tsfm_lens.testing import assert_close


@pytest.mark.parametrize(("tokens", "ranks"), [(16, (3, 2, 2)), (13, (2, 0, 1)), (9, (4,))])
def test_products_of_spread_features_are_the_scores_by_levels(tokens: int, ranks: tuple[int, ...]) -> None:
    query, key = torch.randn(2, 2, tokens, sum(ranks), dtype=torch.float64)
    reach = Reach(ranks, token_blocks(tokens, len(ranks)), causal=False)
    wide = [spread(part, ranks) for part in (query, key)]
    assert_close(wide[0] @ wide[1].mT, reaching_scores(query, key, reach), depth=20)
    counts = level_blocks(len(ranks))
    assert wide[0].shape[-1] == sum(rank * count for rank, count in zip(ranks, counts, strict=True))


def logits(model: Any, tokens: int = 16) -> torch.Tensor:
    ids = torch.arange(3, 3 + 2 * tokens).reshape(2, tokens)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    with torch.no_grad():
        found: torch.Tensor = model.eval()(input_ids=ids, attention_mask=mask, decoder_input_ids=ids[:, :4]).logits
    return found


def test_one_level_is_the_native_model_and_several_are_not(token_recipe: TrainingRecipe) -> None:
    size = token_recipe.config["d_kv"]
    native = logits(build_model(token_recipe))
    one = logits(build_model(token_recipe.model_copy(update={"attention_levels": (size,)})))
    assert_close(one, native, depth=300)
    several = logits(build_model(token_recipe.model_copy(update={"attention_levels": (size - 2, 1, 1)})))
    assert (several - native).abs().max() > 1e3 * (one - native).abs().max()


def test_ranks_that_are_no_division_of_a_head_are_refused(token_recipe: TrainingRecipe) -> None:
    model = build_model(token_recipe)
    for ranks in ((3, 2), (5, -1)):
        with pytest.raises(InputError, match=r"from 1 that sum to 4"):
            score_by_levels(model, ranks)
    assert token_recipe.model_dump_json(exclude_defaults=True).count("levels") == 0


def test_arms_are_trained_alike_and_measured(
    token_recipe: TrainingRecipe, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = {"steps": 2, "decay": 1, "config": {**token_recipe.config, "d_kv": 4}}
    monkeypatch.setattr("tsfm_lens.studies.recipes.lowrank.BASE", token_recipe.model_copy(update=update))
    monkeypatch.setattr(levels, "LEVELS", {"standard": (), "MLR 2+2": (2, 2)})
    arms = levels.level_runs(seeds=2)
    assert [(arm.name, arm.seed) for arm in arms[:3]] == [("standard", 0), ("MLR 2+2", 0), ("standard", 1)]
    for arm in arms:
        assert trained(arm, tmp_path, corpus, quiet=True)
    found = levels.level_record(arms, tmp_path, corpus, per_family=2)
    assert found["loss"].shape == (2, 2)
    assert np.isfinite(found["loss"]).all()
    # half the features see all keys, half those of their half
    assert found["score_share"].values.tolist() == [1.0, 0.75]
    again = levels.level_record(arms[:1], tmp_path, corpus, per_family=2)
    assert float(again["loss"][0, 0]) == float(found["loss"][0, 0])
