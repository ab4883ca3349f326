"""What the forecast becomes without single components."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.errors import InputError
from tsfm_lens.viz.ablation_map import coordinate
from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.panels import draw_scene, fitted_range, scene, value_hover
from tsfm_lens.viz.select import (
    array,
    check,
    model_of,
    names,
    positions,
    series_position,
    statistic_of,
    unit_of,
    value_title,
)
from tsfm_lens.viz.theme import BLUE, VERMILION, dress

__all__ = ["ablation_forecasts"]


def strongest(ds: xr.Dataset, series: int, count: int = 6) -> list[str]:
    """The heads and MLPs with the largest Spearman distance on one series, strongest first."""
    effect = array(ds, "spearman_distance", "component", series=series)
    kinds = coordinate(ds, "kind")
    fine = [i for i in range(len(kinds)) if kinds[i] not in ("layer", "embed") and np.isfinite(effect[i])]
    fine.sort(key=lambda i: -effect[i])
    return [names(ds, "component")[i] for i in fine[:count]]


def ablation_forecasts(
    ds: xr.Dataset,
    *,
    components: Sequence[str] | None = None,
    series: str | int = 0,
    context_steps: int | None = None,
) -> go.Figure:
    """The forecast with and without a component, one panel each.

    Args:
        ds: of kind "ablation" with ``forecast`` (component, series, step), ``baseline_forecast``
            (series, step), ``context`` and, where known, ``truth``.
        components: names to draw; the six heads and MLPs with the largest Spearman distance unless given.
        series: id, or place counted from 0.
        context_steps: how much of the context is drawn; two horizons (at least 24 steps) unless given.

    Returns:
        Panels with shared axes, each with "unablated", "ablated", context and truth.

    Raises:
        InputError: ``ds`` is of another kind, or no components are asked for.
        UnknownNameError: no such component or series.
    """
    check(ds, "ablation", "forecast", "baseline_forecast")
    at = series_position(ds, series)
    if components is None:
        check(ds, "ablation", "spearman_distance")
    wanted = strongest(ds, at) if components is None else list(components)
    if not wanted:
        raise InputError("components is empty: name at least one, such as decoder.0.mlp.")
    chosen = positions(ds, "component", wanted)
    view = scene(ds, at, max(2 * ds.sizes["step"], 24) if context_steps is None else context_steps)
    unit = unit_of(ds, at)
    grid = panel_grid(_titles(ds, chosen, at), row_height=140)
    fig = grid.fig
    baseline = array(ds, "baseline_forecast", "step", series=at)
    ablated = array(ds, "forecast", "component", "step", series=at)[chosen]
    x = view.time.at(view.future)
    for panel, (row, col) in enumerate(grid.places):
        where = {"row": row, "col": col}
        draw_scene(fig, view, unit=unit, legend=panel == 0, **where)
        for name, values, colour in (
            ("unablated", baseline, BLUE),
            ("ablated", ablated[panel], VERMILION),
        ):
            fig.add_trace(
                go.Scatter(
                    x=x,
                    y=values,
                    mode="lines",
                    name=f"{name} forecast",
                    legendgroup=name,
                    showlegend=panel == 0,
                    line={"color": colour, "width": 1.8},
                    hovertemplate=value_hover(f"{name} forecast ({statistic_of(ds)})", view.time, unit),
                ),
                **where,
            )
    core = np.concatenate([view.context, view.truth, baseline])
    bounds, cut = fitted_range(core, ablated.ravel(), reach=1.0)
    fig.update_yaxes(range=bounds, nticks=5)
    title_axes(grid, view.time.short_title, value_title(ds, at))
    return dress(
        fig,
        f"Forecasts of {names(ds, 'series')[at]} by {model_of(ds)} without single components",
        f"{statistic_of(ds)} forecasts; distance: 1 − rank correlation of the ablated with the unablated one"
        + ("; what leaves the axis is cut off" if cut else "")
        + view.time.remark,
        legend_rows=1,
        **grid.room,
    )


def _titles(ds: xr.Dataset, chosen: list[int], series: int) -> list[tuple[str, ...]]:
    """Component names, with their Spearman distance where it is known."""
    titles = [names(ds, "component")[i] for i in chosen]
    if "spearman_distance" not in ds:
        return [(title,) for title in titles]
    distance = array(ds, "spearman_distance", "component", series=series)[chosen]
    return [(t, f"distance {d:.2g}" if np.isfinite(d) else "") for t, d in zip(titles, distance, strict=True)]
