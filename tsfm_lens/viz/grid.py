"""Grids of small panels that share their axes.

:func:`panel_grid` makes the grid, :func:`title_axes` labels it once it is drawn. Grids
whose rows differ in height are made by :func:`.sheet.sheet` itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tsfm_lens.viz.sheet import Sheet, sheet, shortened

# Pixels between two rows of panels, and those of an axis with a title.
_GAP = 36
_AXIS = 34
LOG_AXIS: dict[str, Any] = {"type": "log", "exponentformat": "power"}
"""Settings of a logarithmic axis."""
# Pixels of a line of a panel's title, and of its type.
_LONGEST = 250
_TYPE = 11


def choose_columns(panels: int, most: int = 5) -> int:
    """Return how many panels, at most ``most``, stand side by side.

    Few cells of the grid stay empty.
    """
    if panels <= 4 or most < 3:
        return min(max(panels, 1), most)
    # First the fewest empty cells, then the most columns. More than nine panels may
    # stand five abreast.
    return min((3, 4, 5) if panels > 9 else (3, 4), key=lambda c: (-panels % c, -c))


def choose_width(columns: int) -> int:
    """Return the pixels that panels side by side need for their marks."""
    return 110 + columns * 110


def panel_grid(
    titles: Sequence[Sequence[str]],
    *,
    row_height: int,
    most: int = 5,
    own_x: bool = False,
) -> Sheet:
    """Make a grid of panels that share their axes.

    With ``own_x`` they share the vertical axis alone. Ticks stand at the left and at
    the bottom.

    Args:
        titles: lines of each panel's title.
        row_height: pixels of a panel.
        most: panels side by side.
        own_x: whether each panel has a horizontal axis of its own.

    Returns:
        The sheet, with a panel for each title.
    """
    # long names take a second line
    texts = [
        "\n".join(shortened(line, _LONGEST, _TYPE, 2) for line in title)
        for title in titles
    ]
    columns = choose_columns(len(titles), most)
    rows = -(-len(titles) // columns)
    lines = max(title.count("\n") for title in texts)
    canvas = sheet(
        [row_height] * rows,
        [1] * columns,
        titles=texts,
        title_type=_TYPE,
        row_gap=_GAP + 14 * lines + _AXIS * own_x,
        column_gap=min(0.08, 0.3 / columns),
        min_width=choose_width(columns),
        above=30 + 14 * lines,
        shared_xaxes=False if own_x else "all",
        shared_yaxes="all",
    )
    positions = canvas.positions[: len(titles)]
    empty = canvas.positions[len(titles) :]
    for row, column in empty:
        canvas.panel(row, column).x(visible=False)
        canvas.panel(row, column).y(visible=False)
    # plotly shows the ticks of shared axes in the last row alone, where a column may be
    # without a panel
    for row, column in positions:
        canvas.panel(row, column).x(
            showticklabels=own_x or (row + 1, column) not in positions
        )
        canvas.panel(row, column).y(showticklabels=column == 1)
    # whoever draws goes through the panels of the sheet, and is to meet no empty place
    canvas.positions = positions
    return canvas


def title_axes(grid: Sheet, x_title: str, y_title: str) -> None:
    """Label the lowest x axis of every column, and the shared value axis once.

    The title of the value axis stands halfway down.
    """
    middle = (max(row for row, _ in grid.positions) + 1) // 2
    grid.x(
        nticks={1: 8, 2: 6, 3: 4}.get(
            max(column for _, column in grid.positions), 4 if x_title else 3
        )
    )
    for row, column in grid.positions:
        if (row + 1, column) not in grid.positions:
            grid.panel(row, column).x(x_title)
        if column == 1 and row == middle:
            grid.panel(row, column).y(y_title)
