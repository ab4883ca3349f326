"""Forecasts: of whole models, without many parts, and of compressed models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import ReportPanel, as_dataset, frame, measurement
from tsfm_lens.viz.grid import panel_grid, title_axes, width_for
from tsfm_lens.viz.noise import judged
from tsfm_lens.viz.panels import Scene, Timeline, draw_bands, fit, scene
from tsfm_lens.viz.select import array, forecast_series, median_position, model_of, names, positions, shown, unit_of
from tsfm_lens.viz.sheet import Look, Panel, Sheet, blank, sheet, shortened
from tsfm_lens.viz.tables import quantile_table
from tsfm_lens.viz.theme import BLUE, CATEGORICAL, GREY, INK, VERMILION, mixed, percent
from tsfm_lens.viz.words import capital, listed, measured

__all__ = ["compressed_forecasts", "forecast_fan", "recipe_forecasts", "size_and_error"]

_MAX_SERIES = 24  # series with a figure of their own

FORECAST = measurement("forecast")


def read_forecast(ds: xr.Dataset, series: int) -> list[str]:
    """Describe course and width of the forecast of one series, and how it met the truth where that is known."""
    name, amount = names(ds, "series")[series], measured(unit_of(ds, series))
    levels = np.asarray(ds["quantile"].values, dtype=float)
    values = array(ds, "quantile_forecast", "quantile", "step", series=series)
    median = values[median_position(levels)]
    out = [
        f"The median forecast of {name} starts at {amount(median[0])} and ends at {amount(median[-1])} "
        f"after {len(median)} steps."
    ]
    low, high = int(levels.argmin()), int(levels.argmax())
    share = levels[high] - levels[low]
    if abs(levels[low] + levels[high] - 1) < 1e-6 and share > 0:
        width = values[high] - values[low]
        out.append(
            f"Its {100 * share:.3g} % band is {amount(width[0])} wide at the first step and "
            f"{amount(width[-1])} at the last."
        )
    truth = array(ds, "truth", "step", series=series) if "truth" in ds else np.full(len(median), np.nan)
    finite = np.isfinite(truth)
    if finite.any():
        inside = (truth >= values[low]) & (truth <= values[high])
        context = array(ds, "context", "time", series=series) if "context" in ds else np.array([])
        history, naive = context[np.isfinite(context)], ""
        if len(history):
            error = amount(float(np.abs(history[-1] - truth)[finite].mean()))
            naive = f"; repeating the last observed value would have missed it by {error}"
        out.append(
            f"The truth lies within the band in {int(inside[finite].sum())} of {int(finite.sum())} steps "
            f"(a calibrated band would hold about {100 * share:.3g} % of many such steps), and the median misses "
            f"it by {amount(float(np.abs(median - truth)[finite].mean()))} on average{naive}."
        )
    return out


def forecast_table(ds: xr.Dataset, series: int) -> pd.DataFrame:
    """Tabulate date, quantiles and truth, a row per step."""
    table = quantile_table(ds, series)
    if "truth" in ds:
        table["truth"] = array(ds, "truth", "step", series=series)
    return table


@FORECAST.figure()
def forecast_fan(ds: Any, *, series: str | int = 0, context_steps: int | None = None, samples: int = 0) -> go.Figure:
    """Draw a forecast's quantile bands and median over context and truth.

    Args:
        ds: a run, a forecast, or a dataset of kind "forecast": ``quantile_forecast`` (series, quantile, step),
            ``context`` (series, time), where known ``truth`` (series, step) and ``sample`` (series, draw, step).
    """
    view, sheet = scene(ds, series, context_steps), blank()
    panel = sheet.panel()
    values = array(ds, "quantile_forecast", "quantile", "step", series=view.place)
    paths = np.empty((0, len(view.future)))
    if samples and "sample" in ds:
        paths = array(ds, "sample", "draw", "step", series=view.place)[:samples]
    for i, path in enumerate(paths):
        view.forecast(panel, path, "sampled paths", mixed(BLUE, 0.35), 0.8, words=f"sampled path {i + 1}")
    draw_bands(panel, view, ds["quantile"].values, values, bands=not len(paths), statistic="median")
    view.draw(panel)
    view.title_axes(panel)
    ahead = f"{len(view.future)} steps ahead from {view.remark}"
    spread = "sampled paths" if len(paths) else "bands: central intervals of the forecast distribution"
    return sheet.dress(f"Forecast of {view.id} by {model_of(ds)}", ahead, spread)


@FORECAST.panels
def _forecast(ds: xr.Dataset) -> Iterator[ReportPanel]:
    for i in forecast_series(ds, _MAX_SERIES):
        yield ReportPanel(forecast_fan(ds, series=i), forecast_table(ds, i), read_forecast(ds, i))


def as_html(thing: Any) -> str:
    """Draw the fan of the first series of a run or forecast, under a line that says what it is."""
    data = as_dataset(thing)
    attrs, ids = data.attrs, [str(name) for name in data["series"].values]
    facts = [str(attrs.get("model", "")), shown(ids), f"{data.sizes['step']} steps"]
    if data.sizes.get("draw"):
        facts.append(f"{data.sizes['draw']} sample paths, seed {attrs.get('seed', 0)}")
    if "truth" not in data:
        facts.append("truth unknown")
    seconds = sum(float(value) for name, value in attrs.items() if str(name).startswith("seconds_"))
    if seconds:
        facts.append(f"{seconds:.1f} s")
    figure: str = forecast_fan(data)._repr_html_()
    return f"<p>{escape(' · '.join(fact for fact in facts if fact))}</p>{figure}"


_PANEL, _GAP = 118, 30  # pixels: height of a panel, room between two rows for their titles
_ROWS = 4  # series in one figure

RECIPES = measurement("recipes")


def _recipe_table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulate quantiles, a row per recipe, series and step."""
    rows = product(range(ds.sizes["recipe"]), forecast_series(ds))
    return pd.concat([quantile_table(ds, i, recipe=recipe) for recipe, i in rows], ignore_index=True)


