"""Room that words take: no figure is narrower than what is written in it.

Widths are those of DejaVu Sans, which browsers fall back to; the theme's own typefaces are narrower.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from html import unescape
from itertools import pairwise
from textwrap import wrap
from typing import Any

import numpy as np
import plotly.graph_objects as go

# widths of characters in type sizes
_WIDE = dict.fromkeys("mMW@%‰—…", 0.97) | dict.fromkeys("w+−±=<>×→≤≥~#^QOGDHNUw", 0.84)
_NARROW = dict.fromkeys("ijl.,:;'|! I·", 0.34) | dict.fromkeys('()[]{}tfr-/\\"', 0.42)
_WIDTHS = _WIDE | _NARROW
_LETTER = 0.64
_CAPITAL = 0.7
_TAG = re.compile(r"<(?!br)[^>]*>")
_APART = 8  # pixels between two texts side by side
_CELL_PAD = 5  # pixels beside a number in its cell
_KEY = 70  # pixels: the sign beside a name of the legend, and what the legend keeps free
_TICK = 16  # pixels between an axis and the far side of its labels, without these
_LINES = 4  # of an axis title at most
_HALF = 2.1  # what is beside the panels, to the whole figure
_OVERHANG = 40  # pixels by which a word may be longer than its line before it is broken
_TITLE = 13  # pixels: type of axis titles
_TRACE_KEYS = ("type", "name", "showlegend", "legend", "xaxis", "yaxis", "x", "y", "text", "texttemplate")
Part = Mapping[str, Any]
"""A part of a figure as plotly writes it down."""


def text_width(text: str, size: float) -> float:
    """Return the width in pixels of the longest line of a text, with or without markup, at least a browser's."""
    lines = (unescape(_TAG.sub("", line)) for line in re.split(r"<br>|\n", text))
    return max((_line(line) for line in lines), default=0.0) * size


def _line(line: str) -> float:
    return sum(_WIDTHS.get(letter, _CAPITAL if letter.isupper() else _LETTER) for letter in line)


def shortened(text: str, width: float, size: float, lines: int = _LINES) -> str:
    """Break a text into at most so many lines of a width in pixels, cut off with an ellipsis where it is longer.

    Args:
        text: without markup; lines of its own are kept.
        width: pixels; size: of the type in pixels.
        lines: how many.
    """
    letters = max(int(width / (0.62 * size)), 6)
    parts: list[str] = []
    for line in text.split("\n"):
        parts += [line] if text_width(line, size) <= width else _wrap_line(line, letters, width, size)
    if len(parts) > lines:
        parts = [*parts[: lines - 1], parts[lines - 1][: letters - 1].rstrip() + "…"]
    return "\n".join(parts)


def _wrap_line(line: str, letters: int, width: float, size: float) -> list[str]:
    """Break a line into pieces of so many letters, or of fewer where these are wide; only overlong words break."""
    whole = max(text_width(word, size) for word in line.split(" ")) <= width + _OVERHANG
    pieces = wrap(line, letters, break_long_words=not whole)
    while letters > 6 and max(text_width(piece, size) for piece in pieces) > width:
        letters -= 1
        pieces = wrap(line, letters, break_long_words=not whole)
    return pieces


def least_width(fig: go.Figure) -> int:
    """Return the width in pixels from which on nothing that is written side by side touches.

    Titles of axes and panels, numbers in cells, labels of axes and names of the legend are looked at, in the type sizes
    that the figure has.
    """
    # plotly's objects answer slowly, and are asked often
    return width_of_words(*written(fig))


def written(fig: go.Figure) -> tuple[dict[str, Any], list[Part]]:
    """Return a figure as plain dictionaries: its layout, and of each trace what takes room."""
    return fig.layout.to_plotly_json(), [_read(trace) for trace in fig.data]


def _read(trace: Any) -> Part:
    """Return what of a trace takes room, as a plain dictionary."""
    part = {key: trace[key] for key in _TRACE_KEYS if key in trace and trace[key] is not None}
    return part | ({"textfont": trace.textfont.to_plotly_json()} if "textfont" in trace else {})


