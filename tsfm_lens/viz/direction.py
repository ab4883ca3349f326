"""Doses of a direction beside the band of its nulls, and what its exchange does."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import figure
from tsfm_lens.viz.findings import read_estimate
from tsfm_lens.viz.nulls import describe_nulls
from tsfm_lens.viz.select import array, name_model, names, varying
from tsfm_lens.viz.sheet import sheet
from tsfm_lens.viz.summary import summarize
from tsfm_lens.viz.theme import BLUE, GREY, PALE, VERMILION, number, percent
from tsfm_lens.viz.words import num

__all__ = ["dose_curve"]

_METHODS = {
    "means": "the difference of the means",
    "lda": "the linear discriminant of the means",
    "das": "the subspace whose exchange brings the forecast nearest to its goal",
}
_CHANGES = {
    "interchange": (
        "Exchanged, it brings the forecast of the corrupted run to an agreement of"
        " {size} with {goal}; 0 is no change, 1 the goal."
    ),
    "erasure": (
        "Erased from the clean run, it brings the forecast to an agreement of {size}"
        " with the corrupted run's."
    ),
}


def read_direction(ds: xr.Dataset) -> list[str]:
    """State what the direction does, and how many draws do it, too."""
    facts = ds.attrs
    held_out = "found on one half of the series and tested on the other"
    if not facts["held_out"]:
        held_out = "found and tested on the same series, as there is only one"
    where = f"tokens {facts['tokens']}".replace("-", "−")
    if facts["tokens"] == "all":
        where = "all tokens"
    goal = "the counterfactual" if facts["given"] else "the clean run's"
    out = summarize(
        ds,
        "The direction is {method_words}, at {point}, {where}; it is {held_out}.",
        "It holds {along:percent} of the squared difference of the runs in the median."
        " Where that is little, the runs differ in more than this direction.",
        method_words=_METHODS[facts["method"]],
        held_out=held_out,
        along=ds["along"].median(),
        where=where,
    )
    out += _read_content(ds)
    effect = read_estimate(ds, "agreement", "change")
    for at, words in enumerate(_CHANGES.values()):
        if np.isfinite(effect.size[at]):
            out.append(words.format(size=effect.told(at, over=True), goal=goal))
            out += describe_nulls(ds, "agreement", "change", at=at)
    out += summarize(
        ds,
        "Real activations (99 % by Mahalanobis distance) end at doses of {low} and"
        " {high} standard deviations in the median; beyond, the model sees what no"
        " series gives.",
        low=ds["dose_low"].median(),
        high=ds["dose_high"].median(),
    )
    return [*out, *effect.standing(names(ds, "change"), "changes")]


def _read_content(ds: xr.Dataset) -> list[str]:
    """Say in which content the runs differ most, as few pairs cannot test it."""
    gaps = ds["content_gap"].values
    if not np.isfinite(gaps).any():
        return []
    at = int(np.nanargmax(abs(gaps)))
    count = len(ds["series"])
    pairs = "1 pair" if count == 1 else f"{count} pairs"
    return [
        "Of what both runs should be alike in, they differ most in"
        f" {ds['content'].values[at]}: by {num(abs(gaps[at]))} standard deviations in"
        f" the median over {pairs}. Where that is much, the direction may be that"
        " difference."
    ]


def dose_table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulate the share of the way at each dose, with the range of the draws."""
    shares = array(ds, "dose_recovered", "dose", "series")[:, varying(ds)]
    table = pd.DataFrame(
        {"dose": ds["dose"].values, "recovered": np.nanmedian(shares, axis=1)}
    )
    nulls = array(ds, "dose_nulls", "null", "dose")
    if len(nulls):
        table["lowest_draw"] = nulls.min(axis=0)
        table["highest_draw"] = nulls.max(axis=0)
    return table


@figure(
    "direction",
    "Share of the way to the other forecast by the dose of a direction.",
    table=dose_table,
    sentences=read_direction,
)
def dose_curve(ds: xr.Dataset) -> go.Figure:
    """Draw how far each dose of a direction moves the forecast, beside its draws.

    Args:
        ds: result of kind "direction".

    Returns:
        One panel: the share of the way to the goal by the dose, in standard deviations,
        each series thin and the median thick; a band from the lowest to the highest
        draw; and dashed lines at the doses at which activations leave the real ones.

    Example:
        >>> fig = viz.dose_curve(probes.direction(run, corrupted, nulls=2))
        >>> fig.layout.xaxis.title.text
        'dose (standard deviations)'
    """
    doses = ds["dose"].values
    # no dose moves nothing
    at = int(np.searchsorted(doses, 0.0))
    x = np.insert(doses, at, 0.0)
    shares = array(ds, "dose_recovered", "dose", "series")[:, varying(ds)]
    curves = np.insert(shares, at, 0.0, axis=0)
    nulls = np.insert(array(ds, "dose_nulls", "null", "dose"), at, 0.0, axis=1)
    canvas = sheet([260])
    panel = canvas.panel()
    if len(nulls):
        panel.band(x, nulls.min(0), nulls.max(0), PALE, "draws", legend=True)
    hover = "dose %{x:.3g}<br>%{y:.1%} of the way"
    for series in curves.T:
        panel.line(x, series, "each series", hover, colour=BLUE, width=0.5, opacity=0.4)
    median = np.nanmedian(curves, axis=1)
    panel.line(x, median, "median", hover, colour=VERMILION, width=2, dots=5)
    for name in ("dose_low", "dose_high"):
        end = float(ds[name].median())
        if doses[0] <= end <= doses[-1]:
            panel.vline(end, colour=GREY, dash="dash")
    panel.hline(0.0)
    panel.x("dose (standard deviations)")
    panel.y("share of the way", tickformat=".0%")
    low, high = (number(float(ds[name].median())) for name in ("dose_low", "dose_high"))
    along = percent(float(ds["along"].median()))
    return canvas.finalize(
        f"Doses of a direction of {name_model(ds)}",
        f"{ds.attrs['point']}, {along} of the difference",
        f"dashed: real activations end at {low} and {high}",
    )
