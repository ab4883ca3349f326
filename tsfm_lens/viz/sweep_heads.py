"""Sweeps of heads: one by one, in growing numbers, and those that must stay.

Each measurement is declared beside its sentences and its :func:`generic_figure`;
:mod:`tsfm_lens.viz.sweep_entries` has what they share. Changes are ratios of MASE to
that of the whole model, less 1.
"""

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

_HEADS = ("model", "label", "layer", "attention", "head")
_CHANGE = ("change", "lower", "upper", "significant")
_CURVE = ("model", "layer", "order", "ablated", "better", *_CHANGE)

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
    """Return sentences on what single heads cost, and which changes are significant.

    A sentence says whether one head costs significantly most.
    """
    return sweep.say_changes(table, "without one head", table["label"])


def read_curves(table: pd.DataFrame) -> list[str]:
    """State how many heads the layers of one model can lose."""
    layers = table[np.isfinite(table["change"])].drop_duplicates("layer")
    # where no order was searched, within is NaN, and no comparison with it is true
    valid = layers[layers["within"] >= 0]
    if valid.empty:
        return []
    # within is the most heads that can go, of is all heads of the layer
    free = valid[valid["within"] == valid["of"]]["layer"].tolist()
    needs = sweep.describe_minimum(valid.assign(kept=valid["of"] - valid["within"]))
    return [
        f"{valid['model'].iloc[0]}: {sweep.name_tolerating(free, len(valid))} losing"
        f" all heads at {percent(sweep.find_tolerance(table))} of"
        f" {valid['judged_by'].iloc[0]}, geometric mean; in the better order {needs}."
    ]


def _single_heads(table: pd.DataFrame) -> xr.Dataset:
    """Return the change of MASE without each head, (model, layer, head).

    A layer has a row for each of its kinds of attention.
    """
    rows = table.assign(layer=table["layer"].astype(str))
    # heads of two kinds of attention have the same numbers in a layer
    if rows["attention"].nunique() > 1:
        rows["layer"] += " " + rows["attention"].map(kind_word)
    return sweep.labelled(rows, ["model", "layer", "head"], "change")


def _best_curves(table: pd.DataFrame) -> xr.Dataset:
    """Return the change of MASE in the better order, (model, layer, ablated)."""
    rows = table[table["better"]]
    return sweep.labelled(rows, ["model", "layer", "ablated"], "change")


def _curves(table: pd.DataFrame) -> xr.Dataset:
    """Return the MASE in every order, (model, layer, order, ablated)."""
    rows = table.assign(order=table["order"].map(sweep.describe_order))
    return sweep.labelled(rows, ["model", "layer", "order", "ablated"], "relative_mase")


draw_heads = generic_figure(
    "sweep_heads",
    "change",
    "Error without each head by itself; ratio of geometric means.",
    prepare=_single_heads,
    options={"model": 0},
    variables=(*_HEADS, *_CHANGE),
)
draw_curves = generic_figure(
    "sweep_curves",
    "change",
    "Error over the number of heads ablated, in the better order of each layer; ratio"
    " of geometric means.",
    prepare=_best_curves,
    options={"model": 0},
    variables=_CURVE,
)
generic_figure(
    "sweep_curves",
    "relative_mase",
    "Error over the number of heads of one layer ablated, by order.",
    prepare=_curves,
    options={"model": 0, "layer": 0},
    variables=("relative_mase", *_CURVE),
)
panels("sweep_heads")(partial(sweep.panels_by_model, draw_heads, read_heads))
panels("sweep_curves")(partial(sweep.panels_by_model, draw_curves, read_curves))

measurement(
    "sweep_heads_at",
    title="Heads that each layer must keep",
    theme="Sweeps",
    summary="heads that each layer must keep (heads@1pp)",
    description=(
        "The fewest heads that a layer must keep for the error, a geometric mean over "
        "datasets, to rise by less than the tolerance (heads@1pp for 1 %). All its "
        "other heads are ablated at once, in the order of the figure: a head that "
        "could go alone may stay."
    ),
    source="tsfm-lens, definition 5.2, figures 6 and 11",
    paper=("S3-F11",),
    subject=sweep.sweep_subject,
)


def summarize_head_counts(table: pd.DataFrame) -> list[str]:
    """State how many heads each model can do without, and what the search cost."""
    out = []
    for model, rows in table[table["better"]].groupby("model", sort=False):
        total = int(rows["of"].sum())
        free = total - int(rows["kept"].sum())
        out.append(
            f"{model}: layer by layer in the better order, {free} of"
            f" {sweep.counted(total, 'head')} can go ({percent(free / total)});"
            f" {sweep.describe_minimum(rows)}."
        )
    used = int(table["evaluations"].sum())
    possible = int(table["total"].sum())
    search = table.attrs.get("search", "scan")
    out.append(
        f"The search ({search}) used {used} of {sweep.counted(possible, 'evaluation')}."
    )
    return out


def _head_counts(table: pd.DataFrame) -> xr.Dataset:
    """Return how many heads layers must keep in their better order, (model, layer)."""
    return sweep.labelled(table[table["better"]], ["model", "layer"], "kept")


draw_heads_at = generic_figure(
    "sweep_heads_at",
    "kept",
    "Heads that each layer must keep.",
    prepare=_head_counts,
    variables=("model", "layer", "kept", "better"),
)
panels("sweep_heads_at")(
    partial(
        sweep.sweep_panel,
        "sweep_heads_at",
        draw=draw_heads_at,
        words=summarize_head_counts,
    )
)
