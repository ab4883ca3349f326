"""Scenarios: the forecast of an edited input, and its change since an earlier run.

:func:`what_if_lines` draws a scenario, :func:`change_bars` the change since an earlier
forecast. ``ANSWERS`` has the functions that write sentences on them. The
results are made by :mod:`tsfm_lens.explain.scenarios`.
"""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import figure, frame, measurement
from tsfm_lens.viz.contributions import (
    Contribution,
    contributions,
    draw_contributions,
    horizon_sheet,
    line_shape,
    list_covariates,
    name_lines,
    name_value,
)
from tsfm_lens.viz.panels import (
    SeriesWindow,
    fit,
    fitted_range,
    name_horizon,
    name_span,
    name_target,
    name_variate,
    series_window,
    timeline,
    value_hover,
)
from tsfm_lens.viz.ratios import signed_percent
from tsfm_lens.viz.select import (
    array,
    category_names,
    find_unit,
    median_position,
    name_model,
    name_statistic,
    names,
    series_position,
)
from tsfm_lens.viz.sheet import Panel
from tsfm_lens.viz.summary import labelled, summarize
from tsfm_lens.viz.theme import BLUE, GREY, INK, WINE, mixed, number, plain
from tsfm_lens.viz.words import after_number, capital, listed, measured, num, signed

__all__ = ["change_bars", "what_if_lines"]

_MAX_PARTS = 3  # of a change, in a sentence
# Heights in pixels of the forecasts, and of a series that is edited.
_LINES = 150
_EDIT = 50
# of a forecast that is drawn: variable, name, colour
Line = tuple[str, str, str]


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
        "is hidden stands as it was known, or forecast, before. What remains is the "
        "effect of forecasting from a later step without any new value: each step is "
        "nearer, the past goes on with the earlier forecast, and its oldest steps may "
        "be gone."
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
    unit = find_unit(ds).strip()
    before = _middle(ds, "forecast")
    after = _middle(ds, "changed_forecast")
    move = after - before
    # of single steps, which may cancel one another in the mean
    size = np.abs(move).mean()
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
        "With {changes} the forecast of {name} {verb} by {distance:unit}{share} on"
        " average over {steps}, from {before} to {after} ({statistic}){beside}.{where}",
        "That is the model's answer: over {responses:whole} series, its response to"
        " {unresponsive} is not distinguishable from zero.",
        "The test of the inputs cannot tell from zero the effect of {undecided}.",
        "It moves single steps by {size:unit} on average, {n_up:whole} of {n_steps} of"
        " them up.",
        "Of that mean move, each change makes: {effects:each signed unit}.",
        "It moves by {inside:signed unit} on average at the steps that were changed "
        "({changed_steps} of {n_steps}), by {outside:signed unit} at the others.",
        _REDRAWN,
        "In one pass, the {word} moves by {whole:unit} at a step. Components that this"
        " goes through: {through:largest percent}; those in series carry the same"
        " effect, so the shares do not add up.",
        "The interval between the outer quantiles is {new_width:unit} wide instead of "
        "{width:unit}.",
        verb=_verb(float(move.mean())),
        name=name_target(ds),
        distance=abs(move.mean()),
        share=_say_share(before.mean(), after.mean()),
        beside=_say_beside(ds, float(abs(move.mean())), float(width)),
        where=_say_where(ds),
        steps=name_horizon(ds),
        after=_level(after.mean(), unit),
        before=_level(before.mean(), unit),
        statistic=_statistic(ds),
        size=size if abs(move.mean()) < size else None,
        n_up=(move > 0).sum(),
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


def _say_beside(ds: xr.Dataset, move: float, width: float) -> str:
    """Compare a change with the interval of the forecast; "" without an interval."""
    if not width > 0:
        return ""
    comparative = "less" if move < width else "no less"
    band = f"{100 * np.ptp(ds['quantile'].values.astype(float)):.3g} % band"
    return (
        f", {comparative} than its {band} is wide"
        f" ({measured(find_unit(ds).strip())(width)})"
    )


def _say_where(ds: xr.Dataset) -> str:
    """Say that only future or only past values were changed; "" if both were."""
    if (ds["start"].values >= 0).all():
        return " Only future values were changed."
    if (ds["stop"].values <= 0).all():
        return " Only past values were changed."
    return ""


def _verb(move: float) -> str:
    """Say which way the mean of a forecast goes."""
    if move > 0:
        return "rises"
    return "falls" if move < 0 else "moves"


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


