"""How much room words take: no figure is narrower than what is written in it, and no axis title longer than its axis.

Widths are those of DejaVu Sans, which browsers fall back to; the theme's own typefaces are narrower.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from html import unescape
from itertools import pairwise
from textwrap import wrap
from typing import Any

import numpy as np
import plotly.graph_objects as go

from tsfm_lens.viz.theme import plain

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
_TITLE, _OVER = 13, 40  # pixels: type of axis titles; by how much one may be longer than its axis


def text_width(text: str, size: float) -> float:
    """The width in pixels of the longest line of a text, with or without markup, at least what browsers give it."""
    lines = (unescape(_TAG.sub("", line)) for line in re.split(r"<br>|\n", text))
    return max((_line(line) for line in lines), default=0.0) * size


def _line(line: str) -> float:
    return sum(_WIDTHS.get(letter, _CAPITAL if letter.isupper() else _LETTER) for letter in line)


def shortened(text: str, width: float, size: float, lines: int = _LINES) -> str:
    """A text in at most so many lines of a width in pixels, cut off with an ellipsis where they do not hold it.

    Args:
        text: without markup; lines of its own are kept.
        width: pixels; size: of the type in pixels.
        lines: how many.
    """
    letters = max(int(width / (0.62 * size)), 6)
    parts: list[str] = []
    for line in text.split("\n"):
        parts += [line] if text_width(line, size) <= width else wrap(line, letters)
    if len(parts) > lines:
        parts = [*parts[: lines - 1], parts[lines - 1][: letters - 1].rstrip() + "…"]
    return "\n".join(parts)


def least_width(fig: go.Figure) -> int:
    """The width in pixels from which on nothing that is written side by side touches.

    Titles of axes and panels, numbers in cells, labels of axes and names of the legend are looked at, in the type sizes
    that the figure has.
    """
    axes = {name: fig.layout[name] for name in fig.layout if re.fullmatch(r"[xy]axis\d*", name) and fig.layout[name]}
    # every look into a template makes its layout anew
    layout = fig.layout.template.layout
    across, upwards = _sizes(layout.xaxis), _sizes(layout.yaxis)
    left, right = _margins(fig, axes, *upwards)
    rows: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    for key, middle, width in [*_axis_titles(axes, across[0]), *_panel_titles(fig)]:
        rows[key].append((middle, width))
    plot = max((_side_by_side(sorted(row), left, right) for row in rows.values()), default=0.0)
    plot = max([plot, *_cells(fig, axes), *_upright(axes, across[1]), *_thinned(fig, axes, across[1])])
    # plotly gives labels beside the panels at most half of the figure
    return int(np.ceil(max(left + plot + right, _HALF * left, _legend(fig, layout.legend.font.size or 12))))


def _side_by_side(row: Sequence[tuple[float, float]], left: float, right: float) -> float:
    """Pixels of all panels in which texts, as (middle in shares, width in pixels), do not touch or leave the figure."""
    needs = [0.0]
    for (middle, width), (after, next_width) in pairwise(row):
        if after > middle:
            needs.append(((width + next_width) / 2 + _APART) / (after - middle))
    for middle, width in row:
        # beside a panel in the corner is the margin
        needs += [(width / 2 - edge) / share for edge, share in ((left, middle), (right, 1 - middle)) if share > 0.02]
    return max(needs)


def _axis_titles(axes: dict[str, Any], size: float) -> Iterator[tuple[Any, float, float]]:
    """Row, middle and width of every title of a horizontal axis."""
    for name, axis in axes.items():
        if name[0] == "x" and axis.visible is not False and axis.title.text:
            height = axes.get(_long(axis.anchor or "y", "y"))
            foot = (height.domain or (0, 1))[0] if height is not None else 0
            low, high = axis.domain or (0, 1)
            yield ("axis", round(foot, 3)), (low + high) / 2, text_width(axis.title.text, axis.title.font.size or size)


def _panel_titles(fig: go.Figure) -> Iterator[tuple[Any, float, float]]:
    """Row, middle and width of every title of a panel."""
    for note in fig.layout.annotations:
        placed = note.xref == note.yref == "paper" and note.xanchor in (None, "auto", "center")
        if note.text and placed and not note.textangle:
            yield ("note", round(note.y, 3)), note.x, text_width(note.text, note.font.size or 13)


def _cells(fig: go.Figure, axes: dict[str, Any]) -> Iterator[float]:
    """Pixels that the panels need for the numbers of each map."""
    for trace in fig.data:
        if trace.type != "heatmap" or trace.texttemplate is None or trace.text is None:
            continue
        texts = {str(text) for row in trace.text for text in row}
        widest = max((text_width(text, trace.textfont.size or 12) for text in texts), default=0.0)
        low, high = axes[_long(trace.xaxis or "x", "x")].domain or (0, 1)
        if widest:
            yield len(trace.text[0]) * (widest + _CELL_PAD) / (high - low)


def _upright(axes: dict[str, Any], size: float) -> Iterator[float]:
    """Pixels that the panels need for labels that stand upright side by side."""
    for name, axis in axes.items():
        if name[0] == "x" and axis.tickangle == -90 and axis.tickvals is not None and len(axis.tickvals) > 1:
            low, high = axis.domain or (0, 1)
            ends = axis.range or (min(axis.tickvals) - 0.5, max(axis.tickvals) + 0.5)
            near = float(np.min(np.diff(np.sort(np.asarray(axis.tickvals, dtype=float)))))
            yield 1.3 * (axis.tickfont.size or size) * abs(ends[1] - ends[0]) / near / (high - low)


def _thinned(fig: go.Figure, axes: dict[str, Any], size: float) -> Iterator[float]:
    """Pixels that the panels need for as many labels as their axes were given; plotly often takes fewer."""
    for name, axis in axes.items():
        if name[0] == "x" and axis.nticks and axis.showticklabels is not False and axis.visible is not False:
            low, high = axis.domain or (0, 1)
            here = [
                np.asarray(trace.x) for trace in fig.data if _long(getattr(trace, "xaxis", None) or "x", "x") == name
            ]
            labels = _ends([x for x in here if x.dtype.kind in "iufM" and x.size])
            wide = max((text_width(label, axis.tickfont.size or size) for label in labels), default=0.0)
            yield 0.75 * axis.nticks * (wide + _APART) / (high - low)


def _ends(places: list[np.ndarray]) -> list[str]:
    """Labels as long as plotly writes them beside an axis over some numbers or dates."""
    if not places:
        return []
    if any(x.dtype.kind == "M" for x in places):
        days = np.ptp([end.astype("datetime64[D]").astype(int) for x in places for end in (x.min(), x.max())])
        return ["2000"] if days > 900 else ["Jul 2000"]
    low, high = min(float(np.nanmin(x)) for x in places), max(float(np.nanmax(x)) for x in places)
    digits = max(0, int(np.ceil(-np.log10(max(high - low, 1e-9) / 4))))
    return [f"{end:.{digits}f}" for end in (low, high)]


def _legend(fig: go.Figure, size: float) -> float:
    """Pixels that the longest name of the legend needs."""
    listed = [trace.name for trace in fig.data if trace.name and trace.showlegend]
    return max((text_width(name, size) for name in listed), default=0.0) + _KEY if listed else 0.0


def _margins(fig: go.Figure, axes: dict[str, Any], size: float, type_size: float) -> tuple[float, float]:
    """Pixels left and right of the panels: the figure's margins, or what labels and titles beside them take."""
    left = float(fig.layout.margin.l or 64)
    labels = _labels(fig)
    for name, axis in axes.items():
        across = axes.get(_long(axis.anchor or "x", "x"))
        first = across is None or (across.domain or (0, 1))[0] < 0.01
        if name[0] == "y" and first and axis.visible is not False and axis.side != "right":
            words = [] if axis.showticklabels is False else [*(axis.ticktext or ()), *labels[name]]
            wide = max((text_width(str(word), axis.tickfont.size or type_size) for word in words), default=0.0)
            lines = axis.title.text.count("<br>") + 1 if axis.title.text else 0
            left = max(left, _TICK + wide + lines * 1.35 * (axis.title.font.size or size))
    return left, float(fig.layout.margin.r or 20)


