"""The page on one's own forecast: every method and reference, series with gaps, and proofs of what was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tsfm_lens
from tsfm_lens import explain
from tsfm_lens.data import as_series
from tsfm_lens.errors import InputError
from tsfm_lens.models import Run
from tsfm_lens.report.build import plates_of
from tsfm_lens.testing import assert_close

NANOS = ("chronos-nano", "bolt-nano", "chronos2-nano")
FEW: dict[str, Any] = {
    "input_attribution": {"parts": 2},
    "input_routes": {"parts": 1},
    "deletion_curves": {"orders": 4},
    "route_proof": {"controls": 2, "most": 1},
    "covariate_use": {"shuffles": 1},
}
REFUSED = {
    "chronos-nano": "reads values as tokens",
    "bolt-nano": "missing values, towards which there is no gradient",
    "chronos2-nano": "missing values, towards which there is no gradient",
}


@pytest.fixture(scope="module", params=NANOS)
def run(request: pytest.FixtureRequest) -> Run:
    return tsfm_lens.load(request.param).run(10 + np.sin(np.arange(64) / 4), 4)


@pytest.mark.parametrize("method", explain.METHODS)
def test_every_method_and_reference_gives_a_chapter_and_its_proof_or_says_why_not(run: Run, method: str) -> None:
    for reference in explain.REFERENCES:
        left: dict[str, str] = {}
        asked: dict[str, Any] = {"method": method, "reference": reference, "options": FEW, "left_out": left}
        chapters = ("forecast", "input_attribution", "deletion_curves")
        found = explain.explain(run, chapters=chapters, **asked)
        slopes = method in ("integrated gradients", "gradient × input")
        if slopes and (reference == "missing" or run.lens.model_id == "chronos-nano"):
            assert list(found) == ["forecast"]
            # nothing else is proved in its place
            assert len(left) == 2
            assert all(REFUSED[run.lens.model_id] in reason for reason in left.values())
            continue
        assert not left
        curves = found["deletion_curves"]
        assert curves["explanation"].values[0] == method
        assert {found["input_attribution"].attrs["reference"], curves.attrs["reference"]} == {reference}
        for each in (found["input_attribution"]["attribution"], curves["deletion"]):
            assert np.isfinite(each.values).all()


@pytest.mark.parametrize("reference", explain.REFERENCES)
def test_every_reference_gives_routes_and_their_proof(run: Run, reference: str) -> None:
    found = explain.explain(run, reference=reference, options=FEW, chapters=("input_routes", "route_proof"))
    assert {data.attrs["reference"] for data in found.values()} == {reference}


def test_a_proof_without_its_chapter_is_of_what_was_asked_for(run: Run) -> None:
    found = explain.explain(run, method="occlusion", options=FEW, chapters=("deletion_curves",))
    assert found["deletion_curves"]["explanation"].values[0] == "occlusion"


def test_a_page_of_nothing_but_what_is_refused_is_refused(tmp_path: Path) -> None:
    run = tsfm_lens.load("chronos-nano").run(10 + np.sin(np.arange(64) / 4), 4)
    with pytest.raises(InputError, match="as tokens"):
        explain.explain(run, tmp_path / "page", method="gradient × input", chapters=("deletion_curves",))
    assert not (tmp_path / "page").exists()


def test_a_frame_with_gaps_in_target_and_covariates_has_every_chapter(tmp_path: Path) -> None:
    rng, steps, ahead = np.random.default_rng(3), 72, 6
    items = []
    for _ in range(2):
        known, past = rng.normal(size=steps + ahead), rng.normal(size=steps)
        target = 5 + 2 * known[:steps] + rng.normal(size=steps)
        target[[0, 3, 4, 30, 31, steps - 2]] = np.nan
        past[10:25] = np.nan
        known[[7, 40, 41]] = np.nan
        covariates = {"past_covariates": {"p": past, "k": known[:steps]}, "future_covariates": {"k": known[steps:]}}
        items.append({"target": target, **covariates})
    run = tsfm_lens.load("chronos2-nano").run(as_series(items, freq="h"), ahead)
    left: dict[str, str] = {}
    found = explain.explain(run, tmp_path, options=FEW, left_out=left)
    assert not left
    assert tuple(found) == explain.CHAPTERS
    for kind, names in {
        "input_attribution": ("attribution", "remainder"),
        "input_routes": ("effect", "total"),
        "deletion_curves": ("deletion", "insertion"),
        "route_proof": ("necessity", "sufficiency"),
        "covariate_use": ("moved",),
    }.items():
        assert all(np.isfinite(found[kind][name].values).all() for name in names), kind
    assert_close(found["input_attribution"]["remainder"], 0.0, depth=300, magnitude=20.0)
    sentences = [text for plates in plates_of(found).values() for plate in plates for text in plate.reading]
    assert not any("nan" in text.lower().split() for text in sentences)
    assert (tmp_path / "index.html").exists()