def read_recipes(ds: xr.Dataset) -> list[str]:
    """Describe how much each recipe removes, and whether the forecast then differs by more than chance."""
    out = []
    distance = judged(ds, "spearman_distance", "recipe")
    for place, recipe in enumerate(names(ds, "recipe")):
        if not str(ds["components"].values[place]):
            continue
        parts = [f"{percent(float(ds['heads_share'].values[place]))} of the heads"]
        if int(ds["n_mlps"].values[place]):
            parts.append(f"{int(ds['n_mlps'].values[place])} MLPs")
        how = "is" if distance.stands[place] else "does not stand out of the noise:"
        effect = f"the Spearman distance from the complete model's forecast {how} {distance.told(place)}"
        out.append(f"{capital(recipe)}: {listed(parts)} ablated; {effect}.")
    return out


@RECIPES.figure(table=_recipe_table, sentences=read_recipes)
def recipe_forecasts(
    ds: xr.Dataset,
    *,
    recipes: Sequence[str] | None = None,
    series: Sequence[str | int] | None = None,
    context_steps: int | None = None,
    samples: int = 20,
) -> go.Figure:
    """Draw what is left of a forecast when many heads and MLPs go: a row per series, a column per recipe.

    Args:
        recipes: names to draw, all if None.
        samples: sampled paths to draw; the widest central interval where there are none.
    """
    columns = positions(ds, "recipe", recipes)
    rows = range(min(ds.sizes["series"], _ROWS)) if series is None else series
    scenes = [scene(ds, each, max(ds.sizes["step"], 48) if context_steps is None else context_steps) for each in rows]
    several = len(scenes) > 1
    if several:
        # series of different dates share an axis in steps
        scenes = [replace(view, time=Timeline(steps=view.time.steps, stamps=None)) for view in scenes]
    titles = [[_title(ds, at, view.place, first=not row) for at in columns] for row, view in enumerate(scenes)]
    grid = _table(titles) if several else panel_grid(titles[0], row_height=140)
    cut, panels = "", list(grid)
    middle = median_position(ds["quantile"].values)
    medians = array(ds, "quantile_forecast", "recipe", "series", "step", quantile=middle)
    for row, view in enumerate(scenes):
        mine = panels[row * len(columns) : (row + 1) * len(columns)]
        for recipe, panel in zip(columns, mine, strict=True):
            _draw(panel, ds, view, recipe, samples)
        others = medians[columns, view.place].ravel()
        if "sample" in ds:
            paths = array(ds, "sample", "draw", "step", recipe=0, series=view.place)
            others = np.append(others, np.quantile(paths, [0.05, 0.95], axis=0))
        core, where = np.append(view.observations, medians[0, view.place]), {"row": row + 1} if several else {}
        cut = fit(grid, core, others, nticks=4, **where) or cut
        if several:
            mine[0].y(f"{view.id}\n({view.unit or 'data units'})")
    if not several:
        title_axes(grid, scenes[0].time.short_title, scenes[0].title)
    n_paths, ends = min(samples, ds.sizes.get("draw", 0)), ds["quantile"].values[[0, -1]].astype(float)
    return grid.dress(
        f"Forecasts of {model_of(ds)} without many of its parts",
        f"{ds.sizes['step']} steps ahead from {scenes[0].remark}",
        f"light: {n_paths} sampled paths" if n_paths else "light: from the {:.3g} to the {:.3g} quantile".format(*ends),
        "distance: 1 − rank correlation with the original",
        cut,
        scenes[0].time.remark,
    )


