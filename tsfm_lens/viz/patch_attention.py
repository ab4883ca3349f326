"""Attention matrices between forecast and context tokens, and the patch that a head selects."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.attention import attention_kind, weight_colours
from tsfm_lens.viz.grid import panel_grid
from tsfm_lens.viz.panels import draw_bands, draw_scene, fitted_range, scene
from tsfm_lens.viz.select import array, check, layer_name, model_of, names, position, statistic_of, unit_of, value_title
from tsfm_lens.viz.theme import VERMILION, dress, number, percent, plain

__all__ = ["patch_attention_grid", "selected_patch"]

_KIND = "patch_attention"
_NARROW = 600  # steps that one column has room for


def patch_attention_grid(ds: xr.Dataset, *, layer: str | int = 0, zmax: float | None = None) -> go.Figure:
    """Every head of a layer as a matrix, forecast tokens downwards and context tokens to the right.

    A vertical line is a head that selects a fixed place of the context, an oblique one a head that moves along.

    Args:
        ds: of kind "patch_attention".
        layer: label; a negative integer counts from the last.
        zmax: weight at which the colours end; the 99.9 % quantile over all layers if None.

    Returns:
        Small multiples on shared axes, the stable rank of W_Q W_Kᵀ in their titles.

    Raises:
        InputError: ``ds`` is of another kind.
        UnknownNameError: no such layer.
    """
    check(ds, _KIND, "attention", "stable_rank")
    at = position(ds, "layer", layer)
    everything = array(ds, "attention", "layer", "head", "query", "key")
    limit = zmax or float(np.nanquantile(everything, 0.999)) or 1.0
    ranks = array(ds, "stable_rank", "layer", "head")[at]
    heads = names(ds, "head")
    grid = panel_grid(
        [(f"head {h}", f"stable rank {number(r)}") for h, r in zip(heads, ranks, strict=True)], row_height=130
    )
    words = _key_words(ds)
    for panel, (row, col) in enumerate(grid.places):
        grid.fig.add_trace(
            go.Heatmap(
                z=everything[at, panel].astype(np.float32),
                coloraxis="coloraxis",
                text=[words] * ds.sizes["query"] if everything[at, panel].size <= 20_000 else None,
                hovertemplate=f"head {plain(heads[panel])}, forecast token %{{y}}<br>context token %{{x}} %{{text}}"
                "<br>weight %{z:.3g}<extra></extra>",
            ),
            row=row,
            col=col,
        )
    grid.fig.update_yaxes(autorange="reversed", nticks=5)
    grid.fig.update_xaxes(nticks=5)
    for row, col in grid.places:
        if (row + 1, col) not in grid.places:
            grid.fig.update_xaxes(title_text="context token", row=row, col=col)
    # a causal model has queries in its context too
    ahead = "query_start" not in ds.coords or bool((ds["query_start"] >= 0).all())
    grid.fig.update_yaxes(title_text="forecast token" if ahead else "query token", col=1)
    grid.fig.update_layout(coloraxis=weight_colours(limit))
    special = [str(word) for word in ds["key_special"].values if str(word)]
    width = int((ds["key_stop"] - ds["key_start"]).max())
    kind = attention_kind(ds)
    fig = dress(
        grid.fig,
        f"{kind[:1].upper() + kind[1:]} of {layer_name(names(ds, 'layer')[at])} of {model_of(ds)}",
        f"{names(ds, 'series')[0]}, {ds.sizes['step']} steps ahead; context tokens of {width} step"
        + "s" * (width > 1)
        + (f", then {', '.join(special)}" if special else "")
        + f"; darkest: {number(limit)} and more",
        **grid.room,
    )
    return fig.update_layout(coloraxis_colorbar_len=min(1.0, 300 / grid.plot_height), margin_r=90)


def selected_patch(ds: xr.Dataset, *, layer: str | int = -1, head: int | None = None) -> go.Figure:
    """The forecast over its context, and a dashed line at the patch that a head reads most.

    Args:
        ds: of kind "patch_attention".
        layer: label; a negative integer counts from the last.
        head: number; the one with the largest mean weight on one patch if None.

    Returns:
        Context, truth and forecast with its central intervals; the line stands at the first step of the patch.

    Raises:
        InputError: ``ds`` is of another kind.
        UnknownNameError: no such layer or head.
    """
    check(ds, _KIND, "quantile_forecast", "argmax_start", "argmax_weight")
    at = position(ds, "layer", layer)
    weights = array(ds, "argmax_weight", "layer", "head")[at]
    which = int(np.argmax(weights)) if head is None else position(ds, "head", head)
    view = scene(ds, 0, ds.sizes["time"])
    unit = unit_of(ds, 0)
    values = array(ds, "quantile_forecast", "quantile", "step", series=0)
    fig = go.Figure()
    draw_bands(fig, view, ds["quantile"].values, values, unit=unit, statistic=statistic_of(ds))
    draw_scene(fig, view, unit=unit)
    start = int(ds["argmax_start"].values[at, which])
    bounds, _ = fitted_range(np.concatenate([view.context, view.truth, values.ravel()]), np.empty(0))
    place = f"{layer_name(names(ds, 'layer')[at])}, head {names(ds, 'head')[which]}"
    where = view.time.at(float(start))
    fig.add_trace(
        go.Scatter(
            x=[where, where],
            y=list(bounds),
            mode="lines",
            name=f"most read by {plain(place)}",
            line={"color": VERMILION, "width": 1.6, "dash": "6px,3px"},
            hovertemplate=f"{plain(place)} reads most from {plain(view.time.label(start))} on<extra></extra>",
        )
    )
    fig.update_xaxes(title_text=plain(view.time.title))
    fig.update_yaxes(title_text=plain(value_title(ds, 0)), range=bounds)
    return dress(
        fig,
        f"Forecast of {names(ds, 'series')[0]} by {model_of(ds)}, and the patch that {place} selects",
        f"{ds.sizes['step']} steps ahead from {view.remark}; the patch holds {percent(float(weights[which]))} of the "
        "weight, mean over forecast tokens",
        plot_height=260,
        legend_rows=1,
        min_width=430 if len(view.past) + len(view.future) <= _NARROW else 640,
    )


def _key_words(ds: xr.Dataset) -> list[str]:
    """What every context token covers, for hover boxes."""
    spans = zip(ds["key_start"].values, ds["key_stop"].values, ds["key_special"].values, strict=True)
    return [str(word) or f"steps {start} to {stop - 1}" for start, stop, word in spans]
