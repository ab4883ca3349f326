"""What whole layers, their heads and their MLPs are worth, as a sweep measured it on many datasets."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.errors import unknown_name
from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.panels import fitted_range
from tsfm_lens.viz.sweep_entries import (
    MASE_WORDS,
    PART_COLOURS,
    PARTS,
    STANDS,
    band,
    bars_between,
    baseline_of,
    change_text,
    effects_of,
    finished,
    intervals_of,
    legend_only,
    level_line,
    models_in,
    some,
    span_text,
    symbols,
    told,
    whole_ticks,
)
from tsfm_lens.viz.theme import CATEGORICAL, GREY, dress, mixed, plain

__all__ = ["component_errors", "layer_distances", "range_curves"]

_CHANGE = ("mase_change", "mase_change_lower", "mase_change_upper")
_DISTANCE = ("spearman_distance", "spearman_distance_lower", "spearman_distance_upper")
_SHAPES = ("circle", "square", "diamond", "triangle-up", "cross", "x")
_BAR, _LETTER = 0.19, 6.2  # width of a bar where models are 1 apart; pixels: a letter of a bar's label
_BARS = {"none": "unablated", "mlp": "without MLP", "heads": "without all heads", "both": "without heads and MLP"}


def layer_distances(ds: xr.Dataset, *, part: str = "both") -> go.Figure:
    """How far the forecast moves without single layers and without groups of consecutive layers.

    Args:
        ds: of kind "sweep_effects".
        part: what of a layer goes: "both" (its heads and its MLP), "heads" or "mlp".

    Returns:
        A panel a model: Spearman distance to the unablated forecast over depth, a horizontal bar where a mark stands
        for several layers, a vertical one for the 95 % interval; filled where the change of MASE stands.

    Raises:
        InputError: ``ds`` is of another kind, or has no such entries.
        UnknownNameError: no such part.
    """
    table = effects_of(ds, *_DISTANCE, "mase_change", "stands")
    if part not in PARTS:
        raise unknown_name("part", part, PARTS)
    table = table[table["family"].isin(("layers", "groups")) & (table["part"] == part)]
    table, remark = finished(some(table, f"layers or groups of layers ({PARTS[part]})"), "spearman_distance")
    models = models_in(some(table, f"layers or groups of layers ({PARTS[part]})"))
    grid = panel_grid([(model,) for model in models], row_height=210, most=3)
    sizes = sorted(int(size) for size in table["size"].unique())
    for panel, (model, (row, col)) in enumerate(zip(models, grid.places, strict=True)):
        for i, size in enumerate(sizes):
            rows = table[(table["model"] == model) & (table["size"] == size)].sort_values("first")
            trace = _distance_trace(rows, size, CATEGORICAL[i % len(CATEGORICAL)], _SHAPES[i % len(_SHAPES)])
            trace.showlegend = False
            grid.fig.add_trace(trace, row=row, col=col)
            if not panel:
                words = "single layer" if size == 1 else f"{size} layers in a row"
                marker = {"symbol": _SHAPES[i % len(_SHAPES)], "color": CATEGORICAL[i % len(CATEGORICAL)], "size": 8}
                legend_only(grid.fig, words, mode="markers", marker=marker)
    grid.fig.update_yaxes(rangemode="tozero")
    title_axes(grid, "layer", "Spearman distance")
    whole_ticks(grid.fig, float(table["last"].max()))
    return dress(
        grid.fig,
        f"How far the forecast moves without the {PARTS[part]} of layers",
        "Spearman distance to the unablated forecast (0: same shape, 1: unrelated) with "
        f"{intervals_of(ds)}; {STANDS}{remark}",
        legend_rows=1,
        **grid.room,
    )


def _distance_trace(rows: pd.DataFrame, size: int, colour: str, shape: str) -> go.Scatter:
    y, lower, upper = (rows[name].to_numpy(float) for name in _DISTANCE)
    reach = np.full(len(rows), (size - 1) / 2)
    look = {"color": colour}
    return go.Scatter(
        x=(rows["first"].to_numpy(float) + rows["last"].to_numpy(float)) / 2,
        y=y,
        error_y=bars_between(y, lower, upper, **look),
        error_x={"type": "data", "array": reach, "thickness": 1.2, "width": 0, **look} if size > 1 else None,
        mode="lines+markers" if size == 1 else "markers",
        line={"color": mixed(colour, 0.35), "width": 1},
        marker={"symbol": symbols(rows["stands"], shape), "color": colour, "size": 8},
        name=f"{size} layers" if size > 1 else "single layer",
        customdata=[_told(row) for row in told(rows)],
        hovertemplate="%{customdata}<br>Spearman distance %{y:.4g}<extra></extra>",
    )


def _told(row: dict[str, Any]) -> str:
    """What a hover box says of an entry."""
    change = f"MASE {change_text(row['mase_change'])}" if np.isfinite(row["mase_change"]) else "MASE unknown"
    return f"{plain(row['label'])}<br>{change}"


def component_errors(ds: xr.Dataset) -> go.Figure:
    """The error without the most ablatable layer of every model: without its MLP, its heads, and all of it.

    Args:
        ds: of kind "sweep_effects" with entries of family "layers" for whole layers.

    Returns:
        A group of bars a model, with the 95 % interval of the change at their ends; to their right the MASE and its
        change, bold where the change stands after Holm's correction.

    Raises:
        InputError: ``ds`` is of another kind, or no single whole layer has been ablated.
    """
    table = effects_of(ds, "mase", *_CHANGE, "stands", "baseline_mase")
    layers = some(table[(table["family"] == "layers") & (table["size"] == 1)], "single layers")
    layers, _ = finished(layers, "mase", "mase_change")
    best = most_ablatable(layers)
    models = list(best)
    labels = [f"{plain(model)}<br>layer {best[model]}" for model in models]
    fig, longest = go.Figure(), 0
    for i, part in enumerate(_BARS):
        bars = [_bar(ds, layers, model, best[model], part) for model in models]
        colour = mixed(GREY, 0.45) if part == "none" else PART_COLOURS[part]
        places = np.arange(len(models)) + _BAR * (i - (len(_BARS) - 1) / 2)
        fig.add_trace(
            go.Bar(
                y=places,
                x=[bar["mase"] for bar in bars],
                width=0.94 * _BAR,
                orientation="h",
                name=_BARS[part],
                marker={"color": colour},
                error_x=bars_between(*(np.array([b[k] for b in bars]) for k in ("mase", "lower", "upper"))),
                customdata=[
                    f"{label}<br>{_BARS[part]}: {bar['text']}" for label, bar in zip(labels, bars, strict=True)
                ],
                hovertemplate="%{customdata}<extra></extra>",
            )
        )
        # beside the axes, where no bar and no interval reaches
        for y, bar in zip(places, bars, strict=True):
            look = {"showarrow": False, "xanchor": "left", "align": "left", "font": {"size": 11}}
            fig.add_annotation(x=1, xref="paper", xshift=6, y=y, yref="y", text=bar["text"], **look)
        longest = max(longest, *(len(re.sub("<.*?>", "", str(bar["text"]))) for bar in bars))
    fig.update_yaxes(
        tickvals=list(range(len(models))),
        ticktext=labels,
        range=[len(models) - 0.5, -0.5],
        ticks="",
        showline=False,
        ticklabelstandoff=6,
    )
    fig.update_xaxes(title_text=MASE_WORDS, rangemode="tozero")
    fig.update_layout(barmode="overlay")
    made = dress(
        fig,
        "Error without the parts of the most ablatable layer of every model",
        f"the layer whose heads and MLP together cost least; {intervals_of(ds)} of the change; bold: the change "
        "stands after Holm's correction",
        plot_height=30 + 96 * len(models),
        legend_rows=1,
        min_width=round(400 + _LETTER * longest),
    )
    return made.update_layout(margin_r=round(14 + _LETTER * longest))


def most_ablatable(layers: pd.DataFrame) -> dict[str, int]:
    """Of each model the single layer whose removal raises the MASE least.

    Raises:
        InputError: no whole layer is among them.
    """
    whole = some(layers[layers["part"] == "both"], "whole layers")
    return {model: _cheapest(whole[whole["model"] == model]) for model in models_in(whole)}


def _cheapest(rows: pd.DataFrame) -> int:
    return int(rows["first"].to_numpy()[int(rows["mase_change"].to_numpy(float).argmin())])


def _bar(ds: xr.Dataset, layers: pd.DataFrame, model: str, layer: int, part: str) -> dict[str, float | str]:
    """Length, ends of the interval and text of one bar."""
    base = baseline_of(ds, model)
    if part == "none":
        return {"mase": base, "lower": float("nan"), "upper": float("nan"), "text": _four(base)}
    rows = layers[(layers["model"] == model) & (layers["first"] == layer) & (layers["part"] == part)]
    if rows.empty:
        nothing = float("nan")
        return {"mase": nothing, "lower": nothing, "upper": nothing, "text": ""}
    row = rows.iloc[0]
    change = f"{change_text(row['mase_change'])} {span_text(row['mase_change_lower'], row['mase_change_upper'])}"
    text = f"{_four(row['mase'])}   {change}"
    return {
        "mase": row["mase"],
        "lower": base * (1 + row["mase_change_lower"]),
        "upper": base * (1 + row["mase_change_upper"]),
        "text": f"<b>{text}</b>" if row["stands"] else text,
    }


def _four(value: float) -> str:
    """Four digits, with their zeros, so that labels below each other align; "" where there is no number."""
    return f"{value:#.4g}".rstrip(".") if np.isfinite(value) else ""


def range_curves(ds: xr.Dataset) -> go.Figure:
    """The error as a contiguous range of layers loses its heads, its MLPs, or both, the longer the further right.

    Args:
        ds: of kind "sweep_effects" with entries of family "ranges".

    Returns:
        A panel a model, a line a part with its 95 % interval, the unablated MASE dashed; filled where the change of
        MASE stands after Holm's correction. Panels share the axis of errors, which holds every line; bands are followed
        for a quarter of its length more.

    Raises:
        InputError: ``ds`` is of another kind, or has no such entries.
    """
    table = effects_of(ds, "mase", *_CHANGE, "stands", "baseline_mase")
    table, remark = finished(some(table[table["family"] == "ranges"], "growing ranges"), "mase", "mase_change")
    models = models_in(some(table, "growing ranges"))
    grid = panel_grid([_range_title(table[table["model"] == model], model) for model in models], row_height=210, most=3)
    drawn: set[str] = set()
    lines, ends = [*table["mase"].astype(float)], [float("nan")]
    for model, (row, col) in zip(models, grid.places, strict=True):
        base = baseline_of(ds, model)
        for part in [part for part in PARTS if part in set(table["part"])]:
            mine = table[(table["model"] == model) & (table["part"] == part)]
            for _, chain in mine.groupby(_chain(mine), sort=False):
                _range_line(grid.fig, chain.sort_values("size"), base, part, part not in drawn, row=row, col=col)
                drawn.add(part)
        level_line(grid.fig, base, dash="dash", row=row, col=col)
        mine = table[table["model"] == model]
        lines.append(base)
        ends += [*(base * (1 + mine[list(_CHANGE[1:])].to_numpy(float))).ravel()]
    bounds, cut = fitted_range(np.array(lines), np.array(ends), reach=0.25)
    words = "; what leaves the axis is cut off" if cut else ""
    grid.fig.update_yaxes(range=bounds)
    title_axes(grid, "layers in the range", "MASE")
    whole_ticks(grid.fig, float(table["size"].max()))
    return dress(
        grid.fig,
        "Error as a growing range of layers is ablated",
        f"{MASE_WORDS}; dashed: unablated; bands: {intervals_of(ds)} of the change{words}; {STANDS}{remark}",
        legend_rows=1,
        **grid.room,
    )


def _chain(rows: pd.DataFrame) -> pd.Series:
    """Which growing range an entry belongs to: all to one, or those from one first layer."""
    return rows["first"] if rows["size"].duplicated().any() else rows["size"] * 0


def _range_title(rows: pd.DataFrame, model: str) -> tuple[str, ...]:
    longest = rows.sort_values("size").iloc[-1]
    return model, f"at the most layers {int(longest['first'])} to {int(longest['last'])}"


def _range_line(fig: go.Figure, rows: pd.DataFrame, base: float, part: str, legend: bool, **at: int) -> None:
    colour, x = PART_COLOURS[part], rows["size"].to_numpy(float)
    lower, upper = (base * (1 + rows[name].to_numpy(float)) for name in _CHANGE[1:])
    band(fig, x, lower, upper, colour, **at)
    fig.add_trace(
        go.Scatter(
            x=x,
            y=rows["mase"].to_numpy(float),
            mode="lines+markers",
            name=f"without their {PARTS[part]}",
            legendgroup=part,
            showlegend=legend,
            line={"color": colour, "width": 1.6},
            marker={"symbol": symbols(rows["stands"]), "color": colour, "size": 7},
            customdata=[_told(row) for row in told(rows)],
            hovertemplate="%{customdata}<br>MASE %{y:.4g}<extra></extra>",
        ),
        **at,
    )
