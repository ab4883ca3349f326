"""The brush without a browser: what is dragged over is left out, and the line is the
model's forecast without it.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from plotly.serializers import _py_to_js

import tsfm_lens
from tsfm_lens.data import as_series, bundled
from tsfm_lens.models import Lens
from tsfm_lens.report import explore
from tsfm_lens.report.explore.widget import WITHOUT, Brush

STEPS = 64
H = 8


@pytest.fixture(scope="module")
def lens() -> Lens:
    return tsfm_lens.load("chronos2-nano")


@pytest.fixture
def view(lens: Lens) -> Brush:
    cause = np.random.default_rng(8).normal(size=STEPS + H)
    past = {"cause": cause[:STEPS]}
    future = {"cause": cause[STEPS:]}
    entry = {
        "target": 2 + cause[:STEPS],
        "past_covariates": past,
        "future_covariates": future,
    }
    return explore.brush(
        lens.run([entry], H, truth=np.zeros((2, H))), reference="missing"
    )


def gapped(view: Brush, series: int, start: int, stop: int) -> np.ndarray:
    """The native forecast with NaN in the place of a stretch."""
    values = [value.copy() for value in view.run.batch.values]
    values[series][STEPS + start : STEPS + stop] = np.nan
    future = view.run.batch.futures[1]
    entry = {
        "target": values[0],
        "past_covariates": {"cause": values[1]},
        "future_covariates": {"cause": future},
    }
    return view.run.lens.forecast(as_series([entry]), H).median[0]


def drag(view: Brush, first: object, last: object) -> None:
    """What the browser sends at the end of a drag."""
    selections = [
        {
            "type": "rect",
            "xref": "x",
            "yref": "y",
            "x0": first,
            "x1": last,
            "y0": 1,
            "y1": 0,
        }
    ]
    view.figure._js2py_relayout = {
        "relayout_data": {"selections": selections},
        "source_view_id": "a",
    }


def test_brushed_steps_are_left_out(view: Brush) -> None:
    """The steps that are dragged over are left out of the forecast."""
    assert view.figure.data[-1].visible is False
    # either way, and from within what was dragged over before
    for first, last in ((39.6, 55.2), (54.1, 20.5), (30.2, 45.7)):
        drag(view, first - STEPS, last - STEPS)
        start, stop = (int(np.ceil(end)) - STEPS for end in sorted((first, last)))
        assert view.marked == (start, stop)
        np.testing.assert_array_equal(view.without, gapped(view, 0, start, stop))
        np.testing.assert_array_equal(view.figure.data[-1].y, view.without)
        assert view.figure.data[-1].visible is True
        assert view.steps.value == view.marked
        assert "mean absolute error" in view.words.value
        assert [shape.name for shape in view.figure.layout.shapes].count("brushed") == 1
        assert not view.figure.layout.to_plotly_json()["selections"]
    drag(view, 1.5, 3.5)
    assert view.words.value.startswith("no step of the past lies there")
    assert view.marked == (31 - STEPS, 46 - STEPS)


def test_slider_and_menu_do_the_same(view: Brush) -> None:
    view.steps.value = (-10, -2)
    np.testing.assert_array_equal(view.without, gapped(view, 0, -10, -2))
    view.which.value = 1
    np.testing.assert_array_equal(view.without, gapped(view, 1, -10, -2))
    assert "of cause" in view.words.value
    view.mark(0, 0)
    np.testing.assert_array_equal(view.without, view.median)
    assert "nothing is left out" in view.words.value
    assert view.figure.data[-1].visible is False


def test_refused_brush_changes_nothing(view: Brush) -> None:
    """What cannot be left out is reported, and nothing changes."""
    view.mark(-4, -1)
    before = view.without
    view.mark(-STEPS - 5, 0)
    assert "expected steps from -64 to 0" in view.words.value
    np.testing.assert_array_equal(view.without, before)


def test_the_browser_gets_dates(lens: Lens) -> None:
    context, truth = bundled("electricity").tail(STEPS + H).split(H)
    view = explore.brush(lens.run(context, H, truth=truth))
    # the state that a browser asks for, which need not be what the figure holds
    sent = _py_to_js(view.figure._widget_data, None)
    assert len(sent) == len(view.figure.data)
    times = {item["name"]: item["x"] for item in sent if "name" in item}
    for name, steps in (
        ("context", range(-STEPS, 0)),
        ("median forecast", range(H)),
        (WITHOUT, range(H)),
    ):
        dates = pd.date_range(
            context.starts[0], periods=STEPS + H, freq=context.freqs[0]
        )[STEPS + np.array(steps)]
        assert pd.DatetimeIndex(times[name]).equals(dates), name
        assert all(isinstance(time, str) for time in times[name])
    # a number among them would be one of nanoseconds
    assert all(isinstance(at, str) for item in sent for at in item["x"])
    drag(view, f"{dates[0]}", f"{dates[-1]}")
    assert "no step of the past" in view.words.value
    past = pd.date_range(context.starts[0], periods=STEPS, freq=context.freqs[0])
    drag(view, str(past[12] - past.freq / 3), str(past[23] + past.freq / 3))
    assert view.marked == (12 - STEPS, 24 - STEPS)
    assert (
        f" ({past[12]:%Y-%m-%d %H:%M} to {past[23]:%Y-%m-%d %H:%M})" in view.words.value
    )
