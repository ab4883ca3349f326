"""Whether covariates are used: found where they are, and only there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tsfm_lens
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.errors import InputError
from tsfm_lens.explain.behaviour import WAYS, covariate_use
from tsfm_lens.models import Lens

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
    run = nano.run(as_series(items(8, seed)), HORIZON, holdout=True)
    found = covariate_use(run, shuffles=3)
    worth = found["worth_stands_out"].to_series().unstack("way")
    assert worth.loc["cause", "removed"]
    assert worth.loc["cause", "shuffled"]
    assert (found["worth_estimate"].sel(covariate="cause") > 0).all()
    noise = found.sel(covariate="noise")
    assert not ((noise["worth_estimate"] > 0) & noise["worth_stands_out"]).any()


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
        np.testing.assert_allclose(
            found["moved"].sel(covariate="noise", way=way), np.abs(other - plain).mean(-1) / unit, rtol=1e-4
        )
    assert "worth" not in found
    assert tuple(found["way"].values) == WAYS


def test_what_says_nothing_is_refused(nano: Lens) -> None:
    entry = items(1, 6)[0]
    target = entry["target"]

    def run_with(values: np.ndarray) -> Any:
        return nano.run(as_series([{"target": target, "past_covariates": {"x": values}}]), 4)

    with pytest.raises(InputError, match="equals the target"):
        covariate_use(run_with(target))
    with pytest.raises(InputError, match="2 throughout"):
        covariate_use(run_with(np.full(STEPS, 2.0)))
    with pytest.raises(InputError, match="no covariates"):
        covariate_use(nano.run(SeriesBatch((target,)), 4))
    with pytest.raises(InputError, match="shuffles"):
        covariate_use(run_with(entry["past_covariates"]["noise"]), shuffles=0)
