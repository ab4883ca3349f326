"""Grids of small panels that share their axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tsfm_lens.viz.sheet import Sheet, sheet
from tsfm_lens.viz.theme import plain

_LETTER, _GAP = 6.2, 36  # pixels: width of a title's letter, height between two rows of panels


def columns_for(panels: int, most: int = 5) -> int:
    """How many panels, at most ``most``, to put side by side so that few places stay empty."""
    if panels <= 4 or most < 3:
        return min(max(panels, 1), most)
    return min((3, 4, 5) if panels > 9 else (3, 4), key=lambda c: (-panels % c, -c))


def width_for(titles: Sequence[Sequence[str]], columns: int, least: int = 110) -> int:
    """Pixels that panels side by side need for their titles."""
    longest = max(len(line) for title in titles for line in title)
    return 110 + columns * max(least, round(_LETTER * longest) + 8)


def panel_grid(titles: Sequence[Sequence[str]], *, row_height: int, most: int = 5) -> Sheet:
    """A grid whose panels share both axes; ticks only at the left and at the foot of each column.

    Args:
        titles: per panel the lines of its title.
        row_height: pixels.
        most: panels side by side, 2 for those that need the width.
    """
    columns = columns_for(len(titles), most)
    rows = -(-len(titles) // columns)
    lines = max(len(title) for title in titles)
    made = sheet(
        [row_height] * rows,
        [1] * columns,
        titles=["\n".join(title) for title in titles],
        row_gap=_GAP + 14 * (lines - 1),
        column_gap=0.03,
        above=16 + 14 * lines,
        min_width=width_for(titles, columns),
        shared_xaxes="all",
        shared_yaxes="all",
    )
    made.fig.update_annotations(font={"size": 11})
    places, empty = made.places[: len(titles)], made.places[len(titles) :]
    for row, column in empty:
        made.panel(row, column).x(visible=False)
        made.panel(row, column).y(visible=False)
    for row, column in places:
        made.panel(row, column).x(showticklabels=(row + 1, column) not in places)
        made.panel(row, column).y(showticklabels=column == 1)
    made.places = places
    return made


def log_axis(values: np.ndarray) -> dict[str, Any]:
    """Settings of a logarithmic axis over ``values``: 1, 2 and 5 written out over few decades, else powers of ten."""
    known = values[np.isfinite(values) & (values > 0)]
    low, high = (float(np.log10(known.min())), float(np.log10(known.max()))) if len(known) else (-1.0, 0.0)
    if high - low > 2.5:
        return {"type": "log", "exponentformat": "power", "dtick": max(1, round((high - low) / 6))}
    digits = (1, 2, 5) if high - low > 0.6 else (1, 1.5, 2, 3, 4, 5, 7)
    ticks = [digit * 10.0**power for power in range(int(np.floor(low)), int(np.ceil(high)) + 1) for digit in digits]
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}


def title_axes(grid: Sheet, x_title: str, y_title: str) -> None:
    """Number and title the lowest x axis of every column and, halfway down, the value axis that all rows share."""
    middle = (max(row for row, _ in grid.places) + 1) // 2
    columns = max(column for _, column in grid.places)
    grid.min_width = max(grid.min_width, width_for([(x_title,)], columns))
    grid.x(nticks={1: 8, 2: 6, 3: 4}.get(columns, 3 if x_title == "date" else 4))
    # what is longer than the shortest panel is high gets two lines
    words = y_title.replace(" (", "\n(", 1) if len(plain(y_title)) > 16 else y_title
    for row, column in grid.places:
        if (row + 1, column) not in grid.places:
            grid.panel(row, column).x(x_title)
        if column == 1 and row == middle:
            grid.panel(row, column).y(words)
