"""Attribution of the forecast to stretches of the input and to covariates.

:func:`input_timeline` draws effects under the series. :func:`input_waterfall` adds them
up, from the reference forecast (of masked input) to the forecast.
:func:`deletion_lines` and :func:`read_tests` show how faithful an explanation is.
``_QuantileView`` selects the quantile that a figure is about. Attributions are made in
:mod:`tsfm_lens.explain`; effects over many items are in
:mod:`tsfm_lens.viz.input_effects`.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.registry import figure, frame
from tsfm_lens.core.stats import CONFIDENCE_TEXT
from tsfm_lens.core.verdict import find_rules, verdict
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.panels import SeriesWindow, fit, name_segments, series_window
from tsfm_lens.viz.select import (
    array,
    find_unit,
    median_position,
    name_model,
    name_statistic,
    names,
    position,
    series_position,
)
from tsfm_lens.viz.sheet import Panel, Style, sheet
from tsfm_lens.viz.summary import summarize
from tsfm_lens.viz.theme import (
    BLUE,
    CATEGORICAL,
    GREY,
    INK,
    PALE,
    VERMILION,
    mixed,
    number,
    plain,
)
from tsfm_lens.viz.words import measured, signed

__all__ = ["deletion_lines", "input_timeline", "input_waterfall"]

# Heights in pixels of a strip, and of a bar.
_STRIP = 24
_BAR = 22
_DASHES = "5px,2px"
_MAX_NAMES = 3  # segments that a reading names
# Where the mean is below this share of the mean absolute effect, steps differ in sign.
_MIXED = 0.9
BOTH_WAYS = "both ways"
VERBS = {"up": "raises", "down": "lowers", BOTH_WAYS: "moves"}
"""What an input does to a forecast, by the direction of its effect."""
# Smallest difference of the halves of a forecast, as a share of its range, that is no
# level course.
_LEVEL = 0.05
# A reference forecast further than this from the context's mean, in standard
# deviations, has another level than the series.
_FAR = 3.0

Quantile = float | tuple[float, float] | None


def read_inputs(ds: xr.Dataset) -> list[str]:
    """State how far the reference is from the forecast, and the largest effects."""
    median = ds.isel(quantile=median_position(ds["quantile"].values))
    effects = array(median, "attribution", "segment", "step")
    # of the interval of each segment's effect; 0 where masks and paths are not sampled
    half_widths = np.zeros(len(effects))
    if "half_width" in ds:
        half_widths = median["half_width"].mean("step").values
    # an effect is a difference of two forecasts, each of which is rounded
    threshold = 2 * float(ds.attrs.get("rounding", 0.0))
    # half-widths of the segments of a group are not independent, so their plain sum
    # bounds that of the group
    acting = [
        group
        for group in ranked(ds, effects)
        if np.abs(effects[group].sum(0)).mean()
        > max(half_widths[group].sum(), threshold)
    ]
    largest = [_moves(ds, effects[group], group) for group in acting[:_MAX_NAMES]]
    effects_text = "No part of the input moves it beyond the noise."
    if largest:
        effects_text = f"What moves it most: {'; '.join(largest)}."
    # one text, so that the overview of a page says what moves the forecast
    if "verdict" in ds.attrs:
        effects_text = f"{effects_text} Verdict: the explanation {ds.attrs['verdict']}"
        if not ds.attrs.get("masked", 1):
            effects_text = (
                f"{effects_text} by its routes alone, as masking was not tested"
            )
        effects_text = f"{effects_text} (criteria below)."
    far = float(ds.attrs.get("reference_distance", 0.0))
    # the part of the change that belongs to no single segment
    rest = float(median["remainder"].mean())
    # a remainder below a twentieth of all effects is not worth a sentence
    is_joint = bool(acting) and abs(rest) > 0.05 * np.abs(effects.mean(1)).sum()
    repeats = ds.attrs.get("repeats") or None
    # The sentence on masks is left out where there are repeats, as the spread over
    # seeds includes that over masks, and where the estimate has met its tolerance
    # ("settled"), as it needs no larger budget.
    is_sampled = "half_width" in ds and not repeats and not ds.attrs.get("settled")
    return [
        *summarize(
            ds,
            "The forecast of {target} averages {whole:unit} over {steps} steps"
            " ({statistic}){course}; with all inputs replaced by {reference} it"
            " averages {nothing}. {most}",
            "The reference forecast lies {far} standard deviations from the mean of the"
            " context, so effects include the level of the series. A reference that"
            " keeps the level shows the other effects better.",
            "Segments also act jointly: {rest:signed unit} belongs to no single one.",
            "Sample paths were drawn under {repeats:whole} seeds; "
            f"{CONFIDENCE_TEXT} intervals reach "
            "±{reach} a step.",
            f"Masks were sampled: {CONFIDENCE_TEXT} intervals reach "
            "±{sampled} a step. A larger budget narrows them.",
            whole=median["forecast"].mean(),
            steps=ds.sizes["step"],
            statistic=name_statistic(ds),
            course=_describe_course(ds, median["forecast"].values),
            reference=name_reference(ds),
            nothing=median["reference_forecast"].mean(),
            most=effects_text,
            far=far if far > _FAR else None,
            rest=rest if is_joint else None,
            repeats=repeats,
            reach=half_widths.max(),
            sampled=half_widths.max() if is_sampled else None,
        ),
        *_read_width(ds),
    ]


def _describe_course(ds: xr.Dataset, forecast: np.ndarray) -> str:
    """Say how the second half of a forecast (step,) lies to its first.

    It is "" for a single step.
    """
    if len(forecast) < 2:
        return ""
    # an odd number of steps has one in the middle, which is left out
    half = len(forecast) // 2
    change = float(forecast[-half:].mean() - forecast[:half].mean())
    if abs(change) < _LEVEL * float(np.ptp(forecast)) or not change:
        return ", as high in its second half as in its first"
    size = measured(find_unit(ds).strip())(abs(change))
    comparative = "higher" if change > 0 else "lower"
    return f", {size} {comparative} in its second half than in its first"


def _read_width(ds: xr.Dataset) -> list[str]:
    """State what widens and narrows the interval between the outer quantiles most."""
    levels = np.sort(ds["quantile"].values.astype(float))
    if len(levels) < 2:
        return []
    view = _QuantileView(ds, (float(levels[0]), float(levels[-1])))
    return summarize(
        ds,
        "The {interval} averages {width:unit}; of the reference, {reference}. Most of"
        " the difference is from {parts:largest signed}.",
        interval=view.word,
        width=view.of("forecast", "step").mean(),
        reference=view.of("reference_forecast", "step").mean(),
        parts=xr.DataArray(view.effect, {"segment": view.names}, ["segment"]),
    )


def ranked(ds: xr.Dataset, effect: np.ndarray) -> list[list[int]]:
    """Group segments by the known covariate they belong to, and sort the groups.

    The group of largest mean absolute effect comes first; ``effect`` is (segment,
    step).
    """
    # A known covariate has segments in the past and in the future, and is one input to
    # a reader: they share the key (row, -1). Every other segment is a group by itself,
    # by the key (row, its index).
    groups: dict[tuple[int, int], list[int]] = {}
    for index, (row, kind) in enumerate(
        zip(ds["row"].values, ds["kind"].values, strict=True)
    ):
        groups.setdefault(
            (int(row), -1 if kind == "known covariate" else index), []
        ).append(index)
    return sorted(
        groups.values(), key=lambda group: -np.abs(effect[group].sum(0)).mean()
    )


def input_totals(ds: xr.Dataset) -> list[dict[str, Any]]:
    """List by how much each covariate and each segment moves the median.

    Means are over steps, in data units; the largest comes first.
    """
    median = median_position(ds["quantile"].values)
    effects = array(ds, "attribution", "segment", "step", quantile=median)
    labels = names(ds, "segment")
    groups = []
    for group in ranked(ds, effects):
        groups.append(group)
        # a covariate of several segments is listed as a whole, then by segment
        if len(group) > 1:
            groups += [[index] for index in group]
    totals = {group_name(labels, group): effects[group].sum(0) for group in groups}
    return [
        {
            "input": name,
            "mean": float(total.mean()),
            "mean_absolute": float(abs(total).mean()),
        }
        for name, total in totals.items()
    ]


def group_name(
    labels: list[str], group: list[int], words: list[str] | None = None
) -> str:
    """Name a group: one segment by its name, several by their covariate.

    ``words`` are names of the segments that are used in place of ``labels`` for one
    segment.
    """
    first = labels[group[0]]
    if len(group) == 1:
        return (words or labels)[group[0]]
    # names of a covariate's segments end with ", past" or with their steps
    return re.sub(r", past$| -?\d+ to -?\d+$", "", first) + " in total"


def _moves(ds: xr.Dataset, effects: np.ndarray, group: list[int]) -> str:
    """Write how far a group moves the forecast, and which way.

    ``effects`` are those of its segments, (segment, step).
    """
    name = group_name(names(ds, "segment"), group, name_segments(ds))
    total = effects.sum(0)
    size, way = moved(total)
    write = measured(find_unit(ds).strip())
    if way in VERBS:
        # what goes one way goes so by the mean, not by its size at a step
        return f"{name} {VERBS[way]} it by {write(abs(float(total.mean())))}"
    return f"{name} {VERBS[BOTH_WAYS]} it by {write(size)} ({way})"


def moved(effect: np.ndarray) -> tuple[float, str]:
    """Return the mean size of an effect (step,), and which way it goes in words.

    The words are "up", "down", or at how many steps it goes up.
    """
    size = float(np.abs(effect).mean())
    way = direction(float(effect.mean()), size)
    if way == BOTH_WAYS:
        n_up = int((effect > 0).sum())
        way = f"up at {n_up} of {len(effect)} steps"
    return size, way


def direction(mean: float, size: float) -> str:
    """Say which way an effect goes, by its mean and its mean size over steps.

    It is "up" or "down" where nearly all of the size is in the mean, else "both ways".
    """
    if abs(mean) < _MIXED * size:
        return BOTH_WAYS
    return "up" if mean > 0 else "down"


def _table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulate mean and mean absolute effect over steps, by segment and quantile."""
    effect = ds["attribution"]
    means = {"mean_absolute": abs(effect).mean("step"), "mean": effect.mean("step")}
    table = frame(xr.Dataset(means), *means)
    for name in ("kind", "start", "stop"):
        table.insert(1, name, ds[name].sel(segment=table["segment"].values).values)
    if "mean_half_width" in ds:
        # without a join: both tables have a row for each segment and quantile, in order
        table["mean_half_width"] = frame(ds, "mean_half_width")["mean_half_width"]
    return table


