"""Panels that stand side by side, put below each other for a narrow column of print."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import ceil
from typing import Any

import plotly.graph_objects as go

from tsfm_lens.viz.theme import LEGEND_ROW

Part = dict[str, Any]
_NEAR = 1e-6  # of the figure, by which two domains may differ


def stacks(fig: go.Figure) -> Iterator[go.Figure]:
    """Copy a figure of one row of panels with ever fewer abreast, the others below; nothing for other figures."""
    panels = _panels(fig) if "legend_rows" in (fig.layout.meta or {}) else []
    for columns in range(len(panels) - 1, 0, -1):
        yield _stacked(fig, panels, columns)


def _stacked(fig: go.Figure, panels: list[tuple[Any, Any]], columns: int) -> go.Figure:
    """Copy a figure with so many panels abreast; the first of a row gets names and title of an axis that all share."""
    meta, margin = fig.layout.meta, fig.layout.margin
    above, below = (
        margin.t - meta["title_height"],
        margin.b - LEGEND_ROW * meta["legend_rows"],
    )
    high = fig.layout.height - margin.t - margin.b
    rows = ceil(len(panels) / columns)
    total = rows * high + (rows - 1) * (above + below)
    groups = [panels[at : at + columns] for at in range(0, len(panels), columns)]
    span = max(group[-1][0].domain[1] - group[0][0].domain[0] for group in groups)
    layout = fig.layout.to_plotly_json()
    bars = [
        axis["colorbar"]
        for name, axis in layout.items()
        if name.startswith("coloraxis")
    ]
    under = [bar for bar in bars if bar.get("orientation") == "h"]
    notes = [
        note
        for note in layout.get("annotations", ())
        if note.get("xref") == note.get("yref") == "paper"
    ]
    places = [(part, part["x"], part["y"]) for part in (*notes, *under)]
    for row, group in enumerate(groups):
        first, last = group[0][0].domain[0], group[-1][0].domain[1]
        foot = 1 - (row * (above + below) + (row + 1) * high) / total
        for x, y in group:
            layout[x.plotly_name]["domain"] = [(at - first) / span for at in x.domain]
            layout[y.plotly_name]["domain"] = [foot, foot + high / total]
        _lead(layout, panels[0][1], group[0][1])
        for part, at, up in places:
            if first - _NEAR <= at <= last + _NEAR:
                part |= {"x": (at - first) / span, "y": foot + up * high / total}
    for bar in under:
        bar["len"] /= span
    sides = meta["left"] + margin.r
    least = {
        name: round(sides + span * (meta[name] - sides))
        for name in ("min_width", "bare_width")
    }
    layout |= {
        "height": fig.layout.height + round(total - high),
        "meta": {**meta, **least},
    }
    return go.Figure(
        {"data": [trace.to_plotly_json() for trace in fig.data], "layout": layout}
    )


def _panels(fig: go.Figure) -> list[tuple[Any, Any]]:
    """Return the pairs of axes of a figure from left to right; none where they do not stand in one row."""
    ys = {axis.plotly_name.replace("axis", ""): axis for axis in fig.select_yaxes()}
    pairs = [(x, ys.get(x.anchor or "y")) for x in fig.select_xaxes()]
    shapes = any(shape.xref == "paper" for shape in fig.layout.shapes)
    if shapes or any(
        y is None
        or y.visible is False
        or tuple(y.domain or (0, 1)) != (0, 1)
        or not x.domain
        for x, y in pairs
    ):
        return []
    pairs.sort(key=lambda pair: pair[0].domain[0])
    apart = all(
        one.domain[1] <= other.domain[0] + _NEAR
        for (one, _), (other, _) in pairwise(pairs)
    )
    return pairs if apart and len(ys) == len(pairs) else []


def _lead(layout: Part, first: Any, leader: Any) -> None:
    """Give the first panel of a row the names and the title of the first of all, where it shares its axis."""
    name = first.plotly_name.replace("axis", "")
    if leader.matches == name:
        axis = layout[leader.plotly_name]
        axis.pop("showticklabels", None)
        axis["title"] = layout[first.plotly_name].get("title", {})
