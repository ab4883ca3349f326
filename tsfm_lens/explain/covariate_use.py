"""Use of covariates: forecasts without a covariate, and with other values of it.

:func:`covariate_use` is the measurement. It edits covariates (:func:`_trials`),
forecasts again, and reads the changes (:func:`_measure`). It does not attribute to
stretches of a covariate: see :mod:`tsfm_lens.explain.attribution`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import xarray as xr

from tsfm_lens.ablation.metrics import mae
from tsfm_lens.ablation.notices import with_messages_once
from tsfm_lens.ablation.points import Progress
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.estimates import add_estimates
from tsfm_lens.core.registry import probe
from tsfm_lens.data import SeriesBatch
from tsfm_lens.data.seasonal import seasonal_error
from tsfm_lens.explain.masking import category_numbers, in_numbers, whole
from tsfm_lens.models.arguments import is_count
from tsfm_lens.models.noise import marked_dataset, noise_floor
from tsfm_lens.models.run import Run

__all__ = ["covariate_use"]

WAYS = ("removed", "constant", "shuffled")
PARTS = ("past", "known future")
SHIFTS = (-2, -1, 0, 1, 2)
"""Standard deviations by which a covariate is shifted for its response."""
_MANY = 32  # number of series above which two shuffles each average well enough
Edit = Callable[[int, np.ndarray], np.ndarray]
"""Function of a row and its past with known future (time + ahead,), to new values."""


@probe(
    title="Use of covariates",
    theme="Inputs",
    summary=(
        "what a covariate is worth, which way the forecast responds to its values, "
        "and how far it moves it"
    ),
    description=(
        "Every item is forecast again without a covariate, with it at its mean, "
        "with its values shuffled, and with its values shifted by standard "
        "deviations. A model that does not use the covariate makes the same "
        "forecast. With a held-out truth (--holdout, in Python holdout=True), the "
        "error without the covariate shows whether it helps. Shuffled values raise "
        "the error of a model that reads them, also where it does better without any."
    ),
    source=(
        "permutation importance (Breiman 2001) of whole series; partial dependence "
        "(Friedman 2001)"
    ),
    needs="covariates",
)
@with_messages_once
def covariate_use(
    run: Run,
    *,
    shuffles: int | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Measure how each covariate moves the forecast, and whether it helps.

    Every item is forecast again with the covariate changed in one of three ways: its
    row is "removed", its values are "constant" at the mean of its context, or they are
    "shuffled" several times, past and known future together. For the response, its
    known future, or else the last ``horizon`` steps of its past, is shifted by -2 to 2
    standard deviations; a covariate of two values is held at each of them.

    Args:
        run: with covariates; a truth is needed to measure their worth.
        shuffles: number of random orders; 8 if None, or 2 where there are more than 32
            series to average over.
        seed: of the orders; the run's own if None.
        progress: called with per cent done, and 100.

    Returns:
        Dataset of kind "covariate_use" over the forecast series. Changes of forecasts
        and errors are in multiples of the context's mean absolute seasonal difference,
        as in MASE.

        - ``moved`` (covariate, way, series): mean absolute change of the median
          forecast.
        - With a truth: ``error`` (series), the MASE with all covariates;
          ``error_without`` (covariate, way, series); and ``worth``, their difference.
          Of "removed" it is above 0 where the covariate helps; of "shuffled" also
          where other values than its own mislead the model.
        - ``response`` (covariate, shift, series): change of the median forecast, mean
          over steps; ``value``, the mean of the shifted values; ``slope`` (covariate,
          series), of the line of responses over values, for a step of ``step_size``,
          which is one standard deviation or the distance of the two values.
        - ``share`` (covariate, part, series): the mean absolute change that "constant"
          makes, split into past and known future by Shapley values, which sum to it;
          below 0 where a part acts against the sum.
        - ``role_of`` (covariate): "past" or "known".

        :func:`.estimates.add_estimates` adds its variables for ``moved`` and ``worth``
        within each way, and for ``slope``. NaN stands for a series whose context
        repeats its season exactly, as a constant does, or in which the covariate is
        missing, never changes, or is the target; and for the response to more than two
        categories. A covariate of which this
        holds in every series is left out; the attribute ``left_out`` names it.

    Source:
        Permutation importance (Breiman 2001) of whole series; partial dependence
        (Friedman 2001).

    Raises:
        InputError: the run has no covariates; each never changes, or is the target, in
            every series; each context repeats its season exactly, so there is no unit;
            or shuffles is not a count.

    Example:
        >>> explain.covariate_use(driven)["moved"].dims
        ('covariate', 'way', 'series')
    """
    batch = run.batch
    informative, left_out = _informative_rows(batch)
    if shuffles is None:
        shuffles = 8 if sum(batch.is_target) <= _MANY else 2
    if not is_count(shuffles):
        raise InputError(
            f"shuffles is {shuffles!r}, expected a number of shuffles, 1 or more"
        )
    roles = {
        name: role
        for name, role in zip(batch.variates, batch.roles, strict=True)
        if role != "target" and name not in left_out
    }
    rows = np.flatnonzero(batch.is_target)
    unit = np.array(
        [seasonal_error(batch.values[row], batch.seasonalities[row]) for row in rows]
    )
    if np.isnan(unit).all():
        raise InputError(
            f"the context of {batch.ids[rows[0]]!r} repeats its season exactly, so that"
            " MASE is undefined; use series that vary between seasons"
        )
    rng = np.random.default_rng(run.seed if seed is None else seed)
    # made from the unedited series, as the library would number the categories of an
    # edited context anew
    numbers = category_numbers(run.lens, batch)
    trials = {name: _trials(batch, run.horizon, name, shuffles, rng) for name in roles}
    n_done = 0
    n_forecasts = sum(len(edits) for ways in trials.values() for edits in ways.values())
    measured = []
    for name, edits_by_trial in trials.items():
        medians: dict[str | int, list[np.ndarray]] = {}
        for trial, edits in edits_by_trial.items():
            medians[trial] = []
            for edit in edits:
                changed = _as_numbers(_with_covariate(batch, name, edit), numbers)
                forecast = run.lens.forecast(
                    changed,
                    run.horizon,
                    num_samples=run.num_samples,
                    # the same random numbers in every trial, so that a model that draws
                    # differs by its input alone
                    seed=run.seed,
                    progress=partial(_notify, progress, n_done, n_forecasts),
                )
                # without the removed row, targets have other positions, but the same
                # order
                medians[trial].append(forecast.median[changed.is_target])
                n_done += 1
        # the row of the covariate for each item, and from it for each target
        row_of_item = {
            batch.groups[row]: row for row in informative if batch.variates[row] == name
        }
        owners = [row_of_item.get(batch.groups[row]) for row in rows]
        measured.append(_measure(run, medians, owners))
    data = marked_dataset(run).isel(series=rows)
    axes = {"covariate": [*roles], "way": [*WAYS], "shift": [*SHIFTS], "part": [*PARTS]}
    data = data.assign_coords(axes | {"role_of": ("covariate", [*roles.values()])})
    for name, dims in _VARIABLES.items():
        values = np.stack([variables[name] for variables in measured])
        data[name] = (
            ("covariate", *dims, "series"),
            values if name in _OF_COVARIATE else values / unit,
        )
    data["unit"] = (("series",), unit)
    if left_out:
        data.attrs["left_out"] = "; ".join(left_out.values())
    noise = noise_floor(run, lambda noisy, plain: np.abs(noisy - plain).mean(-1))[rows]
    floor = xr.DataArray(noise / unit, dims="series")
    data = add_estimates(data, "moved", floor=floor, groups="way")
    # a slope is the change of the forecast for one step of the covariate, so the noise
    # floor of a change of the forecast holds for it too
    data = add_estimates(data, "slope", floor=floor, signed=True)
    if run.truth is None:
        return data.drop_vars("error_without")
    data["error"] = (
        ("series",),
        mae(run.forecast.median[rows], run.truth[rows]) / unit,
    )
    data["worth"] = data["error_without"] - data["error"]
    return add_estimates(data, "worth", floor=floor, signed=True, groups="way")


