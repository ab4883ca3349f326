"""The checkpoints that ship: native, small, and able to do what their cards say."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from chronos import BaseChronosPipeline, Chronos2Pipeline, ChronosBoltPipeline, ChronosPipeline

from tsfm_lens.studies.recipes.evaluate import covariate_gain, geometric_mean, measure, real_cases
from tsfm_lens.studies.recipes.models import build_model
from tsfm_lens.studies.recipes.recipe import RECIPES
from tsfm_lens.zoo import checkpoint_names, checkpoint_path

KINDS = {"bolt-nano": ChronosBoltPipeline, "chronos-nano": ChronosPipeline, "chronos2-nano": Chronos2Pipeline}


@pytest.mark.parametrize("name", checkpoint_names())
def test_a_checkpoint_is_small_and_is_what_its_recipe_describes(name: str) -> None:
    folder = checkpoint_path(name)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 12e6
    stored = json.loads((folder / "config.json").read_text())
    assert stored["chronos_config"] == RECIPES[name].config["chronos_config"]
    pipeline = BaseChronosPipeline.from_pretrained(str(folder))
    assert isinstance(pipeline, KINDS[name])
    shapes = {key: value.shape for key, value in build_model(RECIPES[name], RECIPES[name].steps).state_dict().items()}
    assert {
        key: value.shape for key, value in getattr(pipeline, "inner_model", pipeline.model).state_dict().items()
    } == shapes


def test_chronos_nano_copies_a_motif_it_never_saw() -> None:
    rng = np.random.default_rng(20_261_121)
    series = np.stack([np.resize(rng.standard_normal(period), 152) for period in (8, 12, 16, 20, 24)])
    pipeline = BaseChronosPipeline.from_pretrained(str(checkpoint_path("chronos-nano")))
    quantiles, _ = pipeline.predict_quantiles(
        torch.tensor(series[:, :128]), prediction_length=24, quantile_levels=[0.5]
    )
    # forecasting the mean would be off by 0.8
    assert np.abs(quantiles[..., 0].numpy() - series[:, 128:]).mean() < 0.05


def test_bolt_nano_beats_the_seasonal_naive_forecast_on_real_series() -> None:
    pipeline = BaseChronosPipeline.from_pretrained(str(checkpoint_path("bolt-nano")))
    skills = measure(pipeline, real_cases(), horizon=24)
    assert geometric_mean([one.ratio for one in skills]) < 0.95


def test_chronos2_nano_uses_the_known_future_of_a_covariate() -> None:
    pipeline = BaseChronosPipeline.from_pretrained(str(checkpoint_path("chronos2-nano")))
    gain = covariate_gain(pipeline.model, count=12)
    assert gain["ratio"] < 0.7
