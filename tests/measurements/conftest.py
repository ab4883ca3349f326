"""Runs of the embedded models whose measurements are computed once."""

from __future__ import annotations

from functools import cache

import pytest

from tsfm_lens import load
from tsfm_lens.core.results import Results
from tsfm_lens.data import bundled

MODELS = ("bolt-nano", "chronos-nano")


@cache
def _work(model: str) -> Results:
    few = None
    options = {"attribution": {"decompositions": "all"}}
    if model == "chronos-nano":
        few = 2
        options["logit_lens"] = {"logits": True}
        options["compression_quality"] = {"method": "svd"}
    run = load(model).run(bundled("co2", "elnino"), 12, holdout=True, num_samples=few)
    # logits are what one figure is drawn of; how ranks are measured does not depend on
    # the model, and takes long
    return Results(run, options)


@pytest.fixture(params=MODELS, scope="session")
def work(request: pytest.FixtureRequest) -> Results:
    """All measurements of one model."""
    return _work(request.param)


@pytest.fixture(scope="session")
def works() -> dict[str, Results]:
    """The same of both, by name."""
    return {model: _work(model) for model in MODELS}
