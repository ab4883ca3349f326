"""How many heads of a layer can go: the error against the share ablated, and heads@1pp layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

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
    finished,
    intervals_of,
    legend_only,
    level_line,
    marks,
    models_in,
    order_words,
    table_of,
    told,
    tolerance_of,
    whole_ticks,
)
from tsfm_lens.viz.theme import CATEGORICAL, GREY, INK, SEQUENTIAL, dress, mixed, percent, plain

__all__ = ["head_curves", "heads_at_layers"]

_COUNTS = ("model", "layer", "order", "ablated", "of", "share", "better", "within")
_CURVE = ("mase", "change", "lower", "upper", "baseline_mase")
_REACH = 8  # tolerances above the baseline up to which a curve is followed


def is_random(order: str) -> bool:
    """Whether heads were taken in no order."""
    return str(order).partition(":")[0] == "random"


def drawn_order(rows: pd.DataFrame) -> str:
    """Of one layer's rows the better order; where no head can go, or that is not known yet, the first."""
    better = rows[rows["better"] & (rows["within"] > 0)]
    named = rows[~rows["order"].map(is_random)]
    return str(next(each for each in (better, named, rows) if len(each))["order"].iloc[0])


def with_start(rows: pd.DataFrame) -> pd.DataFrame:
    """A curve from the unablated model on: with a first row for no head ablated, unless it has one."""
    rows = rows.sort_values("ablated")
    base = rows["baseline_mase"].iloc[0]
    if int(rows["ablated"].iloc[0]) == 0 or not np.isfinite(base):
        return rows
    start = rows.iloc[:1].assign(ablated=0, share=0.0, mase=base, change=0.0, lower=0.0, upper=0.0)
    return pd.concat([start, rows], ignore_index=True)


def head_curves(
    table: pd.DataFrame, *, model: str | int = 0, layers: Sequence[int] | None = None, by: str = "layer"
) -> go.Figure:
    """The error as more and more heads of a layer go, in each order.

    Args:
        table: of kind "sweep_curves".
        model: name or place, for panels by layer.
        layers: numbers of the layers to draw, all unless given.
        by: "layer" for a panel a layer of one model with all orders; "model" for a panel a model with a line a layer,
            in the layer's better order.

    Returns:
        MASE against the share of heads ablated; dashed the unablated MASE, dotted what the tolerance allows. Each
        panel's title says which order is better and how many heads it takes within the tolerance, as the sweep's search
        decided it. Panels share the axis of errors, which follows curves up to eight tolerances above the line.

    Raises:
        InputError: ``table`` is of another kind, or has no such entries.
        UnknownNameError: no such model, layer or ``by``.
    """
    if by not in ("layer", "model"):
        raise unknown_name("by", by, ("layer", "model"))
    table_of(table, "sweep_curves", *_COUNTS, *_CURVE)
    rows, remark = finished(table, "heads by count", "mase", "change")
    known = sorted(set(rows["layer"]))
    for layer in layers or ():
        if layer not in known:
            raise unknown_name("layer", layer, [str(each) for each in known])
    if layers is not None:
        rows = rows[rows["layer"].isin(list(layers))]
    judged = [each for each in dict.fromkeys(table.get("judged_by", ())) if each not in ("", "MASE")]
    remark = f"{f', judged by {judged[0]}' if judged else ''}{remark}"
    return _by_model(rows, remark) if by == "model" else _by_layer(rows, chosen_model(table, model), remark)


def _by_layer(table: pd.DataFrame, name: str, remark: str) -> go.Figure:
    table, _ = finished(table[table["model"] == name], f"heads by count of {name}", "mase")
    base, tolerance = baseline_of(table, name), tolerance_of(table)
    panels = list(table.groupby("layer"))
    grid = panel_grid([(f"layer {layer}", _verdict(rows)) for layer, rows in panels], row_height=130, most=4)
    colours = _colours(list(dict.fromkeys(table["order"])))
    named: set[str] = set()
    for (_, mine), (row, col) in zip(panels, grid.places, strict=True):
        bold = set(mine.loc[mine["better"] & (mine["within"] > 0), "order"])
        for order in sorted(dict.fromkeys(mine["order"]), key=lambda each: not is_random(each)):
            curve = with_start(mine[mine["order"] == order])
            group = "random" if is_random(order) else order
            trace = _curve(curve, colours[order], order, bold=order in bold)
            trace.update(legendgroup=group, showlegend=group not in named)
            named.add(group)
            band(grid.fig, trace.x, curve, base, colours[order], row=row, col=col)
            grid.fig.add_trace(trace, row=row, col=col)
        level_line(grid.fig, base, dash="dash", row=row, col=col)
        level_line(grid.fig, base * (1 + tolerance), dash="dot", row=row, col=col)
    cut = _limit(grid.fig, base, base * tolerance, table["mase"].to_numpy(float))
    title_axes(grid, "heads ablated (%)", "MASE")
    return dress(
        grid.fig,
        f"Error of {name} as more heads of a layer are ablated",
        f"{MASE_WORDS}; dashed: unablated; dotted: {percent(tolerance)} more; bands: {intervals_of(table)} of the "
        f"change{cut}; the thicker line is the layer's better order{remark}",
        legend_rows=1 + len(colours) // 6,
        **grid.room,
    )


