"""Models on one axis: error by the share of heads removed, and parts that match.

:func:`removal_curves` draws the curves, a panel per model; how many components of each
model match those of another is a map, drawn by :func:`generic_figure`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import figure, frame
from tsfm_lens.core.stats import LEVEL, SMALLEST
from tsfm_lens.viz.findings import read_estimate
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.grid import LOG_AXIS, panel_grid, title_axes
from tsfm_lens.viz.select import array, names, positions
from tsfm_lens.viz.theme import BLUE, GREY, PALE, VERMILION, percent
from tsfm_lens.viz.words import listed, num

__all__ = ["removal_curves"]

_WORDS = {"low": "low stable rank first", "high": "high stable rank first"}
# multiples of an error, which without its heads a model may raise by powers of ten
_TICKS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 1e3, 1e4, 1e5, 1e6]
_COLOURS = {"low": BLUE, "high": VERMILION}


def _noun(ds: xr.Dataset) -> str:
    """Name what is removed."""
    if ds.attrs.get("parts") == "mlps":
        return "MLPs"
    return "heads"


def _curve_table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulate the median errors, a row per model, order and number removed."""
    ordered = frame(ds.assign(error=ds["error_ratio"].median("series")), "error")
    random = ds["random_error_ratio"].median("series")
    chance = ds.assign(
        random_median=random.median("draw"),
        random_lowest=random.min("draw"),
        random_highest=random.max("draw"),
    )
    columns = ("share", "random_median", "random_lowest", "random_highest")
    table = ordered.merge(frame(chance, *columns), on=["model", "removed"])
    tests = frame(ds, "excess_size", "excess_p", "excess_significant", "random_below")
    keys = ["model", "order", "removed"]
    return table.merge(tests, on=keys).dropna(subset="share").reset_index(drop=True)


def read_curves(ds: xr.Dataset) -> list[str]:
    """Compare the orders with chance, model by model, and count the matches."""
    noun = _noun(ds)
    out = []
    for model in names(ds, "model"):
        out.append(_read_model(ds.sel(model=model), model, noun))
    out += _read_excess(ds, noun)
    if "matched_share" in ds:
        out += _read_matches(ds)
    return out


def _read_model(one: xr.Dataset, model: str, noun: str) -> str:
    """State the errors of one model at the number nearest to half."""
    share = array(one, "share", "removed")
    middle = int(np.nanargmin(np.abs(share - 0.5)))
    at = one.isel(removed=middle)
    low, high = (
        float(at["error_ratio"].sel(order=order).median("series")) for order in _WORDS
    )
    random = at["random_error_ratio"].median("series")
    return (
        f"{model}: without {percent(share[middle])} of the {noun}, those of low stable"
        f" rank, the error is {num(low)} times that of the complete model; without"
        f" those of high stable rank {num(high)} times, without as many at random"
        f" {num(float(random.median()))} times, {num(float(random.min()))} to"
        f" {num(float(random.max()))} over {one.sizes['draw']} orders (medians over"
        " series)."
    )


def _read_excess(ds: xr.Dataset, noun: str) -> list[str]:
    """State where an order differs from chance: on other series, and beside twins."""
    dims = ("model", "order", "removed")
    effect = read_estimate(ds, "excess", *dims)
    labels = []
    for place, size in np.ndenumerate(effect.size):
        model, order, removed = (
            names(ds, dim)[at] for dim, at in zip(dims, place, strict=True)
        )
        word = "less" if size < 0 else "more"
        step = "step" if removed == "1" else "steps"
        labels.append(f"{model}, {_WORDS[order]}, {removed} {step} ({word} error)")
    return [
        f"Each order is compared with the median of as many {noun} at random, by the"
        " logarithm of the errors' ratio.",
        *effect.standing(labels, "comparisons"),
    ]


def _read_matches(ds: xr.Dataset) -> list[str]:
    """Count the components of each model that match one of another."""
    shares = array(ds, "matched_share", "model", "other_model")
    facts = ds["matched_share"].attrs
    labels = names(ds, "model")
    known = np.argwhere(np.isfinite(shares))
    pairs = [
        f"{labels[i]} in {labels[j]} {percent(float(shares[i, j]))}" for i, j in known
    ]
    found = (
        f"Components that move the forecast by {percent(SMALLEST)} of the range or more"
        " and whose loss is like that of one of another model, beyond chance:"
        f" {listed(pairs) or 'none'}."
    )
    count = int(facts.get("units_compared", 0))
    orders = float(np.prod(np.arange(1, count + 1)))
    if orders * float(facts.get("level", LEVEL)) < 1:
        return [found, f"{count} series are too few to tell a match from chance."]
    return [found]


@figure(
    "compare_models",
    "Error of several models by the share of heads removed.",
    table=_curve_table,
    sentences=read_curves,
)
def removal_curves(ds: xr.Dataset, *, model: str | int | None = None) -> go.Figure:
    """Draw the error by the share that is removed, a panel per model.

    The band spans the random orders, with their median; curves are of both orders of
    stable rank. Errors are multiples of the complete model's, medians over series.

    Args:
        ds: result of kind "compare_models".
        model: name of one model, or its place counted from 0; all if None.

    Returns:
        A panel for each model: the error as a multiple of the complete model's, by the
        share of heads or MLPs that are removed.

    Example:
        >>> truth = [[1.0, 2.0, 3.0]]
        >>> run = lens.run([[1.0, 2.0, 1.0, 2.0, 1.0]], 3, truth=truth)
        >>> fig = viz.removal_curves(probes.compare_models([run], draws=3))
        >>> fig.layout.meta["title"]
        'Error of chronos-nano by the share of heads removed'
    """
    chosen = positions(ds, "model", None if model is None else [model])
    labels = names(ds, "model")
    noun = _noun(ds)
    grid = panel_grid([(labels[at],) for at in chosen], row_height=230, most=3)
    for panel, at in zip(grid, chosen, strict=True):
        one = ds.isel(model=at)
        share = array(one, "share", "removed")
        known = np.isfinite(share)
        x = share[known]
        random = one["random_error_ratio"].median("series").values[:, known]
        panel.band(x, random.min(0), random.max(0), PALE, "random orders", legend=True)
        hover = f"%{{x:.0%}} of the {noun}<br>%{{y:.3g}} times the error"
        panel.line(
            x,
            np.median(random, axis=0),
            "median of these",
            hover,
            colour=GREY,
            dash="dot",
        )
        ordered = one["error_ratio"].median("series")
        for order, word in _WORDS.items():
            values = ordered.sel(order=order).values[known]
            panel.line(x, values, word, hover, colour=_COLOURS[order], dots=5)
    # three labels stand side by side in a printed column, and more would be turned
    grid.x(tickformat=".0%", tickvals=[0, 0.5, 1])
    grid.y(**LOG_AXIS | {"tickvals": _TICKS})
    title_axes(grid, f"{noun} removed", "error / complete model's")
    whose = ""
    if len(chosen) == 1:
        whose = f"of {labels[chosen[0]]} "
    count = int((~ds["flat"].values.astype(bool)).sum())
    return grid.finalize(
        f"Error {whose}by the share of {noun} removed",
        f"median over {count} series, {ds.attrs.get('horizon')} steps ahead",
        f"band: {ds.sizes['draw']} random orders",
    )


generic_figure(
    "compare_models",
    "matched_share",
    "Share of components whose loss is like that of one of another model.",
    variables=["matched_share"],
)