@figure(
    "input_attribution",
    "Effect of every segment of the input, under the series.",
    variables=("context",),
    table=_table,
    sentences=read_inputs,
)
def input_timeline(ds: xr.Dataset, *, quantile: Quantile = None) -> go.Figure:
    """Draw the series with its forecast, and every segment under it.

    A segment is coloured by what it does to the forecast.

    Args:
        quantile: whose effects are shown, the median's if None. Of two quantiles, the
            effects on the width of the interval between them are shown.
    """
    view = _QuantileView(ds, quantile)
    window = series_window(ds, view.target, context_steps=ds.sizes["time"])
    strips: dict[str, list[int]] = {}
    for index, row in enumerate(ds["row"].values):
        # additive parts lie over one another, so each has a strip of its own
        if is_additive(ds, index):
            name = view.names[index]
        else:
            name = view.series_name(int(row))
        strips.setdefault(name, []).append(index)
    canvas = sheet(
        [210, _STRIP * len(strips)], row_gap=14, min_width=420, shared_xaxes=True
    )
    above, below = canvas
    window.draw(above)
    forecast, reference = (
        array(ds, name, "step", quantile=view.line)
        for name in ("forecast", "reference_forecast")
    )
    if view.line == view.middle:
        naming = {}
    else:
        naming = {"words": view.word}
    window.forecast(above, forecast, "forecast", BLUE, 2, **naming)
    window.forecast(
        above,
        reference,
        "reference forecast",
        GREY,
        1.4,
        _DASHES,
        words="forecast of the reference",
    )
    cut_remark = fit(canvas, np.append(window.observations, forecast), reference, row=1)
    for line, segments in enumerate(strips.values()):
        _draw_strip(below, ds, view, window, segments, line)
    ticks: Style = {
        "tickvals": list(range(len(strips))),
        "ticktext": [plain(name) for name in strips],
    }
    below.y(range=[len(strips) - 0.5, -0.5], ticks="", showline=False, **ticks)
    first = window.past[0] - 0.5
    last = window.future[-1] + 0.5
    canvas.x(range=[window.time.scalar(first), window.time.scalar(last)])
    below.x(window.time.title)
    above.y(window.title, nticks=5)
    title = f"mean size of effects ({view.unit})"
    canvas.colours(colour_scale(title, view.strength, low=0.0))
    arrows = "↑ up, ↓ down, ↕ up at some steps"
    title = f"Input effects on the forecast of {view.target} by {name_model(ds)}"
    return canvas.finalize(title, view.when, view.how, arrows, cut_remark)


