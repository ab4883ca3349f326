"""Words that have lines: titles as long as their axes, names at the left, and the legend.

All of it is worked out on a figure as plotly writes it down, for the screen and again for print.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import unescape
from typing import Any

from tsfm_lens.viz.room import Part, axis_of, listed, lying_width, shortened, text_width
from tsfm_lens.viz.theme import plain

_TITLE, _BAR_TITLE, _LABEL = 13, 12, 12  # pixels: type of axis titles, of titles of colour bars, of labels
_OVER = 8  # pixels by which a title may be longer than its axis
_LONGEST = 260  # pixels of a name at the left before it gets a second line
_SIGN, _BESIDE, _UNDER = 40, 5, 10  # pixels: a sign of the legend with its gaps; between two entries; between two rows
_LOWEST = 16  # pixels of an entry of the legend
_LINE = 1.3  # height of a line, in type sizes


def along(title: str, length: float, size: float) -> str:
    """Break a title into as many lines as it needs beside an axis or a colour bar, before a unit and at spaces.

    Args:
        title: safe for plotly.
        length: of the axis in pixels; size: of the type in pixels.
    """
    room = length + _OVER
    if text_width(title, size) <= room:
        return title
    words = unescape(title.replace("<br>", "\n"))
    text = words if "\n" in words else words.replace(" (", "\n(", 1)
    return plain(shortened(text, room, size)).replace("\n", "<br>")


def wrapped_titles(layout: Part, plot_height: float) -> dict[str, Any]:
    """Break the titles of vertical axes and colour bars that are longer than these.

    Args:
        layout: of the figure; its axes have their domains.
        plot_height: of all panels together, in pixels.

    Returns:
        Changes of the layout, of the titles alone.
    """
    template = layout.get("template", {}).get("layout", {})
    upright = template.get("yaxis", {}).get("title", {}).get("font", {}).get("size") or _TITLE
    changes: dict[str, Any] = {}
    for name, part in layout.items():
        if re.fullmatch(r"yaxis\d*", name) and part.get("visible") is not False:
            under = layout.get(f"yaxis{part.get('overlaying', 'y')[1:]}", {}) if "overlaying" in part else {}
            low, high = part.get("domain") or under.get("domain") or (0, 1)
            title, length = part.get("title", {}), (high - low) * plot_height
            if title.get("text"):
                text = along(title["text"], length, title.get("font", {}).get("size") or upright)
                changes[name] = {"title": {"text": text}}
        elif re.fullmatch(r"coloraxis\d*", name):
            bar = part.get("colorbar", {})
            title = bar.get("title", {})
            if title.get("text") and bar.get("orientation") != "h":
                size = title.get("font", {}).get("size") or _bar_type(template)
                text = along(title["text"], bar.get("len", 1) * plot_height, size)
                changes[name] = {"colorbar": {"title": {"text": text}}}
    return changes


def _bar_type(template: Part) -> float:
    bar = template.get("coloraxis", {}).get("colorbar", {})
    return float(bar.get("title", {}).get("font", {}).get("size") or _BAR_TITLE)


def folded_names(layout: Part, traces: Sequence[Part], plot_height: float, longest: float = _LONGEST) -> dict[str, Any]:
    """Break long names at the left of rows into two lines, where rows are high enough.

    Returns:
        Changes of the layout: labels of vertical axes.
    """
    changes: dict[str, Any] = {}
    axes = dict.fromkeys(axis_of(trace, "y") for trace in traces)
    for name in axes:
        part = layout.get(name, {})
        if part.get("visible") is False:
            continue
        texts = part.get("ticktext")
        words = list(dict.fromkeys(_names_on(traces, name.replace("axis", "")))) if texts is None else list(texts)
        low, high = part.get("domain") or (0, 1)
        size = part.get("tickfont", {}).get("size") or _label_size(layout)
        if not words or (high - low) * plot_height / len(words) < 2 * _LINE * size:
            continue
        if max(text_width(str(word), size) for word in words) > min(longest, _LONGEST):
            lines = [shortened(unescape(str(word)), min(longest, _LONGEST), size, 2) for word in words]
            text = [plain(word).replace("\n", "<br>") for word in lines]
            changes[name] = {
                "tickmode": "array",
                "tickvals": words if texts is None else part["tickvals"],
                "ticktext": text,
            }
    return changes


def _label_size(layout: Part) -> float:
    axis = layout.get("template", {}).get("layout", {}).get("yaxis", {})
    return float(axis.get("tickfont", {}).get("size") or _LABEL)


def _names_on(traces: Sequence[Part], axis: str) -> Iterator[str]:
    """Yield the categories that traces have on a vertical axis."""
    for trace in traces:
        rows = trace.get("y", ())
        if (trace.get("yaxis") or "y") == axis and len(rows) and isinstance(rows[0], str):
            yield from map(str, rows)


def legend_rows(layout: Part, traces: Sequence[Part], width: float) -> int:
    """Count rows of the legend under the panels of a figure of a width in pixels; none without a legend."""
    names = listed(layout, traces)
    if not names:
        return 0
    room, size = lying_width(layout, traces, width), _legend_type(layout)
    rows, row_width = 1, 0.0
    for name in names:
        needs = text_width(name, size) + _SIGN + _BESIDE
        if row_width and row_width + needs > room:
            rows, row_width = rows + 1, 0.0
        row_width += needs
    return rows


def legend_pitch(layout: Part) -> float:
    """Return the pixels from one row of the legend to the next."""
    legend = layout.get("template", {}).get("layout", {}).get("legend", {})
    return max(_LINE * _legend_type(layout), _LOWEST) + 3 + legend.get("tracegroupgap", _UNDER)


def _legend_type(layout: Part) -> float:
    legend: Mapping[str, Any] = layout.get("template", {}).get("layout", {}).get("legend", {})
    return float(legend.get("font", {}).get("size") or _LABEL)


def merged(layout: dict[str, Any], changes: Part) -> dict[str, Any]:
    """Change a layout, part by part."""
    both = dict(layout)
    for name, change in changes.items():
        part = both.get(name)
        both[name] = merged(part, change) if isinstance(part, dict) and isinstance(change, Mapping) else change
    return both
