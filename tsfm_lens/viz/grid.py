"""Grids of small panels that share their axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from tsfm_lens.viz.theme import plain

_LETTER, _GAP = 6.2, 36  # pixels: width of a title's letter, height between two rows of panels


@dataclass(frozen=True)
class Grid:
    """An empty figure of panels.

    Attributes:
        fig: the figure; places: (row, column) of each panel, counted from 1.
        plot_height: height of all panels; above: room for the highest titles; min_width: all in pixels.
    """

    fig: go.Figure
    places: list[tuple[int, int]]
    plot_height: int
    above: int
    min_width: int

    @property
    def room(self) -> dict[str, int]:
        """What ``dress`` needs to know."""
        return {"plot_height": self.plot_height, "above": self.above, "min_width": self.min_width}


def columns_for(panels: int, most: int = 5) -> int:
    """How many panels, at most ``most``, to put side by side so that few places stay empty."""
    if panels <= 4 or most < 3:
        return min(max(panels, 1), most)
    return min((3, 4, 5) if panels > 9 else (3, 4), key=lambda c: (-panels % c, -c))


def panel_grid(titles: list[tuple[str, ...]], *, row_height: int, most: int = 5) -> Grid:
    """A grid whose panels share both axes; ticks only at the left and at the foot of each column.

    Args:
        titles: per panel the lines of its title.
        row_height: pixels.
        most: panels side by side, 2 for those that need the width.
    """
    columns = columns_for(len(titles), most)
    rows = -(-len(titles) // columns)
    lines = max(len(title) for title in titles)
    gap = _GAP + 14 * (lines - 1)
    height = rows * row_height + (rows - 1) * gap
    fig = make_subplots(
        rows=rows,
        cols=columns,
        shared_xaxes="all",
        shared_yaxes="all",
        subplot_titles=["<br>".join(plain(line) for line in title) for title in titles],
        horizontal_spacing=0.03,
        vertical_spacing=gap / height if rows > 1 else 0,
    )
    fig.update_annotations(font={"size": 11}, yshift=1)
    places = [(1 + i // columns, 1 + i % columns) for i in range(len(titles))]
    for row in range(1, rows + 1):
        for column in range(1, columns + 1):
            at = {"row": row, "col": column}
            if (row, column) not in places:
                fig.update_xaxes(visible=False, **at)
                fig.update_yaxes(visible=False, **at)
                continue
            fig.update_xaxes(showticklabels=(row + 1, column) not in places, **at)
            fig.update_yaxes(showticklabels=column == 1, **at)
    longest = max(len(line) for title in titles for line in title)
    width = 110 + columns * max(110, round(_LETTER * longest) + 8)
    return Grid(fig, places, height, above=16 + 14 * lines, min_width=width)


def log_axis(values: np.ndarray) -> dict[str, Any]:
    """Settings of a logarithmic axis over ``values``: 1, 2 and 5 written out over few decades, else powers of ten."""
    known = values[np.isfinite(values) & (values > 0)]
    low, high = (float(np.log10(known.min())), float(np.log10(known.max()))) if len(known) else (-1.0, 0.0)
    if high - low > 2.5:
        return {"type": "log", "exponentformat": "power", "dtick": max(1, round((high - low) / 6))}
    digits = (1, 2, 5) if high - low > 0.6 else (1, 1.5, 2, 3, 4, 5, 7)
    ticks = [digit * 10.0**power for power in range(int(np.floor(low)), int(np.ceil(high)) + 1) for digit in digits]
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}


def title_axes(grid: Grid, x_title: str, y_title: str) -> None:
    """Number and title the lowest x axis of every column and, halfway down, the value axis that all rows share."""
    fig, places = grid.fig, grid.places
    middle = (max(row for row, _ in places) + 1) // 2
    columns = max(column for _, column in places)
    fig.update_xaxes(nticks={1: 8, 2: 6, 3: 4}.get(columns, 3 if x_title == "date" else 4))
    words = plain(y_title)
    if len(words) > 16:
        words = words.replace(" (", "<br>(", 1)
    for row, column in places:
        if (row + 1, column) not in places:
            fig.update_xaxes(title_text=plain(x_title), row=row, col=column)
        if column == 1 and row == middle:
            fig.update_yaxes(title_text=words, row=row, col=column)