def _labels(fig: go.Figure) -> dict[str, list[str]]:
    """Words that vertical axes have of their traces."""
    found: dict[str, list[str]] = defaultdict(list)
    for trace in fig.data:
        y = getattr(trace, "y", None)
        if y is not None and len(y) and isinstance(y[0], str) and trace.type in ("bar", "heatmap", "scatter"):
            axis = fig.layout[_long(trace.yaxis or "y", "y")]
            if axis.type in (None, "category") and axis.ticktext is None:
                found[_long(trace.yaxis or "y", "y")] += [str(word) for word in dict.fromkeys(y)]
    return found


def _long(short: str, letter: str) -> str:
    """The layout's name of an axis: "x2" is "xaxis2"."""
    return short.replace(letter, f"{letter}axis", 1) if short[:1] == letter else f"{letter}axis"


def _sizes(known: Any) -> tuple[float, float]:
    """Type sizes of titles and of labels, as a template has them for an axis."""
    return known.title.font.size or _TITLE, known.tickfont.size or 12


def thin_dates(fig: go.Figure) -> None:
    """Few labels on axes over dates that have no number of them yet: dates are long, and plotly turns what is close."""
    for trace in fig.data:
        x = getattr(trace, "x", None)
        if x is not None and np.asarray(x).dtype.kind == "M":
            axis = fig.layout[_long(trace.xaxis or "x", "x")]
            if axis.nticks is axis.dtick is axis.tickvals is None:
                low, high = axis.domain or (0, 1)
                axis.nticks = 6 if high - low > 0.6 else 3


def wrap_titles(fig: go.Figure, plot_height: float) -> None:
    """Break titles of vertical axes that are longer than their axes, before a unit and at spaces.

    Args:
        fig: whose axes have their domains.
        plot_height: of all panels together, in pixels.
    """
    for axis in fig.select_yaxes():
        if not axis.title.text or axis.visible is False:
            continue
        low, high = axis.domain or (0, 1)
        axis.title.text = along(axis.title.text, (high - low) * plot_height, axis.title.font.size or _TITLE)


def along(title: str, length: float, size: float) -> str:
    """A title in as many lines as it needs beside an axis or a colour bar, broken before a unit and at spaces.

    Args:
        title: safe for plotly.
        length: of the axis in pixels; size: of the type in pixels.
    """
    room = length + _OVER
    if text_width(title, size) <= room:
        return title
    words = unescape(title.replace("<br>", "\n"))
    parted = words if "\n" in words else words.replace(" (", "\n(", 1)
    return plain(shortened(parted, room, size)).replace("\n", "<br>")
