"""Contributions that lead from one forecast to another, step by step.

:func:`contributions` ranks them and sums up the small ones, :func:`horizon_sheet` gives
the forecast steps half of a figure's width, and :func:`draw_contributions` draws a bar
for each contribution, which is also the legend of the steps beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.viz.panels import SeriesWindow, Timeline, name_variate
from tsfm_lens.viz.select import array, category_names, names
from tsfm_lens.viz.sheet import Panel, Sheet, sheet, shortened, text_width
from tsfm_lens.viz.theme import (
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    TITLE_TYPE,
    VERMILION,
    WINE,
    number,
    plain,
)
from tsfm_lens.viz.words import after_number, signed

# blue and black are the colours of forecasts and series
_COLOURS = (VERMILION, GREEN, PURPLE, ORANGE, SKY, WINE)
_KEPT = (ORANGE, SKY, PURPLE)  # of the first covariates, in all figures of a page
_WIDTHS = (0.42, 0.58)  # of the context, and of the forecast steps
CELL_TYPE = 10  # size of the type in cells
_BAR = 17  # pixels of a contribution in the ranking
_STEPPED = 0.5  # share of values that repeat the one before in a stepped series
_NAMED = 2  # most categories that have room for their words beside a strip
_WORD = 80  # pixels of a word beside a strip
_LEAST = 3  # rows of the ranking, so that a single bar is not thick
_ROOM = 0.28  # share of the ranking's axis for a number
# Where the mean is below this share of the mean absolute effect, steps differ in sign.
_MIXED = 0.9
JOINT = "joint effects"
BOTH_WAYS = "both ways"
ARROWS = {"up": "↑", "down": "↓", BOTH_WAYS: "↕"}


@dataclass(frozen=True)
class Contribution:
    """What one input, or several together, add to each forecast step.

    Attributes:
        members: positions of the inputs in the result; empty for joint effects.
        effect: (step,), in data units.
        size: by which contributions are ranked, and which their bar shows.
    """

    label: str
    members: list[int]
    effect: np.ndarray
    size: float
    colour: str


def contributions(
    groups: Sequence[tuple[str, list[int]]],
    effects: np.ndarray,
    *,
    mean: bool = False,
    joint: np.ndarray | None = None,
    covariates: Sequence[str] = (),
) -> list[Contribution]:
    """Rank groups of inputs by what they add to a forecast.

    Args:
        groups: name of each group, and its positions along the inputs.
        effects: (input, step).
        mean: whether the size is the mean over steps, with its sign; else the mean
            absolute effect.
        joint: (step,), what belongs to no single input, if anything does.
        covariates: names of groups that keep their colours, whatever their rank.

    Returns:
        The largest first. Those beyond the colours are one contribution, "others".
    """

    def made(
        label: str, members: list[int], effect: np.ndarray, colour: str
    ) -> Contribution:
        size = effect.mean() if mean else np.abs(effect).mean()
        return Contribution(label, members, effect, float(size), colour)

    every = [made(name, at, effects[at].sum(0), PALE) for name, at in groups]
    every.sort(key=lambda one: -abs(one.size))
    # a single one that is left keeps its name
    most = len(_COLOURS) + int(len(every) == len(_COLOURS) + 1)
    drawn = [one.label for one in every[:most]]
    kept = {
        name: colour
        for name, colour in zip(covariates, _KEPT, strict=False)
        if name in drawn
    }
    others = (colour for colour in (*_COLOURS, GREY) if colour not in kept.values())
    result = [
        made(
            one.label,
            one.members,
            one.effect,
            kept.get(one.label) or next(others),
        )
        for one in every[:most]
    ]
    if rest := every[most:]:
        members = [at for one in rest for at in one.members]
        result.append(
            made(f"{len(rest)} others", members, effects[members].sum(0), PALE)
        )
    if joint is not None:
        result.append(made(JOINT, [], joint, GREY))
    return result


def list_covariates(ds: xr.Dataset) -> list[str]:
    """Name the series of an item beside the one that is explained, in their order."""
    target = str(ds.attrs.get("target", ""))
    return [
        name_variate(ds, row)
        for row, series in enumerate(names(ds, "series"))
        if series != target
    ]


def horizon_sheet(
    window: SeriesWindow, heights: Sequence[float], ranked: int
) -> tuple[Sheet, list[Panel], list[Panel]]:
    """Make a sheet whose left column has the context, the right one the forecast steps.

    Args:
        window: the series and its steps.
        heights: of the rows above the last one, in pixels.
        ranked: number of contributions, for which the last row has room; 0 for no such
            row.

    Returns:
        The sheet, and the panels of both columns from top to bottom.
    """
    rows = list(heights)
    if ranked:
        rows.append(max(100, _BAR * ranked))
    canvas = sheet(rows, _WIDTHS, row_gap=28, column_gap=0.02, min_width=640, below=40)
    panels = list(canvas)
    left = panels[::2]
    right = panels[1::2]
    time = window.time
    # an end is one step after the last one's start
    spans = [
        [time.scalar(steps[0] - 0.5), time.scalar(steps[-1] + 0.5)]
        for steps in (window.past, window.future)
    ]
    dated = time.stamps is not None
    # the sizes at the left of the last row are no steps
    for column, span in ((left[: len(heights)], spans[0]), (right, spans[1])):
        for panel in column:
            labels = panel in (left[0], right[-1])
            panel.x(range=span, showticklabels=labels)
            # bars that begin at a date do not tell plotly that the axis has dates
            if dated:
                panel.x(type="date")
    if dated:
        left[0].x(tickformat=_tick_format(time.at(window.past)))
        right[-1].x(tickformat=_tick_format(time.at(window.future), lines=2))
    for panel in right:
        panel.y(side="right")
    right[-1].x(time.title)
    # one axis of values for both columns
    right[0].y(matches="y", showticklabels=False, ticks="")
    return canvas, left, right


def _tick_format(dates: np.ndarray, lines: int = 1) -> str:
    """Choose a format of dates, in one line where a strip below leaves no other."""
    # days stand before months, as in sentences
    days = (dates[-1] - dates[0]) / np.timedelta64(1, "D")
    if days > 3 * 365:
        return "%Y"
    if days > 90:
        return "%b %Y"
    if days > 3:
        return "%-d %b"
    if lines == 1:
        return "%-d %b %H:%M"
    if days * 24 < 1:
        return "%H:%M:%S\n%-d %b"
    return "%H:%M\n%-d %b"


def name_lines(panel: Panel, *lines: tuple[str, str, str]) -> None:
    """Name the lines of a panel over it, each with its mark, name and colour.

    They stand in the room that a legend under the figure would take in addition.
    """
    shift = 0.0
    for mark, name, colour in lines:
        text = f"{mark} {name}"
        panel.note(
            text,
            0,
            1,
            xref="domain",
            yref="domain",
            xanchor="left",
            yanchor="bottom",
            xshift=shift,
            colour=colour,
        )
        shift += text_width(text, TITLE_TYPE) + 8
    panel.sheet.fig.update_layout(showlegend=False)


def draw_contributions(
    ranking: Panel,
    stack: Panel,
    parts: Sequence[Contribution],
    total: np.ndarray,
    window: SeriesWindow,
    *,
    between: str,
    mean: bool = False,
) -> None:
    """Draw the size of each contribution, and what all of them add to each step.

    The bars of sizes are the legend of the steps.

    Args:
        ranking: panel of the sizes.
        stack: panel of the steps.
        parts: contributions, in the order drawn.
        total: (step,), the sum of the contributions, drawn as a line.
        window: the series and its steps.
        between: what the total is, such as "forecast − reference".
        mean: whether sizes are means with their sign; see :func:`contributions`.
    """
    unit = window.unit_name
    title = "mean effect" if mean else "mean size of the effect"
    rows = np.arange(len(parts))
    sizes = np.array([part.size for part in parts])
    written = plain(after_number(unit))
    ranking.bars(
        rows,
        sizes,
        "",
        f"%{{customdata}}<br>{plain(title)} %{{x:.4g}} {written}",
        colour=[part.colour for part in parts],
        across=True,
        customdata=[plain(part.label) for part in parts],
        width=0.74,
    )
    ranking.y(
        tickvals=rows.tolist(),
        ticktext=[plain(part.label) for part in parts],
        range=[max(len(parts), _LEAST) - 0.4, -0.6],
        ticks="",
    )
    low = min(0.0, sizes.min(initial=0.0))
    high = max(0.0, sizes.max(initial=0.0))
    span = (high - low) or 1.0
    for row, part in zip(rows, parts, strict=True):
        way = direction(float(part.effect.mean()), float(np.abs(part.effect).mean()))
        text = f"{number(part.size)} {ARROWS[way]}"
        if mean:
            text = signed(part.size)
        # at the right end of the bar, which of a negative size is its start
        ranking.note(text, max(part.size, 0.0), row, xanchor="left", xshift=3)
    bounds = [low - 0.04 * span, high + _ROOM * span]
    # without the unit, which stands at the steps: their first date reaches below
    ranking.x(title, range=bounds, nticks=5)
    x = window.time.at(window.future)
    for part in parts:
        stack.bars(
            x,
            part.effect,
            part.label,
            f"{plain(part.label)}<br>{window.time.hover}<br>adds %{{y:+.4g}} {written}",
            colour=part.colour,
            legend=False,
        )
    stack.line(
        x,
        total,
        "",
        f"{plain(between)}<br>{window.time.hover}<br>%{{y:+.4g}} {written}",
        colour=INK,
        width=1.6,
        dots=6 if len(total) == 1 else 0,
    )
    stack.hline(0.0)
    name_lines(stack, ("━", between, INK))
    stack.y(f"effect ({unit})", nticks=5)
    stack.sheet.fig.update_layout(barmode="relative", bargap=0.12)


def draw_cell(
    panel: Panel,
    time: Timeline,
    span: tuple[int, int],
    row: int,
    colour: str,
    hover: str,
    text: str = "",
) -> None:
    """Draw steps [start, stop) as a cell in a row of a strip."""
    start, stop = time.at(np.array(span) - 0.5)
    length = stop - start
    # on an axis of dates plotly takes the lengths of bars in milliseconds
    if time.stamps is not None:
        length = length / np.timedelta64(1, "ms")
    panel.add(
        go.Bar,
        "",
        hover,
        orientation="h",
        base=[time.scalar(span[0] - 0.5)],
        x=[float(length)],
        y=[row],
        width=0.86,
        marker={"color": colour, "line": {"width": 0}},
        text=[text],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        textfont={"size": CELL_TYPE, "color": INK},
        constraintext="none",
    )


def draw_covariate(
    past: Panel,
    future: Panel,
    ds: xr.Dataset,
    window: SeriesWindow,
    series: int,
    row: int,
) -> None:
    """Draw a covariate within a row of a strip, as high as its range.

    Categories are steps, and two of them are named at the right.
    """
    columns = [(past, window.past, array(ds, "context", "time", series=series))]
    if "known_future" in ds:
        known = array(ds, "known_future", "step", series=series)
        columns.append((future, window.future, known))
    every = np.concatenate([values for _, _, values in columns])
    if not np.isfinite(every).any():
        return
    low = np.nanmin(every)
    span = (np.nanmax(every) - low) or 1.0
    name = names(ds, "series")[series]
    words = category_names(ds, series)
    hover = f"{plain(name)}<br>{window.time.hover}<br>%{{text}}"
    for panel, steps, values in columns:
        panel.line(
            window.time.at(steps),
            # the axis of rows points down
            row + 0.36 - 0.72 * (values - low) / span,
            "",
            hover,
            colour=INK,
            width=1,
            text=[plain(name_value(value, words)) for value in values],
            line_shape=line_shape(every, words),
        )
    seen = np.unique(every[np.isfinite(every)])
    if words:
        text = f"{len(seen)} categories"
        if len(seen) <= _NAMED:
            seen_words = [words[int(code)] for code in seen[::-1]]
            text = "<br>".join(
                plain(shortened(word, _WORD, CELL_TYPE, lines=1)) for word in seen_words
            )
        future.note(
            text,
            1,
            row,
            xref="domain",
            xanchor="left",
            xshift=4,
            size=CELL_TYPE,
            align="left",
        )


def name_value(value: float, words: Sequence[str]) -> str:
    """Write a value, which is a word where it is the code of a category."""
    if words and np.isfinite(value):
        return words[int(value)]
    return number(value)


def line_shape(values: np.ndarray, words: Sequence[str] = ()) -> str:
    """Return plotly's shape of a line: in steps where most values repeat the last.

    Categories, of which ``words`` are the names, have nothing between them.
    """
    if words:
        return "hvh"
    seen = values[np.isfinite(values)]
    if len(seen) > 1 and (np.diff(seen) == 0).mean() > _STEPPED:
        return "hvh"
    return "linear"


def direction(mean: float, size: float) -> str:
    """Return which way an effect goes, by its mean and its mean size over steps.

    It is "up" or "down" where nearly all of the size is in the mean, else "both ways".
    """
    if abs(mean) < _MIXED * size:
        return BOTH_WAYS
    return "up" if mean > 0 else "down"
