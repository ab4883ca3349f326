"""Figures for print: journal column widths, type of 7 to 8 points, lines told apart without colour.

Plotly measures in pixels of 1/96 inch, so a figure of 336 pixels is 89 mm wide. A print figure is the screen
figure with every measure of its layout (type, lines, margins, panel heights) made smaller by one factor; the
panels then fill the column's width.
"""

from __future__ import annotations

import re
from base64 import b64decode
from typing import Any

import numpy as np
import plotly.graph_objects as go

from tsfm_lens.errors import InputError
from tsfm_lens.viz.lettering import folded_names, legend_pitch, legend_rows, merged, wrapped_titles
from tsfm_lens.viz.room import width_of_words
from tsfm_lens.viz.theme import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION

__all__ = ["for_print"]
COLUMNS = {"single": 89.0, "double": 183.0}  # mm, the widths of Nature and of most journals on A4
PIXELS_PER_MM, PIXELS_PER_POINT = 96 / 25.4, 96 / 72
TYPE = (7.0, 8.0)  # points, smallest and largest
TALLEST = 230.0  # mm, what a page leaves beside its caption
_SCREEN_TYPE = 13  # pixels, the theme's body type
_SMALLEST = 0.5  # of the smallest type, for what fits no page in it
_THINNEST = 0.5  # points, of a drawn line
_TOP = 8  # pixels above the panels, now that no title stands there
# solid stays solid; every other colour of the theme gets dashes of its own
DASHES = {VERMILION: "6px,2px", GREEN: "2px,2px", PURPLE: "7px,2px,2px,2px", ORANGE: "10px,3px", SKY: "4px,3px"}
SYMBOLS = {BLUE: "circle", VERMILION: "square", GREEN: "diamond", PURPLE: "triangle-up", ORANGE: "x", BLACK: "cross"}
_HATCHES = {VERMILION: "/", GREEN: ".", PURPLE: "x", ORANGE: "\\", SKY: "-"}
_SIZE_IN_TEXT = re.compile(r"font-size:\s*(\d+(?:\.\d+)?)px")
# measures in pixels, by the last part of their path
_LENGTHS = {"ticklen", "standoff", "xshift", "yshift", "thickness", "ax", "ay", "xpad", "ypad", "outlinewidth"}
_LENGTHS |= {"arrowwidth", "borderwidth", "borderpad", "tickwidth", "linewidth", "itemwidth", "tracegroupgap"}


def for_print(fig: go.Figure, column: str | float | None = None) -> go.Figure:
    """Copy a figure for a printed column: its width, type of 7 to 8 pt, no title inside.

    The title goes to the caption: it stays in ``layout.meta``. Lines of different colours get different dashes,
    markers different symbols, bars different hatches, where they have none of their own; sequential maps darken
    throughout. Diverging maps need colour: without it, both their ends are dark.

    Args:
        fig: any figure of ``tsfm_lens.viz``.
        column: "single" (89 mm), "double" (183 mm), or a width in mm. The narrowest of the two that the figure can
            be read at if None.

    Returns:
        A figure with ``layout.width`` and ``layout.height`` in pixels of 1/96 inch; ``layout.meta`` has
        ``width_mm``, ``height_mm`` and ``type_pt``, the smallest type in points: below 7 where a figure has more
        panels or longer names than a page of 183 mm holds.

    Raises:
        InputError: no such column, or one in which the figure cannot be read at 7 pt.

    Example:
        >>> fig = viz.for_print(viz.forecast_fan(run), "single")
        >>> fig.layout.meta["width_mm"]
        89.0
    """
    width_mm, scale = _width(fig, column), 1.0
    figure = _print_figure(fig, width_mm)
    # nothing is larger than a page: what does not fit there is set smaller
    while _leaves_the_page(figure) and scale > _SMALLEST:
        scale *= 0.94
        figure = _print_figure(fig, width_mm, scale)
    layout = figure["layout"]
    layout["height"] = round(min(layout["height"], TALLEST * PIXELS_PER_MM))
    size = {"height_mm": round(layout["height"] / PIXELS_PER_MM, 1), "type_pt": round(TYPE[0] * scale, 1)}
    layout["meta"] = {**layout["meta"], **size}
    return go.Figure(figure)


def _leaves_the_page(figure: dict[str, Any]) -> bool:
    layout = figure["layout"]
    words = width_of_words(layout, figure["data"])
    return bool(layout["width"] < words or layout["height"] > TALLEST * PIXELS_PER_MM)


