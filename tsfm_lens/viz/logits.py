"""Lens logits as maps: value against forecast step, in two colours around zero."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.lens_map import visible_rows
from tsfm_lens.viz.panels import fitted_range, scene, value_hover
from tsfm_lens.viz.select import (
    array,
    check,
    layer_name,
    model_of,
    names,
    positions,
    series_position,
    unit_of,
    value_title,
)
from tsfm_lens.viz.theme import BLACK, DIVERGING, dress, number, plain

__all__ = ["lens_logit_map"]


def lens_logit_map(
    ds: xr.Dataset,
    *,
    series: str | int = 0,
    layers: Sequence[str | int] | None = None,
    value_range: tuple[float, float] | None = None,
    rows: int = 64,
    raw: bool = False,
) -> go.Figure:
    """The logit of every value at every forecast step, a panel a layer, as the tsfm-lens paper draws them.

    Args:
        ds: of kind "lens_logits".
        series: id, or place counted from 0.
        layers: labels to draw, all unless given.
        value_range: lowest and highest value drawn. Unless given: context, truth and the central 98 % of the last
            layer's probability.
        rows: the most rows of a map; the logits of adjacent bins are averaged to keep to it, for display only.
        raw: draw logits as they are; unless set, the mean over the values drawn is taken off at every step, which
            changes no probability and leaves what tells one value from another.

    Returns:
        Panels with shared axes. Colours are symmetric around 0 in each panel, whose title says at which logit they
        end (``customdata`` has the logits, ``z`` their ratio to that). Truth dashed.

    Raises:
        InputError: ``ds`` is of another kind.
        UnknownNameError: no such series or layer.
    """
    check(ds, "lens_logits", "logit", "value")
    at, chosen = series_position(ds, series), positions(ds, "layer", layers)
    view = scene(ds, at, ds.sizes["step"])
    centres = array(ds, "value", "bin", series=at)
    order = np.argsort(centres)
    logits = array(ds, "logit", "layer", "step", "bin", series=at)[..., order]
    centres = centres[order]
    bounds = value_range or _range(centres, logits[-1], np.concatenate([view.context, view.truth]))
    # every bin weighs the same, so that sums over a row divided by its bins are means
    edges, bins, _ = visible_rows(centres, np.ones((1, 1, len(centres))), bounds, rows)
    first = int(np.searchsorted(centres, edges[0]))
    starts = first + np.concatenate([[0], np.cumsum(bins[0, 0])[:-1]]).astype(int)
    stop = first + int(bins.sum())
    drawn = np.add.reduceat(logits[..., :stop], starts, axis=-1) / bins[0, 0]
    if not raw:
        drawn -= drawn.mean(axis=-1, keepdims=True)
    limits = [float(np.nanmax(np.abs(drawn[i]))) or 1.0 for i in chosen]
    titles: list[tuple[str, ...]] = [
        (layer_name(names(ds, "layer")[i]), f"± {number(top)}") for i, top in zip(chosen, limits, strict=True)
    ]
    grid = panel_grid(titles, row_height=150)
    fig, unit, x = grid.fig, unit_of(ds, at), view.time.at(view.future)
    for panel, (i, top, (row, col)) in enumerate(zip(chosen, limits, grid.places, strict=True)):
        fig.add_trace(
            go.Heatmap(
                x=x,
                y=edges,
                z=(drawn[i].T / top).astype(np.float32),
                customdata=drawn[i].T.astype(np.float32),
                coloraxis="coloraxis",
                hovertemplate=f"{plain(titles[panel][0])}, {view.time.hover}<br>logit %{{customdata:.3g}} of a value "
                f"near %{{y:.4g}} {plain(unit)}<extra></extra>",
            ),
            row=row,
            col=col,
        )
        if np.isfinite(view.truth).any():
            fig.add_trace(
                go.Scatter(
                    x=x,
                    y=view.truth,
                    mode="lines",
                    name="truth",
                    legendgroup="truth",
                    showlegend=panel == 0,
                    line={"color": BLACK, "width": 1.4, "dash": "2px,2px"},
                    hovertemplate=value_hover("truth", view.time, unit),
                ),
                row=row,
                col=col,
            )
    fig.update_yaxes(range=[edges[0], edges[-1]], nticks=5)
    title_axes(grid, view.time.short_title, value_title(ds, at))
    bar = {
        "title": {"text": "logit / panel's limit", "side": "right"},
        "tickvals": [-1, 0, 1],
        "ticktext": ["−1", "0", "1"],
    }
    fig.update_layout(coloraxis={"colorscale": DIVERGING, "cmin": -1.0, "cmax": 1.0, "colorbar": bar})
    fig = dress(
        fig,
        f"Lens logits on {names(ds, 'series')[at]}, layer by layer, in {model_of(ds)}",
        "the head applied to the residual stream after each layer"
        + ("" if raw else ", less the mean over the values drawn")
        + f"; colours end at the panel's largest absolute value; truth dashed{view.time.remark}",
        legend_rows=int(bool(np.isfinite(view.truth).any())),
        **grid.room,
    )
    return fig.update_layout(coloraxis_colorbar_len=min(1.0, 300 / grid.plot_height), margin_r=90)


def _range(centres: np.ndarray, last: np.ndarray, core: np.ndarray) -> tuple[float, float]:
    """What is known of the series, and the central 98 % of the last layer's probability at every step."""
    p = np.exp(last - last.max(axis=-1, keepdims=True))
    share = np.cumsum(p, axis=-1) / p.sum(axis=-1, keepdims=True)
    ends = [centres[np.argmax(share >= level, axis=-1)] for level in (0.01, 0.99)]
    return fitted_range(core, np.concatenate(ends), reach=1.0)[0]