def is_additive(ds: xr.Dataset, segment: int) -> bool:
    """Test if a segment is an additive part of a series, and no stretch."""
    return "part_values" in ds.coords and bool(
        ds["part_values"].isel(segment=segment).notnull().any()
    )


def _draw_strip(
    panel: Panel,
    ds: xr.Dataset,
    view: _QuantileView,
    window: SeriesWindow,
    segments: list[int],
    row: int,
) -> None:
    """Draw the segments of one series, or an additive part, as a row of cells.

    The colour is the mean size of the effect, the arrow its direction. Where the series
    has no segment nothing is drawn.
    """
    ordered = np.array(segments)[np.argsort(ds["start"].values[segments])]
    edges = [float(ds["start"].values[ordered[0]])]
    values = []
    texts = []
    arrows = []
    for index in map(int, ordered):
        start = float(ds["start"].values[index])
        stop = float(ds["stop"].values[index])
        half_width = float(view.half_width[index])
        label = (
            f"{plain(view.names[index])}<br>moves it by {signed(view.effect[index])} on"
            " average"
        )
        if half_width:
            label += f", ±{number(half_width)} ({CONFIDENCE_TEXT})"
        _, way = moved(view.values[index])
        arrow = {"up": "↑", "down": "↓"}.get(way, "↕")
        # a cell is its right edge, value, text and arrow; it begins at the edge before
        cells = [(stop, view.strength[index], label, arrow)]
        if start > edges[-1]:
            # a gap before the stretch
            cells.insert(0, (start, np.nan, "", ""))
        for edge, value, text, sign in cells:
            edges.append(edge)
            values.append(value)
            texts.append(text)
            arrows.append(sign)
    x = window.time.at(np.array(edges) - 0.5)
    hover = f"%{{customdata}}<br>%{{z:+.4g}} {plain(view.unit)}"
    # the row is given by its lower and upper edge: on an axis of names, plotly cannot
    # draw several maps of one row each
    panel.cells(
        np.array([values]),
        x,
        [row - 0.46, row + 0.46],
        hover,
        customdata=[texts],
        text=[arrows],
        texttemplate="%{text}",
    )


