"""Fracast, the one pretrained model of others that its own package ships: real weights,
no attention.
"""

from __future__ import annotations

import numpy as np
import pytest

import tsfm_lens
from refusals import expect_error
from tsfm_lens import explain, probes
from tsfm_lens.core.errors import InputError
from tsfm_lens.models import Lens
from tsfm_lens.report import pipeline
from tsfm_lens.report.pipeline import checked_sections
from tsfm_lens.testing import assert_close

fracast = pytest.importorskip("fracast")


@pytest.fixture(scope="module")
def lens() -> Lens:
    return tsfm_lens.load("ztxtech/fracast-0")


def test_package_weights_give_the_package_forecast(lens: Lens) -> None:
    """Fracast with the weights of its package forecasts as the package does."""
    series = tsfm_lens.bundled("elnino", "co2")
    native = fracast.FracastModel.from_pretrained(weights="fp32")
    ours = lens.forecast(series, 60)
    for row, values in enumerate(series.values):
        theirs = native.forecast(np.asarray(values, dtype=np.float32), horizon=60)
        assert_close(ours.quantiles[row], theirs.T, depth=4, dtype=np.float32)
    # skill: better than the last value on both
    run = lens.run(series, 24, holdout=True)
    last = [
        abs(values[-1] - truth).mean()
        for values, truth in zip(run.batch.values, run.truth, strict=True)
    ]
    assert (np.abs(run.point - run.truth).mean(1) < last).all()


def test_refusals_of_fracast_give_the_reason(lens: Lens) -> None:
    """What needs a sum of writes, or heads, is refused, and the message says why."""
    run = lens.run(tsfm_lens.bundled("elnino"), 24)
    for probe in (probes.attribution, probes.logit_lens, probes.stream_shares):
        expect_error("no sum of writes: a norm follows each sum", probe, run)
    expect_error("no heads to look at", probes.head_entropy, run)
    # inputs and routes need neither
    routes = explain.input_routes(run, parts=1, components=lens.components()[:2])
    assert float(np.abs(routes["effect"]).max()) > 0


def test_pages_name_the_unsupported_sections(lens: Lens) -> None:
    """A page of all sections says which of them the model cannot have."""
    left_out: dict[str, str] = {}
    kinds = pipeline.select_defined(lens, pipeline.SECTIONS, left_out)
    assert {"forecast", "ablation_effects"} <= set(kinds)
    assert not {"logit_lens", "attribution"} & set(kinds)
    assert len(kinds) + len(left_out) == len(pipeline.SECTIONS)
    assert (
        "the sum of its writes, which"
        in left_out[checked_sections(["logit_lens"])[0].title]
    )
    with pytest.raises(InputError, match="the sum of its writes, which"):
        pipeline.select_defined(lens, ["logit_lens"], {})
