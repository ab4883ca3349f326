"""What a smaller model costs, against counting; nothing here depends on how fast anything is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tsfm_lens import compress, viz
from tsfm_lens.errors import InputError


@pytest.mark.parametrize("name", ["chronos", "chronos-bolt"])
def test_operations_and_weights_are_those_of_counting(opened: Callable, name: str) -> None:
    lens = opened(name)
    key = "encoder_blocks.0.self_attn.q"
    smaller = compress.factorised(lens, {key: 1})
    found = compress.cost(lens, smaller, shapes=[(2, 32), (1, 10**6)], rounds=1)
    assert found["shape"].values.tolist() == ["2 x 32", f"1 x {lens.adapter.context_length}"]
    form = compress.matrices(lens)[key].form()
    saved = found["weight_bytes"].sel(model="whole") - found["weight_bytes"].sel(model="other")
    assert saved.values.tolist() == [4 * (form.numbers - form.factors(1))] * 2
    # every token passes the matrix once: two operations a number
    operations = found["operations"].sel(model="whole") - found["operations"].sel(model="other")
    assert (operations % (2 * (form.numbers - form.factors(1))) == 0).all()
    assert (operations > 0).all()
    assert (found["operation_ratio"] < 1).all()
    assert (found["peak_bytes"] > found["weight_bytes"]).all()
    assert (found["time_ratio_low"] <= found["time_ratio"]).all()
    assert (found["time_ratio"] <= found["time_ratio_high"]).all()


@pytest.mark.parametrize(("shapes", "rounds"), [([], 1), ([(0, 5)], 1), ([(1, -2)], 1), ([(1, 8)], 0)])
def test_what_cannot_be_timed_is_refused(opened: Callable, shapes: list, rounds: int) -> None:
    lens = opened("chronos-bolt")
    with pytest.raises(InputError, match="positive"):
        compress.cost(lens, lens, shapes=shapes, rounds=rounds)


def test_forecasts_before_and_after_are_drawn_as_they_are(opened: Callable) -> None:
    lens = opened("chronos-bolt")
    rng = np.random.default_rng(0)
    run = lens.run(list(rng.standard_normal((3, 60)).cumsum(axis=1)), 6, holdout=True)
    other, _ = compress.compressed(compress.calibration_run(run), 0.2, method="svd")
    found = compress.quality(run, other)
    fig = viz.compressed_forecasts(found, series=[2, 0])
    medians = [trace for trace in fig.data if "(median)" in (trace.name or "")]
    middle = list(run.forecast.levels).index(0.5)
    for trace, (series, lens_of) in zip(medians, [(s, m) for s in (2, 0) for m in (lens, other)], strict=True):
        np.testing.assert_array_equal(trace.y, lens_of.forecast(run.batch, 6).quantiles[series, middle])
    assert [note.text.split(":")[0] for note in fig.layout.annotations[:2]] == ["series-2", "series-0"]
