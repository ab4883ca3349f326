"""Scenarios: the forecast with another input, and what changed it since an earlier run."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import figure, frame, measurement
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.panels import Scene, scene, value_hover
from tsfm_lens.viz.select import (
    array,
    median_position,
    model_of,
    names,
    statistic_of,
    unit_of,
)
from tsfm_lens.viz.sheet import Panel, sheet
from tsfm_lens.viz.theme import BLUE, GREY, VERMILION, mixed, percent
from tsfm_lens.viz.words import listed, measured, num, signed

__all__ = ["what_if_lines"]

_MAX_NAMES = 3  # components and parts that a sentence names

measurement(
    "what_if",
    title="What if",
    theme="Inputs",
    summary=(
        "the forecast with another input, which of several changes moves it, and "
        "through which components"
    ),
    description=(
        "The series are edited, and the model forecasts again; a model that draws "
        "takes the same random numbers, and both forecasts are medians of its "
        "sample paths. The effects of several changes are their Shapley values, "
        "which sum to the difference of both forecasts."
    ),
    source="Shapley 1953; Wang et al. 2022, arXiv:2211.00593",
    maker=("made of a run and a change: `tsfm_lens.explain.what_if` makes it"),
)
measurement(
    "forecast_change",
    title="Change of the forecast",
    theme="Inputs",
    summary=(
        "why the forecast of the same steps differs from an earlier one, by what is new"
    ),
    description=(
        "New values, revised values and known futures that were announced "
        "differently enter the later run one after the other, in every order. What "
        "is hidden stands as it was known, or forecast, before. The rest is the "
        "later origin, without any new value: each step is nearer, the past goes on "
        "with the earlier forecast, and its oldest steps may be gone."
    ),
    source="Shapley 1953; Lundberg and Lee 2017, arXiv:1705.07874",
    maker=("made of two runs: `tsfm_lens.explain.explain_change` makes it"),
)


def _middle(ds: xr.Dataset, name: str, *dims: str) -> np.ndarray:
    return array(
        ds, name, *dims, "step", quantile=median_position(ds["quantile"].values)
    )


def _ends(ds: xr.Dataset, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and the highest quantile."""
    order, values = (
        np.argsort(ds["quantile"].values),
        array(ds, name, "quantile", "step"),
    )
    return values[order[0]], values[order[-1]]


def read_what_if(ds: xr.Dataset) -> list[str]:
    """State by how much the forecast moves with the changes, by which of several, and through which components."""
    before, after = _middle(ds, "forecast"), _middle(ds, "changed_forecast")
    amount, labels = measured(unit_of(ds).strip()), names(ds, "change")
    move = float((after - before).mean())
    out = [
        f"With {ds.attrs.get('changes', '')} the forecast of {ds.attrs['target']} averages {amount(after.mean())} "
        f"instead of {amount(before.mean())} ({_statistic(ds)}): it moves by {signed(move)}, and by "
        f"{num(float(np.abs(after - before).mean()))} at a step on average."
    ]
    if len(labels) > 1:
        effects = _middle(ds, "effect", "change").mean(1)
        parts = [
            f"{signed(effect)} is by {label}"
            for label, effect in zip(labels, effects, strict=True)
        ]
        out.append(f"Of the {signed(move)}, {listed(parts)}.")
    steps = np.arange(ds.sizes["step"])
    edges = list(zip(ds["start"].values, ds["stop"].values, strict=True))
    inside = np.any(
        [(steps >= first) & (steps < stop) for first, stop in edges], axis=0
    )
    if inside.any() and not inside.all():
        there, elsewhere = (
            signed(float((after - before)[at].mean())) for at in (inside, ~inside)
        )
        count = int(inside.sum())
        out.append(
            f"At the {count} steps that were changed it moves by {there} on average, at the others by {elsewhere}."
        )
    out += _drawn(ds) + _routes(ds)
    widths = [
        float((high - low).mean())
        for low, high in (_ends(ds, "forecast"), _ends(ds, "changed_forecast"))
    ]
    if min(widths) > 0:
        out.append(
            f"The interval between the outer quantiles is {amount(widths[1])} wide instead of {amount(widths[0])}."
        )
    return out


def _statistic(ds: xr.Dataset) -> str:
    """Name the statistic that both forecasts are."""
    paths = (
        ds.attrs.get("num_samples")
        if str(ds.attrs.get("statistic")).endswith("sample paths")
        else None
    )
    return f"{statistic_of(ds)} of {paths} sample paths" if paths else statistic_of(ds)


def _drawn(ds: xr.Dataset) -> list[str]:
    """State how far other sample paths move the forecast; nothing of a model that draws none."""
    if "redraw" not in ds.attrs:
        return []
    apart = measured(unit_of(ds).strip())(float(ds.attrs["redraw"]))
    return [
        f"Other sample paths move the forecast by {apart} at a step, without any change."
    ]