def width_of_words(layout: Part, traces: Sequence[Part]) -> int:
    """Return the least width in pixels of a figure as plain dictionaries."""
    axes, template = _axes(layout), layout.get("template", {}).get("layout", {})
    across = _sizes(template.get("xaxis", {}))
    left, right = _margins(layout, traces)
    rows: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    for key, middle, width in [*_axis_titles(axes, across[0]), *_panel_titles(layout)]:
        rows[key].append((middle, width))
    plot = max((_side_by_side(sorted(row), left, right) for row in rows.values()), default=0.0)
    on = _places(traces)
    labels = [*_upright(axes, across[1]), *_thin(on, axes, across[1]), *_lying(on, axes, across[1])]
    plot = max([plot, *_cells(traces, axes), *labels])
    # plotly gives labels beside the panels at most half of the figure
    legend = _legend(listed(layout, traces), template.get("legend", {}).get("font", {}).get("size") or 12)
    return int(np.ceil(max(left + plot + right, _HALF * left, legend)))


def lying_width(layout: Part, traces: Sequence[Part], width: float) -> float:
    """Return the pixels between the left and the right side of the panels of a figure of a width in pixels."""
    return width - sum(_margins(layout, traces))


def _axes(layout: Part) -> dict[str, Part]:
    """Return the axes of a figure by name."""
    return {name: axis for name, axis in layout.items() if re.fullmatch(r"[xy]axis\d*", name) and axis}


def _side_by_side(row: Sequence[tuple[float, float]], left: float, right: float) -> float:
    """Return the pixels of all panels in which texts, (middle in shares, width in pixels), neither touch nor leave."""
    needs = [0.0]
    for (middle, width), (after, next_width) in pairwise(row):
        if after > middle:
            needs.append(((width + next_width) / 2 + _APART) / (after - middle))
    for middle, width in row:
        # beside a panel in the corner is the margin
        needs += [(width / 2 - edge) / share for edge, share in ((left, middle), (right, 1 - middle)) if share > 0.02]
    return max(needs)


def _axis_titles(axes: dict[str, Part], size: float) -> Iterator[tuple[Any, float, float]]:
    """Yield row, middle and width of every title of a horizontal axis."""
    for name, axis in axes.items():
        title = axis.get("title", {})
        if name[0] == "x" and axis.get("visible") is not False and title.get("text"):
            foot = _span(axes.get(_long(axis.get("anchor") or "y", "y"), {}))[0]
            low, high = _span(axis)
            yield ("axis", round(foot, 3)), (low + high) / 2, text_width(title["text"], _size(title, size))


def _panel_titles(layout: Part) -> Iterator[tuple[Any, float, float]]:
    """Yield row, middle and width of every title of a panel."""
    for note in layout.get("annotations", ()):
        on_paper = note.get("xref") == note.get("yref") == "paper"
        centred = on_paper and note.get("xanchor") in (None, "auto", "center")
        if note.get("text") and centred and not note.get("textangle"):
            yield ("note", round(note["y"], 3)), note["x"], text_width(note["text"], _size(note, 13))


def _cells(traces: Sequence[Part], axes: dict[str, Part]) -> Iterator[float]:
    """Yield the pixels that the panels need for the numbers of each map."""
    for trace in traces:
        if trace["type"] != "heatmap" or "texttemplate" not in trace or "text" not in trace:
            continue
        texts = {str(text) for row in trace["text"] for text in row}
        size = trace.get("textfont", {}).get("size") or 12
        widest = max((text_width(text, size) for text in texts), default=0.0)
        low, high = _span(axes.get(axis_of(trace, "x"), {}))
        if widest:
            yield len(trace["text"][0]) * (widest + _CELL_PAD) / (high - low)


def _upright(axes: dict[str, Part], size: float) -> Iterator[float]:
    """Yield the pixels that the panels need for labels that stand upright side by side."""
    for name, axis in axes.items():
        places = axis.get("tickvals")
        if name[0] == "x" and axis.get("tickangle") == -90 and places is not None and len(places) > 1:
            low, high = _span(axis)
            ends = axis.get("range") or (min(places) - 0.5, max(places) + 0.5)
            near = float(np.min(np.diff(np.sort(np.asarray(places, dtype=float)))))
            yield 1.3 * _tick_size(axis, size) * abs(ends[1] - ends[0]) / near / (high - low)


def _places(traces: Sequence[Part]) -> dict[str, list[np.ndarray]]:
    """Collect numbers and dates of the traces on each horizontal axis."""
    on: dict[str, list[np.ndarray]] = defaultdict(list)
    for trace in traces:
        places = np.asarray(trace.get("x", ()))
        if places.dtype.kind in "iuf" and places.size and trace["type"] in ("heatmap", "bar"):
            # cells and bars stand around their places
            half = float(np.diff(np.unique(places)).min(initial=1.0)) / 2
            places = np.append(places, [places.min() - half, places.max() + half])
        if places.dtype.kind in "iufM" and places.size:
            on[axis_of(trace, "x")].append(places)
    return on