def _print_figure(fig: go.Figure, width_mm: float, scale: float = 1.0) -> dict[str, Any]:
    """Return the figure as plotly writes it down, at a width in mm, whether it can be read there or not.

    Args:
        scale: by what the type is made smaller than 7 to 8 points.
    """
    width = width_mm * PIXELS_PER_MM
    layout = {name: _unpack(part) if "axis" in name else part for name, part in fig.layout.to_plotly_json().items()}
    meta = dict(layout.get("meta") or {})
    needs = float(meta.get("min_width", 360))
    smallest, largest = (scale * points * PIXELS_PER_POINT / _SCREEN_TYPE for points in TYPE)
    factor = min(max(width / needs, smallest), largest)
    _untitle(layout, meta)
    _still(layout, meta)
    layout = _scale(layout, factor, scale)
    layout["template"] = _print_template(layout, factor, scale)
    # plotly's own objects would look at every value again whenever one is changed
    traces = [_unpack(trace.to_plotly_json()) for trace in fig.data]
    for trace in traces:
        _scale_trace(trace, factor, scale)
        _tell_apart(trace)
    layout = _letter(layout, traces, width, meta, factor)
    meta["width_mm"] = round(width_mm, 1)
    height = float(layout.get("height") or 500 * factor)
    layout |= {"width": round(width), "height": height, "autosize": False, "meta": meta}
    return {"data": traces, "layout": layout}


def _unpack(part: Any) -> Any:
    """Return as arrays the numbers that a figure read from a .json file holds as text, as plotly writes them."""
    if isinstance(part, dict) and {"dtype", "bdata"} <= set(part):
        numbers = np.frombuffer(b64decode(part["bdata"]), part["dtype"])
        return numbers.reshape([int(size) for size in str(part.get("shape") or numbers.size).split(",")])
    if isinstance(part, dict):
        return {name: _unpack(each) for name, each in part.items()}
    return part


def _letter(
    layout: dict[str, Any], traces: list[dict[str, Any]], width: float, meta: dict[str, Any], factor: float
) -> dict[str, Any]:
    """Break titles, names and legend into as many lines as they need at this size."""
    margin, height = layout.get("margin", {}), float(layout.get("height") or 500)
    longest = 0.3 * width
    room = height - float(margin.get("t") or 80) - float(margin.get("b") or 80)
    layout = merged(layout, merged(wrapped_titles(layout, room), folded_names(layout, traces, room, longest)))
    if "legend_rows" not in meta:
        return layout
    legend = legend_rows(layout, traces, width) * legend_pitch(layout)
    more = legend - factor * meta["legend_rows"] * legend_pitch({})
    # plotly gives a legend at most half of the figure
    height = max(height + more, 2.1 * legend)
    return merged(layout, {"height": height, "margin": {"b": margin["b"] + more}})


def fits(fig: go.Figure, width_mm: float) -> bool:
    """Return whether a figure can be read at a width: its ``min_width``, and its words side by side, from 7 pt."""
    needs = float((fig.layout.meta or {}).get("min_width", 360))
    width = width_mm * PIXELS_PER_MM
    if needs * TYPE[0] * PIXELS_PER_POINT / _SCREEN_TYPE > width:
        return False
    figure = _print_figure(fig, width_mm)
    return width >= width_of_words(figure["layout"], figure["data"])


def _width(fig: go.Figure, column: str | float | None) -> float:
    """Return the width in mm."""
    if column is None:
        return COLUMNS["single"] if fits(fig, COLUMNS["single"]) else COLUMNS["double"]
    if isinstance(column, str):
        if column not in COLUMNS:
            raise InputError(f"column {column!r} is not known, choose 'single' (89 mm), 'double' (183 mm) or mm")
        width = COLUMNS[column]
    else:
        width = float(column)
        if not 20 <= width <= 1000:
            raise InputError(f"a column of {width:g} mm cannot be drawn, expected 20 to 1000")
    # nothing is wider than both columns of a page, so there is nothing to send the caller to
    if width < COLUMNS["double"] and not fits(fig, width):
        raise InputError(f"this figure has too many panels to be read at {width:g} mm; choose column='double' (183 mm)")
    return width


def _untitle(layout: dict[str, Any], meta: dict[str, Any]) -> None:
    margin = layout.get("margin", {})
    top = float(margin.get("t") or 80)
    above = max(top - float(meta.get("title_height", 0)), _TOP)
    height = float(layout.get("height") or 500) - top + above
    layout |= {"title": {**layout.get("title", {}), "text": ""}, "margin": {**margin, "t": above}, "height": height}


def _still(layout: dict[str, Any], meta: dict[str, Any]) -> None:
    """Remove what slides and plays, with its space under the panels."""
    controls = float(meta.get("controls", 0))
    for moving in ("sliders", "updatemenus"):
        layout.pop(moving, None)
    if controls:
        layout["margin"]["b"] -= controls
        layout["height"] -= controls


