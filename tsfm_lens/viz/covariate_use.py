"""Use of covariates: forecasts and errors without each."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import measurement
from tsfm_lens.viz.findings import finding, judged
from tsfm_lens.viz.needs import COVARIATES
from tsfm_lens.viz.select import array, model_of, names, shown
from tsfm_lens.viz.sheet import Look, sheet
from tsfm_lens.viz.theme import CATEGORICAL, plain
from tsfm_lens.viz.words import num

__all__ = ["covariate_dots"]

WORDS = {"removed": "removed", "constant": "constant, at its mean", "shuffled": "in random order"}
_APART = 0.22
_WHEN = {"removed": "removing it", "constant": "holding it at its mean", "shuffled": "shuffling it"}
COVARIATE_USE = measurement("covariate_use", needs=COVARIATES)


def read_use(ds: xr.Dataset) -> list[str]:
    """Describe whether each covariate moves the forecast and, with a truth, helps; what moves it most first."""
    size = array(ds, "moved_size", "covariate", "way").max(1)
    order = [int(place) for place in np.argsort(-np.nan_to_num(size), kind="stable")]
    empty = np.isnan(array(ds, "moved", "covariate", "way", "series")).all(1)
    out = []
    for place in order:
        silent = [name for name, none in zip(names(ds, "series"), empty[place], strict=True) if none]
        rest = f" No verdict on {shown(silent)}, where it or the series is constant." if silent else ""
        out.append(f"{names(ds, 'covariate')[place]}: {_describe(ds, place)}{rest}")
    return out


def _size(ds: xr.Dataset, place: int) -> str:
    """Write how far the forecasts move without a covariate; "" if none of them moves by more than rounding."""
    moved, ways = judged(ds, "moved", "way", covariate=place), names(ds, "way")
    if not moved.acts.any():
        return ""
    way = max(range(len(ways)), key=lambda i: (moved.acts[i] > 0, ways[i] == "shuffled"))
    there = int(np.isfinite(array(ds, "moved", "series", covariate=place, way=way)).sum())
    some = f" ({int(moved.acts[way])} of {there})"
    return f"{_WHEN[ways[way]]} moves the forecasts{some} by {moved.told(way, _mase, over=True)}"


def _describe(ds: xr.Dataset, place: int) -> str:
    ways = names(ds, "way")
    size = _size(ds, place)
    if not size:
        return "removing it changes no forecast beyond rounding, so the model does not use it."
    if "worth_size" not in ds:
        return f"{size}."
    worth = judged(ds, "worth", "way", covariate=place)
    shuffled = ways.index("shuffled")
    change = float(worth.size[shuffled])
    told = worth.told(shuffled, lambda value: _mase(value if change > 0 else -value), over=True)
    helps, harms = (bool((worth.significant & side).any()) for side in (worth.size > 0, worth.size < 0))
    outcome = {
        (True, False): "it helps, significantly",
        (False, True): "forecasts are better without it, significantly",
        (True, True): "it helps or harms, significantly, depending on how it is left out",
    }.get((helps, harms))
    units, needed = int(worth.facts["units"]), int(worth.facts["needed"])
    open_words = f"{units} series are too few to test this for others; {needed} are needed"
    unsure = open_words if units < needed else "not significant for other series"
    return f"{size}, and the error is {'larger' if change > 0 else 'smaller'} by {told}: {outcome or unsure}."


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
            mean = array(ds, f"{name}_size", "covariate", way=place)
            at = np.arange(len(covariates)) + _APART * (place - (len(ways) - 1) / 2)
            text = [f"{plain(each)}, {WORDS.get(way, way)}" for each in covariates]
            look: Look = {"colour": CATEGORICAL[place % len(CATEGORICAL)], "noise": noise, "across": True, "text": text}
            panel.dots(mean, at, WORDS.get(way, way), "%{text}<br>%{x:.3g} MASE", **look)
        panel.upright(0.0)
        panel.x(title)
    ticks = [f"{plain(name)}<br>({role})" for name, role in zip(covariates, ds["role_of"].values, strict=True)]
    canvas.y(tickvals=list(range(len(covariates))), ticktext=ticks, range=[len(covariates) - 0.5, -0.5], showgrid=False)
    series = names(ds, "series")
    return canvas.dress(f"Use of covariates by {model_of(ds)}", "median over " * (len(series) > 1) + shown(series))