def _thin(on: Mapping[str, list[np.ndarray]], axes: dict[str, Part], size: float) -> Iterator[float]:
    """Yield the pixels that the panels need for as many labels as their axes were given; plotly often takes fewer."""
    for name, axis in axes.items():
        if name[0] == "x" and axis.get("nticks") and _has_labels(axis):
            low, high = _span(axis)
            yield 0.75 * axis["nticks"] * (_widest(axis, on.get(name, []), size) + _APART) / (high - low)


def _has_labels(axis: Part) -> bool:
    return axis.get("showticklabels") is not False and axis.get("visible") is not False


def _widest(axis: Part, places: list[np.ndarray], size: float) -> float:
    """Return the pixels of the widest label that plotly may write under an axis."""
    return max(
        (text_width(label, _tick_size(axis, size)) for label in _ends(places, axis.get("nticks") or 6)), default=0.0
    )


def _lying(on: Mapping[str, list[np.ndarray]], axes: dict[str, Part], size: float) -> Iterator[float]:
    """Yield the pixels that the panels need for labels that lie side by side, those of neighbouring panels too."""
    rows: dict[float, list[tuple[float, float, str]]] = defaultdict(list)
    for name, axis in axes.items():
        if name[0] == "x" and _has_labels(axis) and not axis.get("tickangle") and axis.get("side") != "top":
            foot, (low, high) = _span(axes.get(_long(axis.get("anchor") or "y", "y"), {}))[0], _span(axis)
            for at, wide in _standing(axis, on.get(name, []), size):
                rows[round(foot, 3)].append((low + at * (high - low), wide, name))
    for row in rows.values():
        for (at, wide, axis_name), (after, next_wide, other) in pairwise(sorted(row)):
            # plotly keeps the labels apart that it chooses itself
            automatic = axis_name == other and axes[other].get("tickvals") is None
            if after - at > 1e-6 and not automatic:
                yield ((wide + next_wide) / 2 + _APART / 2) / (after - at)


def _standing(axis: Part, places: list[np.ndarray], size: float) -> Iterator[tuple[float, float]]:
    """Yield labels under an axis as (middle in shares of it, width in pixels); its ends, where plotly may choose."""
    values = np.asarray(axis.get("tickvals", ()))
    texts = axis.get("ticktext", values)
    if axis.get("tickvals") is None:
        wide = _widest(axis, places, size)
        yield from ((at, wide) for at in _round_numbers(axis, places)) if wide else ()
        return
    ends = axis.get("range")
    if ends is None and places and axis.get("type") != "category" and all(x.dtype.kind in "iuf" for x in places):
        ends = [float(np.nanmin([np.nanmin(x) for x in places])), float(np.nanmax([np.nanmax(x) for x in places]))]
        ends = [np.log10(end) for end in ends] if axis.get("type") == "log" and ends[0] > 0 else ends
    if ends is None or ends[0] == ends[1] or values.dtype.kind not in "iuf":
        return
    places_of = np.log10(values) if axis.get("type") == "log" else values
    for at, text in zip((places_of - ends[0]) / (ends[1] - ends[0]), texts, strict=False):
        if -0.001 <= at <= 1.001:
            yield float(at), text_width(str(text), _tick_size(axis, size))


def _round_numbers(axis: Part, places: list[np.ndarray]) -> list[float]:
    """Return where plotly writes the outermost numbers under a linear axis of so many labels, in shares."""
    count, ends, numeric = axis.get("nticks"), axis.get("range"), all(x.dtype.kind in "iuf" for x in places)
    if not count or not places or not numeric or axis.get("type") not in (None, "linear"):
        return [0.0, 1.0]
    if ends is None and axis.get("matches"):
        return [0.0, 1.0]
    if ends is None:
        ends = (min(np.nanmin(x) for x in places), max(np.nanmax(x) for x in places))
    low, high = sorted(map(float, ends))
    rough = (high - low) / count
    if not rough > 0:
        return [0.0, 1.0]
    base = 10.0 ** np.floor(np.log10(rough))
    # as plotly rounds the distance of two labels up
    step = base * next(nice for nice in (2, 5, 10, 20) if rough <= nice * base)
    shares = [(step * number - low) / (high - low) for number in (np.ceil(low / step), np.floor(high / step))]
    return sorted(shares if ends[0] < ends[1] else [1 - share for share in shares])