def _title(ds: xr.Dataset, recipe: int, series: int, *, first: bool) -> tuple[str, ...]:
    """Write recipe and what it takes, over the first row; distance and error over every panel."""
    lines = []
    if first:
        heads, mlps = int(ds["n_heads"].values[recipe]), int(ds["n_mlps"].values[recipe])
        share = percent(float(ds["heads_share"].values[recipe]))
        parts = [f"{heads} head{'s' * (heads > 1)} ({share})"] * bool(heads)
        parts += [f"{mlps} MLP{'s' * (mlps > 1)}"] * bool(mlps)
        lines = [names(ds, "recipe")[recipe], "without " + " + ".join(parts) if parts else "complete model"]
    facts = []
    if "spearman_distance" in ds and recipe:
        facts.append(f"distance {float(ds['spearman_distance'].values[recipe, series]):.2f}")
    if "mase" in ds and np.isfinite(ds["mase"].values[recipe, series]):
        facts.append(f"MASE {float(ds['mase'].values[recipe, series]):.3g}")
    return (*lines, ", ".join(facts))


def _table(titles: list[list[tuple[str, ...]]]) -> Sheet:
    """Make panels in rows of their own value axis and columns of one time axis."""
    rows, columns = len(titles), len(titles[0])
    room: Look = {"row_gap": _GAP, "column_gap": 0.02, "above": 16 + 14 * len(titles[0][0])}
    words, least = ["\n".join(title) for row in titles for title in row], width_for(columns, least=150)
    shared: Look = {"shared_xaxes": "all", "shared_yaxes": "rows"}
    grid = sheet([_PANEL] * rows, [1] * columns, titles=words, min_width=least, **room, **shared)
    grid.fig.update_annotations(font={"size": 11})
    for (row, _), panel in zip(grid.places, grid, strict=True):
        panel.x("step" if row == rows else "", showticklabels=row == rows, nticks=5)
    return grid


def _draw(panel: Panel, ds: xr.Dataset, view: Scene, recipe: int, samples: int) -> None:
    """Draw one panel: context and truth, paths or interval, the original's median and the recipe's own."""
    colour = VERMILION if recipe else BLUE
    x = view.time.at(view.future)
    quantiles = array(ds, "quantile_forecast", "quantile", "step", recipe=recipe, series=view.place)
    middle = median_position(ds["quantile"].values)
    if "sample" in ds and samples:
        paths = array(ds, "sample", "draw", "step", recipe=recipe, series=view.place)[:samples]
        # all paths in one trace, with a gap after each
        gaps = np.hstack([paths, np.full((len(paths), 1), np.nan)])
        along = np.tile(np.append(x, x[-1:]), len(paths))
        panel.line(along, gaps.ravel(), "sampled paths", colour=mixed(colour, 0.3), width=0.7, legend=False)
    else:
        panel.band(x, quantiles[0], quantiles[-1], mixed(colour, 0.22), "interval")
    view.draw(panel)
    original = array(ds, "quantile_forecast", "step", recipe=0, series=view.place, quantile=middle)
    lines = [("original", original, BLUE), ("ablated", quantiles[middle], VERMILION)]
    for name, values, ink in lines[: 1 + bool(recipe)]:
        width = 1.8 if name == "ablated" or not recipe else 1.1
        view.forecast(panel, values, f"{name} forecast (median)", ink, width, words=f"{name} forecast")


