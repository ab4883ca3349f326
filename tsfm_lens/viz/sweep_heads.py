"""Sweeps of heads: one by one, in growing numbers, and those that must stay."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from tsfm_lens.core.registry import FigurePanel, figure, measurement, panels
from tsfm_lens.viz import sweep_entries as sweep
from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.panels import fit
from tsfm_lens.viz.select import kind_word
from tsfm_lens.viz.sheet import Look, Panel
from tsfm_lens.viz.theme import (
    BLUE,
    CATEGORICAL,
    GREY,
    INK,
    PALE,
    mixed,
    percent,
    plain,
)

__all__ = ["head_changes", "head_curves", "heads_at_layers"]

_HEADS = ("layer", "attention", "head", "change", "lower", "upper", "significant")
_COUNTS = ("model", "layer", "order", "ablated", "of", "share", "better", "within")
_CURVE = ("mase", "change", "lower", "upper", "baseline_mase")
_MAX_LABELS, _SPREAD = (
    12,
    0.84,
)  # heads with their number, of a model; share of a layer's room that its heads take
_REACH = 8  # tolerances above the baseline up to which a curve is followed

measurement(
    "sweep_heads",
    title="Single heads",
    theme="Sweeps",
    summary="error without each head by itself, across datasets",
    description=(
        "Every head is ablated by itself. The interval shows how far its change "
        "would vary over datasets like these. An open dot is not significant, even "
        "far from 0: among many heads, one is large by chance."
    ),
    source="tsfm-lens, section 5",
    subject=sweep.sweep_subject,
)
measurement(
    "sweep_curves",
    title="Removable heads of a layer",
    theme="Sweeps",
    summary="error over the share of heads ablated, by order",
    description=(
        "The heads of one layer are ablated one after the other, in an order by "
        "weights or activations, in its reverse, or at random."
    ),
    source="tsfm-lens, figures 7 and 10",
    paper=(
        "S3-F7",
        "S3-F10",
    ),
    subject=sweep.sweep_subject,
)


def read_heads(table: pd.DataFrame) -> list[str]:
    """State what single heads cost, which changes are significant, and whether one costs significantly most."""
    return sweep.say_changes(table, "without one head", table["label"])


def read_curves(table: pd.DataFrame) -> list[str]:
    """State how many heads the layers of one model can lose."""
    layers = table[np.isfinite(table["change"])].drop_duplicates("layer")
    valid = layers[layers["within"] >= 0]
    if valid.empty:
        return []
    free = (valid["within"] == valid["of"]).sum()
    least = sweep.least_words(valid.assign(kept=valid["of"] - valid["within"]))
    return [
        f"{valid['model'].iloc[0]}: in {free} of {sweep.counted(len(valid), 'layer')} all "
        f"heads can go at once with a rise of {valid['judged_by'].iloc[0]} below "
        f"{percent(sweep.tolerance_of(table))}, in {(valid['within'] == 0).sum()} no head "
        f"can go; {least}."
    ]


@figure(
    "sweep_heads",
    "Error without each head by itself, with intervals.",
    variables=("label", *_HEADS),
)
def head_changes(table: pd.DataFrame) -> go.Figure:
    """Draw what every head by itself costs, with intervals, layer by layer."""
    rows, remark = sweep.finished(table, "single heads", "change")
    models = sweep.models_in(rows)
    crowd = {
        model: int(rows.loc[rows["model"] == model, "layer"].value_counts().max())
        for model in models
    }
    wide = max(
        crowd[model] * (1 + int(rows.loc[rows["model"] == model, "layer"].max()))
        for model in models
    )
    grid = panel_grid(
        [(model,) for model in models], row_height=230, most=1 if wide > 48 else 2
    )
    grid.min_width = max(grid.min_width, min(110 + 7 * wide, 900))
    kinds = list(dict.fromkeys(rows["attention"]))
    for model, panel in zip(models, grid, strict=True):
        mine = rows[rows["model"] == model].sort_values(
            ["layer", "attention", "head"], kind="stable"
        )
        place = (
            mine.groupby("layer").cumcount()
            - (mine.groupby("layer")["head"].transform("size") - 1) / 2
        )
        mine = mine.assign(place=mine["layer"] + _SPREAD * place / crowd[model])
        named = mine[mine["significant"]]
        labels = set(
            named.index[
                np.argsort(-named["change"].abs().to_numpy(), kind="stable")[
                    :_MAX_LABELS
                ]
            ]
        )
        # the legend has no entry of a trace without dots
        for i, kind in enumerate(kinds):
            if (of_kind := mine["attention"] == kind).any():
                _single(
                    panel,
                    mine[of_kind],
                    kind,
                    CATEGORICAL[i % len(CATEGORICAL)],
                    labels,
                )
        sweep.level(panel, 0.0, "dash")
    # at least half of the intervals end within the axis
    core = np.append(rows["change"], rows[["lower", "upper"]].median())
    cut = fit(grid, 100 * core, 100 * rows[["lower", "upper"]].to_numpy(float), 0.5)
    title_axes(grid, "layer", "change of MASE (%)")
    sweep.whole_ticks(grid, float(rows["layer"].max()))
    return grid.dress(
        "What each head costs, ablated by itself",
        f"relative change of the geometric mean of MASE over datasets, {sweep.intervals_of(table)}; heads of a layer "
        "side by side, the first leftmost",
        f"{sweep.SIGNIFICANT}, with the head's number",
        cut,
        remark,
    )


def _single(
    panel: Panel, rows: pd.DataFrame, kind: str, colour: str, labels: set[Any]
) -> None:
    """Draw the heads of one kind of attention, those in ``labels`` with their number."""
    panel.dots(
        rows["place"].to_numpy(float),
        100 * rows["change"].to_numpy(float),
        f"{' and '.join(kind_word(each) for each in kind.split('+'))} heads",
        "%{customdata}",
        customdata=[
            f"{plain(row['label'])}<br>MASE {sweep.change_words(row)}<br>{sweep.verdict(row['significant'])}"
            for row in sweep.told(rows)
        ],
        colour=colour,
        size=7,
        symbol=sweep.symbols(rows["significant"]),
        error_y=sweep.whiskers(rows, colour=colour, scale=100),
        mode="markers+text",
        text=[
            str(row["head"]) if index in labels else ""
            for index, row in zip(rows.index, sweep.told(rows), strict=True)
        ],
        textposition="middle right",
        textfont={"size": 10, "color": INK},
    )


def is_random(order: str) -> bool:
    """Return whether heads were taken in no order."""
    return str(order).partition(":")[0] == "random"


def with_start(rows: pd.DataFrame) -> pd.DataFrame:
    """Extend a curve to the unablated model: a first row for no head ablated, unless it has one."""
    rows = rows.sort_values("ablated")
    base = rows["baseline_mase"].iloc[0]
    if int(rows["ablated"].iloc[0]) == 0 or not np.isfinite(base):
        return rows
    start = rows.iloc[:1].assign(
        ablated=0, share=0.0, mase=base, change=0.0, lower=0.0, upper=0.0
    )
    return pd.concat([start, rows], ignore_index=True)


@figure(
    "sweep_curves",
    "Error over the share of heads ablated, by order.",
    variables=(*_COUNTS, *_CURVE),
)
def head_curves(table: pd.DataFrame, *, model: str | int = 0) -> go.Figure:
    """Draw the error of one model as more and more heads of a layer go, in each order, a panel per layer."""
    name = sweep.chosen_model(table, model)
    table, remark = sweep.finished(
        table[table["model"] == name], f"heads by count of {name}", "mase", "change"
    )
    metrics = [
        each
        for each in dict.fromkeys(table.get("judged_by", ()))
        if each not in ("", "MASE")
    ]
    remark = f"{f', judged by {metrics[0]}' if metrics else ''}{f'; {remark}' if remark else ''}"
    base, tolerance = sweep.baseline_of(table, name), sweep.tolerance_of(table)
    panels = list(table.groupby("layer"))
    grid = panel_grid(
        [(f"layer {layer}", _verdict(rows)) for layer, rows in panels],
        row_height=130,
        most=4,
    )
    orders = sorted(dict.fromkeys(table["order"]), key=is_random)
    colours = {
        one: mixed(GREY, 0.75) if is_random(one) else colour
        for one, colour in zip(orders, cycle(CATEGORICAL))
    }
    for (_, rows), panel in zip(panels, grid, strict=True):
        bold = set(rows.loc[rows["better"] & (rows["within"] > 0), "order"])
        for order in sorted(
            dict.fromkeys(rows["order"]), key=lambda each: not is_random(each)
        ):
            curve = with_start(rows[rows["order"] == order])
            if order in bold:
                sweep.band(
                    panel,
                    100 * curve["share"].to_numpy(float),
                    curve,
                    base,
                    colours[order],
                )
            _curve(panel, curve, colours[order], bold=order in bold)
        sweep.level(panel, base, "dash")
        sweep.level(panel, base * (1 + tolerance), "dot")
    step = base * tolerance
    cut = fit(
        grid,
        np.array([base - step, base + 2 * step]),
        table["mase"].to_numpy(float),
        _REACH / 3,
        nticks=6,
    )
    title_axes(grid, "heads ablated (%)", "MASE")
    return grid.dress(
        f"Error of {name} as more heads of a layer are ablated",
        f"{sweep.MASE_WORDS}; dashed: unablated; dotted: {percent(tolerance)} more",
        cut,
        f"the thicker line is the layer's better order, its band the {sweep.intervals_of(table)} of the change{remark}",
    )


def _verdict(rows: pd.DataFrame) -> str:
    """Write how many heads of a layer can go and in which order."""
    best = rows[rows["better"]]
    within = int(rows["within"].iloc[0])
    if within <= 0 or best.empty:
        return "not decided yet" if within < 0 else sweep.order_words("")
    words, order = sweep.order_words(best["order"].iloc[0]), str(best["order"].iloc[0])
    if rows.loc[~rows["order"].map(is_random), "order"].str.partition(":")[
        0
    ].nunique() == 1 and not is_random(order):
        # the legend says of what
        words = f"{words.split()[0]} first"
    return f"{within} of {int(rows['of'].max())}, {words}"


def _curve(panel: Panel, rows: pd.DataFrame, colour: str, *, bold: bool) -> None:
    order = str(rows["order"].iloc[0])
    texts = [
        f"{plain(sweep.order_words(order))}<br>{row['ablated']} of {row['of']} heads<br>"
        f"MASE {row['mase']:.4g}, {sweep.change_text(row['change'], 2)}"
        for row in sweep.told(rows)
    ]
    name, x = (
        "at random" if is_random(order) else sweep.order_words(order),
        100 * rows["share"].to_numpy(float),
    )
    look: Look = {
        "colour": colour,
        "width": 2.4 if bold else 1.1,
        "dots": 4 if bold else 3,
        "customdata": texts,
    }
    panel.line(x, rows["mase"].to_numpy(float), name, "%{customdata}", **look)


@panels("sweep_curves")
def _curves(table: pd.DataFrame) -> Iterator[FigurePanel]:
    for model in sweep.models_in(table):
        curves = table[table["model"] == model]
        yield from sweep.sweep_panel(
            f"head_curves-{model}", curves, head_curves, read_curves
        )


panels("sweep_heads")(
    partial(sweep.sweep_panel, "head_changes", draw=head_changes, words=read_heads)
)

measurement(
    "sweep_heads_at",
    title="Heads that each layer must keep",
    theme="Sweeps",
    summary="heads that each layer must keep (heads@1pp)",
    description=(
        "The fewest heads that a layer must keep for the error to rise by less than "
        "the tolerance (heads@1pp for 1 %). All its other heads are ablated at "
        "once."
    ),
    source="tsfm-lens, definition 5.2, figures 6 and 11",
    paper=("S3-F11",),
    subject=sweep.sweep_subject,
)


def read_heads_at(table: pd.DataFrame) -> list[str]:
    """State how many heads each model can do without, and what the search cost."""
    out = []
    for model, rows in table[table["better"]].groupby("model", sort=False):
        total = int(rows["of"].sum())
        free = total - int(rows["kept"].sum())
        out.append(
            f"{model}: layer by layer, {free} of {sweep.counted(total, 'head')} can go "
            f"({percent(free / total)}); {sweep.least_words(rows)}."
        )
    used, possible = int(table["evaluations"].sum()), int(table["total"].sum())
    search = table.attrs.get("search", "scan")
    out.append(
        f"The search ({search}) used {used} of {sweep.counted(possible, 'evaluation')}."
    )
    return out


@figure(
    "sweep_heads_at",
    "Heads that each layer must keep.",
    variables=("model", "layer", "of", "kept", "ablated", "order", "better", "change"),
)
def heads_at_layers(table: pd.DataFrame) -> go.Figure:
    """Draw heads@k: how many heads every layer must keep for the error to stay within the tolerance."""
    rows, remark = sweep.finished(
        table[table["better"]], "heads that must stay", "kept", "of"
    )
    models = sweep.models_in(rows)
    tolerance, metric = (
        sweep.tolerance_of(table),
        str(table.attrs.get("metric", "MASE")),
    )
    grid = panel_grid(
        [_removable_title(rows[rows["model"] == each], each) for each in models],
        row_height=170,
        most=2,
    )
    for model, panel in zip(models, grid, strict=True):
        mine = rows[rows["model"] == model].sort_values("layer")
        x, remaining, of = (
            mine[name].to_numpy(float) for name in ("layer", "kept", "of")
        )
        texts = [
            f"layer {each['layer']}: {each['kept']} of {each['of']} heads stay<br>{_order_and_cost(each, metric)}"
            for each in sweep.told(mine)
        ]
        panel.bars(x, of, "all heads of the layer", colour=PALE)
        panel.bars(
            x,
            remaining,
            "heads that must stay",
            "%{customdata}",
            colour=BLUE,
            customdata=texts,
        )
    grid.fig.update_layout(barmode="overlay")
    title_axes(grid, "layer", "heads kept")
    sweep.whole_ticks(grid, float(rows["layer"].max()))
    return grid.dress(
        f"Heads that each layer must keep for {metric} to stay within {percent(tolerance)}",
        "all its other heads ablated at once, its MLP in place, in the better order",
        remark,
    )


def _order_and_cost(row: dict[str, Any], metric: str) -> str:
    """Write in which order the others go, and what that costs."""
    if row["kept"] >= row["of"]:
        return sweep.order_words("")
    change = (
        f", {plain(metric)} {sweep.change_text(row['change'], 2)}"
        if np.isfinite(row["change"])
        else ""
    )
    return f"{plain(sweep.order_words(row['order']))}{change}"


def _removable_title(rows: pd.DataFrame, model: str) -> tuple[str, ...]:
    removable, total = int(rows["of"].sum() - rows["kept"].sum()), int(rows["of"].sum())
    return (
        model,
        f"{removable} of {sweep.counted(total, 'head')} can go, layer by layer",
    )


panels("sweep_heads_at")(
    partial(
        sweep.sweep_panel, "heads_at_layers", draw=heads_at_layers, words=read_heads_at
    )
)
