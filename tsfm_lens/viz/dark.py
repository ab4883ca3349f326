"""Figures for dark pages: the same figure with light and dark exchanged."""

from __future__ import annotations

import re
from colorsys import hls_to_rgb, rgb_to_hls
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio

from tsfm_lens.viz.theme import TEMPLATE

__all__ = ["dark"]
PAGE, LIGHT = 0.09, 0.95  # lightness that white and black become
_MUTED = 0.8  # of the saturation, or green and teal would shine
_COLOUR = re.compile(
    r"(?P<before>^|color:)(?:#(?P<hex>[0-9A-Fa-f]{6})|rgba\((?P<rgba>[\d., ]+)\))(?=$|[\";])"
)
_GROUNDS = {"paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)"}


def dark(fig: go.Figure) -> go.Figure:
    """Copy a figure for a dark page: light and dark exchanged, hues as they are, nothing behind the panels.

    Scales that start at white start at the page's ground, #17181A or near it.

    Args:
        fig: any figure of ``tsfm_lens.viz``.

    Example:
        >>> viz.dark(viz.forecast_fan(run)).layout.paper_bgcolor
        'rgba(0,0,0,0)'
    """
    parts = _exchanged(fig.to_plotly_json())
    ground = parts["layout"].get("plot_bgcolor")
    # a map's own ground says what is missing
    parts["layout"] |= (
        _GROUNDS if ground is None else {**_GROUNDS, "plot_bgcolor": ground}
    )
    return go.Figure(parts)


def _exchanged(part: Any) -> Any:
    """Exchange light and dark of every colour in a part of a figure."""
    if isinstance(part, dict):
        return {name: _exchanged(value) for name, value in part.items()}
    if isinstance(part, list | tuple):
        return [_exchanged(each) for each in part]
    return _COLOUR.sub(_turned, part) if isinstance(part, str) else part


def _turned(match: re.Match[str]) -> str:
    """Write a colour with the lightness turned, between that of the page and that of its text."""
    code, parts = match["hex"], (match["rgba"] or "").split(",")
    channels = (
        [int(code[i : i + 2], 16) for i in (0, 2, 4)]
        if code
        else [float(part) for part in parts[:3]]
    )
    hue, lightness, saturation = rgb_to_hls(*(channel / 255 for channel in channels))
    turned = hls_to_rgb(
        hue, PAGE + (1 - lightness) * (LIGHT - PAGE), _MUTED * saturation
    )
    red, green, blue = (round(255 * value) for value in turned)
    return match["before"] + (
        f"#{red:02X}{green:02X}{blue:02X}"
        if code
        else f"rgba({red},{green},{blue},{parts[3].strip()})"
    )


pio.templates[f"{TEMPLATE}_dark"] = go.layout.Template(
    {"layout": _exchanged(pio.templates[TEMPLATE].layout.to_plotly_json()) | _GROUNDS}
)
