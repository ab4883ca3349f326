"""Two models side by side: nothing is lost, what means the same is on one scale, the rest is refused."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

import planted
from refusals import expect_error
from tsfm_lens import load, viz
from tsfm_lens.data import bundled
from tsfm_lens.report.figures import make_figure, refuse_several
from viz.marks import heatmaps


def test_both_halves_hold_what_each_figure_holds() -> None:
    one = viz.forecast_fan(planted.forecast())
    two = viz.forecast_fan(
        planted.forecast(planted.rivers_and_roads(), {0.1: -1.0, 0.5: 0.0, 0.9: 1.0})
    )
    both = viz.compare([one, two], ["left", "right"])
    for drawn, figure in (
        (both.data[: len(one.data)], one),
        (both.data[len(one.data) :], two),
    ):
        for trace, known in zip(drawn, figure.data, strict=True):
            np.testing.assert_array_equal(trace.y, known.y)
    assert {trace.xaxis for trace in both.data} == {"x", "x101"}
    assert both.layout.xaxis.domain[1] < both.layout.xaxis101.domain[0]
    assert (both.layout.yaxis.anchor, both.layout.yaxis101.anchor) == ("x", "x101")
    # values are in metres at the left, in other units at the right
    assert both.layout.yaxis101.matches is None
    assert viz.compare([one, one], ["a", "b"]).layout.yaxis101.matches == "y"
    listed = [trace.name for trace in both.data if trace.showlegend]
    assert len(listed) == len(set(listed))
    words = " ".join(note.text for note in both.layout.annotations)
    assert "left" in words
    assert "right" in words


def test_maps_of_the_same_meaning_have_the_same_colours(ablation: xr.Dataset) -> None:
    stronger = ablation.assign(
        {name: 3 * ablation[name] for name in ("spearman_distance", "mean_shift")}
    )
    figures = [viz.ablation_heatmap(each) for each in (ablation, stronger)]
    both = viz.compare(figures, ["a", "b"])
    ends = [(axis.cmin, axis.cmax) for axis in both.select_coloraxes()]
    assert ends[0] == ends[1]
    assert ends[0][1] == max(fig.layout.coloraxis.cmax for fig in figures)
    assert [axis.showscale for axis in both.select_coloraxes()] == [False, None]
    assert {trace.coloraxis for trace in heatmaps(both)} >= {
        "coloraxis",
        "coloraxis101",
    }


def test_two_attention_maps_keep_the_series_over_their_keys(
    attention: xr.Dataset,
) -> None:
    both = viz.compare([viz.attention_map(attention)] * 2, ["a", "b"])
    # plotly draws no line where an axis matches a later one and others match across
    assert [axis.matches for axis in both.select_xaxes()] == [None] * 4
    assert both.layout.xaxis.range == both.layout.xaxis2.range
    assert both.layout.yaxis101.matches == "y"


def test_sheets_that_no_page_holds_are_refused() -> None:
    fan = viz.forecast_fan(planted.forecast())
    expect_error("needs 229 mm", viz.compose, [[fan] * 3])
    expect_error("higher than a page", viz.compose, [fan] * 6, 89)
    expect_error("not 0", viz.compose, [])


def test_what_cannot_stand_side_by_side_is_refused() -> None:
    fan = viz.forecast_fan(planted.forecast())
    expect_error(
        "legend inside a panel", viz.compare, [viz.compose([fan, fan])] * 2, ["a", "b"]
    )
    expect_error("two figures", viz.compare, [fan], ["a"])
    wide = go.Figure(fan).update_layout(meta={**fan.layout.meta, "min_width": 2000})
    expect_error("4000 pixels", viz.compare, [wide, wide], ["a", "b"])
    maps = [
        viz.attribution_heatmap(planted.attribution(), decomposition=name)
        for name in ("logit", "expected_value")
    ]
    expect_error("differ in meaning", viz.compare, maps, ["a", "b"])


def test_a_figure_of_two_models_forecasts_the_same_series() -> None:
    run = load("bolt-nano").run(bundled("nile"), 6, holdout=True)
    made = make_figure("forecast_fan", run, [load("chronos2-nano")])
    (panel,) = made.panels
    one, two = panel.results
    np.testing.assert_array_equal(one["truth"], two["truth"])
    assert [each.attrs["model"] for each in panel.results] == [
        "bolt-nano",
        "chronos2-nano",
    ]
    assert "chronos2-nano" in made.caption()
    expect_error(
        "two models side by side, but 3 are named", refuse_several, made.entry, 3
    )
