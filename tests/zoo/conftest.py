"""Two tiny recipes that train in a second."""

from __future__ import annotations

import copy

import pytest

from tsfm_lens.zoo.recipes import BOLT_NANO, CHRONOS_NANO, Recipe, Stage

MIX = {"motif_rough": 1.0, "kernelsynth": 1.0, "chaotic": 1.0, "tsmixup": 1.0}
TINY = {"d_model": 16, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_decoder_layers": 1, "num_heads": 2}


def shrink(recipe: Recipe, **chronos: object) -> Recipe:
    """Return `recipe` at width 16, with two stages of a few rows and a corpus of six series."""
    config = copy.deepcopy(recipe.config) | TINY
    config["chronos_config"] |= chronos
    stages = (
        Stage(start=0, context=16, horizon=4, rows=3, mix={"motif_smooth": 1.0}, smoothing=2.0, first_weight=3.0),
        Stage(start=3, context=24, horizon=8, rows=3, mix=MIX),
    )
    changes = {"config": config, "stages": stages, "steps": 8, "corpus_size": 6, "corpus_length": 48}
    return recipe.model_copy(
        update=changes | {"encoder_bias": ((1, 0, 4.0),), "decoder_bias": (), "schedule": ((-1, 0.0), (1, 1.0))}
    )


def tiny_token() -> Recipe:
    """A token model of 64 ids."""
    small = shrink(CHRONOS_NANO, n_tokens=64, context_length=24, prediction_length=8, top_k=64)
    return small.model_copy(update={"config": small.config | {"vocab_size": 64}})


def tiny_patch() -> Recipe:
    """A patch model of four steps a patch."""
    return shrink(BOLT_NANO, context_length=24, prediction_length=8, input_patch_size=4, input_patch_stride=4)


@pytest.fixture(params=[tiny_token, tiny_patch], ids=["token", "patch"])
def tiny(request: pytest.FixtureRequest) -> Recipe:
    """A recipe of either kind."""
    return request.param()


@pytest.fixture
def token_recipe() -> Recipe:
    """The tiny token recipe."""
    return tiny_token()


@pytest.fixture
def patch_recipe() -> Recipe:
    """The tiny patch recipe."""
    return tiny_patch()
