"""Parts that several figures share: a series with its truth, bands and time axes.

:func:`series_window` cuts a series of a result to the steps around its forecast; the
:class:`SeriesWindow` draws them. A :class:`Timeline` turns steps into dates where these
are known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.core.axes import short_ids
from tsfm_lens.core.clocks import on_clock
from tsfm_lens.viz.select import (
    array,
    find_unit,
    name_statistic,
    names,
    series_position,
)
from tsfm_lens.viz.sheet import Panel, Sheet, shortened
from tsfm_lens.viz.theme import (
    BLUE,
    GREY,
    LABEL_TYPE,
    mixed,
    number,
    plain,
    true_minus,
)
from tsfm_lens.viz.words import after_number

_UNIT = 80  # pixels of a series' name in place of a unit


@dataclass(frozen=True, kw_only=True)
class SeriesWindow:
    """One series with its forecast steps and the end of its context, as it is drawn.

    Attributes:
        index: position of the series in the result.
        id: of the series as titles have it, see :func:`short_ids`.
        unit_name: the unit, "units of load" where none is known.
        title: of the value axis.
        statistic: what the forecast is, such as "median".
        time: steps with their dates, for axes and hover boxes.
        past, context: steps and values that the model was given.
        future, truth: steps of the forecast and the true values, NaN where unknown.
        hidden: number of context steps that are not drawn.
    """

    index: int
    id: str
    unit: str
    unit_name: str
    title: str
    statistic: str
    time: Timeline
    past: np.ndarray
    context: np.ndarray
    future: np.ndarray
    truth: np.ndarray
    hidden: int

    @property
    def remark(self) -> str:
        """Part of a subtitle that says how much of the context is drawn."""
        n = len(self.past)
        if self.hidden:
            return f"last {n} of {n + self.hidden} context steps"
        return f"{n} context steps"

    @property
    def observations(self) -> np.ndarray:
        """Context and truth in one array, with NaN where a value is missing."""
        return np.concatenate([self.context, self.truth])

    @property
    def has_truth(self) -> bool:
        """True where any true value is known."""
        return bool(np.isfinite(self.truth).any())

    def hover(self, words: str) -> str:
        """Return the hover box of a line of values; see :func:`value_hover`."""
        return value_hover(words, self.time, self.unit)

    def draw(self, panel: Panel, ahead: Panel | None = None) -> None:
        """Draw context, truth (where known) and a line at the start of the forecast.

        With ``ahead``, a panel of its own for the forecast steps, that has the truth,
        and there is no line.
        """
        past_hover = self.hover("observed, given to the model")
        panel.line(
            self.time.at(self.past), self.context, "context", past_hover, width=1.3
        )
        if self.has_truth:
            future_hover = self.hover("observed later, unknown to the model")
            (ahead or panel).line(
                self.time.at(self.future),
                self.truth,
                "observed",
                future_hover,
                width=1.3,
                dash="2px,2px",
            )
        if ahead is None:
            mark_start(panel, self.time)

    def forecast(
        self,
        panel: Panel,
        values: np.ndarray,
        name: str,
        colour: str,
        width: float = 1.8,
        dash: str | None = None,
        words: str = "",
    ) -> None:
        """Draw a curve over the forecast steps.

        Its hover box begins with ``words``; unless given, with its name and statistic.
        """
        hover = self.hover(words or f"{name} ({self.statistic})")
        panel.line(
            self.time.at(self.future),
            values,
            name,
            hover,
            colour=colour,
            width=width,
            dash=dash,
            # a line needs two points, so a forecast of one step is a dot
            dots=6 if len(values) == 1 else 0,
        )

    def title_axes(self, panel: Panel) -> None:
        """Write the titles of both axes of a panel."""
        panel.x(self.time.title)
        panel.y(self.title)


def series_window(
    ds: xr.Dataset,
    series: str | int,
    context_steps: int | None,
) -> SeriesWindow:
    """Cut one series of a result to the last steps of its context and its forecast.

    Args:
        ds: result with a context and a forecast.
        series: id of the series, or its place counted from 0.
        context_steps: number of context steps. If None, one and a half times the length
            of the forecast, so that this has two fifths of the width, but at least 12.

    Returns:
        The window, from which panels are drawn.
    """
    at = series_position(ds, series)
    future = np.array([int(v) for v in names(ds, "step")], dtype=int)
    past = np.array([int(v) for v in names(ds, "time")], dtype=int)
    if "context" in ds:
        context = array(ds, "context", "time", series=at)
    else:
        context = np.full(len(past), np.nan)
    # shorter series of a result are padded at the left with NaN, which is not context
    finite = np.flatnonzero(np.isfinite(context))
    if len(finite):
        first = int(finite[0])
    else:
        first = len(past)
    usual = max(3 * len(future) // 2, 12)
    start = max(first, len(past) - (usual if context_steps is None else context_steps))
    if "truth" in ds:
        truth = array(ds, "truth", "step", series=at)
    else:
        truth = np.full(len(future), np.nan)
    return SeriesWindow(
        index=at,
        id=short_ids(names(ds, "series"))[at],
        unit=find_unit(ds, at),
        unit_name=name_unit(ds, at),
        title=f"value ({name_unit(ds, at)})",
        statistic=name_statistic(ds),
        time=timeline(ds, at),
        past=past[start:],
        context=context[start:],
        future=future,
        truth=truth,
        hidden=start - first,
    )


def value_hover(words: str, time: Timeline, unit: str) -> str:
    """Return the template of a hover box: what a value is, its time, and the value."""
    return f"{plain(words)}<br>{time.hover}<br>%{{y:.4g}} {plain(after_number(unit))}"


def mark_start(panel: Panel, time: Timeline) -> None:
    """Draw a thin vertical line where the forecast starts.

    It stands between the last context step and the first forecast step.
    """
    x = time.scalar(-0.5)
    panel.shape(
        "line",
        (x, x),
        (0, 1),
        yref="y domain",
        line={"color": GREY, "width": 1, "dash": "dot"},
    )


def draw_bands(
    panel: Panel,
    view: SeriesWindow,
    quantiles: np.ndarray,
    values: np.ndarray,
    *,
    bands: bool = True,
    statistic: str = "",
) -> None:
    """Draw the central intervals and the median of a quantile forecast.

    ``quantiles`` are levels, ``values`` (quantile, step). Two levels that sum to 1 make
    an interval; the widest is drawn first, so that narrower ones lie over it. Other
    quantiles are lines.
    """
    order = np.argsort(quantiles)
    quantiles = np.asarray(quantiles, dtype=float)[order]
    values = values[order]
    # Each level below the median with the one nearest to its counterpart, the widest
    # pair first. 0.499 and 1e-6 leave room for levels that are rounded.
    partners = [
        (i, int(np.argmin(np.abs(quantiles - (1 - q)))))
        for i, q in enumerate(quantiles)
        if q < 0.499
    ]
    pairs = [
        (low, high)
        for low, high in partners
        if abs(quantiles[low] + quantiles[high] - 1) < 1e-6
    ]
    shares = [
        f"{100 * (quantiles[high] - quantiles[low]):.3g} %" for low, high in pairs
    ]
    x = view.time.at(view.future)
    middle = statistic or view.statistic
    for rank, (low, high) in enumerate(pairs if bands else []):
        # narrower intervals are darker, but stay paler than the line of the median
        colour = mixed(BLUE, 0.16 + 0.3 * rank / max(len(pairs) - 1, 1))
        # the first share in the legend says "interval", for those that follow too
        panel.band(
            x,
            values[low],
            values[high],
            colour,
            f"{shares[rank]} interval" if rank == 0 else shares[rank],
            legend=True,
        )
    unit = plain(after_number(view.unit))
    # a text for each step, shown by the median's line: a band has no hover box
    intervals = [
        "".join(
            f"<br>with {share} probability {number(step[low])} to {number(step[high])}"
            f" {unit}"
            for share, (low, high) in zip(shares, pairs, strict=True)
        )
        for step in values.T
    ]
    paired = {i for pair in pairs for i in pair}
    unpaired = sorted(set(range(len(quantiles))) - paired)
    for i in unpaired:
        is_median = abs(quantiles[i] - 0.5) < 1e-6
        if is_median:
            word = middle
            name = f"{middle} forecast"
        else:
            word = f"quantile {quantiles[i]:.3g}"
            name = word
        panel.line(
            x,
            values[i],
            name,
            f"{view.time.hover}<br>{word} %{{y:.4g}} {unit}%{{text}}",
            colour=BLUE,
            width=2 if is_median else 1,
            text=intervals,
        )


def fitted_range(
    core: np.ndarray, others: np.ndarray, reach: float = 0.6
) -> tuple[tuple[float, float], bool]:
    """Return an axis range that holds ``core``, and whether it cuts ``others``.

    The range grows towards ``others``, on each side by ``reach`` times the range of
    ``core`` at most, so that a forecast that explodes does not flatten the series.
    """
    core = core[np.isfinite(core)]
    others = others[np.isfinite(others)]
    if not len(core):
        if len(others):
            core = others
        else:
            core = np.array([0.0])
    low = float(core.min())
    high = float(core.max())
    # a constant core has no span of its own
    span = (high - low) or max(abs(high), 1.0) * 0.1
    low = min(low, max(float(others.min(initial=np.inf)), low - reach * span))
    high = max(high, min(float(others.max(initial=-np.inf)), high + reach * span))
    pad = 0.04 * (high - low or span)
    low -= pad
    high += pad
    is_cut = bool(((others < low) | (others > high)).any())
    return (low, high), is_cut


def fit(
    sheet: Sheet, core: np.ndarray, others: np.ndarray, reach: float = 0.6, **axis: Any
) -> str:
    """Set the value axes to :func:`fitted_range`; return a remark if values are cut."""
    bounds, is_cut = fitted_range(core, others, reach)
    sheet.y(range=bounds, **axis)
    return "values beyond the axis are cut off" if is_cut else ""


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Steps relative to the start of the forecast, with their dates where known.

    ``stamps`` are the dates of all ``steps``, or None; ``clock`` is the zone that they
    are of, "" if unknown.
    """

    steps: np.ndarray
    stamps: np.ndarray | None
    clock: str = ""

    @property
    def title(self) -> str:
        """Title of an axis over this timeline, of dates their clock if any."""
        if self.stamps is not None:
            return f"time ({self.clock})" if self.clock else ""
        return "time (steps from the start of the forecast)"

    @property
    def short_title(self) -> str:
        """Title of a narrow axis; :attr:`remark` says where its steps count from."""
        if self.stamps is not None:
            return self.clock
        return "step"

    @property
    def remark(self) -> str:
        """Part of a subtitle that explains ``short_title``."""
        if self.stamps is not None:
            return ""
        return "step 0 is the first forecast"

    @property
    def hover(self) -> str:
        """Template (of d3) for the time of a point in a hover box."""
        if self.stamps is not None:
            return "%{x|%Y-%m-%d %H:%M}"
        return "step %{x}"

    def at(self, position: np.ndarray | float) -> np.ndarray:
        """Return axis coordinates of steps, which may be fractional.

        Before the first and after the last date, dates go on at the same distance.
        """
        steps = np.asarray(position, dtype=float)
        if self.stamps is None:
            return steps
        ticks = self.stamps.astype("datetime64[ns]").astype(np.int64)
        first = ticks[0]
        last = ticks[-1]
        # offsets from the first date, as a float would round nanoseconds since 1970
        inside = np.interp(steps, self.steps, ticks - first)
        # interp() is constant beyond both ends; timeline() gives two dates or more
        before = (ticks[1] - first) * np.minimum(steps - self.steps[0], 0)
        after = (last - ticks[-2]) * np.maximum(steps - self.steps[-1], 0)
        offset = np.rint(inside + before + after).astype(np.int64)
        result: np.ndarray = (first + offset).astype("datetime64[ns]")
        return result

    def scalar(self, step: float) -> str | float:
        """Return the axis coordinate of one step, as shapes and ranges need it."""
        # plotly takes their dates as text, and arrays of dates for traces alone
        coordinate = self.at(float(step))
        if self.stamps is not None:
            return str(coordinate)
        return float(coordinate)

    def label(self, step: int) -> str:
        """Write one step in words, with its date where known."""
        if self.stamps is None:
            return f"step {step}"
        return f"step {step} ({self.date(step)})"

    def date(self, step: int) -> str:
        """Write the date of one step of a timeline with dates."""
        return f"{pd.Timestamp(self.at(float(step)).item()):%Y-%m-%d %H:%M}"


