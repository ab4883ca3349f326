"""Forecasts under heavy ablation, and forecasts over each other.

:func:`recipe_forecasts` draws recipes of ablation; :func:`overlay` draws any forecasts
of the same series together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import FigurePanel, figure, panels
from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.panels import draw_bands, fit, series_window
from tsfm_lens.viz.select import (
    MAX_DRAWN,
    array,
    forecast_series,
    median_position,
    name_model,
    names,
    positions,
)
from tsfm_lens.viz.sheet import blank
from tsfm_lens.viz.summary import summary
from tsfm_lens.viz.tables import quantile_table
from tsfm_lens.viz.theme import CATEGORICAL, VERMILION, mixed, percent
from tsfm_lens.viz.words import listed, measured

__all__ = ["recipe_forecasts"]


def _recipe_table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulate quantiles, a row per recipe, series and step."""
    rows = product(range(ds.sizes["recipe"]), forecast_series(ds))
    tables = [quantile_table(ds, position, recipe=recipe) for recipe, position in rows]
    return pd.concat(tables, ignore_index=True)


read_recipes = summary(
    "Heads that the recipes ablate: {heads_share:each percent}; MLPs: "
    "{n_mlps:each whole}.",
    "The forecast moves, on average, by {shift:each unit}.",
    "Spearman distance from the complete model's forecast{spearman_distance:basis}: "
    "{spearman_distance:each}.",
    effect="spearman_distance",
    noun="recipes",
    # several series have no unit in common
    shift=lambda ds: ds["mean_shift"] if ds.sizes["series"] == 1 else None,
)


def overlay(
    forecasts: Mapping[str, xr.Dataset],
    *,
    series: str | int = 0,
    context_steps: int | None = None,
    title: str = "",
) -> go.Figure:
    """Draw forecasts of one series over each other.

    These are their medians, the interval of the first, and the bounds of the others'.

    Returns:
        One panel in data units by step.
    """
    # all are of the same series and steps, which the first stands for
    first, *_ = forecasts.values()
    view = series_window(first, series, context_steps)
    canvas = blank()
    panel = canvas.panel()
    x = view.time.at(view.future)
    medians = []
    intervals: dict[str, str] = {}
    for position, (name, ds) in enumerate(forecasts.items()):
        values = array(ds, "quantile_forecast", "quantile", "step", series=view.index)
        levels = ds["quantile"].values
        order = np.argsort(levels)
        colour = CATEGORICAL[position % len(CATEGORICAL)]
        medians.append(values[median_position(levels)])
        low = values[order[0]]
        high = values[order[-1]]
        intervals[name] = (
            f"from the {levels[order[0]]:.3g} to the {levels[order[-1]]:.3g} quantile"
        )
        label = f"{name} (interval)"
        # one filled interval; a second would mix with it where they overlap
        if not position:
            panel.band(x, low, high, mixed(colour, 0.22), label, legend=True)
            continue
        for end in (low, high):
            view.forecast(panel, end, label, colour, 0.9, "dash")
    # after all intervals, so that none hides a median
    for position, (name, median) in enumerate(zip(forecasts, medians, strict=True)):
        view.forecast(panel, median, name, CATEGORICAL[position % len(CATEGORICAL)])
    view.draw(panel)
    view.title_axes(panel)
    size = measured(view.unit)(float(np.abs(medians[-1] - medians[0]).mean()))
    heading = (
        title or f"{listed(list(forecasts))}: forecasts of {view.id} differ by {size}"
    )
    about = "medians, mean over steps"
    if title:
        about = f"{view.id} by {name_model(first)}"
    return canvas.finalize(
        heading,
        about,
        f"{len(view.future)} steps ahead from {view.remark}",
        f"intervals: {_bounds_text(intervals)}",
    )


def _bounds_text(intervals: Mapping[str, str]) -> str:
    """Write which interval forecasts have, or each of them where they differ."""
    distinct = list(dict.fromkeys(intervals.values()))
    if len(distinct) == 1:
        return distinct[0]
    return "; ".join(f"{name} {bounds}" for name, bounds in intervals.items())


