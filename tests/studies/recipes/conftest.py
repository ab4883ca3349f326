"""Two tiny recipes that train in a second."""

from __future__ import annotations

import copy

import pytest

from tsfm_lens.studies.recipes.corpus import build_corpus
from tsfm_lens.studies.recipes.recipe import TrainingRecipe
from tsfm_lens.studies.recipes.recipe import recipe as find_recipe
from tsfm_lens.training.losses import TrainingStage
from tsfm_lens.training.series_source import Corpus

ROWS = {
    "motif_smooth": 6,
    "motif_rough": 6,
    "harmonics": 6,
    "kernelsynth": 6,
    "chaotic": 6,
}
MIX = {"motif_rough": 1.0, "kernelsynth": 1.0, "chaotic": 1.0, "tsmixup": 1.0}
TINY = {"d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}


def shrink(recipe: TrainingRecipe, **chronos: object) -> TrainingRecipe:
    """Return `recipe` at width 16, with two stages of a few rows."""
    config = copy.deepcopy(recipe.config) | TINY
    if "num_decoder_layers" in config:
        config["num_decoder_layers"] = 1
    config["chronos_config"] |= chronos
    stages = (
        TrainingStage(
            start=0,
            context=16,
            horizon=4,
            rows=3,
            mix={"motif_smooth": 1.0},
            smoothing=2.0,
            first_weight=3.0,
        ),
        TrainingStage(start=3, context=24, horizon=8, rows=3, mix=MIX),
    )
    if recipe.encoder_bias:
        bias = ((1, 0, 4.0),)
    else:
        bias = ()
    changes = {
        "config": config,
        "stages": stages,
        "steps": 8,
        "warmup": 1,
        "decay": 3,
        "corpus": ROWS,
    }
    return recipe.model_copy(
        update=changes | {"encoder_bias": bias, "decoder_bias": (), "restarts": ()}
    )


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    """A few rows of five families."""
    return build_corpus(ROWS, seed=0)


def tiny_token() -> TrainingRecipe:
    """A token model of 64 ids."""
    small = shrink(
        find_recipe("chronos-nano"),
        n_tokens=64,
        context_length=24,
        prediction_length=8,
        top_k=64,
    )
    return small.model_copy(update={"config": small.config | {"vocab_size": 64}})


def tiny_patch() -> TrainingRecipe:
    """A patch model of four steps a patch."""
    return shrink(
        find_recipe("bolt-nano"),
        context_length=24,
        prediction_length=8,
        input_patch_size=4,
        input_patch_stride=4,
    )


@pytest.fixture(params=[tiny_token, tiny_patch], ids=["token", "patch"])
def tiny(request: pytest.FixtureRequest) -> TrainingRecipe:
    """A recipe of each kind."""
    return request.param()


token_recipe, patch_recipe = map(pytest.fixture, (tiny_token, tiny_patch))