_TITLE_WIDTH = 360  # pixels of a line over a panel
WORDS = {
    "svd": "plain truncation",
    "weighted": "weighted by what enters",
    "sensitive": "weighted by what enters and by gradients",
    "measured": "weighted, ranks by measured effect",
}
_PANELS = 4

COMPRESSION = measurement("compression")
COMPRESSION_QUALITY = measurement("compression_quality")


def read_curve(ds: xr.Dataset) -> list[str]:
    """State which point to take and why, and whether the methods differ at one size."""
    out = [str(ds.attrs["why"])]
    methods = names(ds, "method")
    if "svd" not in methods or len(methods) == 1:
        return out
    high, low = (array(ds, f"mase_rise_{end}", "method", "keep") for end in ("high", "low"))
    plain, keeps = methods.index("svd"), names(ds, "keep")
    for index, method in enumerate(methods):
        if index != plain:
            apart = [f"{float(keep):g}" for at, keep in enumerate(keeps) if high[index, at] < low[plain, at]]
            at_shares = f" where {', '.join(apart)} is kept" if apart else " at no share tried"
            out.append(f"Clearly below plain truncation is {WORDS.get(method, method)}{at_shares}.")
    if not np.isfinite(high).any():
        out.append("There are too few series for intervals.")
    return out


def read_quality(ds: xr.Dataset) -> list[str]:
    """State by how much the errors rise, and for how many series."""
    rise = array(ds, "mase_rise", "series")
    finite = np.isfinite(rise)
    if not finite.any():
        return ["The errors cannot be told: no truth, or a series without seasonal error."]
    mean, low, high = (100 * float(ds[f"mase_rise_{end}"]) for end in ("estimate", "low", "high"))
    ends = f" ({low:+.2g} to {high:+.2g}, 95 % interval over series)" if np.isfinite([low, high]).all() else ""
    out = [f"MASE changes by {mean:+.2g} %{ends}; it falls for {(rise < 0).sum()} of {finite.sum()} series."]
    if "overlap" in ds:
        out.append(f"Of the ten likeliest tokens the two models share {100 * float(ds['overlap']):.3g} % (Jaccard).")
    return out


@COMPRESSION.figure(
    table=("parameters", "rank_ratio", "factor_ratio", "mase_rise", "mase_rise_low", "mase_rise_high", "wql_rise"),
    sentences=read_curve,
)
def size_and_error(ds: xr.Dataset) -> go.Figure:
    """Draw how much the error rises over what is left of a model, a curve for each method.

    Example:
        >>> fig = viz.size_and_error(compress.pareto(run, run, [0.5], methods=["svd"]))
        >>> fig.layout.meta["title"]
        'Size and error of chronos-nano, compressed'
    """
    canvas = blank(320, min_width=440)
    panel = next(iter(canvas))
    panel.level(0.0, colour=GREY, dash="dot")
    remaining = 100 * array(ds, "parameters", "method", "keep")
    rise, low, high = (100 * array(ds, f"mase_rise{end}", "method", "keep") for end in ("", "_low", "_high"))
    keeps, choice = names(ds, "keep"), str(ds.attrs.get("choice", ""))
    for index, method in enumerate(names(ds, "method")):
        order, colour = np.argsort(remaining[index]), CATEGORICAL[index % len(CATEGORICAL)]
        x, y, words = remaining[index][order], rise[index][order], WORDS.get(method, method)
        ends = [low[index][order], high[index][order]]
        panel.line(
            x,
            y,
            words,
            f"{words}, %{{customdata[0]}} kept<br>%{{x:.3g}} % of the numbers<br>MASE %{{y:+.2f}} % "
            "(%{customdata[1]:+.2f} to %{customdata[2]:+.2f})",
            colour=colour,
            dots=7,
            customdata=[[keeps[at], *pair] for at, pair in zip(order, zip(*ends, strict=True), strict=True)],
            error_y={"type": "data", "color": colour, "thickness": 1, "width": 3}
            | {"array": np.maximum(ends[1] - y, 0), "arrayminus": np.maximum(y - ends[0], 0)},
        )
        for at, keep in enumerate(keeps):
            if choice == f"{method}, {float(keep):g} kept":
                ring = {"color": "rgba(0,0,0,0)", "line": {"color": INK, "width": 2}}
                panel.dots(remaining[index][[at]], rise[index][[at]], "chosen", "", size=15, marker=ring)
    panel.x("numbers that are left (% of the model's)")
    panel.y("rise of MASE (%)")
    count = int(ds.attrs.get("n_series", 0))
    over = f"geometric mean over {count} series, 95 % intervals" if count >= 3 else "too few series for intervals"
    remark = "ring: the choice" if choice else "no point is known to be harmless"
    return canvas.dress(f"Size and error of {model_of(ds)}, compressed", over, remark)


