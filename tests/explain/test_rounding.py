"""Explained forecasts are the run's, up to rounding as large as the model makes it: no
other passes for it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.verdict import REFERENCE, drawn_run
from refusals import expect_error
from tsfm_lens import explain, load
from tsfm_lens.data import SeriesBatch
from tsfm_lens.models import Run

HORIZON = 16


def in_units(batch: SeriesBatch, unit: float) -> SeriesBatch:
    futures = tuple(
        None if future is None else unit * future for future in batch.futures
    )
    values = tuple(unit * values for values in batch.values)
    return replace(batch, values=values, futures=futures)


def forecast_of_another(run: Run, other: Run) -> Run:
    """A run that takes another's forecast for its own."""
    return replace(run, _of=(other, list(range(len(run.batch)))))


def explained(run: Run, method: str) -> np.ndarray:
    found = explain.input_attribution(run, 0, method, parts=1, reference=REFERENCE)
    return np.asarray(found["forecast"].values)


# sharp attention makes the rounding of these planted models large
@pytest.mark.parametrize(
    ("model", "case", "unit"),
    [
        ("planted", 10, 1e-6),
        ("planted", 10, 1.0),
        ("planted", 26, 1.0),
        ("planted", 43, 1e6),
        ("chronos2-nano", 0, 1e6),
    ],
)
def test_forecasts_of_other_runs_are_refused(
    model: str, case: int, unit: float
) -> None:
    """Rounding of the run's own forecast passes; that of another run is refused."""
    drawn = drawn_run(model, case, 0)
    run = drawn.lens.run(in_units(drawn.batch, unit), HORIZON)
    assert np.isfinite(explained(run, "shapley")).all()
    # another run, whose forecast is a hundredth larger
    larger = drawn.lens.run(in_units(drawn.batch, 1.01 * unit), HORIZON)
    expect_error(
        "off the run's", explained, forecast_of_another(run, larger), "occlusion"
    )


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize(
    ("model", "component"), [("bolt-nano", "decoder.0.mlp"), ("chronos2-nano", "0.mlp")]
)
def test_forecasts_by_other_weights_are_refused(
    model: str, component: str, unit: float
) -> None:
    lens = load(model)
    batch = in_units(drawn_run("chronos2-nano", 1, 0).batch.targets(), unit)
    run = lens.run(batch, HORIZON)
    assert np.isfinite(explained(run, "occlusion")).all()
    with lens.ablate(component) as changed:
        other = changed.run(batch, HORIZON)
        assert not np.array_equal(other.forecast.median, run.forecast.median)
    expect_error(
        "off the run's", explained, forecast_of_another(run, other), "occlusion"
    )