def _ends(places: list[np.ndarray], count: int) -> list[str]:
    """Return labels as long as plotly writes them beside an axis over some numbers or dates, of so many labels."""
    if not places:
        return []
    if any(x.dtype.kind == "M" for x in places):
        days = np.ptp([end.astype("datetime64[D]").astype(int) for x in places for end in (x.min(), x.max())])
        return ["2000"] if days > 366 * count else ["Jul 2000"]
    low, high = min(float(np.nanmin(x)) for x in places), max(float(np.nanmax(x)) for x in places)
    digits = max(0, int(np.ceil(-np.log10(max(high - low, 1e-9) / 4))))
    return [f"{end:.{digits}f}" for end in (low, high)]


def listed(layout: Part, traces: Sequence[Part]) -> list[str]:
    """Return the names in the legend under the panels."""
    if layout.get("showlegend") is False:
        return []
    entries = [trace for trace in traces if trace.get("showlegend") and trace.get("legend") in (None, "legend")]
    return [trace["name"] for trace in entries if trace.get("name")]


def _legend(names: Sequence[str], size: float) -> float:
    """Return the pixels that the longest name of the legend needs."""
    return max((text_width(name, size) for name in names), default=0.0) + _KEY if names else 0.0


def _margins(layout: Part, traces: Sequence[Part]) -> tuple[float, float]:
    """Return the pixels left and right of the panels: the figure's margins, or what labels and titles there take."""
    axes, margin = _axes(layout), layout.get("margin", {})
    size, type_size = _sizes(layout.get("template", {}).get("layout", {}).get("yaxis", {}))
    left = float(margin.get("l") or 64)
    labels = _labels(traces, axes)
    for name, axis in axes.items():
        first = _span(axes.get(_long(axis.get("anchor") or "x", "x"), {}))[0] < 0.01
        visible = axis.get("visible") is not False and axis.get("side") != "right"
        if name[0] == "y" and first and visible:
            words = [] if axis.get("showticklabels") is False else [*axis.get("ticktext", ()), *labels[name]]
            wide = max((text_width(str(word), _tick_size(axis, type_size)) for word in words), default=0.0)
            title = axis.get("title", {})
            lines = title["text"].count("<br>") + 1 if title.get("text") else 0
            left = max(left, _TICK + wide + lines * 1.35 * _size(title, size))
    return left, float(margin.get("r") or 20)


def _labels(traces: Sequence[Part], axes: dict[str, Part]) -> dict[str, list[str]]:
    """Collect the words that vertical axes have of their traces."""
    words: dict[str, list[str]] = defaultdict(list)
    for trace in traces:
        y, name = trace.get("y", ()), axis_of(trace, "y")
        if len(y) and isinstance(y[0], str) and trace["type"] in ("bar", "heatmap", "scatter"):
            axis = axes.get(name, {})
            if axis.get("type") in (None, "category") and axis.get("ticktext") is None:
                words[name] += [str(word) for word in dict.fromkeys(y)]
    return words


def axis_of(trace: Part, letter: str) -> str:
    """Return the layout's name of the axis that a trace stands on."""
    return _long(trace.get(f"{letter}axis") or letter, letter)


def _long(short: str, letter: str) -> str:
    """Return the layout's name of an axis: "x2" is "xaxis2"."""
    return short.replace(letter, f"{letter}axis", 1) if short[:1] == letter else f"{letter}axis"


def _span(axis: Part) -> tuple[float, float]:
    """Return where an axis begins and ends, in shares of the panels."""
    low, high = axis.get("domain") or (0, 1)
    return low, high


def _size(part: Part, default: float) -> float:
    """Return the size of type of a title or note."""
    return part.get("font", {}).get("size") or default


def _tick_size(axis: Part, default: float) -> float:
    return axis.get("tickfont", {}).get("size") or default


def _sizes(axis: Part) -> tuple[float, float]:
    """Return type sizes of titles and of labels, as a template has them for an axis."""
    return _size(axis.get("title", {}), _TITLE), _tick_size(axis, 12)


def thin_dates(fig: go.Figure) -> None:
    """Set few labels on axes over dates that have no number of them yet: dates are long, and plotly turns them."""
    for trace in fig.data:
        x = getattr(trace, "x", None)
        if x is not None and np.asarray(x).dtype.kind == "M":
            axis = fig.layout[_long(trace.xaxis or "x", "x")]
            if axis.nticks is axis.dtick is axis.tickvals is None:
                low, high = axis.domain or (0, 1)
                axis.nticks = 5 if high - low > 0.6 else 3
                # labels that are turned would need room under the axis
                axis.tickangle = 0
