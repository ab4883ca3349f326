"""Figures of sweeps with recipes, by choice of heads, and by dataset.

A recipe ablates many heads and MLPs together. :func:`generic_figure` draws the tables;
:func:`recipe_rows` names their rows. Forecasts of single series under recipes are in
:mod:`tsfm_lens.viz.recipes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.core.registry import FigurePanel, check, measurement, panels
from tsfm_lens.viz import sweep_entries as sweep
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.theme import percent
from tsfm_lens.viz.words import num

_KEYS = (
    "model",
    "recipe",
    "selection",
    "seed",
    "change",
    "lower",
    "upper",
    "significant",
)
_RECIPE_COLUMNS = ("metric", "heads_ablated", "heads_total", "n_mlps")

measurement(
    "sweep_recipes",
    title="Heavy ablations",
    theme="Sweeps",
    summary="heavy ablations on every metric",
    description=(
        "A recipe lists many heads and MLPs of several layers, which are ablated "
        "together."
    ),
    source="tsfm-lens, tables 1 and 4",
    paper=(
        "S3-T1",
        "S3-T4",
    ),
    subject=sweep.sweep_subject,
)
measurement(
    "sweep_selection",
    title="Informed and random choices of heads",
    theme="Sweeps",
    summary="informed against random choices of heads",
    description=(
        "The same recipes with as many heads of each layer drawn at random, in sets "
        "that differ from each other and from the recipe's. If the choice did not "
        "matter, both would cost the same."
    ),
    source="tsfm-lens, figures 12 and 13",
    subject=sweep.sweep_subject,
)


def read_recipes(table: pd.DataFrame) -> list[str]:
    """State what recipes cost in MASE, and which changes are significant."""
    rows = recipe_rows(table)
    rows = rows[rows["metric"] == "MASE"]
    return sweep.say_changes(rows, "with a recipe", rows["label"])


def read_selection(table: pd.DataFrame) -> list[str]:
    """State whether an informed choice beats random ones, recipe by recipe."""
    out = []
    for row in sweep.told(table[np.isfinite(table["diff"])]):
        same = (table["model"] == row["model"]) & (table["recipe"] == row["recipe"])
        seeds = int((same & (table["selection"] == "random")).sum())
        rest = ""
        if row.get("possible") == seeds:
            rest = " As many heads of each layer cannot be chosen in another way."
        span = sweep.span_text(row["diff_lower"], row["diff_upper"])
        out.append(
            f"{row['model']}, {row['recipe']}: the informed choice changes MASE by"
            f" {sweep.change_text(row['diff'])} {span} against the geometric mean of"
            f" {seeds} distinct random ones ({sweep.verdict(row['diff_significant'])});"
            f" {row['n_worse'] or 'none'} of these {seeds} cost more.{rest}"
        )
    return out


def recipe_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of recipes with two more columns, ``label`` and ``chosen``.

    ``label`` is the model and what is ablated, ``chosen`` how the heads were chosen.
    """
    check(table, "sweep_recipes", *_KEYS, *_RECIPE_COLUMNS)
    # only a table without rows is refused: a row whose change is NaN is drawn, too
    sweep.check_finished("heavy recipes", np.ones(len(table)))
    # random choices have a figure of their own, unless a sweep has nothing else
    informed = table[table["selection"] != "random"]
    if not informed.empty:
        table = informed
    labels = pd.Series(
        [f"{row['model']} ({sweep.describe_recipe(row)})" for row in sweep.told(table)],
        index=table.index,
    )
    # a label states sizes alone, so recipes of the same size get their names as well
    several = table["recipe"].groupby(labels).transform("nunique") > 1
    choices = [
        sweep.describe_selection(row["selection"], row["seed"])
        for row in sweep.told(table)
    ]
    return table.assign(
        label=labels.where(~several, labels + ", " + table["recipe"]), chosen=choices
    )


