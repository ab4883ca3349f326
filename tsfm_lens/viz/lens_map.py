"""The logit lens as maps: which values each layer holds likely at every forecast step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.panels import (
    Scene,
    fitted_range,
    mark_start,
    scene,
    value_hover,
)
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
from tsfm_lens.viz.theme import INK, SEQUENTIAL, VERMILION, dress, percent, plain

__all__ = ["logit_map"]

_CELLS = 150_000  # in the whole figure
_LONG = 128  # steps from which on a panel needs half of the width
FLOOR = 1e-3  # probabilities below are drawn as this


def logit_map(
    ds: xr.Dataset,
    *,
    series: str | int = 0,
    layers: Sequence[str | int] | None = None,
    context_steps: int | None = None,
    value_range: tuple[float, float] | None = None,
    rows: int = 48,
) -> go.Figure:
    """Value bin against forecast step, coloured by the logarithm of the lens probability, for each layer.

    Args:
        ds: of kind "logit_lens" with readout "token": ``probability`` (layer, series, step, bin) and
            ``value`` (series, bin), the centres of the bins in data units.
        series: id, or place counted from 0.
        layers: labels to draw, all unless given.
        context_steps: length of the context's tail beside the map; one horizon (at least 12) unless given.
        value_range: lowest and highest value drawn. Unless given: the drawn context, the truth and the
            central 98 % of the last layer's probability.
        rows: the most rows that a map may have. Adjacent bins are added up, in equal numbers, to keep to
            it; that is for display only.

    Returns:
        Per layer a heat map (``z``: log10 of the row's probability, at least -3; ``customdata``: the
        probability) with the context's tail and the truth over it. All panels share axes and colours. A
        panel's title says which share of the probability lies beyond the axis. Of many steps a column is the mean
        of several, ``meta["steps"]``, which the subtitle then says.

    Raises:
        InputError: ``ds`` is of another kind or readout.
        UnknownNameError: no such series or layer.
    """
    check(ds, "logit_lens", "probability", "value")
    at, chosen = series_position(ds, series), positions(ds, "layer", layers)
    view = scene(ds, at, max(ds.sizes["step"], 12) if context_steps is None else context_steps)
    probability = array(ds.isel(layer=chosen), "probability", "layer", "step", "bin", series=at)
    centres = array(ds, "value", "bin", series=at)
    order = np.argsort(centres)
    edges, mass, outside = visible_rows(
        centres[order], probability[..., order], value_range or _range(view, centres, probability[-1]), rows
    )
    labels = [layer_name(names(ds, "layer")[i]) for i in chosen]
    notes = [f"{percent(round(share, 2))} outside" if share >= 0.01 else "" for share in outside]
    long = len(view.future) > _LONG
    group = -(-mass.size // _CELLS)
    mass = _grouped_steps(mass, group)
    grid = panel_grid(list(zip(labels, notes, strict=True)), row_height=150, most=2 if long else 5)
    fig = grid.fig
    unit = unit_of(ds, at)
    for panel, (row, col) in enumerate(grid.places):
        fig.add_trace(_map(view, edges, mass[panel], labels[panel], unit, group), row=row, col=col)
        _draw_lines(fig, view, unit, 0.7 if long else 1.0, legend=panel == 0, row=row, col=col)
    fig.update_yaxes(range=[edges[0], edges[-1]], nticks=5)
    title_axes(grid, view.time.short_title, value_title(ds, at))
    fig.update_layout(coloraxis=_colours())
    width = (edges[-1] - edges[0]) / (len(edges) - 1)
    fig = dress(
        fig,
        f"Logit lens on {names(ds, 'series')[at]}: what each layer of {model_of(ds)} expects",
        f"probability of each row of {width:.3g} {unit or 'data units'}, truth dashed; outside: probability "
        f"beyond the axis{view.time.remark}" + (f"; a column: the mean of {group} steps" if group > 1 else ""),
        legend_rows=1,
        **grid.room,
    )
    fig.update_layout(coloraxis_colorbar_len=min(1.0, 300 / grid.plot_height), margin_r=90)
    return fig


def visible_rows(
    centres: np.ndarray, probability: np.ndarray, bounds: tuple[float, float], rows: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut bins to ``bounds`` and add up adjacent ones, in equal numbers, until at most ``rows`` are left.

    Args:
        centres: ascending bin centres, (bin,).
        probability: (layer, step, bin).

    Returns:
        Row edges (row + 1,), row probabilities (layer, step, row), and per layer the mean share of its
        probability that is not drawn.
    """
    middles = (centres[1:] + centres[:-1]) / 2
    if len(centres) > 1:
        ends = (1.5 * centres[0] - 0.5 * centres[1], 1.5 * centres[-1] - 0.5 * centres[-2])
    else:
        ends = (centres[0] - 0.5, centres[0] + 0.5)
    edges = np.concatenate([ends[:1], middles, ends[1:]])
    first = min(int(np.searchsorted(edges[1:], bounds[0])), len(centres) - 1)
    last = max(int(np.searchsorted(edges[:-1], bounds[1])), first + 1)
    group = -(-(last - first) // rows)
    starts = np.arange(first, last, group)
    stop = min(starts[-1] + group, len(centres))
    mass = np.add.reduceat(probability[..., :stop], starts, axis=-1)
    outside = np.clip(1 - mass.sum(-1).mean(-1) / probability.sum(-1).mean(-1), 0, 1)
    return np.append(edges[starts], edges[stop]), mass, outside


def _range(view: Scene, centres: np.ndarray, last_layer: np.ndarray) -> tuple[float, float]:
    """Context tail, truth and the central 98 % of the last layer's probability at every step."""
    order = np.argsort(centres)
    share = np.cumsum(last_layer[:, order], axis=-1)
    share /= share[:, -1:]
    low = centres[order][np.argmax(share >= 0.01, axis=-1)]
    high = centres[order][np.argmax(share >= 0.99, axis=-1)]
    core = np.concatenate([view.context, view.truth])
    return fitted_range(core, np.concatenate([low, high]), reach=1.0)[0]


def _grouped_steps(mass: np.ndarray, group: int) -> np.ndarray:
    """The mean of every ``group`` steps of (layer, step, row)."""
    starts = np.arange(0, mass.shape[1], group)
    sizes = np.diff(np.append(starts, mass.shape[1]))
    return np.add.reduceat(mass, starts, axis=1) / sizes[:, None]


def _map(view: Scene, edges: np.ndarray, mass: np.ndarray, layer: str, unit: str, group: int) -> go.Heatmap:
    log = np.log10(np.maximum(mass.T, FLOOR)).astype(np.float32)
    columns = view.future if group == 1 else np.append(view.future[::group], view.future[-1] + 1) - 0.5
    return go.Heatmap(
        x=view.time.at(columns),
        meta={"steps": group},
        y=edges,
        z=log,
        customdata=mass.T.astype(np.float32),
        coloraxis="coloraxis",
        name=layer,
        hovertemplate=f"{plain(layer)}, {view.time.hover}<br>probability %{{customdata:.2%}} of a value near "
        f"%{{y:.4g}} {plain(unit)}<extra></extra>",
    )


def _draw_lines(fig: go.Figure, view: Scene, unit: str, weight: float, *, legend: bool, row: int, col: int) -> None:
    lines = [("context", view.past, view.context, {"color": INK, "width": 1.2 * weight})]
    if np.isfinite(view.truth).any():
        # a white edge keeps the dashes visible on the map's dark cells
        fig.add_trace(
            go.Scatter(
                x=view.time.at(view.future),
                y=view.truth,
                mode="lines",
                name="edge",
                showlegend=False,
                hoverinfo="skip",
                line={"color": "rgba(255,255,255,0.7)", "width": 2.6 * weight},
            ),
            row=row,
            col=col,
        )
        lines.append(("truth", view.future, view.truth, {"color": VERMILION, "width": 1.3 * weight, "dash": "4px,2px"}))
    for name, steps, values, style in lines:
        fig.add_trace(
            go.Scatter(
                x=view.time.at(steps),
                y=values,
                mode="lines",
                name=name,
                legendgroup=name,
                showlegend=legend,
                line=style,
                hovertemplate=value_hover(name, view.time, unit),
            ),
            row=row,
            col=col,
        )
    mark_start(fig, view.time, row=row, col=col)


def _colours() -> dict[str, object]:
    ticks = np.arange(round(np.log10(FLOOR)), 1)
    words = [f"{10.0**t:g}" for t in ticks]
    words[0] = f"≤ {words[0]}"
    return {
        "colorscale": SEQUENTIAL,
        "cmin": float(ticks[0]),
        "cmax": 0.0,
        "colorbar": {
            "title": {"text": "probability of the row", "side": "right"},
            "tickvals": ticks.tolist(),
            "ticktext": words,
        },
    }
