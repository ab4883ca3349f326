"""How many heads of a layer can go: the error against the share ablated, and heads@1pp layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.errors import InputError, unknown_name
from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.panels import fitted_range
from tsfm_lens.viz.sweep_entries import (
    MASE_WORDS,
    band,
    baseline_of,
    change_text,
    chosen_model,
    counted,
    entries,
    finished,
    intervals_of,
    legend_only,
    level_line,
    models_in,
    order_words,
    some,
    told,
    tolerance_of,
    whole_ticks,
)
from tsfm_lens.viz.theme import CATEGORICAL, GREY, INK, SEQUENTIAL, dress, mixed, percent, plain

__all__ = ["head_curves", "heads_at_layers"]

_CURVE = ("mase", "mase_change", "mase_change_lower", "mase_change_upper")
_COUNTS = ("model", "layer", "order", "ablated", "of", "share")
_REACH = 8  # tolerances above the baseline up to which a curve is followed


def is_random(order: str) -> bool:
    """Whether heads were taken in no order."""
    return str(order).partition(":")[0] == "random"


def better_order(rows: pd.DataFrame, tolerance: float) -> tuple[str, int]:
    """The order that takes most heads of one layer within the tolerance, and how many.

    Of equal orders the one with the smaller change at that number, then the first; orders at random do not count where
    there are others. ("", 0) where no head can go: there no order is better.
    """
    within = candidates(rows)
    within = within[(within["mase_change"] < tolerance) & (within["ablated"] > 0)]
    if within.empty:
        return "", 0
    best = within.sort_values(["ablated", "mase_change"], ascending=[False, True], kind="stable").iloc[0]
    return str(best["order"]), int(best["ablated"])


def candidates(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of orders that may be the better one: those at random only where there are no others."""
    named = rows[~rows["order"].map(is_random)]
    return rows if named.empty else named


def with_start(rows: pd.DataFrame, baseline: float) -> pd.DataFrame:
    """A curve from the unablated model on: with a first row for no head ablated, unless it has one."""
    rows = rows.sort_values("ablated")
    if rows.empty or int(rows["ablated"].iloc[0]) == 0 or not np.isfinite(baseline):
        return rows
    start = rows.iloc[:1].assign(ablated=0, share=0.0, mase=baseline, **dict.fromkeys(_CURVE[1:], 0.0))
    return pd.concat([start, rows], ignore_index=True)


def head_curves(
    ds: xr.Dataset, *, model: str | int = 0, layers: Sequence[int] | None = None, by: str = "layer"
) -> go.Figure:
    """The error as more and more heads of a layer go, in each order.

    Args:
        ds: of kind "sweep_curves".
        model: name or place, for panels by layer.
        layers: numbers of the layers to draw, all unless given.
        by: "layer" for a panel a layer of one model with all orders; "model" for a panel a model with a line a layer,
            in the layer's better order.

    Returns:
        MASE against the share of heads ablated; dashed the unablated MASE, dotted what the tolerance allows. Each
        panel's title says which order is better and how many heads it takes within the tolerance. Panels share the
        axis of errors, which follows curves up to eight tolerances above the line.

    Raises:
        InputError: ``ds`` is of another kind, or has no such entries.
        UnknownNameError: no such model, layer or ``by``.
    """
    table = entries(ds, "sweep_curves", *_COUNTS, *_CURVE, "baseline_mase")
    if by not in ("layer", "model"):
        raise unknown_name("by", by, ("layer", "model"))
    table, remark = finished(some(table, "heads by count"), "mase", "mase_change")
    known = sorted(int(layer) for layer in some(table, "heads by count")["layer"].unique())
    for layer in layers or ():
        if layer not in known:
            raise unknown_name("layer", layer, [str(each) for each in known])
    if layers is not None:
        table = some(table[table["layer"].isin(list(layers))], f"layers {list(layers)}")
    return _by_model(ds, table, remark) if by == "model" else _by_layer(ds, table, model, remark)


def _by_layer(ds: xr.Dataset, table: pd.DataFrame, model: str | int, remark: str) -> go.Figure:
    name = chosen_model([str(each) for each in dict.fromkeys(ds["model"].values)], model)
    table = some(table[table["model"] == name], f"heads by count of {name}")
    base, tolerance = baseline_of(ds, name), tolerance_of(ds)
    layers = sorted(int(layer) for layer in table["layer"].unique())
    titles: list[tuple[str, ...]] = [
        (f"layer {layer}", _verdict(table[table["layer"] == layer], tolerance)) for layer in layers
    ]
    grid = panel_grid(titles, row_height=130, most=4)
    colours = _colours(list(dict.fromkeys(table["order"])))
    named: set[str] = set()
    for layer, (row, col) in zip(layers, grid.places, strict=True):
        mine = table[table["layer"] == layer]
        best, _ = better_order(mine, tolerance)
        for order in sorted(dict.fromkeys(mine["order"]), key=lambda each: not is_random(each)):
            curve = with_start(mine[mine["order"] == order], base)
            group = "random" if is_random(order) else order
            trace = _curve(curve, colours[order], order, bold=order == best)
            trace.update(legendgroup=group, showlegend=group not in named)
            named.add(group)
            lower, upper = (base * (1 + curve[column].to_numpy(float)) for column in _CURVE[2:])
            band(grid.fig, trace.x, lower, upper, colours[order], row=row, col=col)
            grid.fig.add_trace(trace, row=row, col=col)
        _levels(grid.fig, base, tolerance, row, col)
    cut = _limit(grid.fig, base, tolerance, table["mase"].to_numpy(float))
    title_axes(grid, "heads ablated (%)", "MASE")
    return dress(
        grid.fig,
        f"Error of {name} as more heads of a layer are ablated",
        f"{MASE_WORDS}; dashed: unablated; dotted: {percent(tolerance)} more; bands: {intervals_of(ds)} of the change; "
        f"the thicker line is the layer's better order{cut}{remark}",
        legend_rows=1 + len(colours) // 6,
        **grid.room,
    )


