"""Series and models that explanations are tested on."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import pytest
import xarray as xr

import tsfm_lens
from tsfm_lens.core.registry import FigurePanel
from tsfm_lens.data import SeriesBatch, as_series
from tsfm_lens.models import Lens, Run
from tsfm_lens.report import explanation
from tsfm_lens.report.build import draw_results


class Page(NamedTuple):
    """What a page was made of, why something was left out, what was drawn, and what was
    written but for scripts.
    """

    found: dict[str, xr.Dataset]
    left_out: dict[str, str]
    panels: list[FigurePanel]
    html: str


def drawn(steps: int = 96, horizon: int = 16, seed: int = 0) -> dict[str, Any]:
    """An item with a past covariate "a" and a known one "k" that moves the target."""
    rng = np.random.default_rng(seed)
    known = rng.normal(size=steps + horizon)
    time = np.arange(steps)
    target = (
        20
        + 3 * known[:steps]
        + 5 * np.sin(2 * np.pi * time / 24)
        + 0.3 * rng.normal(size=steps)
    )
    past = {"a": rng.normal(size=steps), "k": known[:steps]}
    return {
        "target": target,
        "past_covariates": past,
        "future_covariates": {"k": known[steps:]},
    }


@pytest.fixture(scope="session")
def items() -> SeriesBatch:
    """Two items with covariates."""
    return as_series([drawn(seed=0), drawn(seed=1)], freq="h")


@pytest.fixture(scope="session")
def covariate_run(items: SeriesBatch) -> Run:
    """Of the embedded model that takes covariates."""
    return tsfm_lens.load("chronos2-nano").run(items, 16)


@pytest.fixture(scope="session")
def bolt() -> Lens:
    return tsfm_lens.load("bolt-nano")


@pytest.fixture(scope="session")
def bolt_run(bolt: Lens) -> Run:
    return bolt.run(as_series(10 + np.sin(np.arange(128) / 4), seasonality=24), 16)


@pytest.fixture(scope="session")
def few() -> dict[str, Any]:
    """Options of the probes that make a page soon."""
    return {
        "input_attribution": {"parts": 2},
        "input_routes": {"parts": 1},
        "deletion_curves": {"orders": 4},
        "route_faithfulness": {"controls": 2, "most": 1},
        "input_effects": {"parts": 1},
        "covariate_use": {"shuffles": 1},
    }


@pytest.fixture(scope="session")
def page(few: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Page:
    """Every section, of two items whose target and covariates have gaps."""
    items = [drawn(72, 6, seed) for seed in (3, 4)]
    for item in items:
        item["target"][[0, 3, 4, 30, 31, 70]] = np.nan
        item["past_covariates"]["a"][10:25] = np.nan
        item["past_covariates"]["k"][[7, 40, 41]] = np.nan
    run = tsfm_lens.load("chronos2-nano").run(as_series(items, freq="h"), 6)
    folder = tmp_path_factory.mktemp("page")
    left = dict[str, str]()
    found = explanation.explain(run, folder, item=0, options=few, left_out=left)
    panels = [
        panel for draw_result in draw_results(found).values() for panel in draw_result
    ]
    html = re.sub(
        r"<(script|style)\b.*?</\1>",
        "",
        (folder / "index.html").read_text(),
        flags=re.S,
    )
    return Page(found, left, panels, html)
