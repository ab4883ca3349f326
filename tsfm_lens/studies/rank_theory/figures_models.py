"""Figures of ranks of models: vocabularies, spectra by patch size, ranks of queries.

Each measurement has a figure, a function ``read_…`` for its sentences, and its panels.
The numbers come from :mod:`tsfm_lens.studies.rank_theory.of_models`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.errors import unknown_name
from tsfm_lens.core.registry import FigurePanel, figure, frame, panels
from tsfm_lens.studies.curves import curve_sheet
from tsfm_lens.viz.grid import LOG_AXIS, panel_grid, title_axes
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.select import array, name_model, names
from tsfm_lens.viz.sheet import Style, blank
from tsfm_lens.viz.theme import BLUE, CATEGORICAL, GREY, PALE, mixed, percent
from tsfm_lens.viz.weights import level_position, list_names, relative
from tsfm_lens.viz.words import listed, num

__all__ = ["model_rank_dots", "patch_spectra", "vocabulary_dots"]

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
    "spectra_by_patch",
    "Singular values of embedded noise by patch size.",
    variables=("singular_value", "patch", "origin"),
)
def patch_spectra(ds: xr.Dataset) -> go.Figure:
    """Draw relative singular values of embedded white noise, a line per embedding.

    Example:
        >>> fig = figures.patch_spectra(results["spectra_by_patch"])
        >>> fig.layout.meta["title"]
        'Spectra of embedded noise by patch size'
    """
    spectra = relative(
        array(ds, "singular_value", "embedding", "mode"),
        array(ds, "rounding_floor", "embedding"),
    )
    table = frame(
        xr.Dataset({"value": (("embedding", "mode"), spectra)}, ds.coords), "value"
    )
    labels = dict(zip(names(ds, "embedding"), list_names(ds, "patch"), strict=True))
    table["line"] = [
        f"{label}, patch {labels[str(label)]}" for label in table["embedding"]
    ]
    drawn = curve_sheet(
        table,
        "mode",
        "value",
        "line",
        log="y",
        axes=("mode", "singular value / largest"),
        dots=3,
    )
    text = "white noise before the first layer"
    return drawn.finalize("Spectra of embedded noise by patch size", text)


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
        for index, name in enumerate(names(ds, "model")):
            whiskers = {
                "type": "data",
                "symmetric": False,
                "array": [high[index] - rank[index]],
                "arrayminus": [rank[index] - low[index]],
            }
            colour = CATEGORICAL[index % len(CATEGORICAL)]
            hover = f"{name}<br>mean %{{y:.3g}}"
            point = ([x[index]], [rank[index]])
            panel.dots(*point, name, hover, colour=colour, error_y=whiskers)
    grid.x(**LOG_AXIS)
    grid.y(rangemode="tozero", gridcolor=PALE)
    title_axes(grid, _AGAINST[against], "mean ε-rank")
    quantity = {"width": "width", "heads": "number of heads"}[against]
    text = (
        "mean over the query matrices of a model, whiskers from the smallest to the"
        " largest"
    )
    return grid.finalize(f"Ranks of queries by {quantity}", text)


def read_plane(ds: xr.Dataset) -> list[str]:
    """Describe the share of two directions, and how near neighbouring ids are there."""
    share = float(ds["share"].sum())
    ratio = float(ds["neighbour_ratio"])
    return [
        (
            f"Along two directions lie {percent(share)} of the vocabulary's sum of"
            " squares."
        ),
        (
            f"There, tokens with neighbouring ids lie {num(ratio)} times as far apart"
            " as two others, in the median; where ids say nothing it would be 1."
        ),
    ]


def read_patches(ds: xr.Dataset) -> list[str]:
    """Describe the rank of embedded noise by patch size."""
    epsilon_index = level_position(ds, None)
    ranks = array(ds, "epsilon_rank", "embedding", epsilon=epsilon_index)
    full = np.asarray(ds["full"].values)
    texts = []
    for label, rank, full_rank, patch, origin in zip(
        names(ds, "embedding"),
        ranks,
        full,
        list_names(ds, "patch"),
        list_names(ds, "origin"),
        strict=True,
    ):
        text = f"{label} {int(rank)} of {int(full_rank)}"
        # a random embedding has its patch in its name
        if origin == "model":
            text += f" (patch {patch})"
        texts.append(text)
    level = f"{float(ds['epsilon'].values[epsilon_index]):g}"
    return [f"At ε = {level} embedded noise uses so many directions: {listed(texts)}."]


def read_models(ds: xr.Dataset) -> list[str]:
    """Describe average ranks over widths, model by model."""
    epsilon_index = level_position(ds, None)
    rank, head = (
        array(ds, name, "model", epsilon=epsilon_index)
        for name in ("rank", "head_rank")
    )
    widths, heads = (
        np.asarray(ds[name].values, dtype=float) for name in ("width", "heads")
    )
    texts = [
        f"{name} {num(model_rank)} of {num(width)} directions, {num(head_rank)} a head"
        f" with {int(count)} heads"
        for name, model_rank, width, head_rank, count in zip(
            names(ds, "model"), rank, widths, head, heads, strict=True
        )
        if np.isfinite(model_rank)
    ]
    level = f"{float(ds['epsilon'].values[epsilon_index]):g}"
    return [
        (
            f"At ε = {level} the average W_Q uses: {listed(texts)}."
            if texts
            else f"At ε = {level} none can be told."
        )
    ]


@panels("vocabulary_plane")
def _plane(ds: xr.Dataset) -> Iterator[FigurePanel]:
    table = (
        ds["coordinate"]
        .to_pandas()
        .add_prefix("direction ")
        .assign(value=ds["value"].values)
    )
    yield FigurePanel(vocabulary_dots(ds), table.reset_index(), read_plane(ds))


@panels("spectra_by_patch")
def _patches(ds: xr.Dataset) -> Iterator[FigurePanel]:
    table = frame(ds, "epsilon_rank")
    yield FigurePanel(patch_spectra(ds), table, read_patches(ds))


@panels("ranks_by_model")
def _model_plates(ds: xr.Dataset) -> Iterator[FigurePanel]:
    ranks = frame(
        ds,
        "rank",
        "rank_low",
        "rank_high",
        "head_rank",
        "head_rank_low",
        "head_rank_high",
    )
    yield FigurePanel(model_rank_dots(ds), ranks, read_models(ds))
    yield FigurePanel(model_rank_dots(ds, against="heads"), ranks, [])
