"""Two models side by side: nothing is lost, what means the same is on one scale, the
rest is refused.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import xarray as xr

import planted
from refusals import expect_error
from tsfm_lens import viz
from viz.marks import heatmaps


def test_halves_equal_the_separate_figures() -> None:
    """Both halves hold what each figure holds alone."""
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
    assert {trace.xaxis for trace in both.data} == {"x", "x2"}
    assert both.layout.xaxis.domain[1] < both.layout.xaxis2.domain[0]
    assert (both.layout.yaxis.anchor, both.layout.yaxis2.anchor) == ("x", "x2")
    # values are in metres at the left, in other units at the right
    assert both.layout.yaxis2.matches is None
    assert viz.compare([one, one], ["a", "b"]).layout.yaxis2.matches == "y"
    listed = [trace.name for trace in both.data if trace.showlegend]
    assert len(listed) == len(set(listed))
    text = " ".join(note.text for note in both.layout.annotations)
    assert "left" in text
    assert "right" in text


def test_equal_maps_share_colours(ablation: xr.Dataset) -> None:
    """Maps of the same quantity have the same colours."""
    stronger = ablation.assign(
        {name: 3 * ablation[name] for name in ("spearman_distance", "mean_shift")}
    )
    figures = [viz.ablation_heatmap(item) for item in (ablation, stronger)]
    both = viz.compare(figures, ["a", "b"])
    bounds = [(axis.cmin, axis.cmax) for axis in both.select_coloraxes()]
    assert bounds[0] == bounds[1]
    assert bounds[0][1] == max(fig.layout.coloraxis.cmax for fig in figures)
    assert [axis.showscale for axis in both.select_coloraxes()] == [False, None]
    assert {trace.coloraxis for trace in heatmaps(both)} >= {
        "coloraxis",
        "coloraxis2",
    }


def test_paired_attention_maps_keep_their_series(
    attention: xr.Dataset,
) -> None:
    """Two attention maps keep the series over their keys."""
    both = viz.compare([viz.attention_map(attention)] * 2, ["a", "b"])
    # plotly draws no line where an axis matches a later one and others match across
    assert [axis.matches for axis in both.select_xaxes()] == [None, "x", None, "x3"]
    assert both.layout.yaxis3.matches == "y"


def test_composed_panels_share_one_legend() -> None:
    """Four figures in two rows: no panel lies on another, and each axis is used by the
    traces of its figure.
    """
    fan = viz.forecast_fan(planted.forecast())
    maps = viz.ablation_heatmap(planted.ablation())
    sheet = viz.compose([[maps, fan], [fan, fan]], 183)
    letters = [note.text for note in sheet.layout.annotations][-4:]
    assert letters == [f"<b>{letter}</b>" for letter in "abcd"]
    assert sheet.layout.meta["title"].startswith("a, ")
    assert sheet.layout.meta["width_mm"] == 183
    listed = [trace.name for trace in sheet.data if trace.showlegend]
    assert len(listed) == len(set(listed))
    axes = list(zip(sheet.select_xaxes(), sheet.select_yaxes(), strict=True))
    for (x, y), (other_x, other_y) in combinations(axes, 2):
        separate = x.domain[1] <= other_x.domain[0] or other_x.domain[1] <= x.domain[0]
        above = y.domain[1] <= other_y.domain[0] or other_y.domain[1] <= y.domain[0]
        assert separate or above
    bare = viz.compose([fan], letters=False)
    assert "<b>a</b>" not in [note.text for note in bare.layout.annotations]


def test_oversized_sheets_are_refused() -> None:
    """Sheets that no page can hold are refused."""
    fan = viz.forecast_fan(planted.forecast())
    expect_error("type would have 4.", viz.compose, [[fan] * 3])
    expect_error("type would have", viz.compose, [fan] * 6, 89)
    expect_error("not 0", viz.compose, [])


def test_incomparable_figures_are_refused() -> None:
    """Figures that cannot stand side by side are refused."""
    fan = viz.forecast_fan(planted.forecast())
    expect_error("two figures", viz.compare, [fan], ["a"])
    maps = [
        viz.attribution_heatmap(planted.attribution(), decomposition=name)
        for name in ("logit", "expected_value")
    ]
    expect_error("differ in meaning", viz.compare, maps, ["a", "b"])
