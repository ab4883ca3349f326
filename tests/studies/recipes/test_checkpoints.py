"""The checkpoints that ship: native, small, able to do what their cards say, with the mechanisms of probes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from chronos import BaseChronosPipeline, Chronos2Pipeline, ChronosBoltPipeline, ChronosPipeline

from tsfm_lens.errors import LensError
from tsfm_lens.hooks import Component
from tsfm_lens.models import load
from tsfm_lens.studies.recipes import mechanisms
from tsfm_lens.studies.recipes.evaluate import covariate_gain, geometric_mean, measure, real_cases
from tsfm_lens.studies.recipes.mechanisms import motifs
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


def test_motifs_go_on_as_they_began() -> None:
    batch, future = motifs(3, length=7, repeats=3, horizon=10, seed=1)
    for series, after in zip(batch.values, future, strict=True):
        np.testing.assert_array_equal(series[:7], series[7:14])
        np.testing.assert_array_equal(np.concatenate([series, after])[21:28], series[:7])
        np.testing.assert_array_equal(after[7:], series[:3])


def test_chronos_nano_copies_with_induction_heads() -> None:
    found = mechanisms.measure(load("chronos-nano"), count=4)
    both = [head for head in found.induction if head in found.sharp]
    assert both
    assert all(isinstance(head, Component) and head.kind == "cross_attn" for head in both)
    assert float(found.test.copy_accuracy) > 0.5
    assert found.copy_error["plain"] < 0.05
    assert found.copy_error["both"] > 0.3


def test_a_model_without_tokens_is_refused() -> None:
    with pytest.raises(LensError, match="bolt-nano is no encoder-decoder model over value tokens"):
        mechanisms.main("bolt-nano")
