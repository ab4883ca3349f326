"""Figures for dark pages: the same figure with light and dark exchanged."""

from __future__ import annotations

import re
from colorsys import hls_to_rgb, rgb_to_hls

import plotly.graph_objects as go
import plotly.io as pio

from tsfm_lens.viz.theme import TEMPLATE

__all__ = ["dark"]
# Lightness that white and black become.
PAGE = 0.09
LIGHT = 0.95
_MUTED = 0.8  # of the saturation, or green and teal would shine
# A colour in the JSON of a figure: a value by itself, or in the style of a title, whose
# quotes JSON escapes.
_COLOUR = re.compile(r'("|color:)(?:#([0-9A-Fa-f]{6})|rgba\(([\d., ]+)\))(?=[\\";])')
_CLEAR = "rgba(0,0,0,0)"


def dark(fig: go.Figure) -> go.Figure:
    """Copy a figure for a dark page, with light and dark exchanged.

    Hues stay as they are, and nothing is drawn behind the panels.

    Scales that start at white start at the page's ground, #17181A or near it.

    Args:
        fig: any figure of ``tsfm_lens.viz``.

    Returns:
        A copy of the figure, with the same panels and a transparent ground.

    Example:
        >>> viz.dark(viz.forecast_fan(run)).layout.paper_bgcolor
        'rgba(0,0,0,0)'
    """
    # As text, so that no kind of trace or layout has to be known. It is also a copy.
    exchanged = pio.from_json(_COLOUR.sub(_turned, fig.to_json()))
    # a map that sets the ground shows by it which cells are missing
    ground = exchanged.layout.plot_bgcolor or _CLEAR
    return exchanged.update_layout(paper_bgcolor=_CLEAR, plot_bgcolor=ground)


def _turned(match: re.Match[str]) -> str:
    """Return a colour with its lightness inverted.

    The result lies between the lightness of the page and that of its text.
    """
    before, code, numbers = match.groups()
    if code:
        channels = [float(value) for value in bytes.fromhex(code)]
    else:
        *parts, opacity = numbers.split(",")
        channels = [float(part) for part in parts]
    hue, lightness, saturation = rgb_to_hls(*(channel / 255 for channel in channels))
    lightness = PAGE + (1 - lightness) * (LIGHT - PAGE)
    turned = hls_to_rgb(hue, lightness, _MUTED * saturation)
    red, green, blue = (round(255 * value) for value in turned)
    if code:
        return f"{before}#{red:02X}{green:02X}{blue:02X}"
    return f"{before}rgba({red},{green},{blue},{opacity.strip()})"


# dark() takes a figure, so the layout of the template is made the layout of one
_templated = go.Figure(layout=pio.templates[TEMPLATE].layout)
pio.templates[f"{TEMPLATE}_dark"] = go.layout.Template(layout=dark(_templated).layout)
