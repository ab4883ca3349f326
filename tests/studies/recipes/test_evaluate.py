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
from tsfm_lens.data import SeriesBatch, bundled
from tsfm_lens.studies.recipes import evaluate
from tsfm_lens.studies.recipes.evaluate import measure
from tsfm_lens.studies.recipes.models import build_model
from tsfm_lens.studies.recipes.recipe import RECIPES
from tsfm_lens.sweep import EvaluationSet, Window
from tsfm_lens.testing import assert_close
from tsfm_lens.zoo import checkpoint_path

ROOT = Path(__file__).parents[3]


class LastSeason:
    """A pipeline that gives the seasonal naive quantiles for a season of four."""

    def predict_quantiles(
        self, inputs: list[Any], *, prediction_length: int, quantile_levels: list[float]
    ) -> Any:
        label = np.zeros((1, prediction_length))
        windows = tuple(
            Window("a", index, context[None].double().numpy(), label)
            for index, context in enumerate(inputs)
        )
        data = EvaluationSet("a", windows, prediction_length, seasonality=4)
        rows = data.seasonal_naive(range(len(data)), quantile_levels)
        return torch.from_numpy(rows).mT, None


def make_series(name: str, values: np.ndarray, season: int) -> SeriesBatch:
    return SeriesBatch((values,), (name,), seasonality=season)


def test_windows_see_no_future() -> None:
    """Windows do not overlap, and none sees the future."""
    (found,) = evaluate.evaluation_sets(make_series("ramp", np.arange(100.0), 4), 10)
    assert len(found) == 5
    labels = [window.label[0] for window in found.windows[::-1]]
    np.testing.assert_array_equal(np.concatenate(labels), np.arange(50.0, 100.0))
    assert all(
        window.context[0, -1] == window.label[0, 0] - 1 for window in found.windows
    )


def test_seasonal_naive_models_have_ratio_one() -> None:
    values = np.random.default_rng(0).normal(size=120)
    series = SeriesBatch(
        (values, values.cumsum()), ("noise", "walk"), seasonalities=(4, 4)
    )
    results = evaluate.measure(LastSeason(), series, horizon=12)
    assert results.index.tolist() == ["noise", "walk"]
    ratios = results[["/ seasonal naive", "CRPS / seasonal naive"]]
    assert_close(ratios, np.ones((2, 2)), depth=100, dtype=np.float32)


def test_tuning_sees_no_test(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        evaluate,
        "measure",
        lambda pipeline, series, **options: measure(LastSeason(), series.select([0])),
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
        pipeline: object, windows: list[Window], *, horizon: int, **options: object
    ) -> np.ndarray:
        quantiles = np.zeros((len(windows), 9, horizon))
        quantiles[:, 2] = np.nan
        return quantiles

    monkeypatch.setattr(evaluate, "forecasts", damaged)
    series = make_series("one", np.random.default_rng(0).normal(size=60), 4)
    with pytest.raises(
        InputError,
        match="forecast of 'one' has 12 of 108 quantiles that are not finite",
    ):
        evaluate.measure(LastSeason(), series, horizon=12)
    # a context without a value has no forecast, and no error to measure it by
    unseen = make_series("unseen", np.repeat([np.nan, 1.0], [33, 12]), 4)
    assert evaluate.measure(LastSeason(), unseen, horizon=12).empty


def test_series_that_are_all_too_short_are_refused() -> None:
    short = SeriesBatch((np.arange(30.0), np.arange(40.0)), seasonalities=(4, 12))
    with pytest.raises(InputError, match=r"none of 2 series.*horizon of 12"):
        evaluate.measure(LastSeason(), short, horizon=12)


def test_impossible_horizons_get_the_longest() -> None:
    """A horizon that no series has is answered with the longest possible one."""
    # two seasons and a step stay as context
    longest = 100 - 49
    series = make_series("a", np.zeros(100), 24)
    (found,) = evaluate.evaluation_sets(series, longest)
    assert len(found) == 1
    assert evaluate.evaluation_sets(series, longest + 1) == []
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
    skills = measure(pipeline, bundled(), horizon=24)
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
    errors = measure_bundled.measure(model, bundled(*names))
    assert set(errors.index) == set(names)
    card = measure_bundled.PAGE.read_text()
    for name, row in errors.iterrows():
        assert (row[model] < row[measure_bundled.NAIVE]).all()
        cells = measure_bundled.write_row(str(name), row)
        assert " | ".join(cells[:3]) in card
        assert f" | {cells[-1]} |" in card
