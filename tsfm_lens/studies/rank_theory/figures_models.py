"""Vocabularies on two directions, spectra by patch size, ranks model by model: figures and measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import FigurePanel, figure, frame, panels
from tsfm_lens.errors import unknown_name
from tsfm_lens.viz.grid import log_axis, panel_grid, title_axes
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.select import array, model_of, names
from tsfm_lens.viz.sheet import Look, Panel, blank
from tsfm_lens.viz.theme import (
    BLUE,
    CATEGORICAL,
    GREY,
    PALE,
    SKY,
    mixed,
    percent,
    plain,
)
from tsfm_lens.viz.weights import level_position, names_of, relative
from tsfm_lens.viz.words import listed, num

__all__ = ["model_rank_dots", "patch_spectra", "vocabulary_dots"]

_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
_RATIOS = (
    1.0,
    0.5,
    0.25,
    0.125,
    0.0625,
)  # of rank over width, whose contours are drawn
_DASHES, _FEW = (
    ("solid", "dashdot", "longdashdot", "dash"),
    3,
)  # of models; modes that make no curve
_BESIDE = 1.09  # by which models of one width or number of heads stand apart
_AGAINST = {"width": "width d", "heads": "heads"}


@figure(
    "vocabulary_plane",
    "Tokens of a vocabulary along its two leading directions.",
    variables=("coordinate", "value", "share"),
)
def vocabulary_dots(ds: xr.Dataset) -> go.Figure:
    """Draw tokens of a vocabulary along its two leading directions, coloured by the value that they stand for.

    Example:
        >>> fig = figures.vocabulary_dots(results["vocabulary_plane"])
        >>> fig.layout.meta["title"]
        'Vocabulary of chronos-nano along its two leading directions'
    """
    across, up = array(ds, "coordinate", "direction", "token")
    values, tokens = array(ds, "value", "token"), names(ds, "token")
    first, second = array(ds, "share", "direction")
    quantised = bool(np.isfinite(values).any())
    figure = blank(320)
    panel = figure.panel()
    if quantised:
        panel.line(across, up, "", "", colour=mixed(GREY, 0.5), width=0.8)
        hover = "value %{marker.color:.3g}, token %{customdata}<br>%{x:.3g}, %{y:.3g}"
        # the palest bins would be lost on white without an edge
        on_scale = {"coloraxis": "coloraxis", "line": {"color": GREY, "width": 0.3}}
        panel.dots(
            across,
            up,
            "",
            hover,
            size=4,
            customdata=tokens,
            colour=values,
            marker=on_scale,
        )
        figure.colours(
            colour_scale("value of the bin, in scales of the series", values)
        )
        words = "a dot per bin, neighbours joined by a line"
    else:
        # no token hides another
        look = mixed(BLUE, 0.5)
        panel.dots(
            across,
            up,
            "",
            "token %{customdata}<br>%{x:.3g}, %{y:.3g}",
            size=2.5,
            customdata=tokens,
            colour=look,
        )
        words = "a dot per token of text"
    panel.x(f"direction 1 ({percent(float(first))} of the sum of squares)")
    panel.y(f"direction 2 ({percent(float(second))})")
    ratio = float(ds["neighbour_ratio"]) if "neighbour_ratio" in ds else np.nan
    near = (
        f"neighbouring ids lie {ratio:.2g} times as far apart as two others"
        if np.isfinite(ratio)
        else ""
    )
    return figure.dress(
        f"Vocabulary of {model_of(ds)} along its two leading directions", words, near
    )


@figure(
    "spectra_by_patch",
    "Singular values of embedded noise by patch size.",
    variables=("singular_value", "patch", "origin"),
)
def patch_spectra(ds: xr.Dataset) -> go.Figure:
    """Draw relative singular values of embedded white noise, a line per embedding, the longer its patches the darker.

    Example:
        >>> fig = figures.patch_spectra(results["spectra_by_patch"])
        >>> fig.layout.meta["title"]
        'Spectra of embedded noise by patch size'
    """
    values = relative(
        array(ds, "singular_value", "embedding", "mode"),
        array(ds, "rounding_floor", "embedding"),
    )
    labels, patches = names(ds, "embedding"), np.asarray(ds["patch"].values, dtype=int)
    random = np.array([origin == "random" for origin in names_of(ds, "origin")])
    modes, figure = np.arange(1, values.shape[1] + 1), blank(320)
    panel = figure.panel()
    order, colours = (
        np.unique(patches[random]),
        [each for each in CATEGORICAL if each != BLUE],
    )
    for row in np.argsort(patches, kind="stable"):
        words = (
            f"{labels[row]}" if random[row] else f"{labels[row]}, patch {patches[row]}"
        )
        hover = f"{plain(words)}, mode %{{x}}<br>%{{y:.3g}} of the largest"
        # of a patch of one step there are two directions, which are no curve
        look: Look = {"dots": 4.0 * (np.isfinite(values[row]).sum() <= _FEW)}
        if random[row]:
            shade = mixed(
                BLUE,
                0.3
                + 0.7 * (int(np.searchsorted(order, patches[row])) + 1) / len(order),
            )
            panel.line(
                modes, values[row], words, hover, colour=shade, dash="dot", **look
            )
        else:
            place = int((~random[:row]).sum())
            colour, dash = colours[place % len(colours)], _DASHES[place % len(_DASHES)]
            panel.line(
                modes,
                values[row],
                words,
                hover,
                colour=colour,
                dash=dash,
                width=2,
                **look,
            )
    panel.y("singular value / largest", **log_axis(values))
    panel.x("mode", range=[0, 1.02 * values.shape[1]])
    return figure.dress(
        "Spectra of embedded noise by patch size",
        "white noise before the first layer",
        "dotted: residual MLPs of random weights" if random.any() else "",
        f"width {', '.join(dict.fromkeys(names_of(ds, 'width')))}",
    )


@figure(
    "ranks_by_model",
    "Average ranks of queries by width or number of heads.",
    variables=("rank", "head_rank"),
)
def model_rank_dots(
    ds: xr.Dataset, *, against: str = "width", epsilon: float | None = None
) -> go.Figure:
    """Draw the average ε-rank of W_Q, a dot per model, with whiskers from the smallest matrix's rank to the largest's.

    Args:
        against: "width", with contours of rank over width, or "heads", with the ranks of single heads at the right.
        epsilon: one of the result's; each has a row of panels unless given.

    Example:
        >>> fig = figures.model_rank_dots(rank_theory.ranks_by_model([lens]))
        >>> fig.layout.meta["title"]
        'Ranks of queries by width'
    """
    if against not in _AGAINST:
        raise unknown_name("against", against, _AGAINST)
    levels = (
        range(ds.sizes["epsilon"]) if epsilon is None else [level_position(ds, epsilon)]
    )
    measures = {"rank": "W_Q"} | (
        {"head_rank": "one head of W_Q"} if against == "heads" else {}
    )
    places = [(level, measure) for level in levels for measure in measures]
    titles = [
        (f"{measures[measure]}, ε = {float(ds['epsilon'].values[level]):g}",)
        for level, measure in places
    ]
    grid = panel_grid(titles, row_height=230, most=2)
    x = np.asarray(ds[against].values, dtype=float)
    ticks, families = np.unique(x), _families(ds, x)
    for panel, (level, measure) in zip(grid, places, strict=True):
        if against == "width":
            _contours(panel, ticks)
        _models(panel, ds, x, level, measure, families)
    extent = [float(ticks[0]) / 1.4, float(ticks[-1]) * 1.4]
    grid.x(
        type="log",
        tickvals=ticks,
        ticktext=[f"{tick:g}" for tick in ticks],
        range=np.log10(extent).tolist(),
    )
    largest = np.nanmax(
        [np.nanmax(ds[f"{measure}_high"].values) for measure in measures]
    )
    grid.y(range=[0, 1.12 * float(largest)], gridcolor=PALE)
    title_axes(grid, _AGAINST[against], "mean ε-rank")
    return grid.dress(
        f"Ranks of queries by {'width' if against == 'width' else 'number of heads'}",
        "mean over the query matrices of a model, whiskers from the smallest to the largest",
        "grey lines join an architecture" if families else "",
        f"pale lines: rank over width {', '.join(f'{ratio:g}' for ratio in _RATIOS)}"
        if against == "width"
        else "",
    )


def _families(ds: xr.Dataset, x: np.ndarray) -> list[np.ndarray]:
    """Group the models of each architecture from place to place; leave out those with two models at one place."""
    family = np.array(names_of(ds, "architecture"))
    groups = [np.flatnonzero(family == kind) for kind in dict.fromkeys(family)]
    return [
        own[np.argsort(x[own])] for own in groups if 1 < len(own) == len(set(x[own]))
    ]


def _models(
    panel: Panel,
    ds: xr.Dataset,
    x: np.ndarray,
    level: int,
    measure: str,
    families: Sequence[np.ndarray],
) -> None:
    rank, low, high = (
        array(ds, f"{measure}{end}", "model", epsilon=level)
        for end in ("", "_low", "_high")
    )
    reads = names_of(ds, "reads")
    for own in families:
        panel.line(x[own], rank[own], colour=mixed(GREY, 0.6), width=1)
    for row, name in enumerate(names(ds, "model")):
        alike = np.flatnonzero(x == x[row])
        beside = x[row] * _BESIDE ** (
            int(np.searchsorted(alike, row)) - (len(alike) - 1) / 2
        )
        whiskers = {
            "type": "data",
            "symmetric": False,
            "array": [high[row] - rank[row]],
            "arrayminus": [rank[row] - low[row]],
            "thickness": 1,
        }
        hover = f"{plain(name)}, {reads[row]}<br>mean %{{y:.3g}}, from {low[row]:.3g} to {high[row]:.3g}"
        panel.dots(
            [beside],
            [rank[row]],
            name,
            hover,
            colour=CATEGORICAL[row % len(CATEGORICAL)],
            symbol=_SYMBOLS[row % len(_SYMBOLS)],
            error_y=whiskers,
        )


def _contours(panel: Panel, widths: np.ndarray) -> None:
    """Draw lines along which rank over width is constant."""
    ends = np.geomspace(widths[0] / 2, widths[-1] * 2, 40)
    for ratio in _RATIOS:
        panel.line(
            ends,
            ratio * ends,
            "",
            f"rank {ratio:g} of the width",
            colour=mixed(SKY, 0.35),
            width=1,
        )


def read_plane(ds: xr.Dataset) -> list[str]:
    """Describe the share of two directions, and the distance of tokens with neighbouring ids there."""
    share, ratio = float(ds["share"].sum()), float(ds["neighbour_ratio"])
    return [
        f"Along two directions lie {percent(share)} of the vocabulary's sum of squares.",
        f"There, tokens with neighbouring ids lie {num(ratio)} times as far apart as two others, in the median; where "
        "ids say nothing it would be 1.",
    ]


def read_patches(ds: xr.Dataset, epsilon: float | None = None) -> list[str]:
    """Describe the rank of embedded noise by patch size."""
    place = level_position(ds, epsilon)
    ranks, full = (
        array(ds, "epsilon_rank", "embedding", epsilon=place),
        np.asarray(ds["full"].values),
    )
    words = [
        f"{label} {int(rank)} of {int(most)}"
        + f" (patch {patch})" * (origin == "model")
        for label, rank, most, patch, origin in zip(
            names(ds, "embedding"),
            ranks,
            full,
            names_of(ds, "patch"),
            names_of(ds, "origin"),
            strict=True,
        )
    ]
    return [
        f"At ε = {float(ds['epsilon'].values[place]):g} embedded noise uses so many directions: {listed(words)}."
    ]


def read_models(ds: xr.Dataset, epsilon: float | None = None) -> list[str]:
    """Describe average ranks over widths, model by model."""
    place = level_position(ds, epsilon)
    rank, head = (
        array(ds, name, "model", epsilon=place) for name in ("rank", "head_rank")
    )
    widths, heads = (
        np.asarray(ds[name].values, dtype=float) for name in ("width", "heads")
    )
    words = [
        f"{name} {num(one)} of {num(width)} directions, {num(own)} a head with {int(count)} heads"
        for name, one, width, own, count in zip(
            names(ds, "model"), rank, widths, head, heads, strict=True
        )
        if np.isfinite(one)
    ]
    level = f"{float(ds['epsilon'].values[place]):g}"
    return [
        f"At ε = {level} the average W_Q uses: {listed(words)}."
        if words
        else f"At ε = {level} none can be told."
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
    table: pd.DataFrame = frame(ds, "epsilon_rank")
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
