"""Scenarios: the forecast of an edited input, and why a later forecast differs.

:func:`what_if` edits the input, :func:`explain_change` compares two runs. Both compute
Shapley values with :class:`~tsfm_lens.explain.values.Masks`: each change of the input
is a segment, and the values it is masked by (the reference) are the other input.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from tsfm_lens.data.changes import Edit, check_shared, edited, later_by
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

_MAX_STRETCHES = 4  # into which the new values of a target are cut


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
    """Forecast with an edited input, and measure which components carry the change.

    Both forecasts are the library's own. A model that draws sample paths draws them
    with the same random numbers for both.

    Args:
        run: the forecast to compare with.
        changes: new values by series or variate of the item. A name that is a Python
            identifier can also be a keyword, ``temperature="+5"``. Categories keep the
            numbers that the model reads for them in the run.
        item: by position or name; the only one if None.
        target: of the item's targets, by position or name.
        start: first step that changes, counted from the forecast start, or a date. If
            None the forecast start (0), so that a series without a known future needs a
            ``start`` in its past.
        stop: step at which the change ends, itself excluded, or a date. If None the end
            of the series.
        routes: whether the effects through components are measured.
        progress: called with the forecasts done and their number.
        more: further entries of ``changes``, as keywords.

    Returns:
        Dataset of kind "what_if", in data units.

        - ``forecast`` and ``changed_forecast`` (step, quantile); ``effect`` (change,
          step, quantile), Shapley values of the changes, which sum to their difference.
        - With ``routes``: ``through`` (change, component, step), the effect of each
          change, made alone, through each component; and ``through_total`` (change,
          step), its total effect. See :func:`tsfm_lens.explain.input_routes`. Their
          attribute ``statistic`` is that of :attr:`Run.point`.
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
    # by series, (time + horizon,); edited in place below
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
        values[row][steps] = edited(
            values[row][steps], edit, name, alone.batch.categories[row]
        )
        segments.append(segment)
    options: dict[str, Any] = {"target": target, "parts": segments, "reference": values}
    # repeats=1: under the run's seed alone, so that the forecast is the run's own
    attribution = input_attribution(alone, repeats=1, progress=progress, **options)
    data = attribution.rename(
        segment="change", reference_forecast="changed_forecast"
    ).drop_vars(["attribution", "remainder"])
    # The attribution is the effect of the actual values against the changed ones, which
    # were the reference. The effect of the changes is its negative.
    data["effect"] = -attribution["attribution"].rename(segment="change")
    if routes:
        # routes are measured in the run as it was made, with its own statistic, while
        # ``alone`` can be a rollout of sample paths
        measured = run.item(item)
        found = input_routes(measured, **options)
        for name, part in (("through", "effect"), ("through_total", "total")):
            # drop: the result already has the coordinates of the segments, along
            # ``change``
            data[name] = -found[part].rename(segment="change").reset_coords(drop=True)
            data[name].attrs = {"statistic": measured.statistic}
    length = data.sizes["time"]
    contexts = [
        changed[: alone.batch.lengths[row]][-length:]
        for row, changed in enumerate(values)
    ]
    # shorter contexts begin with NaN
    padded = [
        np.concatenate([np.full(length - len(context), np.nan), context])
        for context in contexts
    ]
    data["changed_context"] = (("series", "time"), np.stack(padded))
    data["changed_future"] = (
        ("series", "step"),
        np.stack([changed[-alone.horizon :] for changed in values]),
    )
    # the changes in words; values for each step are not written out
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

    A new input is what the later run reads and the earlier one did not: observations,
    revised values, and other known futures. Its effect is its Shapley value in the
    later run, where a hidden input is replaced by what the earlier run expected: new
    values of a target by the earlier median forecast, those of a past covariate by its
    last value, and revised or differently announced values by the earlier ones. The
    effect ``origin`` is the rest of the difference, with all new inputs hidden: each
    step is nearer, the context goes on with the earlier forecast, and its oldest steps
    may be gone. Forecasts are the library's own, as in :func:`what_if`.

    Args:
        before: the earlier run.
        after: a later run of the same model on the same item, made at the same or a
            later step.
        item: by position or name; the only one if None.
        target: of the item's targets, by position or name.
        shift: steps by which the later forecast starts later. If None, it is counted
            from dates, or from lengths where the later context begins with the earlier
            one.
        progress: called with the forecasts done and their number.

    Returns:
        Dataset of kind "forecast_change" over the steps that both forecast, in data
        units.

        - ``before`` and ``after`` (step, quantile).
        - ``effect`` (part, step, quantile), which sums to their difference: "origin",
          then the new inputs.
        - ``revision`` (part): mean of the new values minus what the earlier run
          expected of them, in the series' unit; NaN of "origin" and of categories.

        Attributes: ``shift``; ``lost``, how many of the oldest steps the later run no
        longer has (below 0, how many older ones it has); ``statistic``; ``rounding``,
        how far rounding moves the forecast; of a model that draws, ``num_samples`` and
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
    ahead = later_by(old.batch, new.batch) if shift is None else shift
    check_shared(ahead, old.horizon, old.batch.known_steps)
    shared = min(old.horizon - ahead, new.horizon)
    values = _expected(old, new, ahead)
    row_of_target = target_row(new.batch, target)
    news = [
        part
        for row in range(len(new.batch))
        for part in _news(new, row, row_of_target, values[row], ahead)
    ]
    # Masks needs a segment. Without news it is the whole context, which masking then
    # replaces by equal values.
    masks = Masks(
        new, news or [_everything(new)], values, target=target, progress=progress
    )
    # The earlier forecast is made by Masks too, so that both have the same statistic
    # and levels. With everything visible, any segment will do.
    earlier, _ = Masks(old, [_everything(old)], target=target).ends
    earlier = earlier[:, ahead : ahead + shared]
    # without_news is of the later run with everything new hidden
    later, without_news = masks.ends
    parts = shapley(masks).attribution[: len(news), :, :shared]
    # Shapley values sum to later - without_news (efficiency), so that with the origin
    # they sum to later - earlier
    origin = without_news[:, :shared] - earlier
    effect = np.concatenate([origin[None], parts])
    names = {
        "part": ["origin", *(part.name for part in news)],
        "quantile": list(list_levels(new)),
    }
    axes = ("quantile", "step")
    data = new.dataset().isel(step=slice(shared)).assign_coords(names)
    data = data.assign(
        before=(axes, earlier),
        after=(axes, later[:, :shared]),
        effect=(("part", *axes), effect),
        revision=("part", [np.nan, *(_revision(new, part, values) for part in news)]),
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


def _revision(run: Run, part: Segment, expected: list[np.ndarray]) -> float:
    """Return how far values lie from what was expected, their mean over a stretch.

    It is NaN for categories, whose codes have no distance.
    """
    if run.batch.categories[part.row] is not None:
        return np.nan
    length = run.batch.lengths[part.row]
    steps = slice(part.start + length, part.stop + length)
    change = _inputs(run)[part.row][steps] - expected[part.row][steps]
    known = change[np.isfinite(change)]
    return float(known.mean()) if known.size else np.nan


def _everything(run: Run) -> Segment:
    """Return the whole context of the first series as a segment."""
    return Segment("all", 0, -run.batch.lengths[0], 0, "past")


def _inputs(run: Run) -> list[np.ndarray]:
    """Return each series with its future, (time + horizon,), NaN where unknown."""
    return [with_future(run.batch, row, run.horizon) for row in range(len(run.batch))]


def _row(batch: SeriesBatch, name: str) -> int:
    """Return the row of a series, by its variate or its id."""
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
    """Return the steps of a series that change, as a segment.

    Unless ``start`` and ``stop`` are given, they are the known future of a covariate.
    """
    batch = run.batch
    first = -batch.lengths[row]
    last = 0
    if batch.roles[row] == "known":
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
            f" start={max(first, end - 24)}, stop={end} (on the command line"
            f" --from {max(first, end - 24)} --until {end}), or dates"
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


def _expected(old: Run, new: Run, ahead: int) -> list[np.ndarray]:
    """Return what the earlier run expected of each step of the later one.

    That is what it read, or else forecast: (time + horizon,) for each series. Steps
    that it neither read nor forecast keep the values of the later run.
    """
    values = _inputs(new)
    for row, (value, length) in enumerate(zip(values, new.batch.lengths, strict=True)):
        before = old.batch.values[row]
        coded = partial(_coded, old.batch, new.batch, row)
        # counted from the earlier forecast start
        steps = np.arange(len(value)) - length + ahead
        observed = (-len(before) <= steps) & (steps < 0)
        # these steps are negative, and so index the earlier context from its end
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

    They are of the steps that both runs read ("revised"), of those that only the later
    run reads ("new"), and of the known future. ``before`` are the expected values.
    """
    batch = new.batch
    values = _inputs(new)[row]
    name = batch.variates[row] or batch.ids[row]
    role = batch.roles[row]
    length = batch.lengths[row]
    # where the new steps of a target are cut, counted from the later forecast start
    if ahead:
        edges = np.linspace(-ahead, 0, min(ahead, _MAX_STRETCHES) + 1).round()
        cuts = np.unique(edges.astype(int)).tolist()
    else:
        cuts = []
    if role == "target":
        stretches = list(pairwise(cuts))
    else:
        stretches = [(-ahead, 0)] if ahead > 0 else []
    future_stop = new.horizon if role == "known" else 0
    parts = []
    for change, start, stop in [
        ("revised", -length, -ahead),
        *(("new", *stretch) for stretch in stretches),
        ("future", 0, future_stop),
    ]:
        steps = np.arange(start + length, stop + length)
        # NaN is not equal to itself, so a gap in both is compared apart
        equal = values[steps] == before[steps]
        both_missing = np.isnan(values[steps]) & np.isnan(before[steps])
        changed = steps[~(equal | both_missing)]
        if len(changed):
            # from the first to the last step that changed, with all between them
            first = int(changed[0]) - length
            last = int(changed[-1]) - length
            label = f"{name}, {change}"
            if change == "new" and len(stretches) > 1:
                label += f" {first}"
                if last > first:
                    label += f" to {last}"
            parts.append(
                Segment(label, row, first, last + 1, find_kind(batch, row, target))
            )
    return parts
