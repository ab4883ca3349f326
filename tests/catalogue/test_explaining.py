"""Chapters about covariates: what they say is so."""

from __future__ import annotations

import numpy as np
import pytest

from tsfm_lens import load
from tsfm_lens.catalogue import Work, find, work_on
from tsfm_lens.data import as_series

STEPS, HORIZON = 150, 12


@pytest.fixture(scope="module")
def driven() -> Work:
    """Targets that follow "cause" and have nothing to do with "noise"."""
    rng = np.random.default_rng(11)
    entries = []
    for _ in range(6):
        cause, noise = rng.normal(size=(2, STEPS + HORIZON))
        known = {"cause": cause, "noise": noise}
        entries.append(
            {
                "target": 2 + 1.5 * cause[:STEPS],
                "past_covariates": {name: values[:STEPS] for name, values in known.items()},
                "future_covariates": {name: values[STEPS:] for name, values in known.items()},
            }
        )
    return work_on(load("chronos2-nano").run(as_series(entries), HORIZON, holdout=True))


def test_the_use_of_covariates_is_told(driven: Work) -> None:
    measurement = find("covariate_use")
    (plate,) = measurement.plates(driven.result("covariate_use"))
    cause, noise = plate.reading
    assert cause.startswith("cause: in random order")
    assert cause.endswith("it helps.")
    assert "it helps" not in noise
    assert set(plate.table.columns) >= {"covariate", "way", "series", "moved", "worth"}
    assert next(axis.title.text for axis in plate.figure.select_xaxes()).startswith("change of the median forecast")


def test_chapters_draw_targets_alone(driven: Work) -> None:
    plates = list(find("forecast").plates(driven.result("forecast")))
    assert [plate.table["series"].iloc[0] for plate in plates] == [f"series-{i}/target" for i in range(6)]