@COMPRESSION_QUALITY.figure()
def compressed_forecasts(
    ds: xr.Dataset, *, series: Sequence[str | int] | None = None, context_steps: int | None = None
) -> go.Figure:
    """Draw forecasts of a model and of a smaller one, a panel for each series.

    Example:
        >>> fig = viz.compressed_forecasts(compress.quality(run, lens))
        >>> fig.layout.meta["title"]
        'Forecasts of chronos-nano before and after compression'
    """
    rows = list(range(min(ds.sizes["series"], _PANELS))) if series is None else list(series)
    views = [scene(ds, each, context_steps, least=24) for each in rows]
    titles = []
    for view in views:
        mase = ds["mase"].values[:, view.place] if "mase" in ds else np.array([np.nan])
        errors = f": MASE {mase[0]:.3g}, compressed {mase[-1]:.3g}" if np.isfinite(mase).all() else ""
        titles.append(shortened(f"{view.id}{errors}", _TITLE_WIDTH, 12, 2))
    room = 15 * max(title.count("\n") + 1 for title in titles)
    canvas = sheet([150] * len(views), [1], titles=titles, row_gap=50 + room, above=20 + room, min_width=440)
    middle = median_position(ds["quantile"].values)
    levels = [float(level) for level in ds["quantile"].values]
    for panel, view in zip(canvas, views, strict=True):
        whole, other = array(ds, "quantile_forecast", "model", "quantile", "step", series=view.place)
        x, light = view.time.at(view.future), mixed(BLUE, 0.22)
        panel.band(x, whole[0], whole[-1], light, "whole model (interval)", legend=True)
        view.draw(panel)
        for end in (0, -1):
            word = f"quantile {levels[end]:.3g} of the compressed model"
            view.forecast(panel, other[end], "compressed model (interval)", VERMILION, 0.9, "dash", word)
        view.forecast(panel, whole[middle], "whole model (median)", BLUE, words="whole model")
        view.forecast(panel, other[middle], "compressed model (median)", VERMILION, words="compressed model")
        panel.x(view.time.title if view is views[-1] else "")
        panel.y(view.title)
    ahead = f"{ds.sizes['step']} steps ahead from {views[0].remark}"
    interval = f"interval: from the {levels[0]:.3g} to the {levels[-1]:.3g} quantile"
    return canvas.dress(f"Forecasts of {model_of(ds)} before and after compression", ahead, interval)


@COMPRESSION_QUALITY.panels
def _forecasts(ds: xr.Dataset) -> Iterator[ReportPanel]:
    for first in range(0, ds.sizes["series"], _PANELS):
        part = ds.isel(series=slice(first, first + _PANELS))
        yield ReportPanel(compressed_forecasts(part), frame(part, "mase", "wql"), read_quality(ds) if not first else [])
