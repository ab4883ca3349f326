"""Forecasts without single components."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.noise import finding
from tsfm_lens.viz.panels import fit, scene
from tsfm_lens.viz.places import coordinate
from tsfm_lens.viz.select import array, check, draws, model_of, names, positions
from tsfm_lens.viz.theme import BLUE, VERMILION

__all__ = ["ablation_forecasts"]


def strongest(ds: xr.Dataset, series: int, count: int = 6) -> list[str]:
    """Return the heads and MLPs with the largest Spearman distance on one series, strongest first.

    Where the result says which components stand out of the noise, only these; all if none does.
    """
    return _rank_components(ds, series, count)[0]


def _rank_components(ds: xr.Dataset, series: int, count: int) -> tuple[list[str], str]:
    """Rank components as :func:`strongest` does, and say for a subtitle which are drawn."""
    effect = array(ds, "spearman_distance", "component", series=series)
    kinds = coordinate(ds, "kind")
    fine = [i for i in range(len(kinds)) if kinds[i] not in ("layer", "embed") and np.isfinite(effect[i])]
    fine.sort(key=lambda i: -effect[i])
    noise = finding(ds, "spearman_distance", "component")
    standing = fine if noise is None else [i for i in fine if noise.stands[i]]
    words = "" if noise is None else "those that stand out of the noise" if standing else "none stands out of the noise"
    return [names(ds, "component")[i] for i in (standing or fine)[:count]], words


@draws("ablation", needs=("forecast", "baseline_forecast"))
def ablation_forecasts(
    ds: xr.Dataset,
    *,
    components: Sequence[str] | None = None,
    series: str | int = 0,
    context_steps: int | None = None,
) -> go.Figure:
    """Draw the forecast with and without a component, one panel each.

    Args:
        ds: of kind "ablation" with ``forecast`` (component, series, step), ``baseline_forecast``
            (series, step), ``context`` and, where known, ``truth``.
        components: names to draw; unless given the six heads and MLPs with the largest Spearman distance, of those
            that stand out of the noise if the result knows it and any does.
        series: id, or place counted from 0.
        context_steps: how much of the context is drawn; two horizons (at least 24 steps) unless given.

    Returns:
        Panels with shared axes, each with "unablated", "ablated", context and truth.

    Example:
        >>> fig = viz.ablation_forecasts(results["ablation"])
        >>> fig.layout.meta["title"]
        'Forecasts of co2 by chronos-nano without single components'
    """
    view, words = scene(ds, series, context_steps, least=24), ""
    if components is None:
        check(ds, "ablation", "spearman_distance")
        components, words = _rank_components(ds, view.place, 6)
    if not components:
        raise InputError("components is empty: name at least one, such as decoder.0.mlp.")
    rows = positions(ds, "component", list(components))
    grid = panel_grid(_titles(ds, rows, view.place), row_height=140)
    baseline = array(ds, "baseline_forecast", "step", series=view.place)
    ablated = array(ds, "forecast", "component", "step", series=view.place)[rows]
    for panel, values in zip(grid, ablated, strict=True):
        view.draw(panel)
        view.forecast(panel, baseline, "unablated forecast", BLUE)
        view.forecast(panel, values, "ablated forecast", VERMILION)
    cut = fit(grid, np.append(view.observations, baseline), ablated.ravel(), reach=1.0)
    grid.y(nticks=5)
    title_axes(grid, view.time.short_title, view.title)
    return grid.dress(
        f"Forecasts of {view.id} by {model_of(ds)} without single components",
        f"{view.statistic} forecasts; distance: 1 − rank correlation of the ablated with the unablated one",
        words,
        cut,
        view.time.remark,
    )


def _titles(ds: xr.Dataset, rows: list[int], series: int) -> list[tuple[str, ...]]:
    """Write component names, with their Spearman distance where it is known."""
    titles = [names(ds, "component")[i] for i in rows]
    if "spearman_distance" not in ds:
        return [(title,) for title in titles]
    distance = array(ds, "spearman_distance", "component", series=series)[rows]
    return [(t, f"distance {d:.2g}" if np.isfinite(d) else "") for t, d in zip(titles, distance, strict=True)]