def _by_model(ds: xr.Dataset, table: pd.DataFrame, remark: str) -> go.Figure:
    models, tolerance = models_in(table), tolerance_of(ds)
    grid = panel_grid([(model,) for model in models], row_height=230, most=2)
    deepest = int(table["layer"].max())
    ratios, none = [], False
    for model, (row, col) in zip(models, grid.places, strict=True):
        mine, base = table[table["model"] == model], baseline_of(ds, model)
        for layer in sorted(int(each) for each in mine["layer"].unique()):
            rows = mine[mine["layer"] == layer]
            # where no head can go, no order is the better one
            order, _ = better_order(rows, tolerance)
            none, best = none or not order, order or str(candidates(rows)["order"].iloc[0])
            curve = with_start(rows[rows["order"] == best], base)
            trace = _curve(curve, _shade(layer, deepest), best, bold=False)
            # models differ in level, so that they are compared by the change
            trace.update(y=100 * curve["mase_change"].to_numpy(float), showlegend=False)
            trace.hovertemplate = f"layer {layer}, {trace.name}<br>%{{customdata}}<extra></extra>"
            grid.fig.add_trace(trace, row=row, col=col)
            ratios.append(trace.y)
        _levels(grid.fig, 0.0, tolerance, row, col, scale=100.0)
    cut = _limit(grid.fig, 0.0, 100 * tolerance, np.concatenate(ratios), unit=1.0)
    cut += "; a layer of which no head can go is drawn in the first order" if none else ""
    legend_only(grid.fig, "", mode="markers", marker={"color": [0], "coloraxis": "coloraxis"}, showlegend=False)
    bar = {"title": {"text": "layer", "side": "right"}, "nticks": 6}
    scale = {"colorscale": _scale(), "cmin": 0, "cmax": max(deepest, 1), "colorbar": bar}
    grid.fig.update_layout(coloraxis=scale)
    title_axes(grid, "heads ablated (%)", "change of MASE (%)")
    fig = dress(
        grid.fig,
        "Error as more heads of a layer are ablated, in each layer's better order",
        f"geometric mean of MASE over datasets; dotted: {percent(tolerance)} more than unablated{cut}{remark}",
        **grid.room,
    )
    return fig.update_layout(margin_r=86)


def _verdict(rows: pd.DataFrame, tolerance: float) -> str:
    order, within = better_order(rows, tolerance)
    words = order_words(order)
    if not order:
        return words
    if rows.loc[~rows["order"].map(is_random), "order"].str.partition(":")[0].nunique() == 1 and not is_random(order):
        # the legend says of what
        words = f"{words.split()[0]} first"
    return f"{within} of {int(rows['of'].max())}, {words}"


def _colours(orders: Sequence[str]) -> dict[str, str]:
    named = [order for order in orders if not is_random(order)]
    return {order: CATEGORICAL[i % len(CATEGORICAL)] for i, order in enumerate(named)} | {
        order: mixed(GREY, 0.75) for order in orders if is_random(order)
    }


def _curve(rows: pd.DataFrame, colour: str, order: str, *, bold: bool) -> go.Scatter:
    random = is_random(order)
    return go.Scatter(
        x=100 * rows["share"].to_numpy(float),
        y=rows["mase"].to_numpy(float),
        mode="lines+markers",
        name="at random" if random else plain(order_words(order)),
        line={"color": colour, "width": 2.4 if bold else 1.1},
        marker={"color": colour, "size": 4 if bold else 3},
        customdata=[
            f"{row['ablated']} of {row['of']} heads<br>MASE {row['mase']:.4g}, {change_text(row['mase_change'], 2)}"
            for row in told(rows)
        ],
        hovertemplate=f"{plain(order_words(order))}<br>%{{customdata}}<extra></extra>",
    )


def _levels(fig: go.Figure, base: float, tolerance: float, row: int, col: int, scale: float = 0.0) -> None:
    level_line(fig, base, dash="dash", row=row, col=col)
    level_line(fig, base * (1 + tolerance) + scale * tolerance, dash="dot", row=row, col=col)


