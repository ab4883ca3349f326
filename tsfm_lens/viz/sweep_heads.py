"""Sweeps of heads: one by one, in growing numbers, and those that must stay."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.core.registry import measurement, panels
from tsfm_lens.viz import sweep_entries as sweep
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.select import kind_word
from tsfm_lens.viz.theme import (
    percent,
)
from tsfm_lens.viz.words import listed

_HEADS = ("model", "label", "layer", "attention", "head")
_CHANGE = ("change", "lower", "upper", "significant")
_CURVE = ("model", "layer", "order", "ablated", "better", *_CHANGE)
_MAX_NAMES = 8  # things that are named one by one

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
    rows, out = table[np.isfinite(table["change"])], []
    for model in sweep.models_in(rows):
        mine = rows[rows["model"] == model]
        named = mine[mine["significant"]]
        summary = f"{model}: without one head, {sweep.sizes_words(mine)}"
        by_size = named.loc[
            named["change"].abs().sort_values(ascending=False, kind="stable").index
        ]
        which = [
            f"{row['label']} ({sweep.change_words(row)})"
            for row in sweep.told(by_size.head(_MAX_NAMES))
        ]
        more = (
            f", and {len(named) - _MAX_NAMES} more in the table"
            if len(named) > _MAX_NAMES
            else ""
        )
        out.append(f"{summary}: {listed(which)}{more}." if which else f"{summary}.")
        first = sweep.told(mine[(mine["leads"] == "highest") & (mine["change"] > 0)])
        often = sweep.often_first(mine, "label")
        if first:
            share = percent(first[0]["lead_share"])
            words = f"Losing {first[0]['label']} costs significantly more than losing any other head"
            out.append(f"{words} ({share} of bootstrap samples).")
        elif often:
            words = "No single head costs significantly more than the rest"
            out.append(f"{words}; most often first in bootstrap samples: {often}.")
    return out


def read_curves(table: pd.DataFrame) -> list[str]:
    """State how many heads the layers of one model can lose, and whether one order is the better one throughout."""
    rows = table[np.isfinite(table["change"])]
    if rows.empty:
        return []
    model = rows["model"].iloc[0]
    layers = rows.drop_duplicates("layer")
    valid = layers[layers["within"] >= 0]
    if valid.empty:
        return [f"{model}: how many heads of a layer can go is not decided yet."]
    whole = valid.loc[valid["within"] == valid["of"], "layer"].tolist()
    which = f" (layer{sweep.plural_s(whole)} {sweep.runs(whole)})" if whole else ""
    out = [
        f"{model}: in {len(whole)} of {sweep.counted(len(valid), 'layer')} all heads can go at once with a rise of "
        f"{valid['judged_by'].iloc[0]} below {percent(sweep.tolerance_of(table))}{which}; "
        f"{sweep.least_words(valid.assign(kept=valid['of'] - valid['within']))}."
    ]
    # a layer that tolerates every order says nothing about orders
    open_layers = valid[valid["within"] < valid["of"]]
    orders = [order for order in dict.fromkeys(rows["order"]) if not is_random(order)]
    if len(orders) > 1 and len(open_layers):
        better = rows[
            rows["better"] & (rows["within"] > 0) & (rows["within"] < rows["of"])
        ].drop_duplicates("layer")
        parts = [
            f"{sweep.order_words(order)} in {(better['order'] == order).sum()}"
            for order in orders
        ]
        none = int((open_layers["within"] == 0).sum())
        remark = f"; in {none} no head can go" if none else ""
        named = better.loc[better["order_significant"], "layer"].tolist()
        where = (
            f"layer{sweep.plural_s(named)} {sweep.runs(named)}" if named else "no layer"
        )
        out.append(
            f"Of the {sweep.counted(len(open_layers), 'other layer')}, the better order is {listed(parts)}{remark}. "
            f"The other order costs significantly more in {where}."
        )
    return out


def is_random(order: str) -> bool:
    """Return whether heads were taken in no order."""
    return str(order).partition(":")[0] == "random"


def _single_heads(table: pd.DataFrame) -> xr.Dataset:
    """Return the change of MASE without each head, (model, layer, head); rows of each kind of attention."""
    rows = table.assign(layer=table["layer"].astype(str))
    if rows["attention"].nunique() > 1:
        rows["layer"] += " " + rows["attention"].map(kind_word)
    return sweep.labelled(rows, ["model", "layer", "head"], "change")


def _best_curves(table: pd.DataFrame) -> xr.Dataset:
    """Return the change of MASE in the better order of each layer, (model, layer, ablated)."""
    rows = table[table["better"]]
    return sweep.labelled(rows, ["model", "layer", "ablated"], "change")


def _curves(table: pd.DataFrame) -> xr.Dataset:
    """Return the MASE in every order, (model, layer, order, ablated)."""
    rows = table.assign(order=table["order"].map(sweep.order_words))
    return sweep.labelled(rows, ["model", "layer", "order", "ablated"], "mase")


draw_heads = generic_figure(
    "sweep_heads",
    "change",
    "Error without each head by itself.",
    prepare=_single_heads,
    options={"model": 0},
    variables=(*_HEADS, *_CHANGE),
)
draw_curves = generic_figure(
    "sweep_curves",
    "change",
    "Error over the number of heads ablated, in the better order of each layer.",
    prepare=_best_curves,
    options={"model": 0},
    variables=_CURVE,
)
generic_figure(
    "sweep_curves",
    "mase",
    "Error over the number of heads of one layer ablated, by order.",
    prepare=_curves,
    options={"model": 0, "layer": 0},
    variables=("mase", *_CURVE),
)
panels("sweep_heads")(partial(sweep.panels_by_model, draw_heads, read_heads))
panels("sweep_curves")(partial(sweep.panels_by_model, draw_curves, read_curves))

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
    best, out = table[table["better"]], []
    for model in sweep.models_in(best):
        rows = best[best["model"] == model]
        total, remaining = int(rows["of"].sum()), int(rows["kept"].sum())
        none = rows.loc[rows["kept"] == 0, "layer"].tolist()
        plural = sweep.plural_s(none)
        free = (
            f"; layer{plural} {sweep.runs(none)} need{'' if plural else 's'} none"
            if none
            else ""
        )
        out.append(
            f"{model}: layer by layer, {total - remaining} of {sweep.counted(total, 'head')} can go "
            f"({percent((total - remaining) / total)}); {sweep.least_words(rows)}{free}."
        )
    evaluations, all_of = int(table["evaluations"].sum()), int(table["total"].sum())
    out.append(
        f"The search ({table.attrs.get('search', 'scan')}) used {evaluations} of {sweep.counted(all_of, 'evaluation')}."
    )
    return out


def _heads_kept(table: pd.DataFrame) -> xr.Dataset:
    """Return how many heads each layer must keep in its better order, (model, layer)."""
    return sweep.labelled(table[table["better"]], ["model", "layer"], "kept")


draw_heads_at = generic_figure(
    "sweep_heads_at",
    "kept",
    "Heads that each layer must keep.",
    prepare=_heads_kept,
    variables=("model", "layer", "kept", "better"),
)
panels("sweep_heads_at")(
    partial(
        sweep.sweep_panel, "sweep_heads_at", draw=draw_heads_at, words=read_heads_at
    )
)
