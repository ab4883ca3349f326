"""Several figures as the panels of one, with letters, in the width of a printed page or column."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase

import plotly.graph_objects as go

from tsfm_lens.errors import InputError
from tsfm_lens.viz.beside import SHIFT, Part, list_once, moved
from tsfm_lens.viz.printing import (
    PIXELS_PER_MM,
    PIXELS_PER_POINT,
    SCALE,
    SMALLEST,
    TALLEST,
    fits,
    for_print,
    least_width,
    millimetres,
    narrowed,
)
from tsfm_lens.viz.sheet import legend_rows
from tsfm_lens.viz.theme import LEGEND_ROW, template

__all__ = ["compose"]
_LETTER, _GAP = 16, 10  # pixels in print: over a panel for its letter, and between rows
_LOWEST = 0.7  # of their height to which panels are lowered


def compose(
    figures: Sequence[go.Figure | Sequence[go.Figure]],
    width: str | float = "double",
    letters: bool = True,
) -> go.Figure:
    """Put figures as panels a, b, c … on a sheet for print: type from 6 pt on, a legend under each row.

    Args:
        figures: of :mod:`tsfm_lens.viz`; a list among them is a row, others have one each.
        width: "single" (89 mm), "double" (183 mm), or in mm.
        letters: whether each panel has one.

    Returns:
        A figure as of :func:`for_print`; ``layout.meta["title"]`` has the letters with the titles, for the caption.

    Raises:
        InputError: no figure, one that cannot be read at this width, or a sheet taller than a page.

    Example:
        >>> fig = viz.compose([viz.forecast_fan(run), viz.forecast_fan(run)], width=183)
        >>> fig.layout.meta["title"][:11]
        'a, Forecast'
    """
    if not isinstance(letters, bool):
        raise InputError(
            f"letters is {letters!r}, expected True or False: panels have the letters a, b, c …"
        )
    width = millimetres(width)
    rows = [[each] if isinstance(each, go.Figure) else list(each) for each in figures]
    if not 0 < sum(map(len, rows)) <= len(ascii_lowercase):
        raise InputError(
            f"one to {len(ascii_lowercase)} figures can be composed, not {sum(map(len, rows))}"
        )
    panels, room, page = (
        [_printed(row, width) for row in rows],
        _LETTER * letters,
        round(width * PIXELS_PER_MM),
    )
    entries = [
        list_once([trace.to_plotly_json() for figure in row for trace in figure.data])
        for row in panels
    ]
    keys = [
        SCALE * LEGEND_ROW * legend_rows(go.Figure(row), page / SCALE)
        for row in entries
    ]
    _squeeze(panels, TALLEST * PIXELS_PER_MM - sum(keys) - len(rows) * (room + _GAP))
    heights = [
        room + max(panel.layout.height for panel in row) + key
        for row, key in zip(panels, keys, strict=True)
    ]
    height, look, top = sum(heights) + len(rows) * _GAP, template(SCALE), 0.0
    size = {
        "width_mm": round(width, 1),
        "height_mm": round(height / PIXELS_PER_MM, 1),
        "type_pt": round(SMALLEST * SCALE / PIXELS_PER_POINT, 1),
    }
    layout = Part(
        template=look,
        width=page,
        height=round(height),
        autosize=False,
        annotations=[],
        shapes=[],
    )
    layout["margin"] = {**dict.fromkeys("lrtb", 0), "autoexpand": False}
    traces: list[Part] = []
    titles: list[str] = []
    for number, (row, high) in enumerate(zip(panels, heights, strict=True)):
        left, legend, drawn = 0.0, f"legend{number + 1 if number else ''}", list[Part]()
        below = {"yref": "paper", "yanchor": "bottom", "y": 1 - (top + high) / height}
        layout[legend] = {**look.layout.legend.to_plotly_json(), **below}
        for panel in row:
            letter = ascii_lowercase[len(titles)]
            part, of_panel = _place(
                panel, len(titles) * 10 * SHIFT, (left, top + room), (page, height)
            )
            for name in ("annotations", "shapes"):
                layout[name] += part.pop(name, [])
            layout |= part
            drawn += [{**trace, "legend": legend} for trace in of_panel]
            where: Part = {
                "x": left / page,
                "y": 1 - top / height,
                "xanchor": "left",
                "yanchor": "top",
            }
            where |= {
                "xref": "paper",
                "yref": "paper",
                "showarrow": False,
                "font": {"size": 11},
            }
            layout["annotations"] += [{"text": f"<b>{letter}</b>", **where}] * letters
            titles.append(f"{letter}, {panel.layout.meta['title']}")
            left += panel.layout.width
        traces += list_once(drawn)
        top += high + _GAP
    layout["meta"] = {"title": ". ".join(titles), "subtitle": "", **size}
    return go.Figure({"data": traces, "layout": layout})


def _printed(row: Sequence[go.Figure], width: float) -> list[go.Figure]:
    """Return the figures of a row in print, each as wide as its share of what they need."""
    if len(row) == 1 and (one := narrowed(row[0], width)) is not None:
        row = [one]
    need = sum(map(least_width, row))
    shares = [width * least_width(figure) / need for figure in row]
    if not all(map(fits, row, shares)):
        raise InputError(
            f"the row of {', '.join(repr(figure.layout.meta['title']) for figure in row)} needs "
            f"{SCALE * need / PIXELS_PER_MM:.0f} mm to be read at 6 pt, not {width:g}; give each a row of its own, or "
            "draw fewer panels in each"
        )
    return [
        for_print(_quiet(figure), share)
        for figure, share in zip(row, shares, strict=True)
    ]


def _squeeze(panels: Sequence[Sequence[go.Figure]], room: float) -> None:
    """Lower all panels alike where their rows are higher than a page leaves them."""
    tallest = [max(row, key=lambda panel: panel.layout.height) for row in panels]
    margins = sum(panel.layout.margin.t + panel.layout.margin.b for panel in tallest)
    share = (room - margins) / (sum(panel.layout.height for panel in tallest) - margins)
    if share < _LOWEST:
        raise InputError(
            f"{len(panels)} rows of figures are higher than a page, {TALLEST:g} mm; take fewer figures"
        )
    for panel in (panel for row in panels for panel in row if share < 1):
        fixed = panel.layout.margin.t + panel.layout.margin.b
        panel.layout.height = fixed + share * (panel.layout.height - fixed)


def _quiet(figure: go.Figure) -> go.Figure:
    """Copy a figure without the room of its legend; what it lists stays marked in its traces."""
    copy = go.Figure(figure).update_layout(showlegend=False)
    return (
        copy.update_traces(showlegend=False)
        if figure.layout.showlegend is False
        else copy
    )


def _place(
    panel: go.Figure,
    shift: int,
    corner: tuple[float, float],
    sheet: tuple[float, float],
) -> tuple[Part, list[Part]]:
    """Return layout and traces of a printed figure whose upper left corner stands there, in pixels of the sheet."""
    margin, meta = panel.layout.margin, panel.layout.meta
    left = max(margin.l, SCALE * meta["left"])
    inner = (
        panel.layout.width - left - margin.r,
        panel.layout.height - margin.t - margin.b,
    )

    def across(x: float) -> float:
        return float(corner[0] + left + x * inner[0]) / sheet[0]

    def up(y: float) -> float:
        return 1 - float(corner[1] + margin.t + (1 - y) * inner[1]) / sheet[1]

    part, traces = moved(panel, shift, across, up)
    for name, axis in part.items():
        if "axis" in name and not name.startswith("color"):
            axis["automargin"] = False
    part.pop("showlegend", None)
    return part, traces