def _name_lines(ds: xr.Dataset) -> str:
    """Name what the lines and bands of both forecasts are."""
    levels = ds["quantile"].values.astype(float)
    if len(levels) < 2:
        return _statistic(ds)
    return f"{_statistic(ds)} and {100 * np.ptp(levels):.3g} % interval"


@figure(
    "what_if",
    "Both forecasts, and the changed series as they were and as they are.",
    table=lambda ds: frame(ds, "forecast", "changed_forecast"),
    sentences=read_what_if,
)
def what_if_lines(ds: xr.Dataset, *, context_steps: int | None = None) -> go.Figure:
    """Draw both forecasts with their intervals, and each changed series.

    These are drawn below, before and after the change.

    Args:
        ds: result of kind "what_if".
        context_steps: steps of the context that are drawn, a few horizons if None.

    Returns:
        Panels on one time axis: both forecasts above, a panel for each changed series
        below, each in data units; of several changes, their effects at the bottom.

    Example:
        >>> fig = viz.what_if_lines(explain.what_if(driven, cause="+1", routes=False))
        >>> fig.layout.meta["title"]
        'Forecast of target by chronos2-nano with cause +1'
    """
    view = series_window(ds, str(ds.attrs["target"]), context_steps)
    name = name_target(ds)
    effects = _middle(ds, "effect", "change")
    labels = names(ds, "change")
    groups = [(label, [at]) for at, label in enumerate(labels)]
    parts = contributions(groups, effects, mean=True, covariates=list_covariates(ds))
    # a single change makes all of the difference, which both lines show
    ranked = len(parts) if len(parts) > 1 else 0
    rows = list(dict.fromkeys(int(row) for row in ds["row"].values))
    heights = [_LINES, *[_EDIT] * len(rows)]
    canvas, left, right = horizon_sheet(view, heights, ranked)
    _draw_two(
        left[0],
        right[0],
        ds,
        view,
        ("forecast", "forecast", BLUE),
        ("changed_forecast", "with the change", WINE),
    )
    for at, row in enumerate(rows, start=1):
        _draw_edit(left[at], right[at], ds, view, row)
    if ranked:
        draw_contributions(
            left[-1],
            right[-1],
            parts,
            effects.sum(0),
            view,
            between="forecast with the change − forecast",
            mean=True,
        )
    changes = str(ds.attrs.get("changes", ""))
    return canvas.finalize(
        f"Forecast of {name} by {name_model(ds)} with {changes}",
        _name_lines(ds),
        view.remark,
    )


def _draw_two(
    past: Panel, future: Panel, ds: xr.Dataset, view: SeriesWindow, *lines: Line
) -> None:
    """Draw the context, and two forecasts with their intervals."""
    ranges = [view.observations]
    for variable, text, colour in lines:
        low, high = _outer_quantiles(ds, variable)
        ranges += [low, high]
        x = view.time.at(view.future)
        future.band(x, low, high, mixed(colour, 0.22), f"{text} (interval)")
    # in a second loop, so that no band hides a line
    for variable, text, colour in lines:
        view.forecast(future, _middle(ds, variable), text, colour, 2)
    view.draw(past, future)
    named = [("━", text, colour) for _, text, colour in lines]
    if view.has_truth:
        named.append(("┈", "truth", INK))
    name_lines(future, *named)
    past.y(view.title, nticks=5)
    fit(past.sheet, np.concatenate(ranges), np.array([]), row=1)


