"""Forecasts under heavy ablation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import figure
from tsfm_lens.viz.grid import width_for
from tsfm_lens.viz.panels import Scene, Timeline, fit, scene
from tsfm_lens.viz.select import (
    array,
    forecast_series,
    median_position,
    model_of,
    names,
    positions,
    unit_of,
)
from tsfm_lens.viz.sheet import Look, Panel, Sheet, blank, sheet
from tsfm_lens.viz.summary import summary
from tsfm_lens.viz.tables import quantile_table
from tsfm_lens.viz.theme import BLUE, CATEGORICAL, VERMILION, mixed, percent
from tsfm_lens.viz.words import listed, measured

__all__ = ["recipe_forecasts"]


_PANEL, _GAP = (
    118,
    30,
)  # pixels: height of a panel, room between two rows for their titles
_ROWS = 4  # series in one figure


def _recipe_table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulate quantiles, a row per recipe, series and step."""
    rows = product(range(ds.sizes["recipe"]), forecast_series(ds))
    return pd.concat(
        [quantile_table(ds, i, recipe=recipe) for recipe, i in rows], ignore_index=True
    )


def overlay(
    forecasts: Mapping[str, xr.Dataset],
    *,
    series: str | int = 0,
    context_steps: int | None = None,
    title: str = "",
) -> go.Figure:
    """Draw forecasts of one series over each other: medians, the interval of the first, the ends of the others'."""
    first, *_ = forecasts.values()
    view, figure = scene(first, series, context_steps), blank()
    panel = figure.panel()
    medians, ends = draw_overlaid(panel, view, forecasts)
    view.title_axes(panel)
    size = measured(view.unit)(float(np.abs(medians[-1] - medians[0]).mean()))
    heading = (
        title or f"{listed(list(forecasts))}: forecasts of {view.id} differ by {size}"
    )
    about = f"{view.id} by {model_of(first)}" if title else "medians, mean over steps"
    return figure.dress(
        heading, about, f"{len(view.future)} steps ahead from {view.remark}", ends
    )


def draw_overlaid(
    panel: Panel, view: Scene, forecasts: Mapping[str, xr.Dataset]
) -> tuple[list[np.ndarray], str]:
    """Draw forecasts of one series as :func:`overlay` does; return medians, (step,) each, and what intervals are."""
    x, medians = view.time.at(view.future), []
    for place, (name, ds) in enumerate(forecasts.items()):
        values = array(ds, "quantile_forecast", "quantile", "step", series=view.place)
        order, colour = (
            np.argsort(ds["quantile"].values),
            CATEGORICAL[place % len(CATEGORICAL)],
        )
        medians.append(values[median_position(ds["quantile"].values)])
        low, high = values[order[0]], values[order[-1]]
        if not place:
            panel.band(
                x, low, high, mixed(colour, 0.22), f"{name} (interval)", legend=True
            )
        for end in (low, high)[: 2 * bool(place)]:
            view.forecast(panel, end, f"{name} (interval)", colour, 0.9, "dash")
    for place, (name, median) in enumerate(zip(forecasts, medians, strict=True)):
        view.forecast(panel, median, name, CATEGORICAL[place % len(CATEGORICAL)])
    view.draw(panel)
    levels = ds["quantile"].values[order]
    return (
        medians,
        f"intervals: from the {levels[0]:.3g} to the {levels[-1]:.3g} quantile",
    )


def _move(ds: xr.Dataset, recipe: int, series: int) -> str:
    """Write how far a recipe moves the median forecast of a series."""
    return f"moves by {measured(unit_of(ds, series))(float(array(ds, 'mean_shift', recipe=recipe, series=series)))}"


