"""Scenarios: the forecast of another input, and why a later forecast is another.

Read :func:`what_if` and :func:`explain_change`. Both give Shapley values of changes
with :class:`~tsfm_lens.explain.values.Masks`, where the reference is the other input.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from tsfm_lens.ablation.notices import with_messages_once
from tsfm_lens.ablation.points import Progress
from tsfm_lens.core.errors import InputError, unknown_name
from tsfm_lens.core.estimates import Result
from tsfm_lens.data import SeriesBatch
from tsfm_lens.data.batch import Item
from tsfm_lens.data.categories import category_code
from tsfm_lens.data.frequencies import read_offset
from tsfm_lens.explain.attribution import METHODS, input_attribution, shapley
from tsfm_lens.explain.masking import with_future
from tsfm_lens.explain.routes import input_routes
from tsfm_lens.explain.segments import Segment, find_kind, find_step, target_row
from tsfm_lens.explain.values import (
    Masks,
    alone_as_forecast,
    draw_attrs,
    list_levels,
    name_statistic,
)
from tsfm_lens.models.noise import rounding
from tsfm_lens.models.run import Run

__all__ = ["explain_change", "what_if"]

_OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "=": lambda _, new: new,
}
# an operator, then one number with its own sign, as in "*-1" or "=1e3"
_EDIT = re.compile(r"\s*([-+*/=])\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")
_MOST = 4  # stretches of new values
Edit = str | float | Sequence[float] | np.ndarray
"""New values of a stretch.