# Variables of the result, with their dimensions beside (covariate, …, series).
_VARIABLES: dict[str, tuple[str, ...]] = {
    "moved": ("way",),
    "error_without": ("way",),
    "share": ("part",),
    "response": ("shift",),
    "value": ("shift",),
    "slope": (),
    "step_size": (),
}
# These are in units of the covariate; all others are divided by that of the target.
_OF_COVARIATE = ("value", "step_size")


def _notify(
    progress: Progress | None,
    forecasts_done: int,
    n_forecasts: int,
    series_done: int,
    n_series: int,
) -> None:
    """Report the progress of one of several forecasts, in per cent of all."""
    if progress is not None:
        progress(
            (100 * forecasts_done + 100 * series_done // n_series) // n_forecasts, 100
        )


def _as_numbers(batch: SeriesBatch, tables: dict[str, np.ndarray]) -> SeriesBatch:
    """Return series with the numbers that the model reads for categories in the run.

    The library would number those of an edited context anew.
    """
    rows = [row for row, name in enumerate(batch.ids) if name in tables]
    edited = _edited(
        batch, rows, lambda row, codes: in_numbers(codes, batch, row, tables)
    )
    if rows:
        return replace(edited, categories=(None,) * len(batch))
    return batch


def _trials(
    batch: SeriesBatch, horizon: int, name: str, shuffles: int, rng: np.random.Generator
) -> dict[str | int, list[Edit | None]]:
    """Return the edits of a covariate by trial; the edit None removes it.

    A trial is one of ``WAYS``, one of ``PARTS`` (held constant alone), or a shift.
    """

    def constant(trial: str, row: int, both: np.ndarray) -> np.ndarray:
        past = batch.values[row]
        # of categories the most frequent one: a mean of codes would be no category
        finite = past[np.isfinite(past)]
        if batch.categories[row] is None:
            level = np.nanmean(past)
        else:
            level = np.bincount(finite.astype(int)).argmax()
        is_past = np.arange(len(both)) < len(past)
        in_part = is_past == (trial == "past")
        return np.where(in_part | (trial == "constant"), float(level), both)

    def shuffle(row: int, both: np.ndarray) -> np.ndarray:
        # gaps stay where they are
        finite = np.isfinite(both)
        # in place: whole() made this copy for the edit
        both[finite] = rng.permutation(both[finite])
        return both

    rows = _list_rows(batch, name)
    edits: dict[str | int, list[Edit | None]] = {
        "removed": [None],
        "constant": [partial(constant, "constant")],
    }
    edits["shuffled"] = [shuffle] * shuffles
    if any(batch.futures[row] is not None for row in rows):
        edits |= {part: [partial(constant, part)] for part in PARTS}
    for shift in SHIFTS:
        # a shift that is defined in no series would cost a forecast and say nothing
        if shift and any(
            _shifted(batch, horizon, shift, row) is not None for row in rows
        ):
            edits[shift] = [partial(_with_shift, batch, horizon, shift)]
    return edits


def _shifted(
    batch: SeriesBatch, horizon: int, shift: int, row: int
) -> np.ndarray | None:
    """Return the covariate's recent or future values, shifted by standard deviations.

    They are the known future, or else the last ``horizon`` steps. A covariate of two
    values is held at one of them. None where there is no such shift: the covariate has
    no step, has no value there, or has two values and is to be shifted by ±2.
    """
    past = batch.values[row]
    future = batch.futures[row]
    if future is None:
        stretch = past[-horizon:]
    else:
        stretch = future[:horizon]
    size, bounds = _unit_step(batch, row)
    # "not >" and not "<=", so that NaN is refused too
    if not size > 0 or not np.isfinite(stretch).any():
        return None
    if not shift:
        return stretch
    if bounds is None:
        return stretch + shift * size
    # of two values there are no more than two states: shifts of ±1 stand for them
    if abs(shift) > 1:
        return None
    # a bool indexes the pair: the lower value for -1, the higher for 1
    return np.where(np.isnan(stretch), np.nan, bounds[shift > 0])


def _with_shift(
    batch: SeriesBatch, horizon: int, shift: int, row: int, both: np.ndarray
) -> np.ndarray:
    """Put the shifted stretch of :func:`_shifted` into past and known future."""
    stretch = _shifted(batch, horizon, shift, row)
    if stretch is None:
        return both
    start = batch.lengths[row]
    if batch.futures[row] is None:
        start -= len(stretch)
    both[start : start + len(stretch)] = stretch
    return both


def _unit_step(
    batch: SeriesBatch, row: int
) -> tuple[float, tuple[float, float] | None]:
    """Return the step of a covariate that a slope is for, and its two values if any.

    The step is NaN for more than two categories.
    """
    values = whole(batch, row)
    # of past and future together, as both values may not occur in one of them
    levels = np.unique(values[np.isfinite(values)])
    if len(levels) == 2:
        return float(levels[1] - levels[0]), (float(levels[0]), float(levels[1]))
    if batch.categories[row] is None:
        return float(np.nanstd(values)), None
    return np.nan, None


def _measure(
    run: Run, medians: dict[str | int, list[np.ndarray]], owners: list[int | None]
) -> dict[str, np.ndarray]:
    """Return the variables (…, series) of one covariate from its forecasts.

    ``medians`` are median forecasts (series, step) by trial, in data units. ``owners``
    holds for each target the row of the covariate in its item; None where it is not
    informative there.
    """
    batch = run.batch
    targets = run.batch.is_target
    plain = run.forecast.median[targets]
    # added to a variable, this makes it NaN for series whose covariate is uninformative
    blank = np.where([owner is None for owner in owners], np.nan, 0.0)
    moved = [
        # the absolute change of each shuffle before their mean, so that changes of
        # opposite sign do not cancel
        np.mean([np.abs(other - plain).mean(-1) for other in medians[way]], axis=0)
        for way in WAYS
    ]
    out = {
        "moved": np.stack(moved) + blank,
        "error_without": np.full((len(WAYS), len(owners)), np.nan),
    }
    if run.truth is not None:
        truth = run.truth[targets]
        errors = [
            np.mean([mae(median, truth) for median in medians[way]], 0) for way in WAYS
        ]
        out["error_without"] = np.stack(errors) + blank
    no_part = medians["constant"][0]
    full = plain - no_part
    future_change = np.zeros_like(full)
    past, future = PARTS
    if past in medians:
        # The Shapley value of the future is the mean of what it adds to the past and of
        # what it adds alone. A key names the part that is held constant.
        future_change = (plain - medians[future][0] + medians[past][0] - no_part) / 2
    # with the sign of the full effect, so that the parts of a series sum to its size
    shares = [
        (part * np.sign(full)).mean(-1)
        for part in (full - future_change, future_change)
    ]
    out["share"] = np.stack(shares) + blank
    out["response"], out["value"] = np.full((2, len(SHIFTS), len(owners)), np.nan)
    out["step_size"] = np.array(
        [np.nan if owner is None else _unit_step(batch, owner)[0] for owner in owners]
    )
    for row, shift in enumerate(SHIFTS):
        # a shift of 0 has no trial: its forecast is the run's own
        change = (medians.get(shift, [plain])[0] - plain).mean(-1)
        for column, owner in enumerate(owners):
            if owner is None:
                continue
            stretch = _shifted(batch, run.horizon, shift, owner)
            if stretch is not None:
                out["value"][row, column] = np.nanmean(stretch)
                out["response"][row, column] = change[column]
    out["slope"] = _slopes(out["value"] / out["step_size"], out["response"])
    return out


def _slopes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Fit slopes by least squares, (point, line) -> (line,); NaN where undefined."""
    finite = np.isfinite(x * y)
    x = np.where(finite, x, 0.0)
    y = np.where(finite, y, 0.0)
    # fewer than two points, or all at one value, have no line: 0 / 0 is NaN
    with np.errstate(invalid="ignore", divide="ignore"):
        centred = np.where(finite, x - x.sum(0) / finite.sum(0), 0.0)
        return (centred * y).sum(0) / (centred**2).sum(0)


def _informative_rows(batch: SeriesBatch) -> tuple[list[int], dict[str, str]]:
    """Return the rows of informative covariates, and why others are left out, by name.

    A covariate is left out if it never changes, or is the target, in every series.

    Raises:
        InputError: no covariate is left.
    """
    if not batch.has_covariates:
        raise InputError(
            "these series have no covariates; name columns with known=… and past=…, or"
            " give entries with past_covariates"
        )
    faults = {
        row: _fault(batch, row)
        for row, role in enumerate(batch.roles)
        if role != "target"
    }
    left_out = {}
    names = dict.fromkeys(batch.variates[row] for row in faults)
    for name in names:
        reasons = [
            fault for row, fault in faults.items() if batch.variates[row] == name
        ]
        # a covariate that is constant in some items is still measured in the others
        if all(reasons):
            left_out[name] = reasons[0]
            if len(reasons) > 1:
                count = len(reasons)
                left_out[name] = f"{name!r} in any of {count} items ({reasons[0]})"
    if len(left_out) == len(names):
        raise InputError(f"{'; '.join(left_out.values())}; leave it out")
    return [row for row, fault in faults.items() if not fault], left_out


def _fault(batch: SeriesBatch, row: int) -> str:
    """Return why a covariate is not informative in its item; "" if it is."""
    name = batch.ids[row]
    values = whole(batch, row)
    finite = values[np.isfinite(values)]
    if not len(finite):
        return f"covariate {name!r} has no value"
    if (finite == finite[0]).all():
        categories = batch.categories[row]
        if categories is None:
            level = f"{finite[0]:g}"
        else:
            level = repr(categories[int(finite[0])])
        return (
            f"covariate {name!r} is {level} throughout, so its use cannot be measured"
        )
    for other, target in enumerate(batch.values):
        is_target_of_item = (
            batch.roles[other] == "target" and batch.groups[other] == batch.groups[row]
        )
        if is_target_of_item and np.array_equal(
            target, batch.values[row], equal_nan=True
        ):
            return (
                f"covariate {name!r} equals the target {batch.ids[other]!r} at every"
                " step, so their effects cannot be told apart"
            )
    return ""


def _list_rows(batch: SeriesBatch, name: str) -> list[int]:
    """Return the rows of a covariate in all items."""
    return [
        row
        for row, variate in enumerate(batch.variates)
        if variate == name and batch.roles[row] != "target"
    ]


def _with_covariate(batch: SeriesBatch, name: str, edit: Edit | None) -> SeriesBatch:
    """Return the batch with one covariate edited in every item, or removed."""
    rows = _list_rows(batch, name)
    if edit is None:
        return batch.select([row for row in range(len(batch)) if row not in rows])
    return _edited(batch, rows, edit)


def _edited(batch: SeriesBatch, rows: Sequence[int], edit: Edit) -> SeriesBatch:
    """Return the batch with some rows edited."""
    values = list(batch.values)
    futures = list(batch.futures)
    for row in rows:
        # past and known future in one array, so that an edit such as a shuffle can move
        # values across the forecast start
        both = edit(row, whole(batch, row))
        values[row] = both[: batch.lengths[row]]
        futures[row] = (
            None if batch.futures[row] is None else both[batch.lengths[row] :]
        )
    return replace(batch, values=tuple(values), futures=tuple(futures))
