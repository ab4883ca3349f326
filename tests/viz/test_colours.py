"""Colours under the three common deficiencies and in grey."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from colorspacious import cspace_convert, deltaE

import planted
from tsfm_lens import viz
from tsfm_lens.testing import last_digit
from tsfm_lens.viz import theme
from tsfm_lens.viz.printing import COLUMNS, DASHES, SYMBOLS

TOLD_APART = 10.0
DEFICIENCIES = ("deuteranomaly", "protanomaly", "tritanomaly")
# the two sides of every contrast: forecast and change, original and ablated, more and
# less
CONTRASTS = (
    (theme.BLUE, theme.VERMILION),
    (theme.BLUE, theme.ORANGE),
    (theme.DIVERGING[1][1], theme.DIVERGING[5][1]),
)


def rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255


def seen(colour: str, deficiency: str | None) -> np.ndarray:
    """A colour as it is seen, in sRGB."""
    if deficiency is None:
        return rgb(colour)
    space = {"name": "sRGB1+CVD", "cvd_type": deficiency, "severity": 100}
    return np.clip(cspace_convert(rgb(colour), space, "sRGB1"), 0, 1)


def lightness(colour: str, deficiency: str | None = None) -> float:
    """J' of CAM02-UCS, 0 for black and 100 for white."""
    return float(cspace_convert(seen(colour, deficiency), "sRGB1", "CAM02-UCS")[0])


def colour_distance(one: str, other: str, deficiency: str | None = None) -> float:
    return float(
        deltaE(seen(one, deficiency), seen(other, deficiency), input_space="sRGB1")
    )


def form(colour: str) -> tuple[str | None, str | None]:
    """What tells lines and points of a colour from others in print."""
    return DASHES.get(colour), SYMBOLS.get(colour)


@pytest.mark.parametrize("deficiency", [None, *DEFICIENCIES])
def test_contrast_sides_are_distinguishable(deficiency: str | None) -> None:
    """Both sides of a contrast can be told apart."""
    assert (
        min(colour_distance(*pair, deficiency) for pair in CONTRASTS) > 2 * TOLD_APART
    )


@pytest.mark.parametrize("deficiency", [None, *DEFICIENCIES])
def test_categories_differ_in_colour_or_form(deficiency: str | None) -> None:
    """Categories can be told apart by colour or by form."""
    for one, other in combinations(theme.CATEGORICAL[:11], 2):
        assert colour_distance(one, other, deficiency) > TOLD_APART or form(
            one
        ) != form(other), (
            one,
            other,
        )


def test_grey_categories_differ_in_form() -> None:
    """Categories that are equally light in grey differ in form."""
    for one, other in combinations(theme.CATEGORICAL[:11], 2):
        assert abs(lightness(one) - lightness(other)) > TOLD_APART or form(one) != form(
            other
        ), (one, other)


@pytest.mark.parametrize("deficiency", [None, *DEFICIENCIES])
def test_colour_scales_darken_or_diverge(deficiency: str | None) -> None:
    """Colour scales of maps darken throughout or part in the middle."""
    sequential = [lightness(colour, deficiency) for _, colour in theme.SEQUENTIAL]
    assert (np.diff(sequential) < 0).all()
    low, middle, high = (
        [lightness(colour, deficiency) for _, colour in part]
        for part in (theme.DIVERGING[:4], theme.DIVERGING[3:4], theme.DIVERGING[3:])
    )
    assert (np.diff(low) > 0).all()
    assert (np.diff(high) < 0).all()
    assert middle[0] > 99
    # both ends are as far from the middle
    assert abs(low[0] - high[-1]) < TOLD_APART


def test_dark_pages_have_light_text_only() -> None:
    """On a dark page nothing is white, and words are light."""
    for fig in (
        viz.ablation_heatmap(planted.ablation()),
        viz.forecast_fan(planted.forecast()),
    ):
        dark = viz.dark(fig)
        assert dark.layout.paper_bgcolor == dark.layout.plot_bgcolor == "rgba(0,0,0,0)"
        assert "#FFFFFF" not in dark.to_json().upper()
        assert lightness(dark.layout.template.layout.font.color) > 85
        assert len(dark.data) == len(fig.data)
    scale = [
        lightness(colour)
        for _, colour in viz.dark(
            viz.ablation_heatmap(planted.ablation())
        ).layout.coloraxis.colorscale
    ]
    assert scale[0] < 15
    assert (np.diff(scale) > 0).all()


def test_matplotlib_style_has_these_colours() -> None:
    """The style for matplotlib has the same colours."""
    style = matplotlib.rc_params_from_file(
        Path(theme.__file__).with_name("paper.mplstyle"), use_default_template=False
    )
    assert [item["color"] for item in style["axes.prop_cycle"]] == list(
        theme.CATEGORICAL
    )
    assert style["figure.figsize"][0] * 25.4 == pytest.approx(
        COLUMNS["single"], abs=last_digit(1)
    )
