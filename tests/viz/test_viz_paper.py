"""Figures of heavy ablations, lens logits, the stream's writers and patch attention, as
data.
"""

from __future__ import annotations

import numpy as np
import pytest

import planted
from tsfm_lens import viz
from tsfm_lens.testing import assert_close, last_digit
from tsfm_lens.viz import theme
from viz.marks import heatmaps, named

STEPS = 6


def test_recipe_panels_include_the_original():
    """Every recipe has a panel with the original in it."""
    recipes = planted.recipes(planted.rivers_and_roads())
    fig = viz.recipe_forecasts(recipes, series="rivers")
    assert len(named(fig, "context")) == 3
    truth = recipes["truth"].values[0]
    medians = named(fig, "median forecast")
    np.testing.assert_array_equal(medians[2].y, truth + 20)
    # the original's median is repeated in the panels of the others
    for line in named(fig, "original forecast"):
        np.testing.assert_array_equal(line.y, medians[0].y)
    assert len(named(fig, "original forecast")) == 2
    titles = [a.text for a in fig.layout.annotations]
    assert titles[1] == "few<br>without 1 head (12.5 %)<br>distance 0.25"
    assert fig.layout.yaxis.title.text == "value (m³/s)"


def test_logit_maps_peak_where_planted():
    """Logit maps are symmetric and peak where they were planted."""
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
