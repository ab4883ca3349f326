"""Figures of heavy ablations, lens logits, the stream's writers and patch attention, as data."""

from __future__ import annotations

import numpy as np
import pytest

import planted
from tsfm_lens import viz
from tsfm_lens.testing import assert_close, last_digit
from tsfm_lens.viz import theme
from viz.marks import heatmaps, named

STEPS = 6


def test_recipes_are_columns_and_series_are_rows():
    recipes = planted.recipes(planted.rivers_and_roads())
    fig = viz.recipe_forecasts(recipes, samples=2)
    assert len(named(fig, "context")) == 6
    # the original's median is repeated in every panel, the ablated one stands in its own
    assert len(named(fig, "original forecast (median)")) == 6
    ablated = named(fig, "ablated forecast (median)")
    np.testing.assert_array_equal(ablated[1].y, recipes["truth"].values[0] + 20)
    np.testing.assert_array_equal(ablated[2].y, recipes["truth"].values[1] + 10)
    titles = [a.text for a in fig.layout.annotations]
    assert titles[1] == "few<br>without 1 head (12.5 %)<br>distance 0.25"
    assert "without 6 heads (75 %) + 2 MLPs" in titles[2]
    assert titles[-1] == "distance 2.00"
    paths = named(fig, "sampled paths")[2]
    np.testing.assert_array_equal(paths.y[:6], recipes["truth"].values[0] + 19)
    assert np.isnan(paths.y[6])
    # rows share a value axis, all panels the steps
    assert fig.layout.yaxis3.matches == "y"
    assert fig.layout.yaxis4.matches is None
    assert len({axis.matches for axis in fig.select_xaxes()} - {None}) == 1
    assert fig.layout.yaxis.title.text == "rivers (m³/s)"


def test_logit_maps_are_symmetric_and_peak_where_planted():
    logits = planted.lens_logits(planted.rivers_and_roads())
    fig = viz.lens_logit_map(logits, value_range=(-10, 40))
    maps = heatmaps(fig)
    assert len(maps) == 2
    for panel in maps:
        z = np.asarray(panel.z)
        assert np.abs(z).max() == pytest.approx(1.0)
        # the mean over the values drawn is taken off at each step
        assert_close(z.mean(axis=0), 0, depth=16, magnitude=1.0, dtype=np.float32)
        centres = (np.asarray(panel.y)[1:] + np.asarray(panel.y)[:-1]) / 2
        np.testing.assert_allclose(centres[z.argmax(axis=0)], 5.0 * np.arange(STEPS))
    assert fig.layout.coloraxis.cmin == -fig.layout.coloraxis.cmax
    assert fig.layout.coloraxis.colorscale[5][1] != theme.SEQUENTIAL[5][1]
    ratio = [
        float(a.text.split("± ")[1]) for a in fig.layout.annotations if "±" in a.text
    ]
    # two numbers of four significant digits
    assert ratio[1] == pytest.approx(2 * ratio[0], rel=2 * last_digit(3))


def test_the_scheme_shows_every_writer_with_its_share():
    ds = planted.stream_shares(planted.rivers_and_roads().isel(series=[0]))
    fig = viz.stream_scheme(ds)
    bars, heads, numbers = fig.data
    np.testing.assert_allclose(bars.x, [12.5, 37.5, 50])
    np.testing.assert_allclose(heads.x, [25.0, 37.5])
    assert list(heads.y) == [1, 1]
    assert list(numbers.text) == ["12.5 %", "37.5 %", "50 %"]
    texts = [a.text for a in fig.layout.annotations if a.text]
    assert {"embedding", "cross-attention to the encoder", "MLP", "layer 0"} <= set(
        texts
    )
    arrows = [a for a in fig.layout.annotations if a.showarrow and a.ay == a.y]
    assert np.all(np.diff([a.arrowwidth for a in arrows]) > 0)
    # two writers read the stream, the embedding does not
    assert sum(s.type == "line" for s in fig.layout.shapes) == 2
    printed = viz.for_print(fig)
    moved = [a for a in printed.layout.annotations if a.showarrow]
    assert all(
        a.ay == b.ay
        for a, b in zip(
            moved, [a for a in fig.layout.annotations if a.showarrow], strict=True
        )
    )


def test_the_selected_patch_is_marked_at_its_first_step():
    patches = planted.patch_attention(planted.rivers_and_roads())
    fig = viz.selected_patch(patches, layer="0")
    (mark,) = named(fig, "most read by layer 0, head 1")
    assert list(mark.x) == [-20, -20]
    assert "layer 0, head 1" in fig.layout.meta["title"]
    (other,) = named(
        viz.selected_patch(patches, layer="1", head=0), "most read by layer 1, head 0"
    )
    assert list(other.x) == [-20, -20]