def name_segments(ds: xr.Dataset) -> list[str]:
    """Return the names of segments in figures.

    A stretch is named by its first and last date where these are known, and the same in
    all series or that of the one target; else by steps.
    """
    labels = [true_minus(name) for name in names(ds, "segment")]
    target = str(ds.attrs.get("target", ""))
    series = names(ds, "series")
    if target in series:
        timelines = [timeline(ds, series.index(target))]
    else:
        timelines = [timeline(ds, index) for index in range(len(series) or 1)]
    full = timelines[0]
    if full.stamps is None or any(
        other.stamps is None or not np.array_equal(other.stamps, full.stamps)
        for other in timelines[1:]
    ):
        return labels
    form, day = date_form(full.stamps)
    # the first and the last step of each segment; stop is the step after the last
    spans = [
        _name_span(full, int(start), int(stop), form, day)
        for start, stop in zip(ds["start"].values, ds["stop"].values, strict=True)
    ]
    return [
        re.sub(r"[-−]?\d+ to [-−]?\d+$", span, label)
        for label, span in zip(labels, spans, strict=True)
    ]


def _name_span(time: Timeline, start: int, stop: int, form: str, day: str) -> str:
    """Return the first and the last date of steps [start, stop).

    ``form`` is the format of a date with its clock; ``day``, that of whole days.
    """
    first, last, after = (
        pd.Timestamp(time.at(float(step)).item()) for step in (start, stop - 1, stop)
    )
    if first == first.normalize() and after == after.normalize() and "%H" in form:
        form = day
    # "1 Mar": the directive that leaves the zero out is not the same everywhere
    texts = [f"{date:{form}}".removeprefix("0") for date in (first, last)]
    return " to ".join(dict.fromkeys(texts))


