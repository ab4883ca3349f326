"""Which marks of a figure a reader is told nothing about."""

from __future__ import annotations

import re
from typing import Any

import plotly.graph_objects as go

# what a caption calls a mark
_WORDS = {
    "bar": r"\bbars?\b|hatched",
    "lines": (
        r"\blines?\b|\bcurves?\b|\bspectr|dashed|dotted|\bedges?\b|\barea\b|\bpaths?\b"
    ),
    "markers": (
        r"\bdots?\b|\bpoints?\b|\bcircles?\b|\brings?\b|\bdiamonds?\b|\bsquares?\b|\bthicker\b"
    ),
}


def unexplained(fig: go.Figure) -> list[str]:
    """Marks that no legend lists, no colour bar and no axis measures, and no caption or
    note names.
    """
    meta = fig.layout.meta or {}
    messages = [
        str(meta.get("title", "")),
        str(meta.get("subtitle", "")),
        *(note.text or "" for note in fig.layout.annotations),
    ]
    text = " ".join(messages).lower()
    marks = list(fig.data)
    listed = {
        mark.legendgroup or mark.name
        for mark in marks
        if mark.showlegend and fig.layout.showlegend is not False
    }
    open_marks = {}
    for trace in marks:
        if trace.type not in ("scatter", "scattergl", "bar") or not _seen(trace):
            continue
        if {trace.legendgroup, trace.name} & (listed - {None}):
            continue
        if trace.marker.coloraxis is not None or (
            trace.name and trace.name.lower() in text
        ):
            continue
        if trace.type == "bar":
            kind = "bar"
        elif "lines" in (trace.mode or ""):
            kind = "lines"
        else:
            kind = "markers"
        if not re.search(_WORDS[kind], text):
            open_marks.setdefault((trace.xaxis or "x", trace.yaxis or "y"), {})[
                kind
            ] = trace.name or ""
    several = {
        panel: kinds
        for panel, kinds in open_marks.items()
        if len(kinds) > 1 or not _titled(fig)
    }
    return [
        f"{kind} {name!r} at {panel}"
        for panel, kinds in several.items()
        for kind, name in kinds.items()
    ]


def _seen(trace: Any) -> bool:
    """Whether a trace has marks, and not only words or places to point at."""
    if (
        trace.visible is False
        or trace.opacity == 0
        or (trace.type != "bar" and trace.mode in ("text", "none"))
    ):
        return False
    if trace.type == "bar":
        return True
    drawn = "lines" in (trace.mode or "lines") and trace.line.width != 0
    return (
        drawn
        or trace.fill is not None
        or ("markers" in (trace.mode or "") and trace.marker.opacity != 0)
    )


def _titled(fig: go.Figure) -> bool:
    """Whether any axis says what it measures."""
    axes = [*fig.select_xaxes(), *fig.select_yaxes()]
    return any(axis.title.text and axis.visible is not False for axis in axes)