def _recipes(table: pd.DataFrame) -> xr.Dataset:
    """Return the change of every metric by recipe, (entry, metric)."""
    rows = recipe_rows(table)
    # each entry is one row of the map, so choices of heads for one recipe need a name
    # each
    rows["entry"] = rows["label"]
    if rows["chosen"].nunique() > 1:
        rows["entry"] += ", " + rows["chosen"]
    ds = sweep.labelled(rows, ["entry", "metric"], "change")
    ds["change"].attrs["long_name"] = "change of each metric"
    return ds


def _choices(table: pd.DataFrame) -> xr.Dataset:
    """Return the change of MASE by choice of heads, (entry,).

    What counts as significant is the difference from random choices.
    """
    labels = [
        f"{row['model']}, {row['recipe']}, "
        + sweep.describe_selection(row["selection"], row["seed"])
        for row in sweep.told(table)
    ]
    rows = table.assign(entry=labels, significant=table["diff_significant"])
    return sweep.labelled(rows, ["entry"], "change")


draw_recipes = generic_figure(
    "sweep_recipes",
    "change",
    "Heavy ablations on every metric.",
    prepare=_recipes,
    variables=(*_KEYS, *_RECIPE_COLUMNS),
)
draw_choices = generic_figure(
    "sweep_selection",
    "change",
    "Informed and random choices of the same number of heads.",
    prepare=_choices,
    variables=(*_KEYS, "diff_significant"),
)
panels("sweep_recipes")(
    partial(sweep.sweep_panel, "sweep_recipes", draw=draw_recipes, words=read_recipes)
)
panels("sweep_selection")(
    partial(
        sweep.sweep_panel, "sweep_selection", draw=draw_choices, words=read_selection
    )
)

measurement(
    "sweep_datasets",
    title="Head ablation by dataset",
    theme="Sweeps",
    summary="error on every dataset over heads ablated",
    description=(
        "The error on every dataset by itself, for the layer that must keep most "
        "heads and the one that must keep fewest. Ties go to the layer where losing "
        "all heads costs most, or least."
    ),
    source="tsfm-lens, figures 16 to 19",
    paper=(
        "S3-F16",
        "S3-F17",
        "S3-F18",
        "S3-F19",
    ),
    subject=sweep.sweep_subject,
)


def read_datasets(table: pd.DataFrame) -> list[str]:
    """State on how many datasets a layer of one model can lose its heads."""
    out = []
    tolerance = percent(sweep.find_tolerance(table))
    for layer, rows in table[np.isfinite(table["change"])].groupby("layer", sort=False):
        total = int(rows["of"].iloc[0])
        n_kept = int(rows["kept"].iloc[0])
        # -1 says that no number of ablated heads in the table is within the tolerance;
        # 0 heads are, since the error does not rise without an ablation
        tolerated = rows.groupby("dataset")["largest_within"].first().clip(lower=0)
        datasets = sweep.counted(len(tolerated), "dataset")
        out.append(
            f"Layer {layer} must keep {n_kept} of {total} heads over all datasets; on"
            f" {(tolerated == total).sum()} of {datasets} losing all {total} costs less"
            f" than {tolerance}. The median dataset tolerates losing"
            f" {num(float(tolerated.median()))}."
        )
    return out


def _by_dataset(table: pd.DataFrame) -> xr.Dataset:
    """Return the change of MASE on each dataset, (model, layer, dataset, ablated)."""
    index = ["model", "layer", "dataset", "ablated"]
    return sweep.labelled(table, index, "change")


draw_datasets = generic_figure(
    "sweep_datasets",
    "change",
    "Error on every dataset over heads ablated.",
    prepare=_by_dataset,
    options={"model": 0, "layer": 0},
    variables=("model", "layer", "dataset", "ablated", "change"),
)


@panels("sweep_datasets")
def _datasets(table: pd.DataFrame) -> Iterator[FigurePanel]:
    for (_, layer), rows in table.groupby(["model", "layer"], sort=False):
        draw = draw_datasets
        text = read_datasets
        yield from sweep.panels_by_model(draw, text, rows, f"layer-{layer}")