def date_form(stamps: np.ndarray) -> tuple[str, str]:
    """Return the shortest format in which dates differ, and that of their days."""
    dates = pd.DatetimeIndex(stamps)
    day = "%d %b"
    if dates[-1] - dates[0] > pd.Timedelta(days=300):
        day = "%d %b %Y"
    if (dates != dates.normalize()).any():
        return f"{day} %H:%M", day
    if (dates.day == 1).all():
        return "%b %Y", day
    return day, day


def name_span(time: Timeline, start: int, stop: int) -> str:
    """Write steps [start, stop) as dates, or as steps where no dates are known."""
    if time.stamps is None:
        return " to ".join(dict.fromkeys((f"{start}", f"{stop - 1}")))
    return _name_span(time, start, stop, *date_form(time.stamps))


def name_variate(ds: xr.Dataset, row: int) -> str:
    """Name a series of one item: its variate, or its id where it is alone."""
    # names() goes by dimensions, and variate is a coordinate along the series
    if "variate" in ds.coords:
        variates = names(ds.swap_dims(series="variate"), "variate")
        if variates and variates[row]:
            return variates[row]
    return names(ds, "series")[row]


def name_unit(ds: xr.Dataset, row: int | None = None) -> str:
    """Return the unit of a series, "units of load" where none is known.

    It is that of the series which the result explains, unless a row is given.
    """
    if unit := find_unit(ds, row):
        return unit
    name = name_target(ds) if row is None else name_variate(ds, row)
    return f"units of {shortened(name, _UNIT, LABEL_TYPE, lines=1)}"