@figure(
    "input_attribution",
    "From the reference forecast to the forecast, segment by segment.",
    table=_table,
)
def input_waterfall(
    ds: xr.Dataset, *, quantile: Quantile = None, top: int = 14
) -> go.Figure:
    """Draw how effects of segments lead from the reference forecast to the forecast.

    Effects are in data units.

    Args:
        quantile: see :func:`input_timeline`; of two, bars lead from the width of the
            interval in the reference forecast to that in the forecast. If None there
            are two panels: the median, and the width between the outer quantiles.
        top: number of inputs that have a bar of their own; the others are summed.
    """
    levels = np.sort(ds["quantile"].values.astype(float))
    views = [_QuantileView(ds, quantile)]
    if quantile is None and len(levels) > 1:
        views.append(_QuantileView(ds, (float(levels[0]), float(levels[-1]))))
    view = views[0]
    order = ranked(ds, view.values)
    groups = order[:top]
    rest = [index for group in order[top:] for index in group]
    labels = [group_name(names(ds, "segment"), group, view.names) for group in groups]
    if rest:
        labels.append(f"{len(rest)} others, summed")
    rounding = float(ds.attrs.get("rounding", 0.0))
    joint = any(abs(entry.of("remainder", "step").mean()) > rounding for entry in views)
    if joint:
        labels.append("joint effects")
    count = len(views)
    height = max(120, _BAR * (len(labels) + 2))
    canvas = sheet(
        [height],
        [1] * count,
        column_gap=0.04,
        min_width=420 + 230 * (count - 1),
        below=68,
        shared_yaxes=True,
    )
    for panel, item in zip(canvas, views, strict=True):
        _draw_waterfall(panel, item, groups, rest, labels)
    # bars stand at 1, 2, …, between the diamonds of both forecasts
    labels = ["reference forecast", *labels, "forecast"]
    canvas.y(
        tickvals=list(range(len(labels))),
        ticktext=[plain(label) for label in labels],
        ticks="",
        showline=False,
    )
    canvas.y(range=[len(labels) - 0.4, -0.6])
    remarks = [
        view.when,
        view.how,
        "bars: what each segment adds; diamonds: both forecasts",
        view.sampled,
    ]
    return canvas.finalize(
        f"Effects from the reference to the forecast of {view.target} by"
        f" {name_model(ds)}",
        *remarks,
    )


