"""Figures for print: journal column widths, type from 6 points on, lines told apart without colour."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import plotly.graph_objects as go

from tsfm_lens.errors import InputError
from tsfm_lens.viz.findings import NOT_SIGNIFICANT
from tsfm_lens.viz.sheet import legend_rows
from tsfm_lens.viz.stacking import stacks
from tsfm_lens.viz.theme import (
    CATEGORICAL,
    GREEN,
    LEGEND_ROW,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    template,
)

__all__ = ["for_print"]
COLUMNS = {
    "single": 89.0,
    "double": 183.0,
}  # mm, the widths of Nature and of most journals on A4
PIXELS_PER_MM, PIXELS_PER_POINT = 96 / 25.4, 96 / 72
SCALE = 0.8  # of all type and lengths on the screen
SMALLEST = 10  # pixels on the screen, 6 points in print
TALLEST = 230.0  # mm, what a page leaves beside its caption
_DATE = 100  # pixels on the screen of the widest date
_LENGTHS = ("font.size", ".marker.size", ".xshift", ".yshift", ".thickness")
_TOP = 8  # pixels above the panels, now that no title stands there
# solid stays solid; nearly every other colour of the theme gets dashes and symbols of its own
_DASHES = (
    None,
    "6px,2px",
    "2px,2px",
    "7px,2px,2px,2px",
    "10px,3px",
    "4px,3px",
    None,
    "1px,3px",
    "9px,2px,4px,2px",
)
DASHES = dict(
    zip(CATEGORICAL, (*_DASHES, "5px,5px", "12px,2px,1px,2px", None), strict=True)
)
_SYMBOLS = (
    "circle",
    "square",
    "diamond",
    "triangle-up",
    "x",
    None,
    "cross",
    "triangle-down",
    "star",
    "pentagon",
)
SYMBOLS = dict(zip(CATEGORICAL, (*_SYMBOLS, "hexagon", None), strict=True))
_HATCHES = {VERMILION: "/", GREEN: ".", PURPLE: "x", ORANGE: "\\", SKY: "-"}


def for_print(fig: go.Figure, column: str | float | None = None) -> go.Figure:
    """Copy a figure for a printed column: its width, type from 6 pt on, no title inside.

    Lines of different colours get different dashes, markers different symbols, bars different hatches.

    Args:
        fig: any figure of ``tsfm_lens.viz``.
        column: "single" (89 mm), "double" (183 mm), or a width in mm. The narrowest of the two that the figure can
            be read at as it is if None. Panels side by side are put below each other where a width asks for it.

    Returns:
        A figure in pixels of 1/96 inch; ``layout.meta`` has its title, ``width_mm``, ``height_mm`` and ``type_pt``, the
        smallest type in points.

    Raises:
        InputError: no such column, or one in which the figure cannot be read at 6 pt.

    Example:
        >>> fig = viz.for_print(viz.forecast_fan(run), "single")
        >>> fig.layout.meta["width_mm"]
        89.0
    """
    fig, width_mm = _width(fig, column)
    width, meta = width_mm * PIXELS_PER_MM, dict(fig.layout.meta or {})
    margin = {side: fig.layout.margin[side] or 80.0 for side in "lrtb"}
    panels = (fig.layout.height or 500.0) - margin["t"] - margin["b"]
    margin["t"] = max(margin["t"] - meta.get("title_height", 0), _TOP)
    scale = min(SCALE, width / least_width(fig))
    if "legend_rows" in meta:
        margin["b"] += LEGEND_ROW * (
            legend_rows(fig, width / scale) - meta["legend_rows"]
        )
    scale = min(scale, TALLEST * PIXELS_PER_MM / (panels + margin["t"] + margin["b"]))
    height = round(scale * (panels + margin["t"] + margin["b"]))
    size = {
        "width_mm": round(width_mm, 1),
        "height_mm": round(height / PIXELS_PER_MM, 1),
    }
    layout = _scaled(fig.layout.to_plotly_json(), scale)
    layout.pop("title", None)
    layout |= {
        "template": template(scale),
        "width": round(width),
        "height": height,
        "autosize": False,
        "margin": {side: scale * pixels for side, pixels in margin.items()},
        "meta": {
            **meta,
            **size,
            "type_pt": round(SMALLEST * scale / PIXELS_PER_POINT, 1),
        },
    }
    printed = go.Figure(
        {
            "data": _scaled([trace.to_plotly_json() for trace in fig.data], scale),
            "layout": layout,
        }
    )
    crowded = width < scale * meta.get("min_width", 0)
    inner = width - printed.layout.margin.l - printed.layout.margin.r
    for trace in printed.data:
        if (
            getattr(trace, "x", None) is not None
            and np.asarray(trace.x).dtype.kind == "M"
        ):
            _thin_dates(
                printed.layout[(trace.xaxis or "x").replace("x", "xaxis")],
                inner / scale,
            )
        if (
            trace.type == "heatmap"
            and crowded
            and trace.texttemplate
            and trace.name != NOT_SIGNIFICANT
        ):
            # the numbers go, the marks of those in parentheses stay
            trace.text = [
                ["·" if str(text).startswith("(") else "" for text in row]
                for row in trace.text
            ]
            words = printed.layout.meta["subtitle"].replace(
                f"in parentheses: {NOT_SIGNIFICANT}", f"dotted: {NOT_SIGNIFICANT}"
            )
            printed.layout.meta = {**printed.layout.meta, "subtitle": words}
        elif trace.type == "bar":
            hatch = (
                _HATCHES.get(trace.marker.color)
                if isinstance(trace.marker.color, str)
                else None
            )
            if hatch and trace.marker.pattern.shape is None:
                trace.marker.pattern = {"shape": hatch, "size": 5, "solidity": 0.25}
        elif trace.type in ("scatter", "scattergl"):
            colour = (
                trace.line.color if trace.marker.color is None else trace.marker.color
            )
            if "lines" in (trace.mode or "") and trace.line.dash is None:
                trace.line.dash = DASHES.get(trace.line.color)
            if (
                "markers" in (trace.mode or "")
                and trace.marker.symbol is None
                and isinstance(colour, str)
            ):
                trace.marker.symbol = SYMBOLS.get(colour)
    return printed


def _thin_dates(axis: Any, width: float) -> None:
    """Leave as many dates on an axis as its part of a width in pixels has room for."""
    low, high = axis.domain or (0, 1)
    room = max(1, int((high - low) * width / _DATE))
    if axis.tickvals is None and axis.dtick is None:
        # labels that are turned would need room under the axis
        axis.update(nticks=min(axis.nticks or room, room), tickangle=0)


def _scaled(part: Any, scale: float, path: str = "") -> Any:
    """Multiply sizes of type and points and distances of words in a part of a figure."""
    if isinstance(part, dict):
        return {
            name: value
            if name == "template"
            else _scaled(value, scale, f"{path}.{name}")
            for name, value in part.items()
        }
    if isinstance(part, list | tuple):
        return [_scaled(each, scale, path) for each in part]
    return scale * part if part is not None and path.endswith(_LENGTHS) else part


def fits(fig: go.Figure, width_mm: float) -> bool:
    """Return whether a figure can be read at a width, from 6 pt on."""
    return SCALE * least_width(fig) <= width_mm * PIXELS_PER_MM


def least_width(fig: go.Figure) -> float:
    """Return the pixels on the screen that a figure needs without the numbers of its cells."""
    meta = fig.layout.meta or {}
    return float(meta.get("bare_width", meta.get("min_width", 360)))


def _width(fig: go.Figure, column: str | float | None) -> tuple[go.Figure, float]:
    """Return the figure, its panels below each other where a column asks for that, and the width in mm."""
    if column is None:
        return fig, COLUMNS["single"] if fits(fig, COLUMNS["single"]) else COLUMNS[
            "double"
        ]
    width = millimetres(column)
    # nothing is wider than both columns of a page, so there is nothing to send the caller to
    narrow = fig if width >= COLUMNS["double"] else narrowed(fig, width)
    if narrow is None:
        least = SCALE * least_width(fig) / PIXELS_PER_MM
        raise InputError(
            f"this figure needs {least:.0f} mm to be read at 6 pt, not {width:g}; choose 'double' (183 mm)"
        )
    return narrow, width


def millimetres(column: str | float) -> float:
    """Return the width of a column, by its name or in mm."""
    if isinstance(column, str):
        if column not in COLUMNS:
            raise InputError(
                f"column {column!r} is not known, choose 'single' (89 mm), 'double' (183 mm) or mm"
            )
        return COLUMNS[column]
    if not 20 <= float(column) <= 1000:
        raise InputError(
            f"a column of {float(column):g} mm cannot be drawn, expected 20 to 1000"
        )
    return float(column)


def narrowed(fig: go.Figure, width_mm: float) -> go.Figure | None:
    """Return a figure that can be read at a width, its panels below each other if they must be; None if none can."""
    page = TALLEST * PIXELS_PER_MM / SCALE
    low = (
        each
        for each in stacks(fig)
        if each.layout.height - each.layout.meta["title_height"] <= page
    )
    return next((each for each in chain([fig], low) if fits(each, width_mm)), None)
