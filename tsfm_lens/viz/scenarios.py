"""Scenarios: the forecast of an edited input, and its change since an earlier run.

:func:`what_if_lines` draws a scenario; the change since an earlier forecast is drawn by
:func:`generic_figure`. ``ANSWERS`` has the functions that write sentences on them. The
results are made by :mod:`tsfm_lens.explain.scenarios`.
"""

from __future__ import annotations

import re

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import figure, frame, measurement
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.panels import SeriesWindow, series_window, value_hover
from tsfm_lens.viz.select import (
    array,
    find_unit,
    median_position,
    name_model,
    name_statistic,
    names,
)
from tsfm_lens.viz.sheet import Panel, sheet
from tsfm_lens.viz.summary import labelled, summarize
from tsfm_lens.viz.theme import BLUE, GREY, VERMILION, mixed
from tsfm_lens.viz.words import listed

__all__ = ["what_if_lines"]

_MAX_PARTS = 3  # of a change, in a sentence
# end of the name of a stretch of new values, as in "load, new -24 to -19"
_STRETCH = re.compile(r", new -\d+( to -\d+)?$")


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
    maker="made of a run and a change: `tsfm_lens.explain.what_if` makes it",
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
    maker="made of two runs: `tsfm_lens.explain.explain_change` makes it",
)


def _middle(ds: xr.Dataset, name: str, *dims: str) -> np.ndarray:
    """Return the median of a variable, (…, step), with ``dims`` before the steps."""
    return array(
        ds, name, *dims, "step", quantile=median_position(ds["quantile"].values)
    )


