"""Attribution of the forecast to stretches of the input and to covariates.

:func:`input_timeline` draws effects under the series. :func:`input_waterfall` adds them
up, from the reference forecast (of masked input) to the forecast.
How faithful an explanation is, :mod:`tsfm_lens.viz.faithfulness` draws.
``_QuantileView`` selects the quantile that a figure is about. Attributions are made in
:mod:`tsfm_lens.explain`; effects over many items are in
:mod:`tsfm_lens.viz.input_effects`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.registry import figure, frame
from tsfm_lens.core.stats import CONFIDENCE_TEXT
from tsfm_lens.viz.contributions import (
    ARROWS,
    BOTH_WAYS,
    CELL_TYPE,
    contributions,
    direction,
    draw_cell,
    draw_contributions,
    draw_covariate,
    horizon_sheet,
    list_covariates,
    name_lines,
)
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.panels import (
    SeriesWindow,
    fit,
    name_horizon,
    name_segments,
    name_target,
    name_unit,
    name_variate,
    series_window,
)
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
from tsfm_lens.viz.sheet import Panel, Style, blank, text_width
from tsfm_lens.viz.summary import summarize
from tsfm_lens.viz.theme import (
    BLUE,
    GREY,
    INK,
    VERMILION,
    mixed,
    number,
    plain,
)
from tsfm_lens.viz.words import after_number, capital, listed, measured, num, signed

__all__ = ["input_timeline", "input_waterfall"]

# Heights in pixels of lines, a strip and a bar, and the least width of a strip.
_LINES = 130
_STRIP = 20
_STRIP_WIDTH = 180
_BAR = 22
_DASHES = "5px,2px"
_MAX_NAMES = 3  # segments that a reading names
VERBS = {"up": "raises", "down": "lowers", BOTH_WAYS: "moves"}
"""What an input does to a forecast, by the direction of its effect."""
# Smallest difference of the halves of a forecast, as a share of its range, that is no
# level course.
_LEVEL = 0.05
_FAILED = 0.35  # strength of the colour of an effect that does not pass its tests
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
    answer = _say_moves(ds, effects, acting[:_MAX_NAMES])
    # one text, so that the overview of a page says what moves the forecast
    if "verdict" in ds.attrs:
        answer = f"{answer} Verdict: the explanation {ds.attrs['verdict']}"
        if not ds.attrs.get("masked", 1):
            answer = (
                f"{answer} by its routes alone. Effects of the inputs were not tested"
                " by masking, so do not quote them"
            )
        answer = f"{answer}{_say_standing(ds, effects)}."
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
            "{answer}",
            "The forecast of {name} averages {whole:unit} ({statistic}) over"
            " {steps}{course}; with all inputs replaced by {reference} it"
            " averages {nothing}.",
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
            answer=answer,
            name=name_target(ds),
            steps=name_horizon(ds),
            statistic=name_statistic(ds),
            course=_describe_course(ds, median["forecast"].values),
            reference=name_reference(ds),
            nothing=median["reference_forecast"].mean(),
            far=far if far > _FAR else None,
            rest=rest if is_joint else None,
            repeats=repeats,
            reach=half_widths.max(),
            sampled=half_widths.max() if is_sampled else None,
        ),
        *_read_width(ds),
    ]


def _describe_course(ds: xr.Dataset, forecast: np.ndarray) -> str:
    """Return how the second half of a forecast (step,) lies to its first.

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
    """Return groups of segments by the known covariate they belong to, sorted.

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
    """Return by how much each covariate and each segment moves the median.

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
    """Return a group's name: one segment by its name, several by their covariate.

    ``words`` are names of the segments that are used in place of ``labels`` for one
    segment.
    """
    first = labels[group[0]]
    if len(group) == 1:
        return (words or labels)[group[0]]
    # names of a covariate's segments end with ", past" or with their steps
    return re.sub(r", past$| -?\d+ to -?\d+$", "", first) + " in total"


