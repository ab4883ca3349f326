"""Every architecture is explained, with its covariates or variates: slopes, shares,
sums.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from closeness import close_in_float32
from refusals import expect_error
from tiny_lenses import ATTENDING, archetypes, having, lens_of
from tsfm_lens import explain
from tsfm_lens.data import as_series
from tsfm_lens.models import Run
from tsfm_lens.testing import assert_close

NAMES = having("numeric_series")
# why there is no slope
NO_SLOPE = {
    "chronos": "reads values as tokens",
    "timesfm-2.5": "normalises series before they enter the model",
    "timesfm-2.5-transformers": "normalises series before they enter the model",
    "toto-2": "are not its derivatives",
    "tirex": "are not its derivatives",
    "fracast": "normalises series before they enter the model",
}


@cache
def make_run(name: str) -> Run:
    lens = lens_of(name)
    if getattr(lens.adapter, "covariates", ()):
        rng = np.random.default_rng(1)
        known = rng.normal(size=68)
        past = rng.normal(size=64)
        target = (
            20
            + 3 * known[:64]
            + 5 * np.sin(np.arange(64) / 4)
            + 0.3 * rng.normal(size=64)
        )
        covariates = {
            "past_covariates": {"a": past, "k": known[:64]},
            "future_covariates": {"k": known[64:]},
        }
        return lens.run(as_series([{"target": target, **covariates}]), 4)
    several = 1
    if getattr(lens.adapter, "multivariate", False):
        several = 2
    return lens.run(5 + np.random.default_rng(0).normal(size=(1, several, 64)), 4)


@pytest.mark.parametrize("name", archetypes(NAMES))
@pytest.mark.parametrize("reference", ["missing", "mean"])
def test_shapley_values_sum_to_what_changes(name: str, reference: str) -> None:
    run = make_run(name)
    if (
        reference == "missing"
        and explain.masking.mask_seen(run.lens, run.batch) != "the model's own mask"
    ):
        pytest.skip("has no mask")
    if reference == "missing" and name == "fracast":
        pytest.skip("takes no series without values")
    found = explain.input_attribution(run, reference=reference, parts=2)
    assert_close(found["remainder"], 0.0, depth=300, magnitude=30.0)
    assert np.abs(found["attribution"]).max() > 0


@pytest.mark.parametrize("name", archetypes(NAMES))
def test_slopes_are_those_of_small_steps(name: str) -> None:
    run = make_run(name)
    parts = explain.segments(run, parts=3, season=1)
    if name in NO_SLOPE:
        expect_error(
            f"{NO_SLOPE[name]}.*choose method='shapley' or 'occlusion'",
            explain.input_attribution,
            run,
            method="gradient × input",
            reference="seasonal naive",
            parts=parts,
        )
        return
    found = explain.input_attribution(
        run, method="gradient × input", reference="seasonal naive", parts=parts
    )
    away = explain.reference_values(run.batch, "seasonal naive", run.horizon)
    known = run.batch.known_future(run.horizon)
    inputs = [
        np.concatenate([values, ahead])
        for values, ahead in zip(run.batch.values, known, strict=True)
    ]
    step = 0.002
    keep = ~np.eye(len(parts), dtype=bool)
    bounds = []
    for side in (step, -step):
        moved = [
            np.nan_to_num(item + side * (item - other))
            for item, other in zip(inputs, away, strict=True)
        ]
        bounds.append(explain.forecasts(run, parts, keep, moved))
    slope = (bounds[0] - bounds[1]) / (2 * step)
    got = found["attribution"].transpose("segment", "quantile", "step").values
    # what is left is of second order in the step, and kinks
    assert np.abs(got - slope).max() <= 0.03 * np.abs(slope).max()


@pytest.mark.parametrize(
    "name", archetypes([name for name in ATTENDING if name in NAMES])
)
@pytest.mark.parametrize("method", ["attention rollout", "attention flow"])
def test_attention_is_shared_among_all_inputs(name: str, method: str) -> None:
    run = make_run(name)
    found = explain.input_attribution(run, method=method, reference="mean", parts=3)
    close_in_float32(found["share"].sum("segment"), 1.0)
    assert (found["share"] >= 0).all()
    assert_close(found["remainder"], 0.0, depth=300, magnitude=40.0)
    assert {int(row) for row in found["row"].values} == set(range(len(run.batch)))