def _draw_waterfall(
    panel: Panel,
    view: _QuantileView,
    groups: list[list[int]],
    rest: list[int],
    labels: list[str],
) -> None:
    """Draw the bars of groups of segments, of the rest and of joint effects.

    ``labels`` name the bars in this order.
    """
    effects = [float(view.effect[group].sum()) for group in groups]
    # the interval of a sum is no wider than the sum of the intervals
    half_widths = [float(view.half_width[group].sum()) for group in groups]
    if rest:
        effects.append(float(view.effect[rest].sum()))
    # one label more than effects is that of joint effects, which the caller put last
    if len(labels) > len(effects):
        effects.append(float(view.of("remainder", "step").mean()))
    start = float(view.of("reference_forecast", "step").mean())
    totals = start + np.cumsum(effects)
    positions = np.arange(1, len(effects) + 1)
    panel.add(
        go.Waterfall,
        "",
        f"%{{customdata}}<br>moves it by %{{delta:+.3g}} {plain(view.unit)}",
        orientation="h",
        x=effects,
        y=positions,
        base=start,
        width=0.72,
        increasing={"marker": {"color": VERMILION}},
        decreasing={"marker": {"color": BLUE}},
        connector={"line": {"color": GREY, "width": 0.7}},
        customdata=[plain(label) for label in labels],
    )
    # the bars of the rest and of joint effects have no interval
    half_widths += [0.0] * (len(effects) - len(half_widths))
    if any(half_widths):
        # plotly's waterfall has no error bars, so points of 1 pixel carry them
        style = {"type": "data", "array": half_widths, "color": INK, "thickness": 1}
        panel.dots(totals, positions, size=1, error_x={**style, "width": 3})
    for index, effect, end, half_width in zip(
        positions, effects, totals, half_widths, strict=True
    ):
        # a bar of a negative effect ends at the left of where it starts
        right = max(end - effect, end + half_width)
        panel.note(signed(effect), right, index, size=10, xanchor="left", xshift=4)
    for row, value, word in (
        (0, start, "reference forecast"),
        (len(effects) + 1, totals[-1], "forecast"),
    ):
        hover = f"{word}<br>%{{x:.4g}} {plain(view.unit)}"
        panel.dots([value], [row], "", hover, size=9, symbol="diamond")
        panel.note(number(value), value, row, size=11, xanchor="left", xshift=8)
    low = min(start, totals.min())
    high = max(start, totals.max())
    # the numbers stand at the right of the bars and need a third of the axis
    span = (high - low) or max(abs(high), 1.0)
    panel.x(
        f"{view.word}\n({view.unit})",
        range=[low - 0.06 * span, high + 0.32 * span],
        nticks=6,
    )


