"""Sections about covariates: what they say is so."""

from __future__ import annotations

import numpy as np
import pytest

from tsfm_lens import load
from tsfm_lens.core.registry import find
from tsfm_lens.core.results import Results
from tsfm_lens.data import as_series

STEPS, HORIZON = 150, 12


@pytest.fixture(scope="module")
def driven() -> Results:
    """Targets that follow "cause" and have nothing to do with "noise"."""
    rng = np.random.default_rng(11)
    entries = []
    for _ in range(6):
        cause, noise = rng.normal(size=(2, STEPS + HORIZON))
        known = {"cause": cause, "noise": noise}
        entries.append(
            {
                "target": 2 + 1.5 * cause[:STEPS],
                "past_covariates": {
                    name: values[:STEPS] for name, values in known.items()
                },
                "future_covariates": {
                    name: values[STEPS:] for name, values in known.items()
                },
            }
        )
    return Results(load("chronos2-nano").run(as_series(entries), HORIZON, holdout=True))


def test_the_use_of_covariates_is_told(driven: Results) -> None:
    measurement = find("covariate_use")
    panel, response = measurement.draw_panels(driven["covariate_use"])
    cause, noise = panel.sentences
    assert cause.startswith("cause: without it 6 of 6 forecasts move")
    assert "series are too few to test this for others" in cause
    assert "Response: the forecast rises with it" in cause
    assert "Share: " in cause
    assert set(response.table.columns) >= {
        "covariate",
        "shift",
        "series",
        "value",
        "response",
    }
    assert "; significant for" not in noise
    assert set(panel.table.columns) >= {"covariate", "way", "series", "moved", "worth"}
    assert panel.figure.layout.xaxis.title.text == "moved"


def test_chapters_draw_targets_alone(driven: Results) -> None:
    panels = list(find("forecast").draw_panels(driven["forecast"]))
    assert [panel.table["series"].iloc[0] for panel in panels] == [
        f"series-{i}/target" for i in range(6)
    ]
