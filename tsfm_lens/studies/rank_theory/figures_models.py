"""Figures of ranks of models: vocabularies, spectra by patch size, ranks of queries.

Each measurement has a figure and its panels.
The numbers come from :mod:`tsfm_lens.studies.rank_theory.of_models`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.errors import unknown_name
from tsfm_lens.core.registry import FigurePanel, figure, frame, panels
from tsfm_lens.viz.grid import LOG_AXIS, panel_grid, title_axes
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.select import array, name_model, names
from tsfm_lens.viz.sheet import Style, blank
from tsfm_lens.viz.theme import BLUE, CATEGORICAL, GREY, PALE, mixed, percent

__all__ = ["model_rank_dots", "vocabulary_dots"]

_AGAINST = {"width": "width d", "heads": "heads"}


@figure(
    "vocabulary_plane",
    "Tokens of a vocabulary along its two leading directions.",
    variables=("coordinate", "value", "share"),
)
def vocabulary_dots(ds: xr.Dataset) -> go.Figure:
    """Draw tokens of a vocabulary along its two leading directions.

    Colours are the values that the tokens stand for.

    Example:
        >>> fig = figures.vocabulary_dots(results["vocabulary_plane"])
        >>> fig.layout.meta["title"]
        'Vocabulary of chronos-nano along its two leading directions'
    """
    across, up = array(ds, "coordinate", "direction", "token")
    values = array(ds, "value", "token")
    tokens = names(ds, "token")
    first, second = array(ds, "share", "direction")
    drawn = blank(320)
    panel = drawn.panel()
    marks: Style = {"size": 4, "customdata": tokens}
    if np.isfinite(values).any():
        panel.line(across, up, "", "", colour=mixed(GREY, 0.5), width=0.8)
        hover = "value %{marker.color:.3g}, token %{customdata}<br>%{x:.3g}, %{y:.3g}"
        scale = {"coloraxis": "coloraxis"}
        panel.dots(across, up, "", hover, colour=values, marker=scale, **marks)
        title = "value of the bin, in scales of the series"
        drawn.colours(colour_scale(title, values))
        text = "a dot per bin, neighbours joined by a line"
    else:
        hover = "token %{customdata}<br>%{x:.3g}, %{y:.3g}"
        panel.dots(across, up, "", hover, colour=mixed(BLUE, 0.5), **marks)
        text = "a dot per token of text"
    panel.x(f"direction 1 ({percent(float(first))} of the sum of squares)")
    panel.y(f"direction 2 ({percent(float(second))})")
    title = f"Vocabulary of {name_model(ds)} along its two leading directions"
    return drawn.finalize(title, text)


@figure(
    "ranks_by_model",
    "Average ranks of queries by width or number of heads.",
    variables=("rank", "head_rank"),
)
def model_rank_dots(ds: xr.Dataset, *, against: str = "width") -> go.Figure:
    """Draw the average ε-rank of W_Q, a dot per model.

    Whiskers go from the smallest matrix's rank to the largest's.

    Args:
        against: "width" or "heads"; with "heads", a second panel in each row has the
            ranks of single heads. There is a row of panels for each ε.

    Example:
        >>> fig = figures.model_rank_dots(rank_theory.ranks_by_model([lens]))
        >>> fig.layout.meta["title"]
        'Ranks of queries by width'
    """
    if against not in _AGAINST:
        raise unknown_name("against", against, _AGAINST)
    measures = {"rank": "W_Q"}
    if against == "heads":
        measures["head_rank"] = "one head of W_Q"
    levels = [float(level) for level in ds["epsilon"].values]
    cells = [(row, measure) for row in range(len(levels)) for measure in measures]
    titles = [(f"{measures[measure]}, ε = {levels[row]:g}",) for row, measure in cells]
    grid = panel_grid(titles, row_height=230, most=2)
    x = np.asarray(ds[against].values, dtype=float)
    for panel, (row, measure) in zip(grid, cells, strict=True):
        rank, low, high = (
            array(ds, f"{measure}{end}", "model", epsilon=row)
            for end in ("", "_low", "_high")
        )
        points = zip(names(ds, "model"), x, rank, high - rank, rank - low, strict=True)
        for index, (name, position, mean, above, below) in enumerate(points):
            whiskers = {
                "type": "data",
                "symmetric": False,
                "array": [above],
                "arrayminus": [below],
            }
            colour = CATEGORICAL[index % len(CATEGORICAL)]
            hover = f"{name}<br>mean %{{y:.3g}}"
            panel.dots([position], [mean], name, hover, colour=colour, error_y=whiskers)
    grid.x(**LOG_AXIS)
    grid.y(rangemode="tozero", gridcolor=PALE)
    title_axes(grid, _AGAINST[against], "mean ε-rank")
    text = (
        "mean over the query matrices of a model, whiskers from the smallest to the"
        " largest"
    )
    return grid.finalize(f"Ranks of queries by {against}", text)


@panels("vocabulary_plane")
def _plane(ds: xr.Dataset) -> Iterator[FigurePanel]:
    table = (
        ds["coordinate"]
        .to_pandas()
        .add_prefix("direction ")
        .assign(value=ds["value"].values)
    )
    yield FigurePanel(vocabulary_dots(ds), table.reset_index(), [])


@panels("ranks_by_model")
def _model_plates(ds: xr.Dataset) -> Iterator[FigurePanel]:
    ranks = frame(ds, *ds)
    yield FigurePanel(model_rank_dots(ds), ranks, [])
    yield FigurePanel(model_rank_dots(ds, against="heads"), ranks, [])