def _scale(part: Any, factor: float, scale: float, key: str = "", inside: str = "") -> Any:
    """Multiply every length in pixels, every type size and every line width of a layout."""
    if isinstance(part, dict):
        # the tail of an arrow may stand on an axis, not at a distance in pixels
        exempt = {"template", "meta"} | {tail for tail in ("ax", "ay") if part.get(f"{tail}ref", "pixel") != "pixel"}
        return {
            name: value if name in exempt else _scale(value, factor, scale, name, key) for name, value in part.items()
        }
    if isinstance(part, list | tuple):
        return [_scale(each, factor, scale, key, inside) for each in part]
    if isinstance(part, str):
        return _scale_text(part, factor, scale)
    if isinstance(part, bool) or not isinstance(part, int | float):
        return part
    return _scale_number(part, factor, scale, key, inside)


def _scale_number(value: float, factor: float, scale: float, key: str, inside: str) -> float:
    if inside.endswith("font") and key == "size":
        return type_size(value, factor, scale)
    if key == "width" and inside == "line":
        return line_width(value, factor)
    if key in _LENGTHS or (inside == "margin" and key in "tblr") or (inside == "pad" and key in "tblr"):
        return value * factor
    if key in ("height", "width") and inside == "":
        return value * factor
    return value


def _scale_text(text: str, factor: float, scale: float) -> str:
    return _SIZE_IN_TEXT.sub(lambda match: f"font-size:{type_size(float(match[1]), factor, scale):.2f}px", text)


def type_size(pixels: float, factor: float, scale: float = 1.0) -> float:
    """Scale a type size in pixels, kept between 7 and 8 pt, or a share of these."""
    smallest, largest = (scale * points * PIXELS_PER_POINT for points in TYPE)
    return min(max(pixels * factor, smallest), largest)


def line_width(pixels: float, factor: float) -> float:
    """Scale a line width in pixels, not below half a point; 0 stays 0."""
    return max(pixels * factor, _THINNEST * PIXELS_PER_POINT) if pixels > 0 else 0.0


def _print_template(layout: dict[str, Any], factor: float, scale: float) -> dict[str, Any]:
    template = layout.get("template") or {}
    small = {**template, "layout": _scale(template.get("layout", {}), factor, scale)}
    base = small["layout"]
    # what plotly itself takes as default counts in pixels too
    base.setdefault("font", {})["size"] = type_size(_SCREEN_TYPE, factor, scale)
    for axis in ("xaxis", "yaxis"):
        base.setdefault(axis, {}).update({"linewidth": 0.7, "tickwidth": 0.7})
    base.setdefault("legend", {}).update({"itemwidth": 30, "tracegroupgap": 2})
    return small


def _scale_trace(trace: dict[str, Any], factor: float, scale: float) -> None:
    for name in ("textfont", "insidetextfont", "outsidetextfont"):
        if trace.get(name, {}).get("size") is not None:
            trace[name]["size"] = type_size(float(trace[name]["size"]), factor, scale)
    if "font-size" in str(trace.get("text")):
        trace["text"] = _scale(np.asarray(trace["text"], dtype=object).tolist(), factor, scale)
    if trace.get("colorbar"):
        trace["colorbar"] = _scale(trace["colorbar"], factor, scale, "colorbar")
    width, size = trace.get("line", {}).get("width"), trace.get("marker", {}).get("size")
    if isinstance(width, int | float):
        trace["line"]["width"] = line_width(float(width), factor)
    if isinstance(size, int | float):
        trace["marker"]["size"] = max(size * factor, 2.0)


def _tell_apart(trace: dict[str, Any]) -> None:
    """Give a coloured line, marker or bar a form of its own, unless it has one."""
    marker, line = trace.get("marker", {}), trace.get("line", {})
    own, colour = marker.get("color"), line.get("color")
    if trace["type"] == "bar":
        hatch = _HATCHES.get(own if isinstance(own, str) else "")
        if hatch and marker.get("pattern", {}).get("shape") is None:
            marker["pattern"] = {"shape": hatch, "size": 5, "solidity": 0.25}
        return
    if trace["type"] not in ("scatter", "scattergl"):
        return
    mode = trace.get("mode") or ""
    if "lines" in mode and isinstance(colour, str) and line.get("dash") is None and colour in DASHES:
        line["dash"] = DASHES[colour]
    colour = colour if own is None else own
    if "markers" in mode and isinstance(colour, str) and marker.get("symbol") is None and colour in SYMBOLS:
        trace["marker"] = {**marker, "symbol": SYMBOLS[colour]}
