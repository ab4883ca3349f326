"""Numbers behind a figure, as one frame.

:func:`figure_data` returns the table that the figure was registered with, else what its
traces hold. :func:`keep_table` is called where figures are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import unescape
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.registry import TABULATE

__all__ = ["figure_data"]
# of a trace, what has one value a point
_POINTS = ("x", "y", "r", "theta", "labels", "values")
_ERRORS = {"arrayminus": "minus", "array": "plus"}


def figure_data(fig: go.Figure) -> pd.DataFrame:
    """Return the data behind a figure, a row for each of its points.

    It is the table of the measurement, where the figure was drawn by
    :mod:`tsfm_lens.viz` and has one; else "panel", "trace" (its name), "x", "y" and,
    where there are such, "title" (of the panel), "x_label" and "y_label" (texts of the
    axis there), "z" (of a map), "x_end" and "y_end" (of cells, which then begin at x
    and y), and "x_minus", "x_plus", "y_minus", "y_plus" (of intervals).

    Args:
        fig: any figure of :mod:`tsfm_lens.viz`, or of plotly.

    Returns:
        A table with a row for each point of the figure.

    Raises:
        InputError: the figure has no traces with data.

    Example:
        >>> fig = run.measure("head_entropy").plot()
        >>> "entropy" in viz.figure_data(fig).columns
        True
    """
    tabulate = tabulator(fig)
    if tabulate is not None:
        return tabulate()
    frames = [_trace_data(fig, trace, number) for number, trace in enumerate(fig.data)]
    frames = [frame for frame in frames if len(frame)]
    if not frames:
        raise InputError(
            "this figure has no data to write as .csv; save it as .json, which holds"
            " all of it"
        )
    return pd.concat(frames, ignore_index=True)


def tabulator(fig: go.Figure) -> Callable[[], pd.DataFrame] | None:
    """Return the function that makes the table of a figure, None without one."""
    # in the instance, since plotly's own lookup of names is no place for ours
    made: Callable[[], pd.DataFrame] | None = vars(fig).get(TABULATE)
    return made


def keep_table(fig: go.Figure, tabulate: Callable[[], pd.DataFrame] | None) -> None:
    """Remember how the table of a figure is made; nothing if it is None."""
    if tabulate is not None:
        setattr(fig, TABULATE, tabulate)


def keep_joined_table(
    fig: go.Figure, parts: Sequence[go.Figure], names: Sequence[str]
) -> None:
    """Remember the tables of figures that are drawn as one.

    Their first column, "figure", is the name; nothing where one has no table.
    """
    makers = [tabulator(part) for part in parts]
    made = [maker for maker in makers if maker is not None]
    if len(made) < len(makers):
        return

    def join() -> pd.DataFrame:
        tables = [maker() for maker in made]
        joined = pd.concat(tables, ignore_index=True)
        joined.insert(0, "figure", np.repeat(list(names), list(map(len, tables))))
        return joined

    keep_table(fig, join)


def _trace_data(fig: go.Figure, trace: Any, number: int) -> pd.DataFrame:
    """Return the points of one trace."""
    panel = "1"
    if "xaxis" in trace:
        panel = (trace.xaxis or "x").removeprefix("x") or "1"
    labels = {"panel": panel}
    if title := _panel_title(fig, trace):
        labels["title"] = title
    labels["trace"] = trace.name or f"{trace.type} {number + 1}"
    if "z" in trace and trace.z is not None:
        points = _map_data(trace)
    else:
        columns = {
            name: np.asarray(trace[name])
            for name in _POINTS
            if name in trace and trace[name] is not None
        }
        for axis in ("x", "y"):
            columns |= _error_data(trace, axis)
        lengths = {len(values) for values in columns.values()}
        if len(lengths) != 1:
            return pd.DataFrame()
        points = pd.DataFrame(columns)
    # a trace that only stands in the legend has one point, which is nowhere
    points = points.dropna(how="all")
    for side in ("x", "y"):
        if f"{side}axis" in trace and side in points:
            axis = (trace[f"{side}axis"] or side).replace(side, f"{side}axis")
            texts = _row_names(fig.layout[axis])
            if texts:
                # several dots of a row stand above and below its middle
                points[f"{side}_label"] = points[side].round().map(texts)
    for position, (name, label) in enumerate(labels.items()):
        points.insert(position, name, label)
    return points


def _panel_title(fig: go.Figure, trace: Any) -> str:
    """Return the title over the panel of a trace, "" where it has none."""
    if "xaxis" not in trace:
        return ""
    place: dict[str, Any] = {"x": 0.5, "y": 1}
    place |= {f"{side}ref": f"{trace[f'{side}axis'] or side} domain" for side in "xy"}
    for note in fig.select_annotations(place):
        return _one_line(note.text)
    return ""


def _row_names(axis: Any) -> dict[int, str]:
    """Return the names of rows or columns by their places, which are whole numbers.

    Empty for an axis of numbers, whose texts say how these are written.
    """
    if axis.ticktext is None or not all(isinstance(v, Integral) for v in axis.tickvals):
        return {}
    return dict(zip(axis.tickvals, map(_one_line, axis.ticktext), strict=True))


def _one_line(text: str) -> str:
    """Write a text of a figure as it is read, without breaks and entities."""
    return unescape(text.replace("<br>", " ")).strip()


def _map_data(trace: Any) -> pd.DataFrame:
    """Return the cells of a map, row by row."""
    z = np.asarray([np.asarray(row) for row in trace.z])
    if z.ndim != 2:
        return pd.DataFrame({"z": z.ravel()})
    rows, columns = np.indices(z.shape)
    cells: dict[str, np.ndarray] = {}
    for side, place, size in (("x", columns, z.shape[1]), ("y", rows, z.shape[0])):
        labels = np.arange(size)
        # plotly takes the edges of cells, of which there is one more than of cells
        if trace[side] is not None and len(trace[side]) in (size, size + 1):
            labels = np.asarray(trace[side])
        cells[side] = labels[place.ravel()]
        if len(labels) > size:
            cells[f"{side}_end"] = labels[place.ravel() + 1]
    return pd.DataFrame({**cells, "z": z.ravel()})


def _error_data(trace: Any, axis: str) -> dict[str, np.ndarray]:
    """Return the ends of the intervals along one axis, as distances."""
    name = f"error_{axis}"
    if name not in trace or trace[name].array is None:
        return {}
    bars = trace[name]
    ends = {"array": bars.array, "arrayminus": bars.arrayminus}
    if ends["arrayminus"] is None:
        ends["arrayminus"] = bars.array
    return {f"{axis}_{word}": np.asarray(ends[key]) for key, word in _ERRORS.items()}
