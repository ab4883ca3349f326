"""Heads that each layer must keep for the error to stay within a tolerance."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from tsfm_lens.errors import InputError
from tsfm_lens.registry import measurement
from tsfm_lens.viz import sweep_entries as sweep
from tsfm_lens.viz.grid import panel_grid, title_axes
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
    subject=sweep.sweep_subject,
)


def read_heads_at(table: pd.DataFrame) -> list[str]:
    """State how many heads each model can do without, and what the search cost."""
    best, out = table[table["better"]], []
    for model in sweep.models_in(best):
        rows = best[best["model"] == model]
        total, remaining = int(rows["of"].sum()), int(rows["kept"].sum())
        none = rows.loc[rows["kept"] == 0, "layer"].tolist()
        plural = sweep.plural_s(none)
        free = f"; layer{plural} {sweep.runs(none)} need{'' if plural else 's'} none" if none else ""
        out.append(
            f"{model}: layer by layer, {total - remaining} of {sweep.counted(total, 'head')} can go "
            f"({percent((total - remaining) / total)}); {sweep.least_words(rows)}{free}."
        )
    evaluations, all_of = int(table["evaluations"].sum()), int(table["total"].sum())
    out.append(
        f"The search ({table.attrs.get('search', 'scan')}) used {evaluations} of {sweep.counted(all_of, 'evaluation')}."
    )
    return out


@sweep.figure(
    SWEEP_HEADS_AT,
    "Heads that each layer must keep.",
    *("model", "layer", "of", "kept", "ablated", "order", "better", "change"),
)
def heads_at_layers(table: pd.DataFrame) -> go.Figure:
    """Draw heads@k: how many heads every layer must keep for the error to stay within the tolerance.

    Args:
        table: of kind "sweep_heads_at".

    Returns:
        A panel a model, a dot a layer with its number in the better order, coloured by the share of the layer's heads
        that stay; a dash where all would stay.
    """
    rows, remark = sweep.finished(table[table["better"]], "heads that must stay", "kept", "of")
    models = sweep.models_in(rows)
    tolerance, metric = sweep.tolerance_of(table), str(table.attrs.get("metric", "MASE"))
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
            for each in sweep.told(mine)
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
    grid.colours({"colorscale": SEQUENTIAL, "cmin": 0, "cmax": 100, "colorbar": sweep.bar_title("share kept (%)")})
    grid.y(range=[-0.06 * most, 1.2 * most], nticks=6)
    title_axes(grid, "layer", "heads kept")
    sweep.whole_ticks(grid, float(rows["layer"].max()))
    return grid.dress(
        f"Heads that each layer must keep for {metric} to stay within {percent(tolerance)}",
        "all its other heads ablated at once, its MLP in place, in the better order; dash: all heads of the layer",
        remark,
    )


def _order_and_cost(row: dict[str, Any], metric: str) -> str:
    """Write in which order the others go, and what that costs."""
    if row["kept"] >= row["of"]:
        return sweep.order_words("")
    change = f", {plain(metric)} {sweep.change_text(row['change'], 2)}" if np.isfinite(row["change"]) else ""
    return f"{plain(sweep.order_words(row['order']))}{change}"


def _removable_title(rows: pd.DataFrame, model: str) -> tuple[str, ...]:
    removable, total = int(rows["of"].sum() - rows["kept"].sum()), int(rows["of"].sum())
    return model, f"{removable} of {sweep.counted(total, 'head')} can go, layer by layer"


SWEEP_HEADS_AT.panels(partial(sweep.sweep_panel, "heads_at_layers", draw=heads_at_layers, words=read_heads_at))
