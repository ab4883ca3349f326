"""Figures for print, in the widths of journal columns.

:func:`for_print` copies a figure with type of at least 5 points, and with dashes,
symbols and hatches, so that lines differ without colour. :mod:`tsfm_lens.viz.saving`
writes the file, on the scale that :func:`in_print` notes in the metadata.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import plotly.graph_objects as go

from tsfm_lens.core.errors import InputError
from tsfm_lens.viz.data import keep_table, tabulator
from tsfm_lens.viz.sheet import DOT, DOT_TYPE, text_width
from tsfm_lens.viz.theme import (
    CATEGORICAL,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    fit_axes,
    legend_height,
    untitled,
)

__all__ = ["for_print"]
# Widths in mm of the columns of Nature and of most journals on A4.
COLUMNS = {"single": 89.0, "double": 183.0}
PIXELS_PER_MM = 96 / 25.4
PIXELS_PER_POINT = 96 / 72
SMALLEST = 10  # pixels of the smallest type on the screen
# Sizes in print over sizes on the screen. With SCALE the smallest type has 6 points,
# with LEAST_SCALE 5, below which a column is refused.
SCALE = 6 * PIXELS_PER_POINT / SMALLEST
LEAST_TYPE = 5  # points
LEAST_SCALE = LEAST_TYPE * PIXELS_PER_POINT / SMALLEST
TALLEST = 230.0  # mm, the height that a page leaves above the caption
_SIDES = 90  # pixels left and right of the panels
_CELL_EDGE = 4  # pixels of a cell that its number leaves free
_MIN_WIDTH = 360  # pixels that a figure without "min_width" in its metadata needs
# In the order of CATEGORICAL. None is a solid line, or the default symbol.
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
    """Copy a figure for a printed column, with type of 5 pt or more and no title.

    Lines of different colours get different dashes, markers different symbols, bars
    different hatches.

    Args:
        fig: any figure of ``tsfm_lens.viz``.
        column: "single" (89 mm), "double" (183 mm), or a width in mm. If None, "single"
            where the figure can be read in it, else "double".

    Returns:
        A figure that :func:`save` writes in its printed size; ``layout.meta`` has its
        title, ``width_mm``, ``height_mm``, ``type_pt``, the smallest type in points,
        and ``print_scale``, sizes in print over those on the screen.

    Raises:
        InputError: no such column, or one in which the figure cannot be read at 5 pt.

    Example:
        >>> fig = viz.for_print(viz.forecast_fan(run), "single")
        >>> fig.layout.meta["width_mm"]
        89.0
    """
    if column is None:
        column = "double"
        if fits(fig, COLUMNS["single"]):
            column = "single"
    width = millimetres(column)
    # a figure that cannot be read over two columns is drawn all the same, since no
    # column is wider
    if width < COLUMNS["double"] and not fits(fig, width):
        # rounded up, so that the width that is named can be read
        needed = math.ceil(LEAST_SCALE * least_width(fig) / PIXELS_PER_MM)
        raise InputError(
            f"this figure needs {needed} mm to be read at 5 pt, not {width:g};"
            " choose 'double' (183 mm)"
        )
    return in_print(fig, width)


def in_print(fig: go.Figure, width_mm: float) -> go.Figure:
    """Return a figure without its title, at a width in mm.

    Its layout keeps sizes as on the screen; ``print_scale`` in its metadata brings them
    to the width in print.
    """
    # journals print the title in the caption
    printed = untitled(fig)
    printed_width = width_mm * PIXELS_PER_MM
    scale = min(SCALE, printed_width / least_width(fig))
    meta = dict(fig.layout.meta or {})
    new_legend = legend_height(fig, printed_width / scale)
    legend_growth = new_legend - meta.get("legend_height", 0)
    height = printed.layout.height + legend_growth
    # A figure taller than a page is drawn smaller. It then has more pixels across, so
    # that its legend needs no more rows than were counted above.
    scale = min(scale, TALLEST * PIXELS_PER_MM / height)
    width = printed_width / scale
    margin = printed.layout.margin
    margin.b += legend_growth
    # plotly makes room at the sides of figures that name no margins there
    sides = (margin.l or 0) + (margin.r or 0)
    plot_width = width - max(_SIDES, sides)
    plot_height = height - margin.t - margin.b
    fit_axes(printed, plot_width, plot_height)
    meta |= {
        "width_mm": round(width_mm, 1),
        "height_mm": round(scale * height / PIXELS_PER_MM, 1),
        "type_pt": round(SMALLEST * scale / PIXELS_PER_POINT, 1),
        "print_scale": scale,
    }
    printed.update_layout(width=round(width), height=round(height), autosize=False)
    if _fit_numbers(printed, plot_width, plot_height):
        meta["subtitle"] = meta["subtitle"].replace("in parentheses", "dotted")
    printed.layout.meta = meta
    keep_table(printed, tabulator(fig))
    for trace in printed.data:
        _mark(trace)
    return printed


def _fit_numbers(printed: go.Figure, width: float, height: float) -> bool:
    """Write the numbers of maps in type that can be read, and leave out the others.

    ``width`` and ``height`` are those of all panels together, in pixels. Of a map
    without room for its numbers, those in parentheses become dots.

    Returns:
        Whether any number has become a dot.
    """
    dotted = False
    for trace in printed.select_traces({"type": "heatmap"}):
        # dots have a size, numbers that of plotly's choice, which may be 2 pixels
        if trace.texttemplate is None or trace.textfont.size is not None:
            continue
        texts = np.array(trace.text, dtype=str)
        rows, columns = texts.shape
        x = printed.layout[(trace.xaxis or "x").replace("x", "xaxis")].domain or (0, 1)
        y = printed.layout[(trace.yaxis or "y").replace("y", "yaxis")].domain or (0, 1)
        cell_width = (x[1] - x[0]) * width / columns - _CELL_EDGE
        cell_height = (y[1] - y[0]) * height / rows - _CELL_EDGE
        longest = max(text_width(text, SMALLEST) for text in texts.flat)
        if longest <= cell_width and cell_height >= SMALLEST:
            trace.textfont.size = SMALLEST
            continue
        faint = np.char.startswith(texts, "(")
        trace.text = np.where(faint, DOT, "").tolist()
        trace.textfont.size = DOT_TYPE
        dotted |= bool(faint.any())
    return dotted


def _mark(trace: Any) -> None:
    """Give a trace the dashes, the symbol or the hatches of its colour."""
    if trace.type not in ("bar", "scatter", "scattergl"):
        return
    colour = trace.marker.color
    if colour is None and trace.type != "bar":
        colour = trace.line.color
    # one colour a point has a meaning of its own, and no single dash or symbol
    if not isinstance(colour, str):
        return
    if trace.type == "bar":
        # bars that are hatched already say by it that they are not significant
        if colour in _HATCHES and trace.marker.pattern.shape is None:
            style = {"shape": _HATCHES[colour], "size": 6, "solidity": 0.25}
            trace.marker.pattern = style
        return
    mode = trace.mode or ""
    if "lines" in mode and trace.line.dash is None:
        trace.line.dash = DASHES.get(trace.line.color or colour)
    if "markers" in mode and trace.marker.symbol is None:
        trace.marker.symbol = SYMBOLS.get(colour)


def fits(fig: go.Figure, width_mm: float) -> bool:
    """Return whether the type of a figure has 5 pt or more at a width."""
    return LEAST_SCALE * least_width(fig) <= width_mm * PIXELS_PER_MM


def least_width(fig: go.Figure) -> float:
    """Return the pixels on the screen that a figure needs."""
    return float((fig.layout.meta or {}).get("min_width", _MIN_WIDTH))


def millimetres(column: str | float) -> float:
    """Return the width of a column, by its name or in mm."""
    if isinstance(column, str):
        if column not in COLUMNS:
            raise InputError(
                f"column {column!r} is not known, choose 'single' (89 mm), 'double'"
                " (183 mm) or mm"
            )
        return COLUMNS[column]
    if not 20 <= float(column) <= 1000:
        raise InputError(
            f"a column of {float(column):g} mm cannot be drawn, expected 20 to 1000"
        )
    return float(column)
