"""Several figures drawn as one: two side by side, or more in rows with letters.

:func:`compare` gives two figures shared axes, :func:`compose` makes a sheet for print.
Traces and layouts are moved, nothing is computed anew. Read :func:`_arrange` for how,
and :func:`_add_figure` for what is moved.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from string import ascii_lowercase
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tsfm_lens.core.errors import InputError
from tsfm_lens.viz.data import keep_joined_table
from tsfm_lens.viz.printing import (
    LEAST_TYPE,
    PIXELS_PER_MM,
    SCALE,
    in_print,
    least_width,
    millimetres,
)
from tsfm_lens.viz.theme import LETTER, TEMPLATE, finalize, plain

__all__ = ["compare", "compose"]
_HEADING = 30  # pixels over a figure for its name or letter
_LEAST_PANEL = 120  # pixels of the panels of a figure, however long its labels are
Part = dict[str, Any]
Box = dict[str, tuple[float, float]]  # where a figure starts and ends, by "x" and "y"


def compare(
    figures: Sequence[go.Figure], names: Sequence[str], title: str = ""
) -> go.Figure:
    """Draw two figures side by side, on the same axes and colours.

    Both are made by the same function, of two models for example.

    Args:
        figures: two, of :mod:`tsfm_lens.viz`.
        names: over each half.
        title: if "", that of the first figure.

    Returns:
        The panels of the first figure at the left, and those of the second at the
        right. Units are those of the figures.

    Raises:
        InputError: they cannot share a figure.

    Example:
        >>> ablated = results["ablation_effects"]
        >>> fig = viz.compare([viz.ablation_heatmap(ablated)] * 2, ["one", "another"])
        >>> len(fig.data) == 2 * len(viz.ablation_heatmap(ablated).data)
        True
    """
    if len(figures) != 2 or len(names) != 2:
        raise InputError(
            f"compare takes two figures and two names, not {len(figures)} and"
            f" {len(names)}"
        )
    min_width = max(2 * max(map(least_width, figures)), _sheet_width([figures]))
    joint = _arrange([figures], min_width, [plain(name) for name in names])
    y_axes = list(joint.select_yaxes())
    colour_axes = [axis for axis in joint.select_coloraxes() if axis.cmin is not None]
    for axes, share in ((y_axes, _share_values), (colour_axes, _share_colours)):
        # the same function made both figures, so the second half of the axes is the
        # second figure's, in the order of the first half
        for first, second in zip(axes, axes[len(axes) // 2 :], strict=False):
            share(first, second)
    first_meta, second_meta = [figure.layout.meta for figure in figures]
    subtitle = first_meta["subtitle"]
    if subtitle != second_meta["subtitle"]:
        subtitle = f"{names[0]}: {subtitle}; {names[1]}: {second_meta['subtitle']}"
    keep_joined_table(joint, figures, names)
    # finalize() adds margins, title and legend to the height of the panels, so the
    # margins that _arrange() has added are taken off
    margin = joint.layout.margin
    return finalize(
        joint,
        title or first_meta["title"],
        subtitle,
        plot_height=joint.layout.height - margin.t - margin.b,
        above=margin.t,
        below=margin.b,
        min_width=min_width,
    )


def _share_values(first: Any, second: Any) -> None:
    """Give two value axes of the same title and type the same range."""
    if (first.title.text, first.type) != (second.title.text, second.type):
        return
    if first.range and second.range:
        lows, highs = zip(first.range, second.range, strict=True)
        # an axis that is turned round counts the rows of a map, not values
        if first.range[0] < first.range[1]:
            first.range = second.range = [min(lows), max(highs)]
        return
    own_settings = (first.autorange, first.tickvals, second.matches)
    if first.title.text and all(setting is None for setting in own_settings):
        # matched axes keep one range, also when a reader zooms
        second.matches = first.plotly_name.replace("axis", "")


def _share_colours(first: Any, second: Any) -> None:
    """Give two colour axes the same limits, and one colour bar."""
    titles = [axis.colorbar.title.text for axis in (first, second)]
    meanings = [str(title).replace("<br>", " ") for title in titles]
    if meanings[0] != meanings[1]:
        raise InputError(
            f"the colours of the two figures differ in meaning, {meanings[0]!r} and "
            f"{meanings[1]!r}; draw each by itself"
        )
    first.cmin = second.cmin = min(first.cmin, second.cmin)
    first.cmax = second.cmax = max(first.cmax, second.cmax)
    # the bar beside the second figure serves both
    first.showscale = False


def compose(
    figures: Sequence[go.Figure | Sequence[go.Figure]],
    width: str | float = "double",
    letters: bool = True,
) -> go.Figure:
    """Put figures as panels a, b, c … on a sheet for print, with one legend.

    Args:
        figures: of :mod:`tsfm_lens.viz`; a list of figures is one row, and a figure
            outside a list is a row by itself.
        width: "single" (89 mm), "double" (183 mm), or in mm.
        letters: whether each figure has a letter.

    Returns:
        A figure as of :func:`for_print`; ``layout.meta["title"]`` has the letters with
        the titles, for the caption.

    Raises:
        InputError: no figure, one that cannot be read at this width, or a sheet taller
            than a page.

    Example:
        >>> fig = viz.compose([viz.forecast_fan(run), viz.forecast_fan(run)], width=183)
        >>> fig.layout.meta["title"][:11]
        'a, Forecast'
    """
    if not isinstance(letters, bool):
        raise InputError(
            f"letters is {letters!r}, expected True or False: panels have the letters"
            " a, b, c …"
        )
    room = millimetres(width)
    rows = [[item] if isinstance(item, go.Figure) else list(item) for item in figures]
    drawn = [figure for row in rows for figure in row]
    if not 0 < len(drawn) <= len(ascii_lowercase):
        raise InputError(
            f"one to {len(ascii_lowercase)} figures can be composed, not {len(drawn)}"
        )
    min_width = _sheet_width(rows)
    # in pixels on the screen; in_print() shrinks a sheet that is wider than the page
    sheet_width = max(room * PIXELS_PER_MM / SCALE, min_width)
    sheet = _arrange(rows, sheet_width, ascii_lowercase if letters else "")
    titles = zip(ascii_lowercase, drawn, strict=False)
    text = ". ".join(f"{letter}, {one.layout.meta['title']}" for letter, one in titles)
    meta = {"title": text, "subtitle": "", "min_width": min_width}
    sheet.update_layout(template=TEMPLATE, meta=meta)
    printed = in_print(sheet, room)
    if printed.layout.meta["type_pt"] < LEAST_TYPE:
        raise InputError(
            f"{len(drawn)} figures in {len(rows)} rows cannot be read on a page at"
            f" {room:g} mm, their type would have {printed.layout.meta['type_pt']:g}"
            " pt; take fewer figures, or give each a row of its own"
        )
    return printed


def _arrange(
    rows: Sequence[Sequence[go.Figure]], width: float, headings: Sequence[str]
) -> go.Figure:
    """Lay figures out in rows.

    Args:
        rows: figures from left to right; each is as wide as its share of what the row
            needs.
        width: of the sheet, in pixels.
        headings: one over each figure; if empty, no figure has one.

    Returns:
        A figure with the height and margins that its panels need, without room for its
        legend.
    """
    figures = [figure for row in rows for figure in row]
    metas = [figure.layout.meta for figure in figures]
    above = max(meta["above"] for meta in metas) + _HEADING * bool(headings)
    below = max(meta["below"] for meta in metas)
    left, right = _outer_margins(rows)
    heights = [max(each.layout.meta["plot_height"] for each in row) for row in rows]
    # pixels between the outer margins, to which domains from 0 to 1 refer
    inner_height = sum(heights) + (above + below) * (len(rows) - 1)
    # axes for all panels; each figure sets their domains when it is added
    sheet = make_subplots(1, sum(map(_panel_count, figures)))
    margin = {"l": left, "r": right, "t": above, "b": below}
    sheet.update_layout(margin=margin, height=inner_height + above + below)
    boxes: list[Box] = []
    shifts: list[float] = []  # from the left end of each box to its letter, in pixels
    n_before = 0  # panels of the figures that are on the sheet already
    top = 1.0
    for row, height in zip(rows, heights, strict=True):
        # letters of the first column stand 8 pixels from the edge of the sheet
        shifts += [8 - left, *(-_left_width(figure) for figure in row[1:])]
        columns = _columns(row, width - left - right)
        for figure, column in zip(row, columns, strict=True):
            # rounding may leave it below 0, and plotly takes a domain from 0 to 1 alone
            foot = max(0, top - figure.layout.meta["plot_height"] / inner_height)
            box = {"x": column, "y": (foot, top)}
            _add_figure(sheet, figure, n_before, box)
            n_before += _panel_count(figure)
            boxes.append(box)
        top -= (height + above + below) / inner_height
    for box, shift, heading in zip(boxes, shifts, headings, strict=False):
        placement = {"x": box["x"][0], "xshift": shift, "xanchor": "left"}
        over = {"y": box["y"][1], "yshift": above - _HEADING, "yanchor": "bottom"}
        style = {"xref": "paper", "yref": "paper", "font_size": 14}
        sheet.add_annotation(text=f"<b>{heading}</b>", **placement, **over, **style)
    # every figure brings a legend of its own, and the sheet has one for all
    entries: set[str] = set()
    for trace in sheet.data:
        if trace.showlegend:
            entry = trace.legendgroup or trace.name
            trace.showlegend = entry not in entries
            entries.add(entry)
    return sheet


def _outer_margins(rows: Sequence[Sequence[go.Figure]]) -> tuple[float, float]:
    """Return the pixels left and right of all panels, in which their labels stand."""
    left = max(_left_width(row[0]) for row in rows)
    right = max(row[-1].layout.margin.r for row in rows)
    return left, right


def _columns(row: Sequence[go.Figure], width: float) -> list[tuple[float, float]]:
    """Return where the panels of each figure of a row start and end.

    They are shares of a width in pixels. Between two figures is room for the labels of
    both, and the panels share what is left.
    """
    gaps = _gaps(row)
    needs = list(map(_panel_width, row))
    scale = (width - sum(gaps)) / sum(needs)
    columns = []
    start = 0.0
    for need, gap in zip(needs, [*gaps, 0.0], strict=True):
        end = start + scale * need
        # rounding may leave it above 1
        columns.append((start / width, min(end / width, 1.0)))
        start = end + gap
    return columns


def _gaps(row: Sequence[go.Figure]) -> list[float]:
    """Return the pixels between the panels of neighbouring figures."""
    return [
        first.layout.margin.r + _left_width(second) for first, second in pairwise(row)
    ]


def _panel_width(fig: go.Figure) -> float:
    """Return the pixels that the panels of a figure need without their labels."""
    inner: float = least_width(fig) - _left_width(fig) - fig.layout.margin.r
    return max(inner, _LEAST_PANEL)


def _sheet_width(rows: Sequence[Sequence[go.Figure]]) -> float:
    """Return the pixels that a sheet needs for the panels of each row and labels."""
    inner = [sum(_gaps(row)) + sum(map(_panel_width, row)) for row in rows]
    return sum(_outer_margins(rows)) + max(inner)


def _left_width(fig: go.Figure) -> float:
    """Return roughly the pixels that labels at the left of a figure take.

    Plotly makes room for long labels at the edge of a sheet only, not between panels.
    """
    # where an axis has no tick texts, the rows of a map are labelled by the trace's y
    sources = [axis.ticktext for axis in fig.select_yaxes() if axis.ticktext]
    sources += [trace.y for trace in fig.data if trace.y is not None]
    labels = [text for source in sources for text in source if isinstance(text, str)]
    result: float = max(
        fig.layout.margin.l, 40 + LETTER * max(map(len, labels), default=0)
    )
    return result


def _panel_count(fig: go.Figure) -> int:
    """Return how many pairs of axes a figure has."""
    names = [axis.plotly_name for axis in fig.select_xaxes()]
    return max([1, *map(_number, names)])


def _number(name: str) -> int:
    """Return the number of an axis by its name, such as "xaxis2" or "y"."""
    # the first axis has no number in plotly: "x", then "x2"
    return int(re.sub(r"\D", "", name) or 1)


def _shift_axis(name: str, n_before: int) -> str:
    """Return the name of an axis after so many axes of other figures.

    Examples of names are "x2" and "y domain".
    """
    axis, _, domain = name.partition(" ")
    kind = axis.rstrip("0123456789")
    number = _number(axis) + n_before
    if number > 1:
        kind += str(number)
    return f"{kind} {domain}".strip()


def _interpolate(bounds: tuple[float, float], share: float) -> float:
    """Return the point at a share from 0 to 1 of the way between two bounds."""
    return bounds[0] + share * (bounds[1] - bounds[0])


def _add_figure(sheet: go.Figure, figure: go.Figure, n_before: int, box: Box) -> None:
    """Add a figure to its box on a sheet, after so many panels of others."""
    columns = [n_before + _number(trace.xaxis or "x") for trace in figure.data]
    # add_traces() copies, so the traces to change are those at the end of the sheet
    start = len(sheet.data)
    sheet.add_traces(figure.data, rows=[1] * len(columns), cols=columns)
    for trace in sheet.data[start:]:
        for part in (trace, getattr(trace, "marker", None)):
            if part is not None and "coloraxis" in part and part.coloraxis:
                part.coloraxis = _shift_axis(part.coloraxis, n_before)
    # a copy, so that the figure stays what it is
    layout = figure.layout.to_plotly_json()
    if layout.get("showlegend") is False:
        for trace in sheet.data[start:]:
            trace.showlegend = False
    leaders: dict[str, str] = {}
    for name, part in layout.items():
        if name.startswith(("xaxis", "yaxis")):
            side = name[0]
            bounds = part.get("domain", (0, 1))
            part["domain"] = [_interpolate(box[side], end) for end in bounds]
            # an anchor names an axis of the figure; the sheet's axes have their own
            part.pop("anchor", None)
            # Plotly loses lines where an axis matches a later one and others match
            # across, so the first axis of a group leads it.
            axis = name.replace("axis", "")
            leader = leaders.setdefault(part.pop("matches", axis), axis)
            if leader != axis:
                part["matches"] = _shift_axis(leader, n_before)
            sheet.layout[_shift_axis(name, n_before)].update(part)
        elif name.startswith("coloraxis"):
            # beside what the figure sets, plotly's defaults of a vertical bar
            bar = {"x": 1.02, "y": 0.5, "len": 1, **part.get("colorbar", {})}
            bar["len"] *= box["y"][1] - box["y"][0]
            bar["x"] = _interpolate(box["x"], bar["x"])
            bar["y"] = _interpolate(box["y"], bar["y"])
            sheet.update_layout(
                {_shift_axis(name, n_before): {**part, "colorbar": bar}}
            )
        elif name in ("barmode", "bargap"):
            sheet.update_layout({name: part})
        elif name in ("annotations", "shapes"):
            placed = [_placed(item, n_before, box) for item in part]
            sheet.layout[name] = [*sheet.layout[name], *placed]


def _placed(item: Part, n_before: int, box: Box) -> Part:
    """Return a shape or a note of a figure, moved to its box on a sheet."""
    # plotly leaves out the reference to the first axes
    item = {"xref": "x", "yref": "y", **item}
    for side in "xy":
        if item[f"{side}ref"] == "paper":
            for key in {side, f"{side}0", f"{side}1"} & item.keys():
                item[key] = _interpolate(box[side], item[key])
        # axref and ayref are of the tails of arrows; "paper" and "pixel" are no axes
        for key in (f"{side}ref", f"a{side}ref"):
            if item.get(key, "paper")[0] == side:
                item[key] = _shift_axis(item[key], n_before)
    return item