@figure(
    "ablation_recipes",
    "Forecasts without sharp or diffuse heads.",
    table=_recipe_table,
    sentences=read_recipes,
)
def recipe_forecasts(
    ds: xr.Dataset,
    *,
    recipes: Sequence[str] | None = None,
    series: str | int = 0,
    context_steps: int | None = None,
) -> go.Figure:
    """Draw the forecast with many heads and MLPs ablated, a panel per recipe.

    Args:
        ds: result of kind "ablation_recipes".
        recipes: names to draw, all if None.
        series: id of the series, or its place counted from 0.
        context_steps: steps of the context that are drawn, a few horizons if None.

    Returns:
        A panel for each recipe, in data units by step: the median with its quantile
        bands, the end of the context, and the truth where known. A panel's title has
        the recipe's distance and, with a truth, its MASE.

    Example:
        >>> ds = probes.ablation_recipes(run, {"no MLPs": ["decoder.*.mlp"]})
        >>> fig = viz.recipe_forecasts(ds)
        >>> [panel.text.partition("<br>")[0] for panel in fig.layout.annotations]
        ['original', 'no MLPs']
    """
    indices = positions(ds, "recipe", recipes)
    view = series_window(ds, series, context_steps)
    grid = panel_grid([_title(ds, at, view.index) for at in indices], row_height=150)
    values = array(
        ds, "quantile_forecast", "recipe", "quantile", "step", series=view.index
    )
    medians = values[:, median_position(ds["quantile"].values)]
    for panel, recipe in zip(grid, indices, strict=True):
        draw_bands(panel, view, ds["quantile"].values, values[recipe])
        # the first recipe is the complete model
        if recipe:
            view.forecast(panel, medians[0], "original forecast", VERMILION, dash="dot")
        view.draw(panel)
    # the series and the whole model set the axis, since an ablated one may explode
    core = np.append(view.observations, medians[0])
    cut_remark = fit(grid, core, values[indices].ravel())
    grid.y(nticks=5)
    title_axes(grid, view.time.short_title, view.title)
    return grid.finalize(
        f"Forecasts of {view.id} by {name_model(ds)}, whole and ablated",
        f"{ds.sizes['step']} steps ahead from {view.remark}",
        "distance: 1 − rank correlation with the original",
        cut_remark,
        view.time.remark,
    )


@panels("ablation_recipes")
def _recipes(ds: xr.Dataset) -> Iterator[FigurePanel]:
    for position in forecast_series(ds, MAX_DRAWN):
        text = read_recipes(ds)
        drawn = recipe_forecasts(ds, series=position)
        label = names(ds, "series")[position]
        yield FigurePanel(
            drawn, _recipe_table(ds.isel(series=[position])), text, series=label
        )


def _title(ds: xr.Dataset, recipe: int, series: int) -> tuple[str, ...]:
    """Write a recipe, what it takes, and the distance and the error of its forecast."""
    heads, mlps = (int(ds[name].values[recipe]) for name in ("n_heads", "n_mlps"))
    share = percent(float(ds["heads_share"].values[recipe]))
    parts = []
    if heads:
        noun = "heads" if heads > 1 else "head"
        parts.append(f"{heads} {noun} ({share})")
    if mlps:
        noun = "MLPs" if mlps > 1 else "MLP"
        parts.append(f"{mlps} {noun}")
    taken = "complete model"
    if parts:
        taken = f"without {' + '.join(parts)}"
    metadata = []
    if "spearman_distance" in ds and recipe:
        distance = float(ds["spearman_distance"].values[recipe, series])
        metadata.append(f"distance {distance:.2f}")
    if "mase" in ds and np.isfinite(ds["mase"].values[recipe, series]):
        metadata.append(f"MASE {float(ds['mase'].values[recipe, series]):.3g}")
    return names(ds, "recipe")[recipe], taken, ", ".join(metadata)
