"""Scenarios: the forecast with another input, and what changed it since an earlier run."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.registry import frame, measurement
from tsfm_lens.viz.panels import Scene, scene, value_hover
from tsfm_lens.viz.select import array, median_position, model_of, names, series_position, unit_of
from tsfm_lens.viz.sheet import Look, Panel, sheet
from tsfm_lens.viz.theme import BLUE, GREY, VERMILION, mixed, plain
from tsfm_lens.viz.words import listed, measured, num, signed

__all__ = ["change_bars", "what_if_lines"]

_MAX_NAMES = 3  # components and parts that a sentence names
_BAR = 22  # pixels of a bar

WHAT_IF = measurement("what_if")
FORECAST_CHANGE = measurement("forecast_change")


def _middle(ds: xr.Dataset, name: str, *dims: str) -> np.ndarray:
    return array(ds, name, *dims, "step", quantile=median_position(ds["quantile"].values))


def _ends(ds: xr.Dataset, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and the highest quantile."""
    order, values = np.argsort(ds["quantile"].values), array(ds, name, "quantile", "step")
    return values[order[0]], values[order[-1]]


def read_what_if(ds: xr.Dataset) -> list[str]:
    """State by how much the forecast moves with the changes, by which of several, and through which components."""
    before, after = _middle(ds, "forecast"), _middle(ds, "changed_forecast")
    amount, labels = measured(unit_of(ds).strip()), names(ds, "change")
    move = float((after - before).mean())
    out = [
        f"With {ds.attrs.get('changes', '')} the forecast of {ds.attrs['target']} averages {amount(after.mean())} "
        f"instead of {amount(before.mean())}: it moves by {signed(move)}, and by "
        f"{num(float(np.abs(after - before).mean()))} at a step on average."
    ]
    steps = np.arange(ds.sizes["step"])
    edges = list(zip(ds["start"].values, ds["stop"].values, strict=True))
    inside = np.any([(steps >= first) & (steps < stop) for first, stop in edges], axis=0)
    if inside.any() and not inside.all():
        there, elsewhere = (signed(float((after - before)[at].mean())) for at in (inside, ~inside))
        count = int(inside.sum())
        out.append(
            f"At the {count} steps that were changed it moves by {there} on average, at the others by {elsewhere}."
        )
    widths = [float((high - low).mean()) for low, high in (_ends(ds, "forecast"), _ends(ds, "changed_forecast"))]
    if min(widths) > 0:
        out.append(
            f"The interval between the outer quantiles is {amount(widths[1])} wide instead of {amount(widths[0])}."
        )
    if len(labels) > 1:
        effects = _middle(ds, "effect", "change").mean(1)
        out.append(
            f"Of this, {listed([f'{signed(e)} is by {label}' for label, e in zip(labels, effects, strict=True)])}."
        )
    if "through" in ds:
        size = np.abs(np.nan_to_num(array(ds, "through", "change", "component", "step"))).mean(-1).sum(0)
        first = np.argsort(-size, kind="stable")[:_MAX_NAMES]
        routes = [f"{names(ds, 'component')[at]} ({amount(float(size[at]))})" for at in first if size[at] > 0]
        if routes:
            overlap = "; those in series carry the same effect, so these do not add up" * (len(routes) > 1)
            out.append(f"Most of it goes through {listed(routes)}{overlap}.")
    return out


@WHAT_IF.figure(table=lambda ds: frame(ds, "forecast", "changed_forecast"), sentences=read_what_if)
def what_if_lines(ds: xr.Dataset, *, context_steps: int | None = None) -> go.Figure:
    """Draw both forecasts with their intervals, and under them each changed series as it was and as it is.

    Example:
        >>> fig = viz.what_if_lines(explain.what_if(driven, cause="+1", routes=False))
        >>> fig.layout.meta["title"]
        'Forecast of series-0/target by chronos2-nano with cause +1'
    """
    target = str(ds.attrs["target"])
    view = scene(ds, target, context_steps)
    rows = list(dict.fromkeys(int(row) for row in ds["row"].values))
    canvas = sheet([210, *[90] * len(rows)], row_gap=18, min_width=420, shared_xaxes=True)
    above, *below = canvas
    lines = (("forecast", "forecast", BLUE), ("changed_forecast", "with the change", VERMILION))
    for name, words, colour in lines:
        low, high = _ends(ds, name)
        above.band(view.time.at(view.future), low, high, mixed(colour, 0.22), f"{words} (interval)")
    # over both bands, so that none hides a line
    for name, words, colour in lines:
        view.forecast(above, _middle(ds, name), words, colour, 2)
    view.draw(above)
    above.y(view.title, nticks=5)
    for panel, row in zip(below, rows, strict=True):
        _draw_edit(panel, ds, view, row)
    canvas.x(range=[view.time.scalar(view.past[0] - 0.5), view.time.scalar(view.future[-1] + 0.5)])
    below[-1].x(view.time.title)
    changes = str(ds.attrs.get("changes", ""))
    return canvas.dress(
        f"Forecast of {target} by {model_of(ds)} with {changes}",
        "median, and interval between the outer quantiles",
        view.remark,
    )


