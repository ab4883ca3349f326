"""Whether covariates are used: found where they are, and only there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tsfm_lens
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.errors import InputError
from tsfm_lens.explain.covariate_use import WAYS, covariate_use
from tsfm_lens.models import Lens
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.covariate_use import read_use

STEPS, HORIZON = 160, 16


@pytest.fixture(scope="module")
def nano() -> Lens:
    return tsfm_lens.load("chronos2-nano")


def items(count: int, seed: int) -> list[dict[str, Any]]:
    """Targets that follow one known covariate, "cause", and not the other, "noise"."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        cause, noise = rng.normal(size=(2, STEPS + HORIZON))
        season = np.sin(2 * np.pi * np.arange(STEPS + HORIZON) / 12)
        target = 3 + season + 1.5 * cause
        past = {"cause": cause[:STEPS], "noise": noise[:STEPS]}
        future = {"cause": cause[STEPS:], "noise": noise[STEPS:]}
        made.append({"target": target[:STEPS], "past_covariates": past, "future_covariates": future})
    return made


@pytest.mark.parametrize("seed", [3, 4])
def test_a_cause_is_worth_something_and_noise_is_not(nano: Lens, seed: int) -> None:
    found = covariate_use(nano.run(as_series(items(12, seed)), HORIZON, holdout=True), shuffles=3)
    worth = found["worth_significant"].to_series().unstack("way")
    assert worth.loc["cause", "removed"]
    assert worth.loc["cause", "shuffled"]
    assert (found["worth_size"].sel(covariate="cause") > 0).all()
    noise = found.sel(covariate="noise")
    assert not ((noise["worth_size"] > 0) & noise["worth_significant"]).any()


def test_each_way_is_the_forecast_of_the_changed_series(nano: Lens) -> None:
    entries = items(2, 5)
    run = nano.run(as_series(entries), HORIZON)
    found = covariate_use(run, shuffles=1)
    plain = run.forecast.median[run.batch.is_target]
    for way in ("removed", "constant"):
        changed = []
        for entry in entries:
            past, future = dict(entry["past_covariates"]), dict(entry["future_covariates"])
            level = past["noise"].mean()
            del past["noise"], future["noise"]
            if way == "constant":
                past["noise"], future["noise"] = np.full(STEPS, level), np.full(HORIZON, level)
            changed.append(entry | {"past_covariates": past, "future_covariates": future})
        batch = as_series(changed)
        other = nano.forecast(batch, HORIZON).median[batch.is_target]
        unit = [np.abs(np.diff(entry["target"])).mean() for entry in entries]
        moved = found["moved"].sel(covariate="noise", way=way).values
        assert_close(np.float32(moved), np.float32(np.abs(other - plain).mean(-1) / unit), depth=200)
    assert "worth" not in found
    assert tuple(found["way"].values) == WAYS


TARGET = items(1, 6)[0]["target"]


@pytest.mark.parametrize(
    ("item", "shuffles", "words"),
    [
        ({"past_covariates": {"x": TARGET}}, 1, "equals the target"),
        ({"past_covariates": {"x": np.full(STEPS, 2.0)}}, 1, "2 throughout"),
        ({"past_covariates": {"sky": np.array(["blue"] * STEPS)}}, 1, "is 'blue' throughout"),
        (None, 1, "no covariates"),
        ({"past_covariates": {"x": TARGET[::-1].copy()}}, 0, "shuffles"),
        ({"target": np.full(STEPS, 7.0), "past_covariates": {"x": TARGET}}, 1, "MASE is undefined"),
    ],
)
def test_what_says_nothing_is_refused(nano: Lens, item: dict[str, Any] | None, shuffles: int, words: str) -> None:
    run = nano.run(SeriesBatch((TARGET,)) if item is None else as_series([{"target": TARGET, **item}]), 4)
    with pytest.raises(InputError, match=words):
        covariate_use(run, shuffles=shuffles)


def test_what_says_nothing_in_one_series_is_measured_in_the_others(nano: Lens) -> None:
    entries = items(3, 7)
    for part in ("past_covariates", "future_covariates"):
        entries[1][part]["cause"] = np.full(len(entries[1][part]["cause"]), 2.0)
    found = covariate_use(nano.run(as_series(entries), HORIZON), shuffles=1)
    silent = np.isnan(found["moved"].sel(covariate="cause")).all("way")
    assert silent.values.tolist() == [False, True, False]
    assert not np.isnan(found["moved"].sel(covariate="noise")).any()
    (told,) = [each for each in read_use(found) if each.startswith("cause")]
    assert "forecasts (2 of 2) by" in told
    assert told.endswith("No verdict on series-1/target, where it or the series is constant.")
