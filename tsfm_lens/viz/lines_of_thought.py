"""Lines of thought: modes of the lens distribution through depth.

A line joins modes of one layer's distribution from step to step; see
:mod:`tsfm_lens.probes.lines_of_thought`. :func:`thought_lines` draws the lines over the
maps of :mod:`tsfm_lens.viz.logit_lens`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.axes import layer_name
from tsfm_lens.core.registry import figure
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.logit_lens import logit_sheet
from tsfm_lens.viz.panels import SeriesWindow, fitted_range, series_window
from tsfm_lens.viz.select import array, name_model, positions
from tsfm_lens.viz.sheet import Panel
from tsfm_lens.viz.summary import summary
from tsfm_lens.viz.theme import (
    SKY,
    VERMILION,
    number,
    percent,
)

__all__ = ["thought_lines"]
# most rows of cells in the map of a panel
_ROWS = 72
# the value axis follows lines beyond the drawn values at most this many times the range
# of the values
_MAX_DISTANCE = 2.0
# name, colour and marker of a line, by whether it is spurious
_STYLES = {
    True: ("spurious line", VERMILION, "x"),
    False: ("other line", SKY, "circle"),
}


@figure(
    "lines_of_thought",
    "Modes of the lens distribution through depth.",
    table=(
        "start",
        "stop",
        "mean_value",
        "mass",
        "continuous",
        "survives",
        "spurious",
        "birth",
        "death",
    ),
    sentences=summary(
        "Lines of thought by depth: {lines:each whole}.",
        "Of them are spurious, as they neither continue the context nor reach the "
        "forecast: {spurious:each whole}; these hold at most {mass:percent} of the "
        "probability.",
        lines=lambda ds: ds["count"].sum("series"),
        spurious=lambda ds: ds["spurious_count"].sum("series"),
        mass=lambda ds: ds["spurious_mass"].max(),
    ),
)
def thought_lines(
    ds: xr.Dataset, *, series: str | int = 0, layers: Sequence[str | int] | None = None
) -> go.Figure:
    """Draw the logit map of every layer with its lines of thought.

    Spurious lines have a colour and a symbol of their own.

    Args:
        ds: result of kind "lines_of_thought".
        series: id of the series, or its place counted from 0.
        layers: labels or numbers of the layers, all if None.

    Returns:
        A value × forecast step map of probabilities for each layer, with a line for
        each line of thought. Values are in data units.

    Example:
        >>> viz.thought_lines(probes.lines_of_thought(run)).layout.meta["title"]
        'Lines of thought of chronos-nano on co2: 6 of 10 spurious'
    """
    indices = positions(ds, "layer", layers)
    # as many context steps as the forecast has, but at least 12
    view = series_window(ds, series, max(ds.sizes["step"], 12))
    layers_drawn = ds["layer"].values[indices].tolist()
    in_series = ds["line_series"].values == ds["series"].values[view.index]
    lines = np.flatnonzero(in_series & np.isin(ds["line_layer"].values, layers_drawn))
    paths = array(ds, "path", "line", "step")
    bounds, is_cut = fitted_range(view.observations, paths[lines], _MAX_DISTANCE)
    grid, _ = logit_sheet(ds, view, indices, bounds, _ROWS)
    panels = dict(zip(layers_drawn, grid, strict=True))
    for line in lines:
        _draw_line(
            panels[int(ds["line_layer"].values[line])], ds, view, int(line), paths[line]
        )
    # fewer ticks and wider panels, as the tick labels of neighbouring panels would run
    # into each other
    grid.x(nticks=2 if len(panels) > 2 else 4)
    grid.min_width *= 1.15
    count = int(ds["spurious"].values[lines].sum())
    return grid.finalize(
        f"Lines of thought of {name_model(ds)} on {view.id}: {count} of {len(lines)}"
        " spurious",
        "logit lens after each layer, probability in colours",
        "spurious: not continuous with the context, and gone in the last layer",
        "values beyond the axis are cut off" if is_cut else "",
        view.time.remark,
    )


def _draw_line(
    panel: Panel, ds: xr.Dataset, view: SeriesWindow, line: int, path: np.ndarray
) -> None:
    name, colour, symbol = _STYLES[bool(ds["spurious"].values[line])]
    born, died = (layer_name(int(ds[end].values[line])) for end in ("birth", "death"))
    if np.isfinite(ds["mass"].values[line]):
        mass = percent(float(ds["mass"].values[line]))
    else:
        # the sign that figures show for a missing number
        mass = number(np.nan)
    panel.line(
        view.time.at(view.future),
        path,
        name,
        view.hover(f"{name}, from {born} to {died}, {mass} of the probability"),
        colour=colour,
        width=1.6,
        mode="lines+markers",
        connectgaps=True,
        # markers at every step of a long forecast would merge into a bar
        marker={"symbol": symbol, "size": 5, "color": colour, "maxdisplayed": 8},
    )


generic_figure(
    "lines_of_thought",
    "count",
    "Number of lines of thought by layer.",
    table=("count", "spurious_count", "spurious_mass"),
)
