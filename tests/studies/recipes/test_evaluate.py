"""Skill against hand computation and known forecasters, and checkpoints that do what
their cards say.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import measure_bundled
import numpy as np
import pytest
import torch
from chronos import (
    BaseChronosPipeline,
    ChronosBoltPipeline,
    ChronosPipeline,
)
from scipy.stats import gmean

from tsfm_lens.core.errors import InputError
from tsfm_lens.studies.recipes import evaluate
from tsfm_lens.studies.recipes.evaluate import (
    measure,
    real_cases,
)
from tsfm_lens.studies.recipes.models import build_model
from tsfm_lens.studies.recipes.recipe import RECIPES
from tsfm_lens.testing import assert_close
from tsfm_lens.zoo import checkpoint_path

ROOT = Path(__file__).parents[3]


class LastSeason:
    """A pipeline that gives the seasonal naive quantiles for a season of four."""

    def predict_quantiles(
        self, inputs: list[Any], *, prediction_length: int, quantile_levels: list[float]
    ) -> Any:
        rows = [
            evaluate.naive_quantiles(context.double().numpy(), 4, prediction_length)
            for context in inputs
        ]
        return torch.from_numpy(np.stack(rows)), None


def test_naive_quantiles_repeat_seasons_and_widen() -> None:
    context = np.array([1.0, 5.0, 2.0, 6.0, 2.0, np.nan])
    quantiles = evaluate.naive_quantiles(context, 2, 5)
    # the gap takes the value before it
    np.testing.assert_allclose(quantiles[:, 4], [2, 2, 2, 2, 2])
    width = quantiles[:, 8] - quantiles[:, 0]
    np.testing.assert_allclose(width / width[0], np.sqrt([1, 1, 2, 2, 3]))


def test_windows_see_no_future() -> None:
    """Windows do not overlap, and none sees the future."""
    case = evaluate.SkillCase("ramp", np.arange(100.0), 4)
    tasks = list(evaluate.windows(case, 10))
    assert len(tasks) == 5
    np.testing.assert_array_equal(
        np.concatenate([task.truth for task in tasks[::-1]]), np.arange(50.0, 100.0)
    )
    assert all(task.context[-1] == task.truth[0] - 1 for task in tasks)


def test_seasonal_naive_models_have_ratio_one() -> None:
    values = np.random.default_rng(0).normal(size=120)
    cases = [
        evaluate.SkillCase("noise", values, 4),
        evaluate.SkillCase("walk", values.cumsum(), 4),
    ]
    results = evaluate.measure(LastSeason(), cases, horizon=12)
    assert results.index.tolist() == ["noise", "walk"]
    ratios = results[["/ seasonal naive", "CRPS / seasonal naive"]]
    assert_close(ratios, np.ones((2, 2)), depth=100, dtype=np.float32)


def test_tuning_sees_no_test(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        evaluate,
        "measure",
        lambda pipeline, cases, **options: measure(LastSeason(), cases[:1]),
    )
    values = np.random.default_rng(0).normal(size=200)
    real = tmp_path / "real.npz"
    np.savez(
        real,
        **{f"{split}/a": values for split in ("validation", "records")},
        **{"season/a": np.array(4)},
    )
    evaluate.main(checkpoint_path("chronos2-nano"))
    assert "validation" not in capsys.readouterr().out
    evaluate.main(checkpoint_path("chronos2-nano"), real=real)
    assert "test" not in capsys.readouterr().out


def test_forecasts_that_are_not_finite_fail(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A forecast that is not finite is an error: its series is not left out."""

    def damaged(
        pipeline: object, tasks: list[Any], *, horizon: int, **options: object
    ) -> list[np.ndarray]:
        return [
            np.where(np.arange(9) == 2, np.nan, np.zeros((horizon, 9))) for _ in tasks
        ]

    monkeypatch.setattr(evaluate, "forecasts", damaged)
    cases = [evaluate.SkillCase("one", np.random.default_rng(0).normal(size=60), 4)]
    with pytest.raises(
        InputError,
        match="forecast of 'one' has 12 of 108 quantiles that are not finite",
    ):
        evaluate.measure(LastSeason(), cases, horizon=12)
    # a context without a value has no forecast, and no error to measure it by
    unseen = evaluate.SkillCase(
        "unseen", np.concatenate([np.full(33, np.nan), np.ones(12)]), 4
    )
    assert evaluate.measure(LastSeason(), [unseen], horizon=12).empty


def test_impossible_horizons_get_the_longest() -> None:
    """A horizon that no series has is answered with the longest possible one."""
    # two seasons and a step stay as context
    longest = 100 - 49
    assert [
        len(
            list(
                evaluate.windows(
                    evaluate.SkillCase("a", np.zeros(100), 24), longest + more
                )
            )
        )
        for more in (0, 1)
    ] == [1, 0]
    with pytest.raises(
        InputError,
        match=(
            r"--horizon 100000: no series of 'test: synthetic .* expected at most \d+$"
        ),
    ):
        evaluate.main(checkpoint_path("bolt-nano"), horizon=100_000)


KINDS = {
    "bolt-nano": ChronosBoltPipeline,
    "chronos-nano": ChronosPipeline,
}


@pytest.mark.parametrize("name", RECIPES)
def test_checkpoints_are_small_and_match_recipes(name: str) -> None:
    """A checkpoint is small and is what its recipe describes."""
    folder = checkpoint_path(name)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 12e6
    stored = json.loads((folder / "config.json").read_text())
    assert stored["chronos_config"] == RECIPES[name].config["chronos_config"]
    pipeline = BaseChronosPipeline.from_pretrained(str(folder))
    assert isinstance(pipeline, KINDS[name])
    shapes = {
        key: value.shape
        for key, value in (
            build_model(RECIPES[name], RECIPES[name].steps).state_dict().items()
        )
    }
    stored = getattr(pipeline, "inner_model", pipeline.model).state_dict()
    assert {key: value.shape for key, value in stored.items()} == shapes


def test_bolt_nano_beats_seasonal_naive() -> None:
    """On real series bolt-nano beats the seasonal naive forecast."""
    pipeline = BaseChronosPipeline.from_pretrained(str(checkpoint_path("bolt-nano")))
    skills = measure(pipeline, real_cases(), horizon=24)
    assert gmean(skills["/ seasonal naive"]) < 0.95


def test_first_report_is_of_series_that_its_model_forecasts() -> None:
    """The series of `make report` are forecast better than by their last season, as the
    model card says.
    """
    settings = dict(
        re.findall(r"^(\w+) \?= (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    )
    model = settings["MODEL"]
    names = settings["SERIES"].removeprefix("bundled:").split(",")
    errors = measure_bundled.measure(
        model, [case for case in real_cases() if case.name in names]
    )
    assert set(errors.index) == set(names)
    card = measure_bundled.PAGE.read_text()
    for name, row in errors.iterrows():
        assert (row[model] < row[measure_bundled.NAIVE]).all()
        cells = measure_bundled.write_row(str(name), row)
        assert " | ".join(cells[:3]) in card
        assert f" | {cells[-1]} |" in card