class _QuantileView:
    """One quantile of an attribution, or the width between two, in data units.

    Attributes:
        middle: position of the median.
        line: position of the quantile whose forecast is drawn.
        values: effects (segment, step); of two quantiles those on the width.
        effect, strength: means of the values and of their sizes over steps, (segment,).
        half_width: half of the interval of ``effect``, (segment,); 0 if it is unknown.
        word, when, how, sampled: what a figure is about, as its subtitle says it.
    """

    def __init__(self, ds: xr.Dataset, quantile: Quantile) -> None:
        n_explained = 0
        if "row" in ds and ds["row"].size:
            n_explained = int(ds["row"].max()) + 1
        n_left = ds.sizes.get("series", 0)
        if n_explained > n_left:
            raise InputError(
                f"this explanation covers {n_explained} series, of which {n_left} are"
                " left; draw the item with every series"
            )
        self._ds = ds
        levels = np.asarray(ds["quantile"].values, dtype=float)
        self.middle = median_position(levels)
        if quantile is None:
            bounds = [float(levels[self.middle])]
        else:
            bounds = np.atleast_1d(quantile).tolist()
        if len(bounds) > 2 or bounds != sorted(set(bounds)):
            raise InputError(
                f"quantile={quantile!r}, expected one, or the lower and the upper end"
                " of an interval"
            )
        # as text: position() would take a number that is no label for an index
        self._levels = [position(ds, "quantile", str(bound)) for bound in bounds]
        self.line = self._levels[0] if len(bounds) == 1 else self.middle
        self.target = str(ds.attrs.get("target") or names(ds, "series")[0])
        self.names = name_segments(ds)
        self.values = self.of("attribution", "segment", "step")
        self.effect = self.values.mean(1)
        self.strength = np.abs(self.values).mean(1)
        self.unit = find_unit(ds, series_position(ds, self.target)) or "data units"
        marks = [f"{levels[item]:g}" for item in self._levels]
        if len(marks) == 2:
            self.word = f"width of the {marks[0]} to {marks[1]} interval"
        elif self._levels == [self.middle]:
            self.word = f"{name_statistic(ds)} forecast"
        else:
            self.word = f"quantile {marks[0]}"
        steps = "one step"
        if ds.sizes["step"] > 1:
            steps = f"mean over {ds.sizes['step']} steps"
        self.when = f"{self.word}, {steps}"
        self.how = describe_method(ds)
        self.sampled = ""
        self.half_width = np.zeros(len(self.effect))
        name = "mean_half_width"
        if name in ds:
            # the interval of a difference is no wider than the sum of both
            self.half_width = np.sum(
                [array(ds, name, "segment", quantile=item) for item in self._levels],
                axis=0,
            )
            if "repeats" in ds.attrs:
                samples = f"{ds.attrs['repeats']} seeds"
            else:
                samples = f"{ds.attrs['forecasts']} forecasts"
            self.sampled = f"whiskers: {CONFIDENCE_TEXT} intervals over {samples}"

    def of(self, name: str, *dims: str) -> np.ndarray:
        """Return a variable at the quantile, or at the upper minus at the lower one."""
        first, *second = (
            array(self._ds, name, *dims, quantile=item) for item in self._levels
        )
        if second:
            result: np.ndarray = second[0] - first
            return result
        return first

    def series_name(self, row: int) -> str:
        """Name a series of the item: its variate, or its id where it is alone."""
        # names() goes by dimensions, and variate is a coordinate along the series
        if "variate" in self._ds.coords:
            variates = names(self._ds.swap_dims(series="variate"), "variate")
        else:
            variates = []
        if variates and variates[row]:
            return variates[row]
        return names(self._ds, "series")[row]


