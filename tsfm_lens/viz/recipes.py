"""Forecasts under heavy ablation: small multiples of series and recipes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from tsfm_lens.viz.grid import Grid, panel_grid, title_axes
from tsfm_lens.viz.panels import Scene, draw_scene, fitted_range, scene, value_hover
from tsfm_lens.viz.select import (
    array,
    check,
    median_position,
    model_of,
    names,
    positions,
    series_position,
    unit_of,
    value_title,
)
from tsfm_lens.viz.theme import BLUE, VERMILION, dress, mixed, percent, plain
from tsfm_lens.viz.timeline import Timeline

__all__ = ["recipe_forecasts"]

_PANEL, _GAP = 118, 30  # pixels: height of a panel, room between two rows for their titles
_LETTER = 6.2  # pixels: width of a title's letter


def recipe_forecasts(
    ds: xr.Dataset,
    *,
    recipes: Sequence[str] | None = None,
    series: Sequence[str | int] | None = None,
    context_steps: int | None = None,
    samples: int = 20,
) -> go.Figure:
    """What is left of a forecast when many heads and MLPs go: a row a series, a column a recipe.

    Args:
        ds: of kind "recipes": ``quantile_forecast`` (recipe, series, quantile, step), ``context`` and, where
            there are any, ``truth`` and ``sample`` (recipe, series, draw, step).
        recipes: names to draw, all unless given.
        series: ids or places to draw, at most the first four unless given.
        context_steps: how much of the context is drawn; one horizon (at least 48 steps) unless given.
        samples: how many sampled paths are drawn; the widest central interval where there are none.

    Returns:
        Panels that share the time axis, and within a row the value axis. Over the paths or the interval lies
        the median; the original's median is repeated in the panels of the ablated models.

    Raises:
        InputError: ``ds`` is of another kind.
        UnknownNameError: no such recipe or series.
    """
    check(ds, "recipes", "quantile_forecast")
    columns = positions(ds, "recipe", recipes)
    rows = list(range(min(ds.sizes["series"], 4))) if series is None else [series_position(ds, each) for each in series]
    tail = max(ds.sizes["step"], 48) if context_steps is None else context_steps
    scenes = [scene(ds, at, tail) for at in rows]
    if len(rows) > 1:
        # series of different dates share an axis in steps
        scenes = [replace(view, time=Timeline(steps=view.time.steps, stamps=None)) for view in scenes]
    titles = [[_title(ds, recipe, at, first=not row) for recipe in columns] for row, at in enumerate(rows)]
    grid = panel_grid(titles[0], row_height=140) if len(rows) == 1 else _table(titles)
    cut = False
    for row, (at, view) in enumerate(zip(rows, scenes, strict=True)):
        places = grid.places[row * len(columns) : (row + 1) * len(columns)]
        for recipe, place in zip(columns, places, strict=True):
            legend = not row and recipe == columns[0]
            _draw(grid.fig, ds, view, recipe, at, samples=samples, legend=legend, row=place[0], col=place[1])
        bounds, beyond = _range(ds, view, columns, at)
        cut = cut or beyond
        for place in places:
            grid.fig.update_yaxes(range=bounds, nticks=4, row=place[0], col=place[1])
        if len(rows) > 1:
            words = f"{names(ds, 'series')[at]}<br>({unit_of(ds, at) or 'data units'})"
            grid.fig.update_yaxes(title_text=plain(words).replace("&lt;br&gt;", "<br>"), row=places[0][0], col=1)
    if len(rows) == 1:
        title_axes(grid, scenes[0].time.short_title, value_title(ds, rows[0]))
    _legend_of_ablated(grid.fig, ds, columns)
    return dress(
        grid.fig,
        f"Forecasts of {model_of(ds)} without many of its parts",
        _words(ds, scenes[0], cut, drawn=min(samples, ds.sizes.get("draw", 0))),
        legend_rows=1,
        **grid.room,
    )


def _title(ds: xr.Dataset, recipe: int, series: int, *, first: bool) -> tuple[str, ...]:
    """Recipe and what it takes, over the first row; distance and error over every panel."""
    lines = []
    if first:
        parts = []
        heads, mlps = int(ds["n_heads"].values[recipe]), int(ds["n_mlps"].values[recipe])
        if heads:
            parts.append(f"{heads} head{'s' * (heads > 1)} ({percent(float(ds['heads_share'].values[recipe]))})")
        if mlps:
            parts.append(f"{mlps} MLP" + "s" * (mlps > 1))
        lines = [names(ds, "recipe")[recipe], "without " + " + ".join(parts) if parts else "complete model"]
    facts = []
    if "spearman_distance" in ds and recipe:
        facts.append(f"distance {float(ds['spearman_distance'].values[recipe, series]):.2f}")
    if "mase" in ds and np.isfinite(ds["mase"].values[recipe, series]):
        facts.append(f"MASE {float(ds['mase'].values[recipe, series]):.3g}")
    return (*lines, ", ".join(facts))


def _table(titles: list[list[tuple[str, ...]]]) -> Grid:
    """Panels in rows of their own value axis and columns of one time axis."""
    rows, columns = len(titles), len(titles[0])
    height = rows * _PANEL + (rows - 1) * _GAP
    fig = make_subplots(
        rows=rows,
        cols=columns,
        shared_xaxes="all",
        shared_yaxes="rows",
        subplot_titles=["<br>".join(map(plain, title)) for row in titles for title in row],
        horizontal_spacing=0.02,
        vertical_spacing=_GAP / height,
    )
    fig.update_annotations(font={"size": 11}, yshift=1)
    places = [(row, column) for row in range(1, rows + 1) for column in range(1, columns + 1)]
    for row, column in places:
        fig.update_xaxes(showticklabels=row == rows, nticks=5, row=row, col=column)
        fig.update_xaxes(title_text="step" if row == rows else "", row=row, col=column)
    longest = max(len(line) for title in titles[0] for line in title)
    width = 110 + columns * max(150, round(_LETTER * longest) + 8)
    return Grid(fig, places, height, above=16 + 14 * len(titles[0][0]), min_width=width)


def _draw(
    fig: go.Figure, ds: xr.Dataset, view: Scene, recipe: int, series: int, *, samples: int, legend: bool, **at: Any
) -> None:
    """One panel: context and truth, paths or interval, the original's median and the recipe's own."""
    unit = unit_of(ds, series)
    colour = VERMILION if recipe else BLUE
    x = view.time.at(view.future)
    quantiles = array(ds, "quantile_forecast", "quantile", "step", recipe=recipe, series=series)
    middle = median_position(ds["quantile"].values)
    if "sample" in ds and samples:
        paths = array(ds, "sample", "draw", "step", recipe=recipe, series=series)[:samples]
        gaps = np.full((len(paths), 1), np.nan)
        # all paths in one trace, with a gap after each
        fig.add_trace(
            go.Scatter(
                x=np.tile(np.append(x, x[-1:]), len(paths)),
                y=np.hstack([paths, gaps]).ravel(),
                mode="lines",
                line={"color": mixed(colour, 0.3), "width": 0.7},
                showlegend=False,
                hoverinfo="skip",
                name="sampled paths",
            ),
            **at,
        )
    else:
        for edge, fill in ((0, None), (len(quantiles) - 1, "tonexty")):
            fig.add_trace(
                go.Scatter(
                    x=x,
                    y=quantiles[edge],
                    mode="lines",
                    fill=fill,
                    fillcolor=mixed(colour, 0.22),
                    line={"width": 0, "color": mixed(colour, 0.22)},
                    showlegend=False,
                    hoverinfo="skip",
                    name="interval",
                ),
                **at,
            )
    draw_scene(fig, view, unit=unit, legend=legend, **at)
    lines = [("original", array(ds, "quantile_forecast", "step", recipe=0, series=series, quantile=middle), BLUE)]
    if recipe:
        lines.append(("ablated", quantiles[middle], VERMILION))
    for name, values, ink in lines:
        fig.add_trace(
            go.Scatter(
                x=x,
                y=values,
                mode="lines",
                name=f"{name} forecast (median)",
                legendgroup=name,
                showlegend=legend,
                line={"color": ink, "width": 1.8 if name == "ablated" or not recipe else 1.1},
                hovertemplate=value_hover(f"{name} forecast", view.time, unit),
            ),
            **at,
        )


def _legend_of_ablated(fig: go.Figure, ds: xr.Dataset, columns: list[int]) -> None:
    """Show the first ablated line in the legend, which the original's own panel does not have."""
    if len([recipe for recipe in columns if recipe]) and not columns[0]:
        first = next(trace for trace in fig.data if trace.legendgroup == "ablated")
        first.showlegend = True


def _range(ds: xr.Dataset, view: Scene, columns: list[int], series: int) -> tuple[tuple[float, float], bool]:
    middle = median_position(ds["quantile"].values)
    medians = array(ds, "quantile_forecast", "recipe", "step", series=series, quantile=middle)
    core = np.concatenate([view.context, view.truth, medians[0]])
    others = [medians[columns].ravel()]
    if "sample" in ds:
        others.append(np.quantile(array(ds, "sample", "draw", "step", recipe=0, series=series), [0.05, 0.95], axis=0))
    return fitted_range(core, np.concatenate([np.ravel(each) for each in others]), reach=0.6)


def _words(ds: xr.Dataset, view: Scene, cut: bool, *, drawn: int) -> str:
    spread = f"light: {drawn} sampled paths" if drawn else _interval(ds)
    return (
        f"{ds.sizes['step']} steps ahead from {view.remark}; {spread}; distance: 1 − rank correlation with the original"
        + ("; what leaves the axis is cut off" if cut else "")
        + view.time.remark
    )


def _interval(ds: xr.Dataset) -> str:
    levels = np.asarray(ds["quantile"].values, dtype=float)
    return f"light: from the {levels[0]:.3g} to the {levels[-1]:.3g} quantile"