def _by_model(table: pd.DataFrame, remark: str) -> go.Figure:
    models, tolerance = models_in(table), tolerance_of(table)
    grid = panel_grid([(model,) for model in models], row_height=230, most=2)
    deepest = int(table["layer"].max())
    for model, (row, col) in zip(models, grid.places, strict=True):
        for layer, rows in table[table["model"] == model].groupby("layer"):
            order = drawn_order(rows)
            curve = with_start(rows[rows["order"] == order])
            trace = _curve(curve, _shade(int(str(layer)), deepest), order, bold=False)
            # models differ in level, so that they are compared by the change
            trace.update(y=100 * curve["change"].to_numpy(float), showlegend=False)
            trace.hovertemplate = f"layer {layer}, {trace.name}<br>%{{customdata}}<extra></extra>"
            grid.fig.add_trace(trace, row=row, col=col)
        level_line(grid.fig, 0.0, dash="dash", row=row, col=col)
        level_line(grid.fig, 100 * tolerance, dash="dot", row=row, col=col)
    cut = _limit(grid.fig, 0.0, 100 * tolerance, np.concatenate([np.asarray(each.y) for each in grid.fig.data]))
    cut += "" if (table["within"] > 0).all() else "; a layer of which no head can go is drawn in the first order"
    legend_only(grid.fig, "", marker={"color": [0], "coloraxis": "coloraxis"}, showlegend=False)
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


def _verdict(rows: pd.DataFrame) -> str:
    """How many heads of a layer can go and in which order."""
    best = rows[rows["better"]]
    within = int(rows["within"].iloc[0])
    if within <= 0 or best.empty:
        return "not decided yet" if within < 0 else order_words("")
    words, order = order_words(best["order"].iloc[0]), str(best["order"].iloc[0])
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
    hover = [
        f"{plain(order_words(order))}<br>{row['ablated']} of {row['of']} heads<br>"
        f"MASE {row['mase']:.4g}, {change_text(row['change'], 2)}"
        for row in told(rows)
    ]
    return marks(
        100 * rows["share"].to_numpy(float),
        rows["mase"].to_numpy(float),
        hover,
        {"color": colour, "size": 4 if bold else 3},
        mode="lines+markers",
        name="at random" if is_random(order) else plain(order_words(order)),
        line={"color": colour, "width": 2.4 if bold else 1.1},
    )


def _limit(fig: go.Figure, base: float, step: float, values: np.ndarray) -> str:
    """An axis around the line of the tolerance that follows curves only so far; what the subtitle says of it."""
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


def heads_at_layers(table: pd.DataFrame) -> go.Figure:
    """heads@k: how many heads every layer must keep for the error to stay within the tolerance.

    Args:
        table: of kind "sweep_heads_at".

    Returns:
        A panel a model, a dot a layer with its number in the better order, coloured by the share of the layer's heads
        that stay; a dash where all would stay.

    Raises:
        InputError: ``table`` is of another kind or has no entries.
    """
    table_of(table, "sweep_heads_at", "model", "layer", "of", "kept", "ablated", "order", "better", "change")
    rows, remark = finished(table[table["better"]], "heads that must stay", "kept", "of")
    models = models_in(rows)
    tolerance, metric = tolerance_of(table), str(table.attrs.get("metric", "MASE"))
    grid = panel_grid([_kept_title(rows[rows["model"] == model], model) for model in models], row_height=170, most=2)
    for model, (row, col) in zip(models, grid.places, strict=True):
        mine = rows[rows["model"] == model].sort_values("layer")
        if mine["layer"].duplicated().any():
            raise InputError(f"two results for one layer of {model!r}; a sweep's result has one a layer")
        x, kept, of = (mine[name].to_numpy(float) for name in ("layer", "kept", "of"))
        dash = {"symbol": "line-ew-open", "color": GREY, "size": 13, "line": {"width": 1.5}}
        all_of = go.Scatter(x=x, y=of, mode="markers", marker=dash, showlegend=False, hoverinfo="skip")
        grid.fig.add_trace(all_of, row=row, col=col)
        marker = {"color": 100 * kept / of, "coloraxis": "coloraxis", "size": 13, "line": {"color": INK, "width": 1}}
        hover = [
            f"layer {each['layer']}: {each['kept']} of {each['of']} heads stay<br>{_kept_words(each, metric)}"
            for each in told(mine)
        ]
        places = ["bottom center" if o - 2 < k < o else "top center" for k, o in zip(kept, of, strict=True)]
        words = {"text": [f"{value:.0f}" for value in kept], "textposition": places, "textfont": {"size": 10}}
        grid.fig.add_trace(
            marks(x, kept, hover, marker, mode="markers+text", showlegend=False, **words), row=row, col=col
        )
    most = float(rows["of"].max())
    bar = {"title": {"text": "share kept (%)", "side": "right"}, "nticks": 6}
    grid.fig.update_layout(coloraxis={"colorscale": SEQUENTIAL, "cmin": 0, "cmax": 100, "colorbar": bar})
    grid.fig.update_yaxes(range=[-0.06 * most, 1.14 * most], nticks=6)
    title_axes(grid, "layer", "heads kept")
    whole_ticks(grid.fig, float(rows["layer"].max()))
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