def name_horizon(ds: xr.Dataset) -> str:
    """Write the number of forecast steps of a result, with their dates if known."""
    count = ds.sizes["step"]
    text = "one step" if count == 1 else f"{count} steps"
    target = str(ds.attrs.get("target", ""))
    series = names(ds, "series")
    time = timeline(ds, series.index(target) if target in series else 0)
    if time.stamps is None:
        return text
    first = int(names(ds, "step")[0])
    return f"{text} ({name_span(time, first, first + count)})"


def name_target(ds: xr.Dataset) -> str:
    """Return the name of the series that a result explains.

    It is its variate alone where the item has no name of its own.
    """
    target = str(ds.attrs.get("target") or names(ds, "series")[0])
    return short_ids([target])[0]


def as_text(dates: np.ndarray) -> list[str | None]:
    """Write dates as texts that plotly reads in any place; a missing date is None."""
    # to the millisecond, in which JavaScript counts time
    texts = np.datetime_as_string(dates, unit="ms")
    return [
        None if missing else str(text)
        for text, missing in zip(texts, np.isnat(dates), strict=True)
    ]


def timeline(ds: xr.Dataset, series: int | None = None) -> Timeline:
    """Return the timeline of one series of a result, of the first unless given."""
    # of the context, then of the forecast, as far as the result has them
    pieces: list[np.ndarray] = []
    stamps: list[np.ndarray] = []
    has_dates = True
    clock = ""
    for dim, coord in (("time", "context_timestamp"), ("step", "forecast_timestamp")):
        if dim not in ds.dims:
            continue
        pieces.append(np.array([int(v) for v in names(ds, dim)]))
        if coord not in ds.coords:
            has_dates = False
            continue
        labels = ds[coord]
        if "series" in labels.dims:
            labels = labels.isel(series=series or 0)
        clock = str(labels.attrs.get("clock", ""))
        stamps.append(on_clock(labels.values, clock).tz_localize(None).to_numpy())
    if pieces:
        steps = np.concatenate(pieces)
    else:
        steps = np.arange(0)
    if not has_dates or len(steps) < 2:
        return Timeline(steps=steps, stamps=None)
    dates = np.concatenate(stamps).astype("datetime64[ns]")
    valid = ~np.isnat(dates)
    # A padded context has no dates at its beginning, and these steps are dropped. With
    # any other gap no date is used, since at() needs the date of every step.
    first = int(np.argmax(valid))
    if valid.sum() < 2 or not valid[first:].all():
        return Timeline(steps=steps, stamps=None)
    return Timeline(steps=steps[first:], stamps=dates[first:], clock=clock)
