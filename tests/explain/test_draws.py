"""Rollouts of models that draw: every mask draws the same random numbers, and what is
left of them is told.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.stats import t

from refusals import expect_error
from tiny_lenses import lens_of
from tsfm_lens import explain
from tsfm_lens.data import as_series
from tsfm_lens.models import Run
from tsfm_lens.testing import assert_close
from tsfm_lens.viz.input_attribution import read_inputs

PATHS = 3


def make_run(name: str, steps: int = 6) -> Run:
    series = as_series(10 + np.sin(np.arange(64) / 4), seasonality=24)
    return lens_of(name).run(series, steps, rollout=True, num_samples=PATHS)


@pytest.fixture(scope="module")
def chronos() -> Run:
    return make_run("chronos")


@pytest.mark.parametrize("name", ["chronos", "moirai-1.1", "toto-1"])
@pytest.mark.parametrize("at_once", [2, 64])
def test_masks_match_the_library_s_forecasts(
    name: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each mask gives the library's own forecast under the same seed."""
    run = make_run(name)
    monkeypatch.setattr("tsfm_lens.models.batching.DRAWN", at_once)
    parts = explain.segments(run, parts=2, season=1)
    keep = explain.shapley.all_masks(len(parts))[1:]
    got = explain.forecasts(run, parts, keep)
    for mask, values in zip(keep, got, strict=True):
        alone = explain.masked(run.batch, parts, mask, "mean", horizon=run.horizon)
        native = run.lens.forecast(alone, run.horizon, num_samples=PATHS, seed=run.seed)
        assert_array_equal(values, native.quantiles[0])
    assert_array_equal(got[-1], run.forecast.quantiles[0])


def test_effects_are_means_over_seeds(
    chronos: Run,
) -> None:
    """Effects are the mean over seeds, and the spread of the seeds is their error."""
    parts = explain.segments(chronos, parts=2, season=1)
    found = explain.input_attribution(chronos, parts=parts, repeats=3)
    seeds = []
    run = chronos
    for _ in range(3):
        values = explain.forecasts(run, parts, explain.shapley.all_masks(len(parts)))
        seeds.append(
            explain.shapley.exact_shapley(values, len(parts)).transpose(0, 2, 1)
        )
        run = run.redraw()
    assert_close(found["attribution"], np.mean(seeds, axis=0), depth=10, magnitude=40.0)
    distance = t.ppf(0.975, 2) / np.sqrt(3)
    assert_close(
        found["half_width"],
        distance * np.std(seeds, axis=0, ddof=1),
        depth=10,
        magnitude=40.0,
    )
    by_mean = distance * np.std(np.mean(seeds, axis=2), axis=0, ddof=1)
    assert_close(found["mean_half_width"], by_mean, depth=10, magnitude=40.0)
    assert_close(found["remainder"], 0.0, depth=20, magnitude=40.0)
    assert (found.attrs["repeats"], found.attrs["statistic"]) == (
        3,
        "quantiles of sample paths",
    )
    assert float(found["half_width"].max()) > 0
    assert "3 seeds" in " ".join(read_inputs(found))


def test_what_draws_cannot_give_is_refused(chronos: Run) -> None:
    expect_error("repeats is 0", explain.input_attribution, chronos, parts=2, repeats=0)
    expect_error(
        "sample paths, which have no gradient",
        explain.input_attribution,
        make_run("moirai-1.1"),
        method="gradient × input",
        parts=2,
    )
    # the curves of a model that learned nothing
    expect_error(
        "no more than its noise",
        explain.deletion_curves,
        chronos,
        {"newest first": [0, 1]},
        parts={"parts": 2, "season": 1},
        orders=2,
    )