def _draw_edit(panel: Panel, ds: xr.Dataset, view: Scene, row: int) -> None:
    """Draw a series as it was, and as it is after the change."""
    steps = np.concatenate([view.past, view.future])
    length = len(view.past)
    unit = unit_of(ds, row)
    for past, future, name, colour in (
        ("changed_context", "changed_future", "changed", VERMILION),
        ("context", "known_future", "as it was", GREY),
    ):
        values = array(ds, past, "time", series=row)[-length:]
        ahead = array(ds, future, "step", series=row) if future in ds else np.full(len(view.future), np.nan)
        hover = value_hover(f"{name}: {names(ds, 'series')[row]}", view.time, unit)
        panel.line(view.time.at(steps), np.append(values, ahead), name, hover, colour=colour, width=1.3)
    label = (names(ds.swap_dims(series="variate"), "variate") if "variate" in ds.coords else names(ds, "series"))[row]
    panel.y(f"{label} ({unit})" if unit else label, nticks=4)


def read_change(ds: xr.Dataset) -> list[str]:
    """State the change since the earlier forecast, and the parts that made most of it."""
    before, after = _middle(ds, "before"), _middle(ds, "after")
    amount, effect = measured(unit_of(ds).strip()), _middle(ds, "effect", "part")
    labels = _parts(ds)
    order = [int(at) for at in np.argsort(-np.abs(effect).mean(1), kind="stable") if np.abs(effect[at]).mean() > 0]
    parts = [
        f"{labels[at]} by {num(float(np.abs(effect[at]).mean()))} ({signed(float(effect[at].mean()))})" for at in order
    ]
    largest = f" Largest parts, at a step and on average: {listed(parts[:_MAX_NAMES])}." if parts else ""
    return [
        f"For the same {ds.sizes['step']} steps the forecast of {ds.attrs['target']} averages {amount(after.mean())}; "
        f"made {ds.attrs['shift']} steps earlier it averaged {amount(before.mean())}.{largest}"
    ]


ANSWERS = {"what_if": read_what_if, "forecast_change": read_change}
"""Sentences that answer what-if and change, by kind of result."""


def _parts(ds: xr.Dataset) -> list[str]:
    labels = names(ds, "part")
    return ["the later origin" if label == "origin" else label for label in labels]


@FORECAST_CHANGE.figure(table=("effect",), sentences=read_change)
def change_bars(ds: xr.Dataset, *, context_steps: int | None = None) -> go.Figure:
    """Draw both forecasts of the same steps, and what each new input adds to their difference, mean over steps.

    Example:
        >>> fig = viz.change_bars(explain.explain_change(driven, driven))
        >>> fig.layout.meta["title"]
        'Change of the forecast of series-0/target by chronos2-nano'
    """
    target = str(ds.attrs["target"])
    view, effect = scene(ds, target, context_steps), _middle(ds, "effect", "part").mean(1)
    canvas = sheet([190, _BAR * max(len(effect), 3)], row_gap=64, min_width=420)
    above, below = canvas
    view.forecast(above, _middle(ds, "before"), "earlier forecast", GREY, 1.6)
    view.forecast(above, _middle(ds, "after"), "later forecast", BLUE, 2)
    view.draw(above)
    above.y(view.title, nticks=5)
    places, unit = np.arange(len(effect)), unit_of(ds, series_position(ds, target)) or "data units"
    colours = [VERMILION if value >= 0 else BLUE for value in effect]
    look: Look = {"text": [plain(part) for part in _parts(ds)], "textposition": "none"}
    below.bars(places, effect, "", f"%{{text}}<br>%{{x:+.4g}} {plain(unit)}", colour=colours, across=True, **look)
    below.upright(0.0)
    below.y(tickvals=places, ticktext=[plain(part) for part in _parts(ds)], range=[len(effect) - 0.4, -0.6], ticks="")
    below.x(f"part of the change ({unit})")
    move = signed(float((_middle(ds, "after") - _middle(ds, "before")).mean()))
    return canvas.dress(
        f"Change of the forecast of {target} by {model_of(ds)}",
        f"{move} {unit} on average over {ds.sizes['step']} steps, {ds.attrs['shift']} steps later",
        "bars sum to the change",
    )