"+5", "-5", "*1.1", "/2", "=7", the name of a category, one value, or one for each step.
"""


@with_messages_once
def what_if(
    run: Run,
    changes: Mapping[str, Edit] | None = None,
    *,
    item: Item = None,
    target: int | str = 0,
    start: int | str | pd.Timestamp | None = None,
    stop: int | str | pd.Timestamp | None = None,
    routes: bool = True,
    progress: Progress | None = None,
    **more: Edit,
) -> Result:
    """Forecast with another input, and say through which components the change came.

    Both forecasts are the library's own, those of a model that draws from sample paths
    with the same random numbers.

    Args:
        run: the forecast to compare with.
        changes: new values by series or variate of the item; those with plain names as
            keywords, ``temperature="+5"``. Categories keep the numbers that the model
            reads for them in the run.
        item, target: by position or name; the only item if None.
        start, stop: steps [start, stop) that change, counted from the forecast start,
            or dates. A change starts at the forecast start (0) and lasts to the end of
            the series unless they say otherwise, so that a series without a known
            future needs a ``start`` in its past.
        routes: whether the parts through components are measured.
        progress: called with the forecasts done and their number.
        more: more changes.

    Returns:
        Dataset of kind "what_if", in data units.

        - ``forecast`` and ``changed_forecast`` (step, quantile); ``effect`` (change,
          step, quantile), Shapley values of the changes, which sum to their difference.
        - With ``routes``: ``through`` (change, component, step), the part of each
          change alone that goes through each component, and ``through_total`` (change,
          step), all of it, see :func:`tsfm_lens.explain.input_routes`. Their attribute
          ``statistic`` is that of :attr:`Run.point`.
        - ``changed_context`` (series, time) and ``changed_future`` (series, step).

        Attributes: ``statistic``; of a model that draws, ``num_samples`` and
        ``redraw``, how far other sample paths move the median at a step.

    Raises:
        InputError: no change, one that cannot be read, a stretch outside of its series,
            or several items and no choice.
        UnknownNameError: no such series, item or target.

    Example:
        >>> found = explain.what_if(driven, cause="+1", routes=False)
        >>> found["effect"].dims
        ('change', 'step', 'quantile')
    """
    edits = {**(changes or {}), **more}
    if not edits:
        raise InputError(
            'there is no change; give one for a series, such as temperature="+5"'
        )
    alone = alone_as_forecast(run, item)
    segments = []
    values = _inputs(alone)
    for name, edit in edits.items():
        row = _row(alone.batch, name)
        segment = _stretch(alone, row, target_row(alone.batch, target), start, stop)
        steps = slice(
            segment.start + alone.batch.lengths[row],
            segment.stop + alone.batch.lengths[row],
        )
        # two names of one series may edit it twice; check_segments() refuses stretches
        # that overlap
        values[row][steps] = _edited(
            values[row][steps], edit, name, alone.batch.categories[row]
        )
        segments.append(segment)
    options: dict[str, Any] = {"target": target, "parts": segments, "reference": values}
    # under one seed, so that the forecast is the run's own
    attribution = input_attribution(alone, repeats=1, progress=progress, **options)
    data = attribution.rename(
        segment="change", reference_forecast="changed_forecast"
    ).drop_vars(["attribution", "remainder"])
    # the attribution is of the actual values, against changed ones as the reference
    data["effect"] = -attribution["attribution"].rename(segment="change")
    if routes:
        # routes are measured in the run as it was made, with its own statistic, and not
        # in a rollout of sample paths
        measured = run.item(item)
        found = input_routes(measured, **options)
        for name, part in (("through", "effect"), ("through_total", "total")):
            # the segments' own coordinates are already on the result, under the name
            # ``change``
            data[name] = -found[part].rename(segment="change").reset_coords(drop=True)
            data[name].attrs = {"statistic": measured.statistic}
    length = data.sizes["time"]
    context = [
        value[: alone.batch.lengths[row]][-length:] for row, value in enumerate(values)
    ]
    padded = [
        np.concatenate([np.full(length - len(values_of), np.nan), values_of])
        for values_of in context
    ]
    data["changed_context"] = (("series", "time"), np.stack(padded))
    data["changed_future"] = (
        ("series", "step"),
        np.stack([value[-alone.horizon :] for value in values]),
    )
    text = ", ".join(
        f"{name} {edit}" if isinstance(edit, str | float | int) else name
        for name, edit in edits.items()
    )
    text += "".join(
        f" {label} {bound}"
        for label, bound in (("from", start), ("until", stop))
        if bound is not None
    )
    metadata = draw_attrs(alone, target_row(alone.batch, target))
    names = {"kind": "what_if", "title": "What if", "changes": text}
    data.attrs = {**attribution.attrs, **names, **metadata}
    return data


@with_messages_once
def explain_change(
    before: Run,
    after: Run,
    *,
    item: Item = None,
    target: int | str = 0,
    shift: int | None = None,
    progress: Progress | None = None,
) -> Result:
    """Split the difference of two forecasts of the same steps over the new inputs.

    New is what the later run reads and the earlier one did not. Shapley values of the
    new inputs, in the later run: what is hidden of new values of a target is replaced
    by the earlier median forecast, of a past covariate by its last value, and what was
    revised or announced differently by what it was. What remains is ``origin``, without
    any new value: each step is nearer, the context goes on with the earlier forecast,
    and its oldest steps may be gone. Forecasts are the library's own, as in
    :func:`what_if`.

    Args:
        before, after: runs of one model on the same item, made at the same or a later
            step.
        item, target: by position or name; the only item if None.
        shift: steps by which the later forecast starts later; if None, from the dates,
            or from the lengths where the earlier context goes on in the later one.
        progress: called with the forecasts done and their number.

    Returns:
        Dataset of kind "forecast_change" over the steps that both forecast, in data
        units.

        - ``before`` and ``after`` (step, quantile).
        - ``effect`` (part, step, quantile), which sums to their difference: "origin",
          then the new inputs.

        Attributes: ``shift``; ``lost``, how many of the oldest steps the later run no
        longer has (below 0, how many older ones it has); ``statistic``; ``rounding``,
        how far it moves the forecast; of a model that draws, ``num_samples`` and
        ``redraw``, see :func:`what_if`.

    Raises:
        InputError: the runs are of other models or items, share no step, nothing says
            how far they are apart, or they have several items and none is chosen.
        UnknownNameError: no such item or target.

    Example:
        >>> found = explain.explain_change(driven, driven)
        >>> found["part"].values.tolist()
        ['origin']
    """
    if before.lens is not after.lens:
        raise InputError(
            f"the runs are of {before.lens.model_id} and {after.lens.model_id}; make"
            " both with one lens"
        )
    old = alone_as_forecast(before, item)
    new = alone_as_forecast(after, item)
    if (old.batch.ids, old.batch.roles) != (new.batch.ids, new.batch.roles):
        raise InputError(
            f"the items hold {', '.join(old.batch.ids)} and {', '.join(new.batch.ids)};"
            " give the same one"
        )
    # from here on, step t of the later run is step t + ahead of the earlier one
    ahead = _shift(old, new) if shift is None else shift
    shared = min(old.horizon - ahead, new.horizon)
    if ahead < 0 or shared < 1:
        raise InputError(
            f"the later forecast starts {ahead} steps after the earlier one, which has"
            f" {old.horizon}; they need a step in common, and the earlier run first"
        )
    values = _expected(old, new, ahead)
    row_of_target = target_row(new.batch, target)
    news = [
        part
        for row in range(len(new.batch))
        for part in _news(new, row, row_of_target, values[row], ahead)
    ]
    # masks need a segment: without news it is one that changes no value
    masks = Masks(
        new, news or [_everything(new)], values, target=target, progress=progress
    )
    # Masks also makes the earlier forecast, so that both are of the same kind and
    # levels; any one segment will do for the forecast of everything
    then, _ = Masks(old, [_everything(old)], target=target).ends
    now, base = masks.ends
    then = then[:, ahead : ahead + shared]
    parts = shapley(masks).attribution[: len(news), :, :shared]
    # base is the later run with everything new hidden: what is left of the change is
    # the origin, and the parts sum to the rest (efficiency of Shapley values)
    effect = np.concatenate([(base[:, :shared] - then)[None], parts])
    names = {
        "part": ["origin", *(part.name for part in news)],
        "quantile": list(list_levels(new)),
    }
    axes = ("quantile", "step")
    data = new.dataset().isel(step=slice(shared)).assign_coords(names)
    data = data.assign(
        before=(axes, then),
        after=(axes, now[:, :shared]),
        effect=(("part", *axes), effect),
    )
    data = data.transpose(..., "step", "quantile")
    data.attrs = new.describe(
        "forecast_change",
        "Change of the forecast",
        METHODS["shapley"][1],
        target=masks.name,
        units=masks.units,
        shift=ahead,
        forecasts=masks.made,
        lost=old.batch.lengths[row_of_target]
        + ahead
        - new.batch.lengths[row_of_target],
        statistic=name_statistic(new),
        rounding=float(rounding(new, new.forecast.median)[row_of_target]),
        **draw_attrs(new, row_of_target),
    )
    return Result(data.data_vars, data.coords, data.attrs)


def _everything(run: Run) -> Segment:
    return Segment("all", 0, -run.batch.lengths[0], 0, "past")


def _inputs(run: Run) -> list[np.ndarray]:
    """Return each series with its future, (time + horizon,), NaN where unknown."""
    return [with_future(run.batch, row, run.horizon) for row in range(len(run.batch))]


def _row(batch: SeriesBatch, name: str) -> int:
    rows = {
        series_name: row
        # ids come last and win where a variate has the name of another series
        for names in (batch.variates, batch.ids)
        for row, series_name in enumerate(names)
        if series_name
    }
    if name not in rows:
        raise unknown_name("series", name, rows)
    return rows[name]


def _stretch(run: Run, row: int, target: int, start: Any, stop: Any) -> Segment:
    """Return the steps of a series that change.

    Unless others are asked for, they are the known future of a covariate.
    """
    batch = run.batch
    known = run.batch.roles[row] == "known"
    first = -batch.lengths[row]
    last = 0
    if known:
        last = run.horizon
    if start is None:
        begin = 0
    else:
        begin = find_step(batch, row, start)
    if stop is None:
        end = last
    else:
        end = find_step(batch, row, stop)
    if start is None and end <= 0:
        raise InputError(
            f"a change starts at the forecast start (0), and that of {batch.ids[row]!r}"
            f" ends at {end}; give the first step too, such as"
            f" start={max(first, end - 24)}, stop={end}, or dates"
        )
    if not first <= begin < end <= last:
        raise InputError(
            f"steps {begin} to {end} of {batch.ids[row]!r}, expected a stretch between"
            f" {first} and {last}"
        )
    return Segment(
        batch.variates[row] or batch.ids[row],
        row,
        begin,
        end,
        find_kind(batch, row, target),
    )


def _edited(
    values: np.ndarray, edit: Edit, name: str, categories: Sequence[str] | None
) -> np.ndarray:
    """Return the new values of a stretch."""
    if categories is not None:
        texts = np.ravel(np.asarray(edit, dtype=object)).tolist()
        if len(texts) not in (1, len(values)):
            raise InputError(
                f"{name} has {len(texts)} new values, expected one, or one for each of"
                f" {len(values)} steps"
            )
        codes = [
            category_code(str(text).removeprefix("=").strip(), categories, name)
            for text in texts
        ]
        return np.broadcast_to(np.array(codes), values.shape)
    if isinstance(edit, str):
        if (match := _EDIT.fullmatch(edit)) is None:
            raise InputError(
                f"{name}={edit!r} is no change; expected such as '+5', '-5', '*1.1',"
                " '/2' or '=7'"
            )
        # a division by 0 or an overflow is refused with a message of its own below
        with np.errstate(all="ignore"):
            edited = _OPERATORS[match[1]](values, np.full(len(values), float(match[2])))
    else:
        column = np.asarray(edit, dtype=float)
        if column.shape not in ((), values.shape):
            raise InputError(
                f"{name} has {column.shape} new values, expected one, or one for each"
                f" of {len(values)} steps"
            )
        edited = np.broadcast_to(column, values.shape)
    # gaps stay gaps
    if not np.isfinite(edited[np.isfinite(values)]).all():
        raise InputError(
            f"{name}={edit!r} makes values that are not finite, of which nothing can be"
            " forecast"
        )
    return edited


def _shift(old: Run, new: Run) -> int:
    """Return by how many steps a run starts later than another.

    It is taken from their dates, or from lengths if the context only grew.

    Raises:
        InputError: neither says how far the runs are apart.
    """
    # with ahead=1 the last timestamp is that of the forecast start
    first, last = (run.batch.timestamps(0, ahead=1) for run in (old, new))
    if first is not None and last is not None:
        # steps are counted on the calendar, since months and years differ in length;
        # date_range counts forwards only, and the caller refuses what is below 0
        if first[-1] > last[-1]:
            return 1 - len(
                pd.date_range(last[-1], first[-1], freq=read_offset(new.batch.freqs[0]))
            )
        between = pd.date_range(
            first[-1], last[-1], freq=read_offset(new.batch.freqs[0])
        )
        if not len(between) or (between[0], between[-1]) != (first[-1], last[-1]):
            raise InputError(
                f"the forecasts start at {first[-1]} and {last[-1]}, which are no whole"
                " steps apart"
            )
        return len(between) - 1
    before = old.batch.values[0]
    after = new.batch.values[0]
    # a context that was cut to the model's length loses its oldest steps as it moves
    # on, and so needs dates
    if np.array_equal(before, after[: len(before)], equal_nan=True):
        return len(after) - len(before)
    raise InputError(
        "neither dates nor one context that goes on in the other say how far they are"
        " apart; give shift="
    )


def _expected(old: Run, new: Run, ahead: int) -> list[np.ndarray]:
    """Return what the earlier run expected of each step of the later one.

    That is what it read, or else forecast: (time + horizon,) for each series.
    """
    values = _inputs(new)
    for row, (value, length) in enumerate(zip(values, new.batch.lengths, strict=True)):
        before = old.batch.values[row]
        coded = partial(_coded, old.batch, new.batch, row)
        # from the earlier forecast start
        steps = np.arange(len(value)) - length + ahead
        observed = (-len(before) <= steps) & (steps < 0)
        # steps before the forecast start are negative, and so index the earlier context
        # from its end
        value[observed] = coded(before[steps[observed]])
        if old.batch.roles[row] != "known":
            later = (steps >= 0) & (steps < ahead)
        else:
            later = steps >= 0
        if old.batch.roles[row] == "known":
            future = old.batch.futures[row]
            assert future is not None
            # what the earlier run did not know yet keeps its new value, and so counts
            # as no change
            later &= steps < len(future)
            value[later] = coded(future[steps[later]])
        elif old.batch.roles[row] == "target":
            value[later] = old.forecast.median[row][steps[later]]
        else:
            # a past covariate is expected to keep its last value
            value[later] = coded(before[~np.isnan(before)][-1:])
    return values


def _coded(
    old: SeriesBatch, new: SeriesBatch, row: int, values: np.ndarray
) -> np.ndarray:
    """Return values of the earlier run in the codes of the later one.

    A category keeps its name: only its code changes.
    """
    name = new.ids[row]
    old_categories = old.categories[row]
    new_categories = new.categories[row]
    if old_categories == new_categories:
        return values
    if old_categories is None or new_categories is None:
        raise InputError(
            f"{name!r} is of words in one run and of numbers in the other; make it the"
            " same in both"
        )
    observed = np.isfinite(values)
    old_codes = values[observed].astype(int)
    gone = [
        old_categories[code]
        for code in old_codes
        if old_categories[code] not in new_categories
    ]
    if gone:
        raise InputError(
            f"{name!r} was {gone[0]!r} in the earlier run and is only"
            f" {', '.join(new_categories)} in the later one, so the model has no number"
            " for it"
        )
    codes = np.full(values.shape, np.nan)
    codes[observed] = [new_categories.index(old_categories[code]) for code in old_codes]
    return codes


def _news(
    new: Run, row: int, target: int, before: np.ndarray, ahead: int
) -> list[Segment]:
    """Return the stretches of a series that differ from what was expected.

    These are revised steps, new ones, and those of the future.
    """
    batch = new.batch
    values = _inputs(new)[row]
    name = batch.variates[row] or batch.ids[row]
    role = batch.roles[row]
    length = batch.lengths[row]
    if ahead:
        edges = np.linspace(-ahead, 0, min(ahead, _MOST) + 1).round()
        cuts = np.unique(edges.astype(int)).tolist()
    else:
        cuts = []
    if role == "target":
        news = list(pairwise(cuts))
    else:
        news = [(-ahead, 0)] if ahead > 0 else []
    future_stop = new.horizon if role == "known" else 0
    parts = []
    for change, start, stop in [
        ("revised", -length, -ahead),
        *(("new", *stretch) for stretch in news),
        ("future", 0, future_stop),
    ]:
        steps = np.arange(start + length, stop + length)
        # NaN is not equal to itself, so a gap in both is compared apart
        equal = values[steps] == before[steps]
        both_missing = np.isnan(values[steps]) & np.isnan(before[steps])
        changed = steps[~(equal | both_missing)]
        if len(changed):
            first = int(changed[0]) - length
            last = int(changed[-1]) - length
            label = f"{name}, {change}"
            if change == "new" and len(news) > 1:
                label += f" {first}"
                if last > first:
                    label += f" to {last}"
            parts.append(
                Segment(label, row, first, last + 1, find_kind(batch, row, target))
            )
    return parts