def _draw_edit(
    past: Panel, future: Panel, ds: xr.Dataset, view: SeriesWindow, row: int
) -> None:
    """Draw a series before and after the change.

    The change is drawn only where it is one, and without a slope that leads to it.
    """
    unit = find_unit(ds, row)
    words = category_names(ds, row)
    length = len(view.past)
    # a result in which no series has a known future lacks the variable
    columns = [(past, view.past, "context", "changed_context")]
    if "known_future" in ds:
        columns.append((future, view.future, "known_future", "changed_future"))
    every = []
    for panel, steps, old_name, new_name in columns:
        dim = "time" if panel is past else "step"
        old, new = (
            array(ds, name, dim, series=row)[-length if panel is past else 0 :]
            for name in (old_name, new_name)
        )
        every += [old, new]
        differs = ~((old == new) | (np.isnan(old) & np.isnan(new)))
        shape = line_shape(old, words)
        for values, name, colour in (
            (old, "as it was", GREY),
            (np.where(differs, new, np.nan), "changed", WINE),
        ):
            subject = f"{name}: {names(ds, 'series')[row]}"
            hover = value_hover(subject, view.time, unit)
            if words:
                hover = f"{plain(subject)}<br>{view.time.hover}<br>%{{text}}"
            panel.line(
                view.time.at(steps),
                values,
                name,
                hover,
                colour=colour,
                width=1.6 if colour == WINE else 1.3,
                line_shape=shape,
                text=[plain(name_value(value, words)) for value in values],
                # a single step has no line
                mode="lines+markers" if differs.sum() == 1 else "lines",
            )
    drawn = np.concatenate(every)
    bounds, _ = fitted_range(drawn, np.array([]))
    # its name stands at the left, its values at the right
    label = name_variate(ds, row)
    past.y(tickvals=[float(np.mean(bounds))], ticktext=[plain(label)], ticks="")
    past.y(range=bounds)
    future.y(unit, range=bounds, nticks=3)
    seen = np.unique(drawn[np.isfinite(drawn)])
    if words:
        labels = [plain(words[int(code)]) for code in seen]
        future.y("", tickvals=seen.tolist(), ticktext=labels)
    elif len(seen) == 2:
        future.y(tickvals=seen.tolist())


def read_change(ds: xr.Dataset) -> list[str]:
    """State the change since the earlier forecast, and its largest parts."""
    parts = _parts(ds)
    before = _middle(ds, "before").mean()
    after = _middle(ds, "after").mean()
    unit = find_unit(ds).strip()
    texts = [
        f"{part.label}{_say_revision(ds, part)} {signed(part.size)}" for part in parts
    ]
    # a single one that is left is named, too
    if len(parts) > _MAX_PARTS + 1:
        rest = sum(part.size for part in parts[_MAX_PARTS:])
        texts[_MAX_PARTS:] = [f"others {signed(rest)}"]
    made_of = ""
    if texts:
        made_of = f": {listed(texts)}"
    origin_acts = any(0 in part.members for part in parts)
    return summarize(
        ds,
        "Over the same {steps} the mean forecast of {name} {way} ({statistic})"
        "{made_of}.",
        "{earlier}. Single steps move by {size:unit} on average.",
        "{start}",
        _REDRAWN,
        steps=name_horizon(ds),
        name=name_target(ds),
        way=_say_change(before, after, unit),
        made_of=made_of,
        earlier=_describe_earlier(ds),
        statistic=_statistic(ds),
        size=np.abs(_middle(ds, "after") - _middle(ds, "before")).mean(),
        start=_describe_start(ds) if origin_acts else None,
    )


def _describe_earlier(ds: xr.Dataset) -> str:
    """Say when the earlier forecast was made, or that both start at the same step."""
    shift = int(ds.attrs["shift"])
    if shift:
        return f"The earlier forecast was made {_count_steps(shift)} before"
    same = "Both forecasts start at the same step"
    # the first part is the start; another length of the past is told by itself
    if ds.sizes["part"] > 1 or int(ds.attrs["lost"]):
        return same
    return f"{same} and read the same values, so that nothing is new"


def _say_revision(ds: xr.Dataset, part: Contribution) -> str:
    """Say how far revised values lie from the earlier ones on average, in brackets.

    Returns:
        The text, "" of new values and where words were revised.
    """
    if "revision" not in ds or not part.label.startswith("revised"):
        return ""
    # of one stretch: revised values of a series are one part of the result
    (at,) = part.members
    revision = float(ds["revision"].values[at])
    if not np.isfinite(revision) or not revision:
        return ""
    series = names(ds, "part")[at].rpartition(", ")[0]
    variates = [name_variate(ds, row) for row in range(ds.sizes["series"])]
    unit = ""
    if series in variates:
        unit = find_unit(ds, variates.index(series))
    word = "higher" if revision > 0 else "lower"
    distance = f"{num(abs(revision))} {after_number(unit)}".rstrip()
    return f" ({distance} {word} on average)"


def _say_change(before: float, after: float, unit: str) -> str:
    """Say which way the mean of a forecast went."""
    level = _level(after, unit)
    if _level(before, unit) == level:
        return f"stayed at {level}"
    verb = "rose" if after > before else "fell"
    distance = f"{number(abs(after - before))} {after_number(unit)}".rstrip()
    return (
        f"{verb} by {distance}{_say_share(before, after)}, from {_level(before, unit)}"
        f" to {level}"
    )


