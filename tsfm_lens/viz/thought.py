"""Lines of thought over the logit maps that they were found in, and how many each layer has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from tsfm_lens.viz.lens_map import logit_map
from tsfm_lens.viz.panels import Scene, scene, value_hover
from tsfm_lens.viz.select import array, check, layer_name, model_of, names, positions, series_position, shown, unit_of
from tsfm_lens.viz.theme import BLUE, GREY, PURPLE, SKY, VERMILION, dress, mixed, number, percent

__all__ = ["thought_counts", "thought_lines"]

_LOOKS = {
    True: ("spurious line", VERMILION, "x"),
    False: ("other line", SKY, "circle"),
}


def thought_lines(
    ds: xr.Dataset,
    *,
    series: str | int = 0,
    layers: Sequence[str | int] | None = None,
    context_steps: int | None = None,
    value_range: tuple[float, float] | None = None,
    rows: int = 72,
) -> go.Figure:
    """The logit map of every layer with its lines of thought, spurious ones apart.

    Args:
        ds: of kind "lines_of_thought".
        series: id, or place counted from 0.
        layers, context_steps, rows: see :func:`tsfm_lens.viz.lens_map.logit_map`.
        value_range: lowest and highest value drawn. Unless given: the drawn context, the truth and every line.

    Returns:
        The panels of ``logit_map``, and a marked path for every line of the layer.

    Raises:
        InputError: ``ds`` is of another kind.
        UnknownNameError: no such series or layer.
    """
    check(ds, "lines_of_thought", "probability", "value", "path", "spurious")
    at, chosen = series_position(ds, series), positions(ds, "layer", layers)
    view = scene(ds, at, max(ds.sizes["step"], 12) if context_steps is None else context_steps)
    own = ds["line_series"].values == ds["series"].values[at]
    labels = [names(ds, "layer")[i] for i in chosen]
    drawn = own & np.isin(ds["line_layer"].values.astype(str), labels)
    paths = array(ds, "path", "line", "step")
    maps = ds.assign_attrs(kind="logit_lens")
    bounds = value_range or _bounds(view, paths[drawn])
    fig = logit_map(maps, series=series, layers=layers, context_steps=context_steps, value_range=bounds, rows=rows)
    panels = {trace.name: (trace.xaxis, trace.yaxis) for trace in fig.data if trace.type == "heatmap"}
    shown_before: set[bool] = set()
    for line in np.flatnonzero(drawn):
        spurious = bool(ds["spurious"].values[line])
        x, y = panels[layer_name(str(ds["line_layer"].values[line]))]
        trace = _line(ds, view, int(line), paths[line], unit_of(ds, at))
        trace.update(xaxis=x, yaxis=y, showlegend=spurious not in shown_before)
        shown_before.add(spurious)
        fig.add_trace(trace)
    count = int((ds["spurious"].values & drawn).sum())
    title = f"Lines of thought of {model_of(ds)} on {names(ds, 'series')[at]}: {count} of {int(drawn.sum())} spurious"
    room = {"plot_height": fig.layout.height - fig.layout.margin.t - fig.layout.margin.b}
    above = fig.layout.margin.t - fig.layout.meta["title_height"]
    right = fig.layout.margin.r
    fig = dress(
        fig,
        title,
        "logit lens after each layer, probability in colours; spurious: not continuous with the context, and gone in "
        f"the last layer{view.time.remark}",
        above=above,
        legend_rows=1,
        min_width=fig.layout.meta["min_width"],
        **room,
    )
    # labels of neighbouring panels would run into each other
    fig.update_xaxes(nticks=2 if len(panels) > 2 else 4)
    return fig.update_layout(margin_r=right, coloraxis_colorbar_title_text="probability")


def thought_counts(ds: xr.Dataset) -> go.Figure:
    """How many lines of thought each layer has, and how much probability its spurious ones hold.

    Args:
        ds: of kind "lines_of_thought".

    Returns:
        Left: stacked bars, the mean number of spurious and of other lines. Right: the probability on spurious lines,
        a thin line a series, and their mean.

    Raises:
        InputError: ``ds`` is of another kind.
    """
    check(ds, "lines_of_thought", "count", "spurious_count", "spurious_mass")
    labels = [layer_name(name) for name in names(ds, "layer")]
    spurious = array(ds, "spurious_count", "layer", "series")
    other = array(ds, "count", "layer", "series") - spurious
    mass = array(ds, "spurious_mass", "layer", "series")
    fig = make_subplots(
        rows=1, cols=2, horizontal_spacing=0.13, subplot_titles=["lines of thought", "probability on spurious lines"]
    )
    fig.update_annotations(font={"size": 12}, yshift=1)
    for word, counts, colour in (("spurious", spurious, VERMILION), ("other", other, mixed(BLUE, 0.45))):
        fig.add_trace(
            go.Bar(
                x=labels,
                y=counts.mean(axis=1),
                name=f"{word} lines",
                marker={"color": colour},
                hovertemplate=f"%{{x}}<br>%{{y:.3g}} {word} lines a series<extra></extra>",
            ),
            row=1,
            col=1,
        )
    ids = names(ds, "series")
    for index, name in enumerate(ids if len(ids) > 1 else []):
        fig.add_trace(
            go.Scatter(
                x=labels,
                y=mass[:, index],
                mode="lines",
                name="a series",
                legendgroup="series",
                showlegend=index == 0,
                line={"color": mixed(GREY, 0.5), "width": 1},
                text=[name] * len(labels),
                hovertemplate="%{text}, %{x}<br>%{y:.2%} on spurious lines<extra></extra>",
            ),
            row=1,
            col=2,
        )
    fig.add_trace(
        go.Scatter(
            x=labels,
            y=mass.mean(axis=1),
            mode="lines+markers",
            name="mean over series" if len(ids) > 1 else ids[0],
            line={"color": PURPLE if len(ids) > 1 else BLUE, "width": 2},
            hovertemplate="%{x}<br>%{y:.2%} on spurious lines<extra></extra>",
        ),
        row=1,
        col=2,
    )
    fig.update_xaxes(title_text="residual stream after", type="category")
    fig.update_yaxes(title_text="lines a series" if len(ids) > 1 else "lines", row=1, col=1)
    fig.update_yaxes(title_text="probability", tickformat=".2~%", rangemode="tozero", row=1, col=2)
    fig.update_layout(barmode="stack")
    return dress(
        fig,
        f"Lines of thought of {model_of(ds)}, layer by layer",
        f"{shown(ids)}, {ds.sizes['step']} steps; spurious: not continuous with the context, gone in the last layer",
        plot_height=260,
        above=30,
        legend_rows=1,
        min_width=640,
    )


def _bounds(view: Scene, paths: np.ndarray) -> tuple[float, float]:
    """Context, truth and lines, with a little room."""
    values = np.concatenate([view.context, view.truth, paths.ravel()])
    known = values[np.isfinite(values)]
    low, high = float(known.min()), float(known.max())
    pad = 0.05 * ((high - low) or max(abs(high), 1.0))
    return low - pad, high + pad


def _line(ds: xr.Dataset, view: Scene, line: int, path: np.ndarray, unit: str) -> go.Scatter:
    word, colour, symbol = _LOOKS[bool(ds["spurious"].values[line])]
    fate = (
        f"born in {layer_name(str(ds['birth'].values[line]))}, last seen in {layer_name(str(ds['death'].values[line]))}"
    )
    mass = percent(float(ds["mass"].values[line])) if np.isfinite(ds["mass"].values[line]) else number(np.nan)
    return go.Scatter(
        x=view.time.at(view.future),
        y=path,
        mode="lines+markers",
        connectgaps=True,
        name=word,
        legendgroup=word,
        line={"color": colour, "width": 1.6},
        marker={"symbol": symbol, "size": 5, "color": colour},
        hovertemplate=value_hover(f"{word}, {fate}, {mass} of the probability", view.time, unit),
    )