def describe_method(ds: xr.Dataset) -> str:
    """Name method and reference of a result as a subtitle does."""
    method = str(ds.attrs.get("method", ""))
    return (
        f"{'Shapley values' if method == 'shapley' else method} against"
        f" {name_reference(ds)}"
    )


def name_reference(ds: xr.Dataset) -> str:
    """Name what replaces masked inputs.

    Stretches are replaced by values of the reference; additive parts are taken out.
    """
    if "part_values" in ds.coords:
        return "the past without its parts"
    return f"{ds.attrs.get('reference', '')} values"


_BAND = f"{CONFIDENCE_TEXT} of random orders"
_CURVES = (("deletion", "largest masked first"), ("insertion", "largest shown first"))


def read_tests(ds: xr.Dataset) -> list[str]:
    """State the verdict of :mod:`tsfm_lens.core.verdict` on the explanation.

    It is that of all tests of a page, where the page has left it in the attributes.
    """
    word, sentences = verdict(ds)
    full = ds.attrs.get("verdict", word)
    by = "all tests of this page" if "verdict" in ds.attrs else "this test"
    return [
        f"Verdict by {by}: the explanation {full} (criteria below). {sentences[0]}",
        *sentences[1:],
        *find_rules(ds),
    ]


@figure(
    "deletion_curves",
    "Deletion and insertion curves of an explanation.",
    table=lambda ds: frame(ds, "deletion", "insertion").merge(
        frame(ds, "r2", "slope", "sign_agreement", "area", "p"), on="explanation"
    ),
    sentences=read_tests,
)
def deletion_lines(ds: xr.Dataset) -> go.Figure:
    """Draw how far the forecast moves as segments are masked, and as they are shown.

    There is a curve for each explanation, which orders the segments by their effect.
    """
    explanations = names(ds, "explanation")
    unit = find_unit(ds) or "data units"
    area = array(ds, "area", "explanation")
    p = array(ds, "p", "explanation")
    canvas = sheet(
        [280],
        [1, 1],
        titles=[text for _, text in _CURVES],
        column_gap=0.05,
        min_width=640,
        shared_yaxes=True,
    )
    # from no segment masked to all of them
    counts = np.arange(ds.sizes["masked"])
    for index, (panel, (name, _)) in enumerate(zip(canvas, _CURVES, strict=True)):
        low, high = (
            array(ds, f"random_{end}", "masked", curve=index) for end in ("low", "high")
        )
        panel.band(counts, low, high, mixed(PALE, 0.7), _BAND, legend=True)
        middle = array(ds, f"random_{name}", "draw", "masked").mean(0)
        panel.line(counts, middle, "random orders, mean", colour=GREY, dash="dot")
        for row, explanation in enumerate(explanations):
            y = array(ds, name, "masked", explanation=row)
            hover = (
                f"{plain(explanation)}<br>%{{x}} segments<br>%{{y:.4g}} {plain(unit)}"
            )
            colour = CATEGORICAL[row % len(CATEGORICAL)]
            panel.line(
                counts,
                y,
                explanation,
                hover,
                colour=colour,
                width=2.5 if row == 0 else 1.5,
                dots=5,
            )
        panel.x(
            "segments masked" if name == "deletion" else "segments shown",
            dtick=max(1, len(counts) // 12),
        )
    canvas.panel(1, 1).y(
        f"distance from the\nwhole forecast ({unit})", rangemode="tozero"
    )
    areas = [
        f"{name} {a:.2f} (p {q:.2g})"
        for name, a, q in zip(explanations, area, p, strict=True)
    ]
    remarks = [
        f"forecast of {ds.attrs.get('target', '')}",
        f"area between the curves, random 0: {', '.join(areas)}",
    ]
    return canvas.finalize(f"Deletion and insertion on {name_model(ds)}", *remarks)


def _steps_table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulate the effect of each segment on each step of the median."""
    middle = median_position(ds["quantile"].values)
    return frame(ds.isel(quantile=middle, drop=True), "attribution")


generic_figure(
    "input_attribution",
    "attribution",
    "Effect of each segment on each forecast step.",
    table=_steps_table,
)
