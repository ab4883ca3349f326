"""Use of covariates: forecasts and errors without each."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import measurement
from tsfm_lens.viz.needs import COVARIATES
from tsfm_lens.viz.noise import finding, judged
from tsfm_lens.viz.select import array, model_of, names, shown
from tsfm_lens.viz.sheet import Look, sheet
from tsfm_lens.viz.theme import CATEGORICAL, plain
from tsfm_lens.viz.words import listed, num

__all__ = ["covariate_dots"]

WORDS = {"removed": "removed", "constant": "constant, at its mean", "shuffled": "in random order"}
_APART = 0.22
FEWEST = 3  # series without which nothing is said of others
_SHORT = {**WORDS, "constant": "at its mean"}
COVARIATE_USE = measurement("covariate_use", needs=COVARIATES)


def read_use(ds: xr.Dataset) -> list[str]:
    """Describe whether each covariate moves the forecast and, with a truth, helps; what moves it most first."""
    size = array(ds, "moved_estimate", "covariate", "way").max(1)
    order = [int(place) for place in np.argsort(-np.nan_to_num(size), kind="stable")]
    empty = np.isnan(array(ds, "moved", "covariate", "way", "series")).all(1)
    out = []
    for place in order:
        silent = [name for name, none in zip(names(ds, "series"), empty[place], strict=True) if none]
        rest = f" Nothing can be said of {shown(silent)}, where it or the series never changes." if silent else ""
        out.append(f"{names(ds, 'covariate')[place]}: {_describe(ds, place)}{rest}")
    return out


def _size(ds: xr.Dataset, place: int) -> str:
    """Write how far the forecasts move without a covariate; "" if none of them moves by more than rounding."""
    change = array(ds, "moved", "way", "series", covariate=place)
    above = change > array(ds, "moved_floor", "series")
    if not above.any():
        return ""
    ways = names(ds, "way")
    way = max(range(len(ways)), key=lambda i: (above[i].any(), ways[i] == "shuffled"))
    standing = judged(ds, "moved", "way", covariate=place)
    if standing.stands[way]:
        return f"{_SHORT[ways[way]]} it moves the forecast by {standing.told(way, _mase)}"
    # the size of a change is never below 0: that its mean is uncertain does not make it none
    sizes = change[way][above[way]]
    span = f"by {_mase(sizes.min())}" + (f" to {_mase(sizes.max())}" if len(sizes) > 1 else "")
    return f"{_SHORT[ways[way]]} it moves {len(sizes)} of {standing.series} forecasts, {span}"


def _describe(ds: xr.Dataset, place: int) -> str:
    ways = names(ds, "way")
    size = _size(ds, place)
    if not size:
        return "forecasts without it are the same up to the noise; the model does not use it."
    shuffled = ways.index("shuffled")
    if "worth_estimate" not in ds:
        return f"{size}."
    worth = judged(ds, "worth", "way", covariate=place)
    if worth.series < FEWEST:
        change = float(worth.estimate[shuffled])
        outcome = f"the error is {'larger' if change > 0 else 'smaller'} by {_mase(abs(change))} there"
        return f"{size}, and {outcome}; whether that is so in general takes {FEWEST} series or more."
    helps = [i for i in range(len(ways)) if worth.stands[i] and worth.estimate[i] > 0]
    harms = [i for i in range(len(ways)) if worth.stands[i] and worth.estimate[i] < 0]
    if helps and not harms:
        best = max(helps, key=lambda i: float(worth.low[i]))
        return f"{size}, and the error is larger by {worth.told(best, _mase)} when it is {ways[best]}: it helps."
    if harms and not helps:
        worst = min(harms, key=lambda i: float(worth.high[i]))
        less = f"smaller by {_mase(-float(worth.estimate[worst]))} when it is {ways[worst]}"
        return f"{size}, and the error is {less}: forecasts are better without it."
    if helps:
        both = [f"{'helps' if i in helps else 'harms'} against {ways[i]}" for i in sorted([*helps, *harms])]
        return f"{size}; it {listed(both)}."
    return f"{size}; whether that helps cannot be told from these series."


def _mase(value: float) -> str:
    return f"{num(value)} MASE"


@COVARIATE_USE.figure(table=("moved", "error_without", "worth"), sentences=read_use)
def covariate_dots(ds: xr.Dataset) -> go.Figure:
    """Draw how much forecasts move without each covariate and, with the truth, what it was worth."""
    covariates, ways = names(ds, "covariate"), names(ds, "way")
    panels = {"moved": "change of the median forecast\n(MASE)"}
    if "worth" in ds:
        panels["worth"] = "change of the error without it\n(MASE; above 0: it helps)"
    height = max(150, 64 * len(covariates))
    canvas = sheet(
        [height], [1] * len(panels), column_gap=0.05, min_width=360 * len(panels), below=68, shared_yaxes=True
    )
    for panel, (name, title) in zip(canvas, panels.items(), strict=True):
        for place, way in enumerate(ways):
            noise = finding(ds, name, "covariate", unit="MASE", way=place)
            mean = array(ds, f"{name}_estimate", "covariate", way=place)
            at = np.arange(len(covariates)) + _APART * (place - (len(ways) - 1) / 2)
            text = [f"{plain(each)}, {WORDS.get(way, way)}" for each in covariates]
            look: Look = {"colour": CATEGORICAL[place % len(CATEGORICAL)], "noise": noise, "across": True, "text": text}
            panel.dots(mean, at, WORDS.get(way, way), "%{text}<br>%{x:.3g} MASE", **look)
        panel.upright(0.0)
        panel.x(title)
    ticks = [f"{plain(name)}<br>({role})" for name, role in zip(covariates, ds["role_of"].values, strict=True)]
    canvas.y(tickvals=list(range(len(covariates))), ticktext=ticks, range=[len(covariates) - 0.5, -0.5], showgrid=False)
    series = names(ds, "series")
    return canvas.dress(f"Use of covariates by {model_of(ds)}", "mean over " * (len(series) > 1) + shown(series))