def _outer_quantiles(ds: xr.Dataset, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest and the highest quantile of a variable, (step,) each."""
    order = np.argsort(ds["quantile"].values)
    values = array(ds, name, "quantile", "step")
    return values[order[0]], values[order[-1]]


_REDRAWN = (
    "Other sample paths move the forecast by {redraw:unit} at a step, without any"
    " change."
)


def read_what_if(ds: xr.Dataset) -> list[str]:
    """State how far the changes move the forecast, each of them, and through what."""
    before = _middle(ds, "forecast")
    after = _middle(ds, "changed_forecast")
    move = after - before
    # mean over steps, (change,)
    effects = _middle(ds, "effect", "change").mean(1)
    low, high = _outer_quantiles(ds, "forecast")
    new_low, new_high = _outer_quantiles(ds, "changed_forecast")
    width = (high - low).mean()
    new_width = (new_high - new_low).mean()
    is_changed = _changed_steps(ds)
    # both are None where no forecast step, or every one, was changed
    inside = None
    outside = None
    if is_changed.any() and not is_changed.all():
        inside = move[is_changed].mean()
        outside = move[~is_changed].mean()
    through_statistic = None
    total = None
    through = None
    if "through" in ds:
        through_statistic = ds["through"].attrs["statistic"]
        # absolute values, or effects of opposite sign would cancel
        total = abs(ds["through_total"]).mean("step").sum()
        through = abs(ds["through"]).mean("step").sum("change") / total
    return summarize(
        ds,
        "With {changes} the forecast of {target} averages {after:unit} instead of"
        " {before:unit} ({statistic}): it moves by {move:signed unit}, and by"
        " {size:unit} at a step on average.",
        "Of that mean move, each change makes: {effects:each signed unit}.",
        "It moves by {inside:signed unit} on average at the steps that were changed "
        "({changed_steps} of {n_steps}), by {outside:signed unit} at the others.",
        _REDRAWN,
        "In one pass, the {word} moves by {whole:unit} at a step. Components that this"
        " goes through: {through:largest percent}; those in series carry the same"
        " effect, so the shares do not add up.",
        "The interval between the outer quantiles is {new_width:unit} wide instead of "
        "{width:unit}.",
        after=after.mean(),
        before=before.mean(),
        statistic=_statistic(ds),
        move=move.mean(),
        size=np.abs(move).mean(),
        effects=labelled(ds, effects, "change") if len(effects) > 1 else None,
        changed_steps=int(is_changed.sum()),
        n_steps=ds.sizes["step"],
        inside=inside,
        outside=outside,
        word=through_statistic,
        whole=total,
        through=through,
        # the sentence is left out for a single quantile, which has no interval
        width=width if width > 0 else None,
        new_width=new_width,
    )


def _changed_steps(ds: xr.Dataset) -> np.ndarray:
    """Mark the forecast steps that lie within one of the changes, (step,)."""
    steps = np.arange(ds.sizes["step"])
    edges = zip(ds["start"].values, ds["stop"].values, strict=True)
    result: np.ndarray = np.any(
        [(steps >= start) & (steps < stop) for start, stop in edges], axis=0
    )
    return result


def _statistic(ds: xr.Dataset) -> str:
    """Name the statistic that both forecasts are, with the number of sample paths."""
    paths = None
    if str(ds.attrs.get("statistic")).endswith("sample paths"):
        paths = ds.attrs.get("num_samples")
    if paths:
        return f"{name_statistic(ds)} of {paths} sample paths"
    return name_statistic(ds)


@figure(
    "what_if",
    "Both forecasts, and the changed series as they were and as they are.",
    table=lambda ds: frame(ds, "forecast", "changed_forecast"),
    sentences=read_what_if,
)
def what_if_lines(ds: xr.Dataset, *, context_steps: int | None = None) -> go.Figure:
    """Draw both forecasts with their intervals, and each changed series.

    These are drawn below, before and after the change.

    Example:
        >>> fig = viz.what_if_lines(explain.what_if(driven, cause="+1", routes=False))
        >>> fig.layout.meta["title"]
        'Forecast of series-0/target by chronos2-nano with cause +1'
    """
    target = str(ds.attrs["target"])
    view = series_window(ds, target, context_steps)
    rows = list(dict.fromkeys(int(row) for row in ds["row"].values))
    canvas = sheet(
        [210, *[90] * len(rows)], row_gap=18, min_width=420, shared_xaxes=True
    )
    above, *below = canvas
    lines = (
        ("forecast", "forecast", BLUE),
        ("changed_forecast", "with the change", VERMILION),
    )
    for name, text, colour in lines:
        low, high = _outer_quantiles(ds, name)
        above.band(
            view.time.at(view.future),
            low,
            high,
            mixed(colour, 0.22),
            f"{text} (interval)",
        )
    # in a second loop, so that no band hides a line
    for name, text, colour in lines:
        view.forecast(above, _middle(ds, name), text, colour, 2)
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
    return canvas.finalize(
        f"Forecast of {target} by {name_model(ds)} with {changes}",
        f"{_statistic(ds)}, and interval between the outer quantiles",
        view.remark,
    )


def _draw_edit(panel: Panel, ds: xr.Dataset, view: SeriesWindow, row: int) -> None:
    """Draw a series before and after the change."""
    steps = np.concatenate([view.past, view.future])
    length = len(view.past)
    unit = find_unit(ds, row)
    # "as it was" is drawn last, so that the other shows only where it was changed
    for past, future, name, colour in (
        ("changed_context", "changed_future", "changed", VERMILION),
        ("context", "known_future", "as it was", GREY),
    ):
        values = array(ds, past, "time", series=row)[-length:]
        # a result in which no series has a known future lacks the variable
        if future in ds:
            future_values = array(ds, future, "step", series=row)
        else:
            future_values = np.full(len(view.future), np.nan)
        hover = value_hover(f"{name}: {names(ds, 'series')[row]}", view.time, unit)
        panel.line(
            view.time.at(steps),
            np.append(values, future_values),
            name,
            hover,
            colour=colour,
            width=1.3,
        )
    if "variate" in ds.coords:
        labels = names(ds.swap_dims(series="variate"), "variate")
    else:
        labels = names(ds, "series")
    label = labels[row]
    panel.y(f"{label} ({unit})" if unit else label, nticks=4)


def read_change(ds: xr.Dataset) -> list[str]:
    """State the change since the earlier forecast, and its largest parts.

    The stretches of new values of a series are one part.
    """
    effects = _middle(ds, "effect", "part")
    groups: dict[str, list[int]] = {}
    for index, label in enumerate(names(ds, "part")):
        groups.setdefault(_STRETCH.sub(", new in total", label), []).append(index)
    origin = list(groups).index("origin")
    # Shapley values add up, so that those of a group are the effect of all of it
    effect = xr.DataArray(
        np.stack([effects[group].sum(0) for group in groups.values()]),
        {"part": _parts(ds, list(groups))},
        ("part", "step"),
    )
    size = abs(effect).mean("step")
    mean = effect.mean("step")
    # a part is a difference of two forecasts, each of which is rounded
    acting = size > 2 * float(ds.attrs.get("rounding", 0.0))
    largest = np.argsort(-size.where(acting, 0).values, kind="stable")[:_MAX_PARTS]
    # parts that do not act count as 0 above, and are removed where few parts act
    largest = largest[acting.values[largest]]
    return summarize(
        ds,
        "For the same {steps} steps the forecast of {target} averages {after:unit};"
        " made {earlier} earlier it averaged {before:unit} ({statistic}).",
        "Largest parts, at a step: {size:each}; on average over steps: {mean:each"
        " signed}.",
        "Starting later changes the forecast without any new value: {origin}.",
        _REDRAWN,
        steps=ds.sizes["step"],
        earlier=_count_steps(int(ds.attrs["shift"])),
        after=_middle(ds, "after").mean(),
        before=_middle(ds, "before").mean(),
        statistic=_statistic(ds),
        size=size[largest],
        mean=mean[largest],
        origin=_origin(ds) if acting[origin] and _origin(ds) else None,
    )


def _origin(ds: xr.Dataset) -> str:
    """Write what the later origin changes besides new values.

    It is "" where both forecasts start at the same step and their pasts begin at the
    same step.
    """
    shift = int(ds.attrs["shift"])
    lost = int(ds.attrs["lost"])
    changes = []
    if shift > 0:
        changes.append(f"each step is {_count_steps(shift)} nearer")
        changes.append(
            f"the past goes on with {_count_steps(shift)} of the earlier forecast"
        )
    if lost > 0:
        changes.append(f"the past loses its oldest {_count_steps(lost)}")
    elif lost:
        changes.append(f"the past begins {_count_steps(-lost)} earlier")
    if changes:
        return listed(changes)
    return ""


def _count_steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


ANSWERS = {"what_if": read_what_if, "forecast_change": read_change}
"""Sentences that answer what-if and change, by kind of result."""


def _parts(ds: xr.Dataset, labels: list[str]) -> list[str]:
    """Name the parts of a change for sentences."""
    later = f"starting {_count_steps(int(ds.attrs['shift']))} later, nothing new"
    if not int(ds.attrs["shift"]):
        later = "another length of the past"
    return [later if label == "origin" else label for label in labels]


generic_figure(
    "forecast_change",
    "effect",
    "Part of each new input in the change of the forecast, step by step.",
    table=("effect",),
    sentences=read_change,
)
