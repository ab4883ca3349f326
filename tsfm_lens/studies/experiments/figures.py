"""Figures of grids of training runs, with their measurements.

Each figure is a function of a record of :func:`tsfm_lens.studies.experiments.record`;
read :func:`run_curves` first.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import (
    declare_measurements,
    figure,
    frame,
)
from tsfm_lens.core.stats import CONFIDENCE_TEXT
from tsfm_lens.studies.curves import (
    add_curves,
    add_points,
    add_reference,
    curve_sheet,
)
from tsfm_lens.viz.grid import LOG_AXIS
from tsfm_lens.viz.sheet import blank, sheet

__all__ = [
    "in_context_errors",
    "learning_rates",
    "losses_by_cost",
    "run_curves",
]

_MAKER = (
    "made by grids of trainings: `python -m tsfm_lens.studies.queue` makes it, "
    "`tsfm_lens.studies.experiments` ships one"
)
_X_TITLES = {
    "rank_ratio": "rank of a head's scores / inputs",
    "width": "width D",
}


def _subject(ds: xr.Dataset) -> str:
    return str(ds.attrs.get("about", ds.attrs["title"]))


declare_measurements(
    Path(__file__).with_name("measurements.yaml"),
    theme="Training",
    maker=_MAKER,
    subject=_subject,
)


@figure(
    "lab_runs",
    "Validation error of every arm and seed by epoch.",
    variables=("curve",),
    table=("validation_mse", "test_mse", "test_mae", "best_epoch", "parameters"),
)
def run_curves(ds: xr.Dataset) -> go.Figure:
    """Draw the validation error by epoch.

    Seeds are thin lines, their geometric mean is a thick one, the oracle dotted.

    Example:
        >>> fig = figures.run_curves(experiments.record("toy"))
        >>> fig.layout.meta["title"]
        'Validation error over training'
    """
    table = frame(ds, "curve")
    oracle = ds.attrs.get("oracle")
    reference = None
    if oracle is not None:
        bounds = [0, ds.sizes["epoch"] - 1]
        reference = ("least-squares oracle, expected", bounds, [float(oracle)] * 2)
    drawn = curve_sheet(
        table,
        "epoch",
        "curve",
        "arm",
        repeat="seed",
        log="y",
        axes=("epoch", "validation error (mean square)"),
        reference=reference,
    )
    text = "thin: seeds, thick: their geometric mean"
    about = str(ds.attrs.get("about", ""))
    return drawn.finalize("Validation error over training", text, about)


def _seeds(errors: xr.DataArray) -> str:
    counts = errors.count("seed")
    few = int(counts.min())
    many = int(counts.max())
    if few < many:
        return f"{few} to {many} seeds"
    return f"{many} seeds"


@figure(
    "in_context_runs",
    "Error of regression in context by rank or width, and by pairs.",
    variables=("by_pairs", "oracle"),
    table=("by_pairs",),
)
def in_context_errors(ds: xr.Dataset) -> go.Figure:
    """Draw the error after the last pair by rank or width, and by the number of pairs.

    The rank is that of the scores, the width that of the model.

    Example:
        >>> fig = figures.in_context_errors(experiments.record("in_context"))
        >>> fig.layout.meta["title"]
        'Regression in context'
    """
    x_name = "rank_ratio"
    if len(np.unique(ds["width"])) > 1:
        x_name = "width"
    table = ds["by_pairs"].to_dataframe().reset_index()
    at_end = table["pairs"] == table["pairs"].max()
    largest = table[x_name] == table.groupby("group")[x_name].transform("max")
    titles = ("after the last pair", "by pairs seen")
    drawn = sheet([320], (1, 1), titles=titles, column_gap=0.12, min_width=760)
    last, by_pairs = drawn
    add_points(last, table[at_end], x_name, "by_pairs", "group")
    add_curves(by_pairs, table[largest], "pairs", "by_pairs", "group")
    text = "least squares, expected"
    add_reference(by_pairs, text, ds["pairs"].values, ds["oracle"].values)
    last.x(_X_TITLES[x_name], **LOG_AXIS)
    by_pairs.x("pairs seen before, by the largest of each")
    drawn.y("squared error, of 1 without learning", rangemode="tozero")
    inputs = f"d = {ds.attrs['inputs']}"
    remark = (
        f"{_seeds(ds['by_pairs'].isel(pairs=-1))}, {CONFIDENCE_TEXT} intervals of means"
    )
    return drawn.finalize("Regression in context", inputs, remark)


@figure(
    "transfer_runs",
    "Error by learning rate and width, for each parametrisation.",
    variables=("mse",),
    table=("mse",),
)
def learning_rates(ds: xr.Dataset) -> go.Figure:
    """Draw the error at the end by learning rate, a line for each width.

    Example:
        >>> fig = figures.learning_rates(
        ...     experiments.errors_by_rate(experiments.record("transfer_rates"))
        ... )
        >>> fig.layout.meta["title"]
        'Learning rates across widths'
    """
    drawn = curve_sheet(
        frame(ds, "mse"),
        "rate",
        "mse",
        "width",
        panel="parametrisation",
        repeat="seed",
        log="x",
        axes=("learning rate", "squared error, of 1 without learning"),
    )
    return drawn.finalize(
        "Learning rates across widths", "thin: seeds, thick: their mean"
    )


@figure(
    "level_training",
    "Loss by the multiply-adds of the scores.",
    variables=("loss",),
    table=("loss",),
)
def losses_by_cost(ds: xr.Dataset) -> go.Figure:
    """Draw the loss on held-out series by the multiply-adds of the scores.

    Means have 95 % intervals.

    Example:
        >>> fig = figures.losses_by_cost(experiments.record("chronos_level_runs"))
        >>> fig.layout.meta["title"]
        'Loss by what the scores cost'
    """
    table = ds["loss"].to_dataframe().reset_index()
    drawn = blank(300, min_width=420)
    add_points(drawn.panel(), table, "score_share", "loss", "arm")
    cost = "multiply-adds of the scores / of standard ones"
    drawn.x(cost, rangemode="tozero")
    drawn.y("cross-entropy in nats a step")
    steps = f"{ds.attrs['steps']} steps"
    return drawn.finalize("Loss by what the scores cost", steps, _seeds(ds["loss"]))
