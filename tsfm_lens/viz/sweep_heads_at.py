"""Heads that each layer must keep for the error to stay within a tolerance."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from tsfm_lens.errors import InputError
from tsfm_lens.registry import measurement
from tsfm_lens.viz.grid import panel_grid, title_axes
from tsfm_lens.viz.sweep_entries import (
    bar_title,
    change_text,
    counted,
    finished,
    least_words,
    models_in,
    order_words,
    plural_s,
    runs,
    sweep_panel,
    sweep_subject,
    table_of,
    told,
    tolerance_of,
    whole_ticks,
)
from tsfm_lens.viz.theme import GREY, INK, SEQUENTIAL, percent, plain

__all__ = ["heads_at_layers"]

SWEEP_HEADS_AT = measurement(
    "sweep_heads_at",
    theme="Sweeps",
    title="Heads that each layer must keep",
    summary="heads that each layer must keep (heads@1pp)",
    description="The fewest heads that a layer keeps while the error rises by less than the tolerance (heads@1pp for 1 "
    "%), all its others ablated at once.",
    source="tsfm-lens, definition 5.2, figures 6 and 11",
    paper=("S3-F11",),
    subject=sweep_subject,
)


def read_heads_at(table: pd.DataFrame) -> list[str]:
    """State how many heads each model can do without, and what the search cost."""
    table_of(table, "sweep_heads_at", "kept", "of", "layer", "better", "leads")
    best = table[table["better"]]
    out = []
    for model in models_in(best):
        rows = best[best["model"] == model]
        total, remaining = int(rows["of"].sum()), int(rows["kept"].sum())
        none = rows.loc[rows["kept"] == 0, "layer"].tolist()
        text = (
            f"{model}: layer by layer, {total - remaining} of {counted(total, 'head')} can go "
            f"({percent((total - remaining) / total)}); {least_words(rows)}"
        )
        out.append(
            text + (f"; layer{plural_s(none)} {runs(none)} need{'' if plural_s(none) else 's'} none." if none else ".")
        )
    evaluations, all_of = int(table["evaluations"].sum()), int(table["total"].sum())
    out.append(
        f"The search ({table.attrs.get('search', 'scan')}) used {evaluations} of {counted(all_of, 'evaluation')}."
    )
    return out


@SWEEP_HEADS_AT.figure("Heads that each layer must keep.", variables=None)
def heads_at_layers(table: pd.DataFrame) -> go.Figure:
    """Draw heads@k: how many heads every layer must keep for the error to stay within the tolerance.

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
    grid = panel_grid(
        [_removable_title(rows[rows["model"] == model], model) for model in models], row_height=170, most=2
    )
    for model, panel in zip(models, grid, strict=True):
        mine = rows[rows["model"] == model].sort_values("layer")
        if mine["layer"].duplicated().any():
            raise InputError(f"two results for one layer of {model!r}; a sweep's result has one a layer")
        x, remaining, of = (mine[name].to_numpy(float) for name in ("layer", "kept", "of"))
        panel.dots(x, of, symbol="line-ew-open", colour=GREY, size=13, marker={"line": {"width": 1.5}})
        texts = [
            f"layer {each['layer']}: {each['kept']} of {each['of']} heads stay<br>{_order_and_cost(each, metric)}"
            for each in told(mine)
        ]
        panel.dots(
            x,
            remaining,
            hover="%{customdata}",
            customdata=texts,
            colour=100 * remaining / of,
            size=13,
            marker={"coloraxis": "coloraxis", "line": {"color": INK, "width": 1}},
            mode="markers+text",
            text=[f"{value:.0f}" for value in remaining],
            textposition=[
                "bottom center" if o - 2 < k < o else "top center" for k, o in zip(remaining, of, strict=True)
            ],
            textfont={"size": 10},
        )
    most = float(rows["of"].max())
    grid.colours({"colorscale": SEQUENTIAL, "cmin": 0, "cmax": 100, "colorbar": bar_title("share kept (%)")})
    grid.y(range=[-0.06 * most, 1.2 * most], nticks=6)
    title_axes(grid, "layer", "heads kept")
    whole_ticks(grid, float(rows["layer"].max()))
    return grid.dress(
        f"Heads that each layer must keep for {metric} to stay within {percent(tolerance)}",
        "all its other heads ablated at once, its MLP in place, in the better order; dash: all heads of the layer",
        remark,
    )


def _order_and_cost(row: dict[str, Any], metric: str) -> str:
    """Write in which order the others go, and what that costs."""
    if row["kept"] >= row["of"]:
        return order_words("")
    change = f", {plain(metric)} {change_text(row['change'], 2)}" if np.isfinite(row["change"]) else ""
    return f"{plain(order_words(row['order']))}{change}"


def _removable_title(rows: pd.DataFrame, model: str) -> tuple[str, ...]:
    removable, total = int(rows["of"].sum() - rows["kept"].sum()), int(rows["of"].sum())
    return model, f"{removable} of {counted(total, 'head')} can go, layer by layer"


SWEEP_HEADS_AT.panels(partial(sweep_panel, "heads_at_layers", draw=heads_at_layers, words=read_heads_at))