def _say_moves(ds: xr.Dataset, effects: np.ndarray, groups: list[list[int]]) -> str:
    """Return which groups of segments move the forecast most, how far and which way.

    ``effects`` are (segment, step); the largest group comes first.
    """
    target = name_target(ds)
    if not groups:
        return f"No part of the input moves the forecast of {target} beyond the noise."
    first, *others = (
        (name, *_amount(effects[group].sum(0)))
        for (name, group) in _name_groups(ds, effects)
        if group in groups
    )
    write = measured(find_unit(ds).strip())
    name, size, way = first
    verb = VERBS.get(way, VERBS[BOTH_WAYS])
    text = f"{capital(name)} {verb} the forecast of {target} most, by {write(size)}"
    if ds.sizes["step"] > 1:
        text += " a step"
    if way not in VERBS:
        text += f" ({way})"
    rest = [
        f"{name} {VERBS.get(way, VERBS[BOTH_WAYS])} it by {write(size)}"
        for name, size, way in others
    ]
    return f"{'; '.join([text, *rest])}."


def _say_standing(ds: xr.Dataset, effects: np.ndarray) -> str:
    """Say which effects pass the tests of a page, the largest first, and which do not.

    Args:
        ds: result of kind "input_attribution".
        effects: (segment, step).

    Returns:
        The end of a sentence, "" where no test was of the inputs.
    """
    if "stands" not in ds.coords:
        return ""
    stands = ds["stands"].values.astype(bool)
    if not stands.any():
        return "; no effect passes its tests"
    if stands.all():
        return "; every effect passes its tests"
    passing: list[str] = []
    failing: list[str] = []
    for name, group in _name_groups(ds, effects):
        if stands[group].all():
            passing.append(name)
        else:
            failing.append(name)
    if not passing:
        return "; no effect passes its tests"
    return (
        f"; effects that pass their tests: {_first(passing)}; that do not:"
        f" {_first(failing)}"
    )


def _first(texts: list[str]) -> str:
    """List the first names, and count the rest."""
    if len(texts) > _MAX_NAMES + 1:
        texts = [*texts[:_MAX_NAMES], f"{len(texts) - _MAX_NAMES} more"]
    return listed(texts)


def _amount(effect: np.ndarray) -> tuple[float, str]:
    """Return how far an effect (step,) moves the forecast, and which way.

    What goes one way goes so by its mean, anything else by its size at a step.
    """
    size, way = moved(effect)
    if way in VERBS:
        size = abs(float(effect.mean()))
    return size, way


