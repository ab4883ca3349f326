"""The checkpoints that ship: native, small, and better than the seasonal naive forecast where they are meant to be."""

from __future__ import annotations

import json

import pytest
from chronos import BaseChronosPipeline, ChronosBoltPipeline, ChronosPipeline

from tsfm_lens.errors import UnknownNameError
from tsfm_lens.zoo import checkpoint_names, checkpoint_path
from tsfm_lens.zoo.evaluate import geometric_mean, measure, synthetic_cases
from tsfm_lens.zoo.recipes import RECIPES
from tsfm_lens.zoo.train import build_model


def test_two_checkpoints_ship() -> None:
    assert checkpoint_names() == ("bolt-nano", "chronos-nano")


def test_an_unknown_checkpoint_is_answered_with_its_neighbour() -> None:
    with pytest.raises(UnknownNameError, match="bolt-nano"):
        checkpoint_path("bolt-mini")


@pytest.mark.parametrize("name", list(RECIPES))
def test_a_checkpoint_is_small_and_is_what_its_recipe_describes(name: str) -> None:
    folder = checkpoint_path(name)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 12e6
    stored = json.loads((folder / "config.json").read_text())
    assert stored["chronos_config"] == RECIPES[name].config["chronos_config"]
    kind = {"chronos-nano": ChronosPipeline, "bolt-nano": ChronosBoltPipeline}[name]
    pipeline = BaseChronosPipeline.from_pretrained(str(folder))
    assert isinstance(pipeline, kind)
    shapes = {key: value.shape for key, value in build_model(RECIPES[name]).state_dict().items()}
    assert {key: value.shape for key, value in pipeline.inner_model.state_dict().items()} == shapes


@pytest.mark.parametrize("name", list(RECIPES))
def test_held_out_seasons_are_forecast_better_than_naively(name: str) -> None:
    pipeline = BaseChronosPipeline.from_pretrained(str(checkpoint_path(name)))
    skills = measure(pipeline, synthetic_cases(count=6), horizon=24)
    assert geometric_mean([one.ratio for one in skills]) < 0.95
