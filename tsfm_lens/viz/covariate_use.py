"""Use of covariates: worth, response and share of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import figure
from tsfm_lens.viz.findings import finding, judged
from tsfm_lens.viz.grid import panel_grid
from tsfm_lens.viz.select import array, medians, model_of, names, shown, unit_of
from tsfm_lens.viz.sheet import Look, Panel, sheet
from tsfm_lens.viz.summary import labelled, summarize
from tsfm_lens.viz.theme import BLUE, CATEGORICAL, GREY, mixed, plain
from tsfm_lens.viz.words import measured, signed

__all__ = ["covariate_dots", "response_curves"]

WORDS = {
    "removed": "removed",
    "constant": "constant, at its mean",
    "shuffled": "in random order",
}
_APART = 0.22
_BENT = 0.2  # of a response's way up that it goes down, or the other way round
_IDLE = "removing it changes no forecast beyond rounding, so the model does not use it."


def read_use(ds: xr.Dataset) -> list[str]:
    """State the worth, the response and the share of each covariate, of what moves the forecast most first."""
    size = np.nan_to_num(array(ds, "moved_size", "covariate", "way").max(1))
    return [_describe(ds, int(place)) for place in np.argsort(-size, kind="stable")]


def covariate_totals(ds: xr.Dataset) -> list[dict[str, Any]]:
    """List worth, response and share of each covariate, medians over series in MASE; None where not measured.

    Shares of its parts sum to that of the covariate.
    """
    order, level = (names(ds, "way").index(way) for way in ("shuffled", "constant"))
    columns = {
        "worth": array(ds, "worth_size", "covariate", "way")[:, order]
        if "worth" in ds
        else None,
        "worth_significant": array(ds, "worth_significant", "covariate", "way")[
            :, order
        ]
        if "worth" in ds
        else None,
        "slope": array(ds, "slope_size", "covariate"),
        "slope_significant": array(ds, "slope_significant", "covariate"),
        "step": medians(array(ds, "step_size", "covariate", "series")),
        "share": array(ds, "moved_size", "covariate", "way")[:, level],
    }
    for at, part in enumerate(names(ds, "part")):
        shares = [_part_shares(ds, place)[at] for place in range(ds.sizes["covariate"])]
        columns[f"share of {part}"] = columns["share"] * np.array(shares)

    def plain_value(
        name: str, values: np.ndarray | None, place: int
    ) -> float | bool | None:
        value = None if values is None else values[place].item()
        missing = value is None or value != value
        return (
            None if missing else bool(value) if name.endswith("_significant") else value
        )

    return [
        {
            "covariate": label,
            **{
                name: plain_value(name, values, place)
                for name, values in columns.items()
            },
        }
        for place, label in enumerate(names(ds, "covariate"))
    ]


def _scale(ds: xr.Dataset) -> tuple[np.ndarray, str]:
    """Return what changes are multiplied by, (series,), and the unit that they then have: MASE over several series."""
    several = ds.sizes["series"] > 1
    return (
        (np.ones(1), "MASE")
        if several
        else (array(ds, "unit", "series"), unit_of(ds, 0) or "data units")
    )


def _steps(ds: xr.Dataset, place: int) -> str:
    """Name the step of a response: of two values both, else a standard deviation."""
    value = array(ds, "value", "shift", "series", covariate=place)
    if np.isnan(value[0]).all():
        return "the lower to the upper value"
    return "one standard deviation more"


def _way(ds: xr.Dataset, place: int) -> str:
    """State in how many series forecasts rise with a covariate, and whether the response bends."""
    slopes = array(ds, "slope", "covariate", "series")[place]
    count = int(np.isfinite(slopes).sum())
    way = f"rises with it in {(slopes > 0).sum()} of {count} series"
    line = medians(array(ds, "response", "shift", "series", covariate=place))
    rises = np.diff(line[np.isfinite(line)])
    up, down = rises[rises > 0].sum(), -rises[rises < 0].sum()
    return f"{way}, and bends" if min(up, down) > _BENT * max(up, down) else way


def _part_shares(ds: xr.Dataset, place: int) -> np.ndarray:
    """Return the part of a covariate's effect that its past and its known future have, (part,), medians over series.

    Medians of two parts of the same wholes sum to 1; NaN where the covariate has no effect in any series.
    """
    parts = array(ds, "share", "part", "series", covariate=place)
    whole = parts.sum(0)
    return medians(
        np.divide(parts, whole, out=np.full(parts.shape, np.nan), where=whole > 0)
    )


def _describe(ds: xr.Dataset, place: int) -> str:
    """State the worth, the response and the share of one covariate."""
    one = ds.isel(covariate=place)
    acting = one["moved_acts"] > 0
    known = one["moved"].notnull().any("way").values
    silent = one["series"].values[~known]
    worth = finding(one, "worth", "way")
    slope = judged(ds, "slope", "covariate")
    scale, unit = _scale(ds)
    factor = float(scale[0])
    return " ".join(
        summarize(
            one.isel(way=acting.values),
            "{covariate}:",
            "{idle}",
            "without it {count:whole} of {known:whole} forecasts move, by the way of leaving "
            "it out{moved:basis}: {moved:each MASE}.",
            "The error is then larger (negative: smaller) by: {worth:each MASE}; {verdict}.",
            "Response: the forecast {way}, {response} for {steps}.",
            "Share: {total}, its mean absolute effect: {shares:each percent}.",
            "No verdict on {silent}, where it or the series is constant.",
            covariate=names(ds, "covariate")[place],
            idle=None if acting.any() else _IDLE,
            count=one["moved_acts"].max(),
            known=known.sum(),
            verdict=worth and worth.for_others(int(worth.significant.argmax())),
            way=_way(ds, place) if slope.acts[place] else None,
            response=slope.told(
                place, lambda value: f"{signed(value * factor)} {unit}", over=True
            ),
            steps=_steps(ds, place),
            total=measured(unit)(
                float((one["moved"].sel(way="constant") * scale).median())
            ),
            shares=labelled(ds, _part_shares(ds, place), "part"),
            silent=shown(silent.tolist()) or None,
        )
    )


@figure(
    "covariate_use",
    "Change of forecasts and errors without each covariate.",
    table=("moved", "error_without", "worth"),
    sentences=read_use,
)
def covariate_dots(ds: xr.Dataset) -> go.Figure:
    """Draw how much forecasts move without each covariate and, with the truth, what it was worth."""
    covariates, ways = names(ds, "covariate"), names(ds, "way")
    panels = {"moved": "change of the median forecast\n(MASE)"}
    if "worth" in ds:
        panels["worth"] = "change of the error without it\n(MASE; above 0: it helps)"
    height = max(150, 64 * len(covariates))
    canvas = sheet(
        [height],
        [1] * len(panels),
        column_gap=0.05,
        min_width=360 * len(panels),
        below=68,
        shared_yaxes=True,
    )
    for panel, (name, title) in zip(canvas, panels.items(), strict=True):
        for place, way in enumerate(ways):
            noise = finding(ds, name, "covariate", unit="MASE", way=place)
            mean = array(ds, f"{name}_size", "covariate", way=place)
            at = np.arange(len(covariates)) + _APART * (place - (len(ways) - 1) / 2)
            text = [f"{plain(each)}, {WORDS.get(way, way)}" for each in covariates]
            look: Look = {
                "colour": CATEGORICAL[place % len(CATEGORICAL)],
                "noise": noise,
                "across": True,
                "text": text,
            }
            panel.dots(
                mean, at, WORDS.get(way, way), "%{text}<br>%{x:.3g} MASE", **look
            )
        panel.upright(0.0)
        panel.x(title)
    ticks = [
        f"{plain(name)}<br>({role})"
        for name, role in zip(covariates, ds["role_of"].values, strict=True)
    ]
    canvas.y(
        tickvals=list(range(len(covariates))),
        ticktext=ticks,
        range=[len(covariates) - 0.5, -0.5],
        showgrid=False,
    )
    series = names(ds, "series")
    return canvas.dress(
        f"Use of covariates by {model_of(ds)}",
        "median over " * (len(series) > 1) + shown(series),
    )


_MAX_PANELS, _MAX_LINES = 6, 200


@figure(
    "covariate_use",
    "Change of the forecast against the value of each covariate.",
    table=("value", "response"),
)
def response_curves(ds: xr.Dataset) -> go.Figure:
    """Draw the change of the forecast against the value of each covariate: a line per series, median, and 80 % of them.

    Values that differ between series are rows in standard deviations from what they were.
    """
    size = np.abs(np.nan_to_num(array(ds, "slope_size", "covariate")))
    places = [int(at) for at in np.argsort(-size, kind="stable")[:_MAX_PANELS]]
    labels, stretch = (
        names(ds, "covariate"),
        {"known": "known future", "past": "last steps of its past"},
    )
    titles = [
        (labels[place], stretch[str(ds["role_of"].values[place])]) for place in places
    ]
    canvas = panel_grid(titles, row_height=190, most=3, least=200, own_x=True)
    scale, unit = _scale(ds)
    for panel, place in zip(canvas, places, strict=True):
        _draw_response(panel, ds, place, scale, unit)
    canvas.panel().y(f"change of the forecast,\nmean over steps ({unit})", nticks=6)
    fewer = (
        f"the {len(places)} steepest of {len(labels)}"
        if len(places) < len(labels)
        else ""
    )
    title = f"Response of the forecast by {model_of(ds)} to its covariates"
    return canvas.dress(title, shown(names(ds, "series")), fewer)


def _draw_response(
    panel: Panel, ds: xr.Dataset, place: int, scale: np.ndarray, unit: str
) -> None:
    """Draw the lines of one covariate."""
    change = array(ds, "response", "series", "shift", covariate=place) * scale[:, None]
    value = array(ds, "value", "series", "shift", covariate=place)
    ids, step = names(ds, "series"), array(ds, "step_size", "series", covariate=place)
    rows = np.flatnonzero(np.isfinite(change).any(1))
    middle = names(ds, "shift").index("0")
    # of two values the ends agree, whatever lies between
    ends = np.delete(value[rows], middle, axis=1)
    same = len(rows) and np.allclose(ends, ends[0], equal_nan=True)
    if not same:
        value = (value - value[:, [middle]]) / step[:, None]
    panel.x("value" if same else "change (standard deviations)", nticks=5)
    several = len(rows) > 1
    for row in rows[:_MAX_LINES] if several else ():
        order = np.argsort(np.where(np.isfinite(change[row]), value[row], np.inf))[
            : np.isfinite(change[row]).sum()
        ]
        hover = f"{plain(ids[row])}<br>value %{{x:.4g}}<br>%{{y:+.3g}} {plain(unit)}"
        panel.line(
            value[row, order],
            change[row, order],
            "one series",
            hover,
            colour=mixed(GREY, 0.45),
            width=0.7,
        )
    if not len(rows):
        return
    points = np.flatnonzero(np.isfinite(change).any(0))
    x, y = (
        np.nanmedian(each[np.ix_(rows, points)], axis=0) for each in (value, change)
    )
    order = np.argsort(x)
    if several:
        low, high = np.nanquantile(change[np.ix_(rows, points)], (0.1, 0.9), axis=0)
        panel.band(
            x[order],
            low[order],
            high[order],
            mixed(BLUE, 0.22),
            "80 % of series",
            legend=True,
        )
    name = "median over series" if several else ids[int(rows[0])]
    panel.line(
        x[order],
        y[order],
        name,
        f"value %{{x:.4g}}<br>%{{y:+.3g}} {plain(unit)}",
        colour=BLUE,
        width=2,
        dots=5,
    )
    panel.level(0.0)