def moved(effect: np.ndarray) -> tuple[float, str]:
    """Return the mean size of an effect (step,), and which way it goes in words.

    The words are "up", "down", or at how many steps it goes up.
    """
    size = float(np.abs(effect).mean())
    way = direction(float(effect.mean()), size)
    if way == BOTH_WAYS:
        n_up = int((effect > 0).sum())
        way = f"up at {n_up} of {len(effect)} steps, else down"
    return size, way


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
        ds: result of kind "input_attribution".
        quantile: whose effects are shown, the median's if None. Of two quantiles, the
            effects on the width of the interval between them are shown.

    Returns:
        Panels on one time axis: the series with both forecasts, a strip of segments for
        each series, the size of each effect and what all add to each step. Values are
        in data units.

    Example:
        >>> fig = viz.input_timeline(explain.input_attribution(run, parts=3))
        >>> fig.layout.meta["title"]
        'Input effects on the forecast of co2 by chronos-nano'
    """
    view = _QuantileView(ds, quantile)
    window = series_window(ds, view.id, context_steps=ds.sizes["time"])
    strips: dict[str, list[int]] = {}
    for index, row in enumerate(ds["row"].values):
        # additive parts lie over one another, so each has a strip of its own
        if is_additive(ds, index):
            name = view.names[index]
        else:
            name = name_variate(ds, int(row))
        strips.setdefault(name, []).append(index)
    total = view.of("forecast", "step") - view.of("reference_forecast", "step")
    parts = contributions(
        _name_groups(ds, view.values),
        view.values,
        joint=view.joint_effect(),
        covariates=list_covariates(ds),
    )
    pale = ""
    if "stands" in ds.coords:
        stands = ds["stands"].values.astype(bool)
        parts = [
            part
            if stands[part.members].all()
            else replace(part, colour=mixed(part.colour, _FAILED))
            for part in parts
        ]
        if not stands.all():
            pale = "pale: effects that do not pass their tests"
    heights = [_LINES, _STRIP * len(strips)]
    canvas, left, right = horizon_sheet(window, heights, len(parts))
    window.draw(left[0], right[0])
    forecast, reference = (
        array(ds, name, "step", quantile=view.line)
        for name in ("forecast", "reference_forecast")
    )
    if view.line == view.middle:
        naming = {}
    else:
        naming = {"words": view.word}
    window.forecast(right[0], forecast, "forecast", BLUE, 2, **naming)
    window.forecast(
        right[0],
        reference,
        "reference forecast",
        GREY,
        1.4,
        _DASHES,
        words="forecast of the reference",
    )
    named = [("━", "forecast", BLUE), ("╌", "reference forecast", GREY)]
    if window.has_truth:
        named.append(("┈", "truth", INK))
    name_lines(right[0], *named)
    seen = np.append(window.observations, forecast)
    cut_remark = fit(canvas, seen, reference, row=1)
    colours = {at: part.colour for part in parts for at in part.members}
    for line, segments in enumerate(strips.values()):
        _draw_strip(left[1], right[1], ds, view, window, segments, line, colours)
    ticks: Style = {
        "tickvals": list(range(len(strips))),
        "ticktext": [plain(name) for name in strips],
    }
    bounds = [len(strips) - 0.5, -0.5]
    left[1].y(range=bounds, ticks="", showline=False, **ticks)
    right[1].y(range=bounds, showticklabels=False, ticks="", showline=False)
    left[0].y(window.title, nticks=5)
    draw_contributions(
        left[2],
        right[2],
        parts,
        total,
        window,
        between=view.between,
    )
    arrows = "↑ raises, ↓ lowers, ↕ both"
    title = f"Input effects on the forecast of {view.target} by {name_model(ds)}"
    drawn = "bars at the right: parts of a step, and their sum as a line"
    return canvas.finalize(title, view.when, view.how, drawn, arrows, pale, cut_remark)


def _name_groups(ds: xr.Dataset, effects: np.ndarray) -> list[tuple[str, list[int]]]:
    """Return names of the inputs that move the forecast together, with segments.

    ``effects`` are (segment, step); the largest group comes first.
    """
    labels = names(ds, "segment")
    words = name_segments(ds)
    return [
        (group_name(labels, group, words).removesuffix(" in total"), group)
        for group in ranked(ds, effects)
    ]


def is_additive(ds: xr.Dataset, segment: int) -> bool:
    """Test if a segment is an additive part of a series, and no stretch."""
    return "part_values" in ds.coords and bool(
        ds["part_values"].isel(segment=segment).notnull().any()
    )


def _draw_strip(
    past: Panel,
    future: Panel,
    ds: xr.Dataset,
    view: _QuantileView,
    window: SeriesWindow,
    segments: list[int],
    row: int,
    colours: dict[int, str],
) -> None:
    """Draw the segments of one series, or an additive part, as a row of cells.

    A cell has the colour of its contribution, and the size of its effect where there is
    room; a covariate is drawn over its cells.
    """
    is_target = int(ds["row"].values[segments[0]]) == window.index
    for index in segments:
        start = int(ds["start"].values[index])
        stop = int(ds["stop"].values[index])
        size = float(view.strength[index])
        way = direction(float(view.effect[index]), size)
        label = (
            f"{plain(view.names[index])}<br>mean size of its effect {number(size)}"
            f" {plain(after_number(view.unit))}<br>moves the forecast by"
            f" {signed(view.effect[index])} on average"
        )
        half_width = float(view.half_width[index])
        if half_width:
            label += f", ±{number(half_width)} ({CONFIDENCE_TEXT})"
        text = f"{num(size)} {ARROWS[way]}"
        for panel, steps in ((past, window.past), (future, window.future)):
            first = max(start, int(steps[0]))
            last = min(stop, int(steps[-1]) + 1)
            if first >= last:
                continue
            room = _STRIP_WIDTH * (last - first) / len(steps)
            fits = is_target and text_width(text, CELL_TYPE) < room
            draw_cell(
                panel,
                window.time,
                (first, last),
                row,
                mixed(colours[index], 0.6),
                label,
                text if fits else "",
            )
    if not is_target and not is_additive(ds, segments[0]):
        at = int(ds["row"].values[segments[0]])
        draw_covariate(past, future, ds, window, at, row)


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
        ds: result of kind "input_attribution".
        quantile: whose effects are shown, the median's if None. Of two quantiles, bars
            lead from the width of the interval in the reference forecast to that in the
            forecast.
        top: number of inputs that have a bar of their own; the others are summed.

    Returns:
        One panel with a bar for each segment, in data units. A dotted line is the
        reference forecast; the last bar leads from it to the forecast.

    Example:
        >>> fig = viz.input_waterfall(explain.input_attribution(run, parts=3))
        >>> fig.layout.meta["title"]
        'Effects from the reference to the forecast of co2 by chronos-nano'
    """
    view = _QuantileView(ds, quantile)
    order = ranked(ds, view.values)
    groups = order[:top]
    labels = [group_name(names(ds, "segment"), group, view.names) for group in groups]
    if order[top:]:
        groups.append([index for group in order[top:] for index in group])
        labels.append(f"{len(groups[-1])} others, summed")
    effects = [float(view.effect[group].sum()) for group in groups]
    texts = [signed(effect) for effect in effects]
    for index, group in enumerate(groups):
        # the interval of a sum is no wider than the sum of the intervals
        half_width = view.half_width[group].sum()
        if half_width:
            texts[index] += f" ± {num(half_width)}"
    joint = view.joint_effect()
    if joint is not None:
        labels.append("joint effects")
        effects.append(float(joint.mean()))
        texts.append(signed(effects[-1]))
    start = float(view.of("reference_forecast", "step").mean())
    canvas = blank(max(120, _BAR * (len(labels) + 1)), 420, below=68)
    panel = canvas.panel()
    panel.add(
        go.Waterfall,
        "",
        f"%{{y}}<br>moves it by %{{delta:+.3g}} {plain(view.unit)}",
        orientation="h",
        base=start,
        measure=["relative"] * len(labels) + ["total"],
        x=[*effects, 0.0],
        y=[*map(plain, labels), "forecast"],
        text=[*texts, number(start + sum(effects))],
        textposition="outside",
        increasing={"marker": {"color": VERMILION}},
        decreasing={"marker": {"color": BLUE}},
        totals={"marker": {"color": GREY}},
        connector={"line": {"color": GREY, "width": 0.7}},
    )
    panel.vline(start, dash="dot")
    panel.y(autorange="reversed", ticks="", showline=False)
    ends = start + np.cumsum([0.0, *effects])
    # plotly leaves no room for the numbers beside the bars
    pad = 0.2 * (np.ptp(ends) or abs(start) or 1.0)
    bounds = [ends.min() - pad, ends.max() + pad]
    panel.x(f"{view.word} ({view.unit})", nticks=6, range=bounds)
    return canvas.finalize(
        f"Effects from the reference to the forecast of {view.target} by"
        f" {name_model(ds)}",
        view.when,
        view.how,
        f"dotted: reference forecast, {number(start)}",
        view.sampled,
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
        between: what all effects add up to.
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
        self.id = str(ds.attrs.get("target") or names(ds, "series")[0])
        self.target = name_target(ds)
        self.names = name_segments(ds)
        self.values = self.of("attribution", "segment", "step")
        self.effect = self.values.mean(1)
        self.strength = np.abs(self.values).mean(1)
        self.unit = name_unit(ds, series_position(ds, self.id))
        marks = [f"{levels[item]:g}" for item in self._levels]
        self.between = "forecast − reference"
        if len(marks) == 2:
            self.word = f"width of the {marks[0]} to {marks[1]} interval"
            self.between = "width − that of the reference"
        elif self._levels == [self.middle]:
            self.word = f"{name_statistic(ds)} forecast"
        else:
            self.word = f"quantile {marks[0]}"
        steps = name_horizon(ds)
        if ds.sizes["step"] > 1:
            steps = f"mean over {steps}"
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
            self.sampled = f"±: {CONFIDENCE_TEXT} intervals over {samples}"

    def of(self, name: str, *dims: str) -> np.ndarray:
        """Return a variable at the quantile, or at the upper minus at the lower one."""
        first, *second = (
            array(self._ds, name, *dims, quantile=item) for item in self._levels
        )
        if second:
            result: np.ndarray = second[0] - first
            return result
        return first

    def joint_effect(self) -> np.ndarray | None:
        """Return what belongs to no single segment, (step,), unless it is rounding."""
        remainder = self.of("remainder", "step")
        if np.abs(remainder).max() > float(self._ds.attrs.get("rounding", 0.0)):
            return remainder
        return None


def describe_method(ds: xr.Dataset) -> str:
    """Name method and reference of a result as a subtitle does."""
    method = str(ds.attrs.get("method", ""))
    return (
        f"{'Shapley values' if method == 'shapley' else method} against"
        f" {name_reference(ds)}"
    )


def name_reference(ds: xr.Dataset) -> str:
    """Return the name of what replaces masked inputs.

    Stretches are replaced by values of the reference; additive parts are taken out.
    """
    if "part_values" in ds.coords:
        return "the past without its parts"
    return f"{ds.attrs.get('reference', '')} values"


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