def _say_share(before: float, after: float) -> str:
    """Write a change in percent, in brackets; "" from or through zero."""
    if before * after <= 0:
        return ""
    return f" ({signed_percent(after / before - 1)})"


def _level(value: float, unit: str) -> str:
    """Write the mean of a forecast so finely that a change of it can be subtracted."""
    return f"{number(value)} {after_number(unit)}".rstrip()


def _describe_start(ds: xr.Dataset) -> str | None:
    """Return what a later start, or another length of the past, changes by itself.

    It is None where both forecasts start at the same step and their pasts begin at the
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
        name = capital(_name_part(ds, "origin"))
        return f"{name} is what changes without any new value: {listed(changes)}."
    return None


def name_scenario(ds: xr.Dataset) -> str:
    """Name the subject of an answer to what-if or change, as a page's heading does."""
    if ds.attrs["kind"] == "what_if":
        return f"{name_target(ds)} with {ds.attrs['changes']}"
    earlier = _name_earlier(ds)
    return f"{name_target(ds)}: what changed since the forecast of {earlier}"


def _count_steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


ANSWERS = {"what_if": read_what_if, "forecast_change": read_change}
"""Sentences that answer what-if and change, by kind of result."""


def _parts(ds: xr.Dataset) -> list[Contribution]:
    """Return what is new since the earlier forecast, by its mean effect.

    The new values of a series, which the result has by stretches, are one part. What
    does not act is left out.
    """
    effects = _middle(ds, "effect", "part")
    groups: dict[str, list[int]] = {}
    for at, label in enumerate(names(ds, "part")):
        groups.setdefault(_name_part(ds, label), []).append(at)
    # a part is a difference of two forecasts, each of which is rounded
    threshold = 2 * float(ds.attrs.get("rounding", 0.0))
    acting = [
        (label, members)
        for label, members in groups.items()
        if np.abs(effects[members].sum(0)).mean() > threshold
    ]
    return contributions(acting, effects, mean=True)


def _name_part(ds: xr.Dataset, label: str) -> str:
    """Name a part of a change in words."""
    if label == "origin":
        if int(ds.attrs["shift"]):
            return "later start"
        return "another length of the past"
    series, _, change = label.rpartition(", ")
    words = {"new": "new", "revised": "revised past", "future": "revised future"}
    return f"{words[change.split()[0]]} {series}"


@figure(
    "forecast_change",
    "The earlier and the later forecast, and what is new between them.",
    table=["effect"],
    sentences=read_change,
)
def change_bars(ds: xr.Dataset, *, context_steps: int | None = None) -> go.Figure:
    """Draw both forecasts of the same steps, and what moved one to the other.

    Parts are ordered by the size of their mean effect.

    Args:
        ds: result of kind "forecast_change".
        context_steps: steps of the context that are drawn, a few horizons if None.

    Returns:
        Panels on one time axis: both forecasts above, and below them the size of each
        part's effect and what all add to each step. All are in data units.

    Example:
        >>> fig = viz.change_bars(explain.explain_change(driven, driven))
        >>> fig.layout.meta["title"]
        'Change of the forecast of target by chronos2-nano'
    """
    view = series_window(ds, str(ds.attrs["target"]), context_steps)
    parts = _parts(ds)
    canvas, left, right = horizon_sheet(view, [_LINES + _EDIT], len(parts))
    _draw_two(
        left[0],
        right[0],
        ds,
        view,
        ("before", "earlier forecast", GREY),
        ("after", "this forecast", BLUE),
    )
    shift = int(ds.attrs["shift"])
    origin = ""
    if 0 < shift <= len(view.past):
        left[0].vline(view.time.scalar(-shift - 0.5), dash="dot")
        origin = " (dotted)"
    draw_contributions(
        left[-1],
        right[-1],
        parts,
        _middle(ds, "effect", "part").sum(0),
        view,
        between="this forecast − earlier forecast",
        mean=True,
    )
    return canvas.finalize(
        f"Change of the forecast of {name_target(ds)} by {name_model(ds)}",
        _name_lines(ds),
        f"earlier forecast from {_name_earlier(ds)}{origin}",
        view.remark,
    )


def _name_earlier(ds: xr.Dataset) -> str:
    """Name the step at which the earlier forecast starts."""
    shift = int(ds.attrs["shift"])
    time = timeline(ds, series_position(ds, str(ds.attrs["target"])))
    return name_span(time, -shift, 1 - shift)