@figure(
    "ablation_recipes",
    "Forecasts without sharp or diffuse heads.",
    table=_recipe_table,
    sentences=summary(
        "Heads that the recipes ablate: {heads_share:each percent}; MLPs: "
        "{n_mlps:each whole}.",
        "The forecast moves, on average, by {shift:each unit}.",
        "Spearman distance from the complete model's forecast{spearman_distance:basis}: "
        "{spearman_distance:each}.",
        effect="spearman_distance",
        noun="recipes",
        shift=lambda ds: ds["mean_shift"] if ds.sizes["series"] == 1 else None,
    ),
)
def recipe_forecasts(
    ds: xr.Dataset,
    *,
    recipes: Sequence[str] | None = None,
    series: Sequence[str | int] | None = None,
    context_steps: int | None = None,
    samples: int = 20,
) -> go.Figure:
    """Draw forecasts with many heads and MLPs ablated: a row per series, a column per recipe.

    Args:
        recipes: names to draw, all if None.
        samples: sampled paths to draw; the widest central interval where there are none.
    """
    columns = positions(ds, "recipe", recipes)
    rows = range(min(ds.sizes["series"], _ROWS)) if series is None else series
    scenes = [
        scene(
            ds,
            each,
            max(ds.sizes["step"], 48) if context_steps is None else context_steps,
        )
        for each in rows
    ]
    # series of different dates share an axis in steps
    scenes = [
        replace(view, time=Timeline(steps=view.time.steps, stamps=None))
        for view in scenes
    ]
    titles = [
        [_title(ds, at, view.place, first=not row) for at in columns]
        for row, view in enumerate(scenes)
    ]
    grid, cut = _table(titles), ""
    panels = list(grid)
    middle = median_position(ds["quantile"].values)
    medians = array(
        ds, "quantile_forecast", "recipe", "series", "step", quantile=middle
    )
    for row, view in enumerate(scenes):
        mine = panels[row * len(columns) : (row + 1) * len(columns)]
        for recipe, panel in zip(columns, mine, strict=True):
            _draw(panel, ds, view, recipe, samples)
        others = medians[columns, view.place].ravel()
        if "sample" in ds:
            paths = array(ds, "sample", "draw", "step", recipe=0, series=view.place)
            others = np.append(others, np.quantile(paths, [0.05, 0.95], axis=0))
        core = np.append(view.observations, medians[0, view.place])
        cut = fit(grid, core, others, nticks=4, row=row + 1) or cut
        mine[0].y(f"{view.id}\n({view.unit or 'data units'})")
    n_paths, ends = (
        min(samples, ds.sizes.get("draw", 0)),
        ds["quantile"].values[[0, -1]].astype(float),
    )
    return grid.dress(
        f"Forecasts of {model_of(ds)} under heavy ablation",
        f"{ds.sizes['step']} steps ahead from {scenes[0].remark}",
        f"light: {n_paths} sampled paths"
        if n_paths
        else "light: from the {:.3g} to the {:.3g} quantile".format(*ends),
        "distance: 1 − rank correlation with the original",
        cut,
        scenes[0].time.remark,
    )


def _title(ds: xr.Dataset, recipe: int, series: int, *, first: bool) -> tuple[str, ...]:
    """Write recipe and what it takes, over the first row; distance and error over every panel."""
    lines = []
    if first:
        heads, mlps = (
            int(ds["n_heads"].values[recipe]),
            int(ds["n_mlps"].values[recipe]),
        )
        share = percent(float(ds["heads_share"].values[recipe]))
        parts = [f"{heads} head{'s' * (heads > 1)} ({share})"] * bool(heads)
        parts += [f"{mlps} MLP{'s' * (mlps > 1)}"] * bool(mlps)
        lines = [
            names(ds, "recipe")[recipe],
            "without " + " + ".join(parts) if parts else "complete model",
        ]
    facts = []
    if "spearman_distance" in ds and recipe:
        facts.append(
            f"distance {float(ds['spearman_distance'].values[recipe, series]):.2f}"
        )
    if "mase" in ds and np.isfinite(ds["mase"].values[recipe, series]):
        facts.append(f"MASE {float(ds['mase'].values[recipe, series]):.3g}")
    return (*lines, ", ".join(facts))


def _table(titles: list[list[tuple[str, ...]]]) -> Sheet:
    """Make panels in rows of their own value axis and columns of one time axis."""
    rows, columns = len(titles), len(titles[0])
    room: Look = {
        "row_gap": _GAP,
        "column_gap": 0.02,
        "above": 16 + 14 * len(titles[0][0]),
    }
    words, least = (
        ["\n".join(title) for row in titles for title in row],
        width_for(columns, least=150),
    )
    shared: Look = {"shared_xaxes": "all", "shared_yaxes": "rows"}
    grid = sheet(
        [_PANEL] * rows, [1] * columns, titles=words, min_width=least, **room, **shared
    )
    grid.fig.update_annotations(font={"size": 11})
    for (row, _), panel in zip(grid.places, grid, strict=True):
        panel.x("step" if row == rows else "", showticklabels=row == rows, nticks=5)
    return grid


def _draw(panel: Panel, ds: xr.Dataset, view: Scene, recipe: int, samples: int) -> None:
    """Draw one panel: context and truth, paths or interval, the original's median and the recipe's own."""
    colour = VERMILION if recipe else BLUE
    x = view.time.at(view.future)
    quantiles = array(
        ds, "quantile_forecast", "quantile", "step", recipe=recipe, series=view.place
    )
    middle = median_position(ds["quantile"].values)
    if "sample" in ds and samples:
        paths = array(ds, "sample", "draw", "step", recipe=recipe, series=view.place)[
            :samples
        ]
        # all paths in one trace, with a gap after each
        gaps = np.hstack([paths, np.full((len(paths), 1), np.nan)])
        along = np.tile(np.append(x, x[-1:]), len(paths))
        panel.line(
            along,
            gaps.ravel(),
            "sampled paths",
            colour=mixed(colour, 0.3),
            width=0.7,
            legend=False,
        )
    else:
        panel.band(x, quantiles[0], quantiles[-1], mixed(colour, 0.22), "interval")
    view.draw(panel)
    original = array(
        ds, "quantile_forecast", "step", recipe=0, series=view.place, quantile=middle
    )
    lines = [("original", original, BLUE), ("ablated", quantiles[middle], VERMILION)]
    for name, values, ink in lines[: 1 + bool(recipe)]:
        width = 1.8 if name == "ablated" or not recipe else 1.1
        view.forecast(
            panel,
            values,
            f"{name} forecast (median)",
            ink,
            width,
            words=f"{name} forecast",
        )
