"""Skill against hand computation and known forecasters, and checkpoints that do what their cards say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chronos import BaseChronosPipeline, Chronos2Pipeline, ChronosBoltPipeline, ChronosPipeline

from tsfm_lens.errors import CheckpointError, InputError, UnknownNameError
from tsfm_lens.hooks import Component
from tsfm_lens.models import load
from tsfm_lens.studies.recipes import evaluate, mechanisms
from tsfm_lens.studies.recipes.evaluate import covariate_gain, geometric_mean, measure, real_cases
from tsfm_lens.studies.recipes.models import build_model
from tsfm_lens.studies.recipes.recipe import RECIPES
from tsfm_lens.testing import assert_close
from tsfm_lens.zoo import checkpoint_names, checkpoint_path


class LastSeason:
    """A pipeline that gives the seasonal naive quantiles for a season of four."""

    def predict_quantiles(self, inputs: list[Any], *, prediction_length: int, quantile_levels: list[float]) -> Any:
        rows = [evaluate.naive_quantiles(context.double().numpy(), 4, prediction_length) for context in inputs]
        return torch.from_numpy(np.stack(rows)), None


class Cause:
    """A pipeline that gives the known covariate where it is shown one, else 0."""

    def predict_quantiles(self, inputs: list[Any], *, prediction_length: int, quantile_levels: list[float]) -> Any:
        rows = [
            torch.as_tensor(one["future_covariates"]["0"]) if isinstance(one, dict) else torch.zeros(prediction_length)
            for one in inputs
        ]
        return [row[None, :, None].expand(-1, -1, len(evaluate.LEVELS)) for row in rows], None


def test_naive_quantiles_repeat_the_season_and_widen() -> None:
    context = np.array([1.0, 5.0, 2.0, 6.0, 2.0, np.nan])
    quantiles = evaluate.naive_quantiles(context, 2, 5)
    # the gap takes the value before it
    np.testing.assert_allclose(quantiles[:, 4], [2, 2, 2, 2, 2])
    width = quantiles[:, 8] - quantiles[:, 0]
    np.testing.assert_allclose(width / width[0], np.sqrt([1, 1, 2, 2, 3]))


def test_windows_do_not_overlap_and_see_no_future() -> None:
    case = evaluate.SkillCase("ramp", np.arange(100.0), 4, np.arange(100.0)[None] * 2)
    tasks = list(evaluate.windows(case, 10))
    assert len(tasks) == 5
    np.testing.assert_array_equal(np.concatenate([task.truth for task in tasks[::-1]]), np.arange(50.0, 100.0))
    assert all(task.context[-1] == task.truth[0] - 1 for task in tasks)
    assert all(task.covariates[0, -1] == 2 * task.truth[-1] for task in tasks)


def test_a_seasonal_naive_model_has_ratio_one() -> None:
    values = np.random.default_rng(0).normal(size=120)
    cases = [evaluate.SkillCase("noise", values, 4), evaluate.SkillCase("walk", values.cumsum(), 4)]
    results = evaluate.measure(LastSeason(), cases, horizon=12)
    assert [result.name for result in results] == ["noise", "walk"]
    assert_close([result.ratio for result in results], [1.0, 1.0], depth=100, dtype=np.float32)
    assert_close([result.crps_ratio for result in results], [1.0, 1.0], depth=100, dtype=np.float32)
    assert_close(evaluate.summary(results)["mase"], 1.0, depth=100, dtype=np.float32)


def test_a_model_sees_the_covariates_of_its_windows_if_asked_to() -> None:
    cause = np.random.default_rng(0).normal(size=(1, 120))
    case = evaluate.SkillCase("caused", cause[0] + 0.0, 4, cause)
    assert evaluate.measure(Cause(), [case], horizon=12)[0].model < 1e-6
    assert evaluate.measure(Cause(), [case], horizon=12, covariates=False)[0].model > 0.3


def test_tuning_sees_no_test(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = []

    def gain(model: object, *, seed: int) -> dict[str, object]:
        seeds.append(seed)
        return {"ratio": 0.5, "interval": (0.44449, 0.6)}

    monkeypatch.setattr(evaluate, "covariate_gain", gain)
    monkeypatch.setattr(evaluate, "measure", lambda pipeline, cases, **options: measure(LastSeason(), cases[:1]))
    values = np.random.default_rng(0).normal(size=200)
    real = tmp_path / "real.npz"
    np.savez(real, **{f"{split}/a": values for split in ("validation", "records")}, **{"season/a": np.array(4)})
    for given in (None, real):
        evaluate.main(checkpoint_path("chronos2-nano"), real=given)
    assert seeds == [evaluate.TEST_SEED, evaluate.VALIDATION_SEED]
    first, second = capsys.readouterr().out.split("test: MASE with known covariates / without: 0.500 (0.444 to 0.600)")
    assert "validation" not in first
    assert "test" not in second
    assert "validation: MASE with known covariates" in second


def test_real_series_to_tune_on_are_of_a_known_split(tmp_path: Path) -> None:
    path = tmp_path / "real.npz"
    np.savez(path, **{"validation/a": np.arange(5.0), "season/a": np.array(3), "training/b": np.arange(9.0)})
    (case,) = evaluate.validation_cases(path)
    assert (case.name, case.season, case.values.tolist()) == ("a", 3, [0, 1, 2, 3, 4])
    with pytest.raises(CheckpointError, match="has no array records"):
        evaluate.validation_cases(path, "records")
    with pytest.raises(UnknownNameError, match="records"):
        evaluate.validation_cases(path, "record")


def test_series_and_seasons_that_are_none_are_named(tmp_path: Path) -> None:
    path = tmp_path / "real.npz"
    for values, season, said in (
        (np.full(9, np.nan), np.array(3), "array validation/a has 9 steps and no value"),
        (np.arange(9.0), np.array(0), "array season/a is 0, expected a number of steps from 1 on"),
        (np.arange(9.0), np.array([3]), r"array season/a is \[3\]"),
        (np.arange(9.0), None, "array season/a is not there"),
    ):
        np.savez(path, **{"validation/a": values}, **({} if season is None else {"season/a": season}))
        with pytest.raises(CheckpointError, match=said):
            evaluate.validation_cases(path)


class Damaged(LastSeason):
    """A pipeline that gives NaN for one series."""

    def predict_quantiles(self, inputs: list[Any], *, prediction_length: int, quantile_levels: list[float]) -> Any:
        quantiles, _ = super().predict_quantiles(
            inputs, prediction_length=prediction_length, quantile_levels=quantile_levels
        )
        quantiles[-1, 0, 2] = torch.nan
        return quantiles, None


def test_a_forecast_that_is_not_finite_is_an_error_and_no_series_that_is_left_out() -> None:
    rng = np.random.default_rng(0)
    cases = [evaluate.SkillCase("one", rng.normal(size=60), 4), evaluate.SkillCase("two", rng.normal(size=60), 4)]
    with pytest.raises(InputError, match="forecast of 'two' has 1 of 108 quantiles that are not finite"):
        evaluate.measure(Damaged(), cases, horizon=12)
    # a context without a value has no forecast, and no error to measure it by
    unseen = evaluate.SkillCase("unseen", np.concatenate([np.full(33, np.nan), np.ones(12)]), 4)
    assert evaluate.measure(Damaged(), [unseen], horizon=12) == []


def test_a_horizon_that_no_series_has_is_answered_with_the_longest() -> None:
    # two seasons and a step stay as context
    longest = 100 - 49
    assert [
        len(list(evaluate.windows(evaluate.SkillCase("a", np.zeros(100), 24), longest + more))) for more in (0, 1)
    ] == [1, 0]
    with pytest.raises(InputError, match=r"--horizon 100000: no series of 'test: synthetic .* expected at most \d+$"):
        evaluate.main(checkpoint_path("bolt-nano"), horizon=100_000)


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


def test_bolt_nano_beats_the_seasonal_naive_forecast_on_real_series() -> None:
    pipeline = BaseChronosPipeline.from_pretrained(str(checkpoint_path("bolt-nano")))
    skills = measure(pipeline, real_cases(), horizon=24)
    assert geometric_mean([one.ratio for one in skills]) < 0.95


def test_chronos2_nano_uses_the_known_future_of_a_covariate() -> None:
    pipeline = BaseChronosPipeline.from_pretrained(str(checkpoint_path("chronos2-nano")))
    gain = covariate_gain(pipeline.model, count=12)
    assert gain["ratio"] < 0.7


def test_chronos_nano_copies_with_induction_heads() -> None:
    found = mechanisms.measure(load("chronos-nano"), count=4)
    both = [head for head in found.induction if head in found.sharp]
    assert both
    assert all(isinstance(head, Component) and head.kind == "cross_attn" for head in both)
    assert float(found.test.copy_accuracy) > 0.5
    assert found.copy_error["plain"] < 0.05
    assert found.copy_error["both"] > 0.3


class Sampler:
    """A pipeline whose quantiles are the number of samples that it was asked for, 20 by itself."""

    def predict_quantiles(
        self, inputs: list[torch.Tensor], *, prediction_length: int, quantile_levels: list[float], num_samples: int = 20
    ) -> tuple[torch.Tensor, None]:
        shape = (len(inputs), prediction_length, len(quantile_levels))
        return torch.full(shape, float(num_samples)), None


def test_a_sampling_model_draws_as_many_paths_as_asked() -> None:
    case = evaluate.SkillCase("fifty", np.resize([49.0, 51.0], 80), 1)
    errors = [evaluate.measure(Sampler(), [case], horizon=8, samples=samples)[0].model for samples in (None, 50, 80)]
    # the series is 50 on average and moves by 2 at each step
    assert errors == pytest.approx([15.0, 0.5, 15.0])