def _routes(ds: xr.Dataset) -> list[str]:
    """State the components through which the largest parts of a change go, as shares of its size at a step."""
    if "through" not in ds:
        return []
    size = (
        np.abs(np.nan_to_num(array(ds, "through", "change", "component", "step")))
        .mean(-1)
        .sum(0)
    )
    whole = float(np.abs(array(ds, "through_total", "change", "step")).mean(-1).sum())
    first = [
        int(at) for at in np.argsort(-size, kind="stable")[:_MAX_NAMES] if size[at] > 0
    ]
    if not first or not whole > 0:
        return []
    parts = [
        f"{percent(float(size[at]) / whole)} goes through {names(ds, 'component')[at]}"
        for at in first
    ]
    word, amount = str(ds["through"].attrs["statistic"]), measured(unit_of(ds).strip())
    start = f"Of the {amount(whole)} at a step"
    if word != statistic_of(ds):
        start = f"In one pass, the {word} moves by {amount(whole)} at a step; of that"
    overlap = (
        " Components in series carry the same effect, so these do not add up."
        if len(parts) > 1
        else ""
    )
    return [f"{start}, {listed(parts)}.{overlap}"]


@figure(
    "what_if",
    ("Both forecasts, and the changed series as they were and as they are."),
    table=lambda ds: frame(ds, "forecast", "changed_forecast"),
    sentences=read_what_if,
)
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
    canvas = sheet(
        [210, *[90] * len(rows)], row_gap=18, min_width=420, shared_xaxes=True
    )
    above, *below = canvas
    lines = (
        ("forecast", "forecast", BLUE),
        ("changed_forecast", "with the change", VERMILION),
    )
    for name, words, colour in lines:
        low, high = _ends(ds, name)
        above.band(
            view.time.at(view.future),
            low,
            high,
            mixed(colour, 0.22),
            f"{words} (interval)",
        )
    # over both bands, so that none hides a line
    for name, words, colour in lines:
        view.forecast(above, _middle(ds, name), words, colour, 2)
    view.draw(above)
    above.y(view.title, nticks=5)
    for panel, row in zip(below, rows, strict=True):
        _draw_edit(panel, ds, view, row)
    canvas.x(
        range=[
            view.time.scalar(view.past[0] - 0.5),
            view.time.scalar(view.future[-1] + 0.5),
        ]
    )
    below[-1].x(view.time.title)
    changes = str(ds.attrs.get("changes", ""))
    return canvas.dress(
        f"Forecast of {target} by {model_of(ds)} with {changes}",
        f"{_statistic(ds)}, and interval between the outer quantiles",
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
        ahead = (
            array(ds, future, "step", series=row)
            if future in ds
            else np.full(len(view.future), np.nan)
        )
        hover = value_hover(f"{name}: {names(ds, 'series')[row]}", view.time, unit)
        panel.line(
            view.time.at(steps),
            np.append(values, ahead),
            name,
            hover,
            colour=colour,
            width=1.3,
        )
    label = (
        names(ds.swap_dims(series="variate"), "variate")
        if "variate" in ds.coords
        else names(ds, "series")
    )[row]
    panel.y(f"{label} ({unit})" if unit else label, nticks=4)


def read_change(ds: xr.Dataset) -> list[str]:
    """State the change since the earlier forecast, and the parts that made most of it."""
    before, after = _middle(ds, "before"), _middle(ds, "after")
    amount, effect = measured(unit_of(ds).strip()), _middle(ds, "effect", "part")
    labels = _parts(ds)
    size, least = np.abs(effect).mean(1), 2 * float(ds.attrs.get("rounding", 0.0))
    order = [int(at) for at in np.argsort(-size, kind="stable") if size[at] > least]
    parts = [
        f"{labels[at]} by {num(float(size[at]))} ({signed(float(effect[at].mean()))})"
        for at in order
    ]
    largest = (
        f" Largest parts, at a step and on average: {listed(parts[:_MAX_NAMES])}."
        if parts
        else ""
    )
    out = [
        f"For the same {ds.sizes['step']} steps the forecast of {ds.attrs['target']} averages {amount(after.mean())}; "
        f"made {ds.attrs['shift']} steps earlier it averaged {amount(before.mean())} ({_statistic(ds)}).{largest}"
    ]
    if names(ds, "part").index("origin") in order and _origin(ds):
        out.append(f"The later origin holds no new value: {_origin(ds)}.")
    return out + _drawn(ds)


def _origin(ds: xr.Dataset) -> str:
    """Say what the later origin is made of; "" where both forecasts start at the same step of the same past."""
    shift, lost = int(ds.attrs["shift"]), int(ds.attrs["lost"])
    facts = [
        f"each step is {shift} steps nearer",
        f"the past goes on with {shift} steps of the earlier forecast",
    ] * (shift > 0)
    if lost:
        facts.append(
            f"its {lost} oldest steps are gone"
            if lost > 0
            else f"{-lost} older steps are there"
        )
    return listed(facts) if facts else ""


ANSWERS = {"what_if": read_what_if, "forecast_change": read_change}
"""Sentences that answer what-if and change, by kind of result."""


def _parts(ds: xr.Dataset) -> list[str]:
    labels = names(ds, "part")
    return ["the later origin" if label == "origin" else label for label in labels]


generic_figure(
    "forecast_change",
    "effect",
    "Part of each new input in the change of the forecast, step by step.",
    table=("effect",),
    sentences=read_change,
)