def _limit(fig: go.Figure, base: float, tolerance: float, values: np.ndarray, unit: float | None = None) -> str:
    """An axis around the line of the tolerance that follows curves only so far; what the subtitle says of it."""
    step = tolerance * (base if unit is None else unit)
    bounds, cut = fitted_range(np.array([base - step, base + 2 * step]), values, reach=_REACH / 3)
    fig.update_yaxes(range=bounds, nticks=6)
    return "; what leaves the axis is cut off" if cut else ""


def _scale() -> list[tuple[float, str]]:
    """The sequential scale without its lightest part, which a thin line would not show."""
    kept = SEQUENTIAL[2:]
    return [((place - kept[0][0]) / (1 - kept[0][0]), colour) for place, colour in kept]


def _shade(layer: int, deepest: int) -> str:
    places, colours = zip(*_scale(), strict=True)
    at = layer / max(deepest, 1)
    mixed_channels = [
        round(float(np.interp(at, places, [int(colour[i : i + 2], 16) for colour in colours]))) for i in (1, 3, 5)
    ]
    return "#" + "".join(f"{channel:02X}" for channel in mixed_channels)


def heads_at_layers(ds: xr.Dataset) -> go.Figure:
    """heads@k: how many heads every layer must keep for the error to stay within the tolerance.

    Args:
        ds: of kind "sweep_heads_at".

    Returns:
        A panel a model, a dot a layer with its number, coloured by the share of the layer's heads that stay; a dash
        where all would stay.

    Raises:
        InputError: ``ds`` is of another kind or has no entries.
    """
    table = entries(ds, "sweep_heads_at", "model", "layer", "of", "kept", "ablated", "order", "change")
    table, remark = finished(some(table, "heads that must stay"), "kept", "of")
    models = models_in(some(table, "heads that must stay"))
    tolerance, metric = tolerance_of(ds), str(ds.attrs.get("metric", "MASE"))
    grid = panel_grid([_kept_title(table[table["model"] == model], model) for model in models], row_height=170, most=2)
    for model, (row, col) in zip(models, grid.places, strict=True):
        rows = table[table["model"] == model].sort_values("layer")
        if rows["layer"].duplicated().any():
            raise InputError(f"two results for one layer of {model!r}; a sweep's result has one a layer")
        kept, of = rows["kept"].to_numpy(float), rows["of"].to_numpy(float)
        dash = {"symbol": "line-ew-open", "color": GREY, "size": 13, "line": {"width": 1.5}}
        common = {"x": rows["layer"].to_numpy(float), "showlegend": False, "hoverinfo": "skip"}
        grid.fig.add_trace(go.Scatter(y=of, mode="markers", marker=dash, **common), row=row, col=col)
        marker = {"color": 100 * kept / of, "coloraxis": "coloraxis", "size": 13, "line": {"color": INK, "width": 1}}
        dots = go.Scatter(
            y=kept,
            mode="markers+text",
            text=[f"{value:.0f}" for value in kept],
            textposition=["bottom center" if o - 2 < k < o else "top center" for k, o in zip(kept, of, strict=True)],
            textfont={"size": 10},
            marker=marker,
            customdata=[
                f"layer {row['layer']}: {row['kept']:.0f} of {row['of']:.0f} heads stay<br>{_kept_words(row, metric)}"
                for row in told(rows)
            ],
            **common,
        )
        dots.update(hovertemplate="%{customdata}<extra></extra>", hoverinfo=None)
        grid.fig.add_trace(dots, row=row, col=col)
    most = float(table["of"].max())
    bar = {"title": {"text": "share kept (%)", "side": "right"}, "nticks": 6}
    grid.fig.update_layout(coloraxis={"colorscale": SEQUENTIAL, "cmin": 0, "cmax": 100, "colorbar": bar})
    grid.fig.update_yaxes(range=[-0.06 * most, 1.14 * most], nticks=6)
    title_axes(grid, "layer", "heads kept")
    whole_ticks(grid.fig, float(table["layer"].max()))
    fig = dress(
        grid.fig,
        f"Heads that each layer must keep for {metric} to stay within {percent(tolerance)}",
        f"all its other heads ablated at once, its MLP in place, in the better order; "
        f"dash: all heads of the layer{remark}",
        **grid.room,
    )
    return fig.update_layout(margin_r=96)


def _kept_words(row: dict[str, Any], metric: str) -> str:
    """In which order the others go, and what that costs."""
    if row["kept"] >= row["of"]:
        return order_words("")
    change = f", {plain(metric)} {change_text(row['change'], 2)}" if np.isfinite(row["change"]) else ""
    return f"{plain(order_words(row['order']))}{change}"


def _kept_title(rows: pd.DataFrame, model: str) -> tuple[str, ...]:
    gone, total = int(rows["of"].sum() - rows["kept"].sum()), int(rows["of"].sum())
    return model, f"{gone} of {counted(total, 'head')} can go, layer by layer"
