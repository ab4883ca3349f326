"""Repetition in a forecast: context parroting, and the season that it keeps.

:func:`context_parroting` finds the lag at which a forecast copies its context, by
:func:`best_lag`; read these two first. :func:`lag_attention` and
:func:`head_parroting` ask which heads read there, and which of them the copy needs.
:func:`seasonality_bias` compares amplitudes instead of copies.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import xarray as xr
from scipy.special import ndtri

from tsfm_lens.ablation.metrics import mae
from tsfm_lens.ablation.rollouts import Progress
from tsfm_lens.core.errors import InputError
from tsfm_lens.core.estimates import add_estimates
from tsfm_lens.core.registry import probe
from tsfm_lens.core.stats import over_windows, ratio
from tsfm_lens.data import SeriesBatch
from tsfm_lens.hooks.component import Component
from tsfm_lens.models.noise import (
    cached_flat_contexts,
    marked_dataset,
    noise_floor,
    relative_rounding,
)
from tsfm_lens.models.run import Run
from tsfm_lens.probes.attention import check_variates, pick_attention
from tsfm_lens.probes.rollout import autoregressive_attention
from tsfm_lens.probes.zero_ablation import forecast_ablations, make_ablations

__all__ = ["context_parroting", "head_parroting", "lag_attention", "seasonality_bias"]

# probability that noise alone makes one of equally good lags look worse than the best
_LEVEL = 0.01
# random orders of a context's values: by chance the context is copied better than all
# of them once in a hundred times
_ORDERS = 99
# ratio of standard deviation to mean of a normal variable's absolute value: if x is
# standard normal, |x| has the mean √(2/π) and the variance 1 - 2/π
_DEVIATION = float(np.sqrt(np.pi / 2 - 1))


@probe(
    title="Context parroting",
    theme="Behaviour",
    summary="how much of a forecast is a shifted copy of its context",
    description=(
        "Whether the forecast repeats its context. It is compared with the context "
        "shifted by every lag, and with a naive parrot that repeats what followed "
        "the most similar earlier stretch."
    ),
    source="tsfm-lens paper, sections 4 and 5",
)
def context_parroting(run: Run, *, motif: int = 16) -> xr.Dataset:
    """Measure how close a forecast is to repeating its context.

    It is compared with the context repeated at every lag, and with the naive parrot.

    Args:
        run: the forecast to explain; the median of the library's own forecast is used.
        motif: length of the last stretch, of which the naive parrot finds the best
            earlier match.

    Returns:
        Dataset of kind "context_parroting". NaN stands where a context is too short or
        constant, or is copied at no lag.

        - ``lag_error`` (series, lag): mean absolute difference of the forecast from the
          context repeated at a lag, in standard deviations of the context.
        - ``best_lag`` (series): shortest lag, in steps, at which the copy is as good as
          at any other, but for chance. The copy must be exact, or better than copies,
          at any lag, of 99 random orders of the context's values.
        - ``copy_error`` (series): its error. The copy may also go on with the context's
          straight line.
        - ``parrot_error`` (series): the same difference from what followed the best
          earlier match of the last ``motif`` steps.
        - ``parrot_match`` (series): how many steps back that begins.
        - ``forecast``, ``parrot`` (series, step): in data units.

        Both errors come with what :func:`.estimates.add_estimates` adds, against the
        distance of two forecasts of the unchanged model.

    Source:
        tsfm-lens paper, sections 4 and 5, for parroting by sharp heads; analogue
        forecasting for the naive parrot.

    Raises:
        InputError: motif below 2.

    Example:
        >>> probes.context_parroting(run)["best_lag"].dims
        ('series',)
    """
    batch = run.batch
    steps = run.horizon
    forecast = run.forecast.median
    longest = max(len(values) for values in batch.values)
    errors = np.full((len(batch), longest - 1), np.nan)
    parrots, matches = naive_parrots(batch, steps, motif)
    scales = context_spreads(run)
    for row, values in enumerate(batch.values):
        errors[row, : len(values) - 1] = lag_errors(values, forecast[row]) / scales[row]
    best = best_lags(run)
    copy_errors = np.full(len(batch), np.nan)
    copied = np.flatnonzero(best)
    copy_errors[copied] = errors[copied, best[copied] - 1]
    # as a rollout, since the forecast that is measured is the library's own median:
    # flat series and noise must be those of the same forecast
    data = marked_dataset(run.as_rollout(), lag=np.arange(1, longest))
    data = data.assign(
        forecast=(("series", "step"), forecast),
        parrot=(("series", "step"), parrots),
        lag_error=(("series", "lag"), errors),
        best_lag=("series", np.where(best > 0, best, np.nan).astype(float)),
        copy_error=("series", copy_errors),
        parrot_error=("series", np.abs(forecast - parrots).mean(axis=-1) / scales),
        parrot_match=("series", matches),
    )
    data.attrs = {"motif": motif, "statistic": "median"}
    floor = noise_floor(
        run.as_rollout(), lambda other, plain: np.abs(other - plain).mean(-1) / scales
    )
    for name in ("copy_error", "parrot_error"):
        data = add_estimates(data, name, floor=floor)
    return data


@probe(
    "first",
    title="Attention at a lag",
    theme="Behaviour",
    summary="attention at a lag",
    description=(
        "Each head's attention to the tokens at multiples of a lag before the "
        "forecast step. A head that copies a season reads there."
    ),
    needs="heads",
    computes="lag_attention at the season of the first series",
    options=lambda results: {"lag": results.season},
)
def lag_attention(run: Run, lag: int, *, width: int = 1, **options: Any) -> xr.Dataset:
    """Measure every head's attention to the tokens a lag before the forecast step.

    Tokens at a multiple of the lag count as well.

    Args:
        run: the forecast to explain, of exactly one series.
        lag: steps.
        width: steps on either side that still count.
        options: ``kind``, ``stack`` and ``keys``: the kind of attention ("cross_attn",
            "self_attn" …, the last one over time if None), its stack (the output stack
            if None), and whether keys are steps of "time" or places in the "window" of
            a pass.

    Returns:
        Dataset of kind "lag_attention":

        - ``mass`` (layer, head): mean share of attention on such tokens.
        - ``chance``: that of uniform attention over the context tokens that a query may
          see.
        - ``vacuous``: whether all of these are at the lag, so that the mass says
          nothing. It is so if one token forecasts as many steps as the lag or more.

    Raises:
        InputError: lag below 1 or width below 0.

    Example:
        >>> probes.lag_attention(run, 12)["mass"].dims
        ('layer', 'head')
    """
    if lag < 1 or width < 0:
        raise InputError(
            f"lag {lag} and width {width}: expected a lag of 1 or more and a width of 0"
            " or more"
        )
    maps = autoregressive_attention(run, **options)
    names = ("key_start", "key_stop", "attention")
    starts, stops, attention = (maps[name].values for name in names)
    # smallest and largest number of steps (key, query) from a key's step to a query's
    near = maps["query_start"].values - (stops - 1)[:, None] - width
    far = maps["query_stop"].values - 1 - starts[:, None] + width
    # context tokens that the query may see: a masked key gets no weight from any head
    past = (maps["key_special"].values == "") & (stops <= 0)
    usable = past[:, None] & (attention.max(axis=(0, 1)) > 0)
    # whether a multiple of the lag lies between the two distances
    largest_multiple = far // lag * lag
    at_lag = usable & (largest_multiple >= np.maximum(near, 1))
    n_usable = usable.sum(0)
    shares = at_lag.sum(0)[n_usable > 0] / n_usable[n_usable > 0]
    chance = float(shares.mean()) if len(shares) else 0.0
    vacuous = bool((at_lag == usable).all())
    mass = (("layer", "head"), (attention * at_lag).sum(axis=2).mean(axis=-1))
    coords = {"layer": maps["layer"], "head": maps["head"]}
    data = xr.Dataset(
        {"mass": mass, "chance": chance, "vacuous": vacuous}, coords=coords
    )
    metadata = {"kind": "lag_attention", "title": f"Attention at lag {lag}"}
    return data.assign_attrs(maps.attrs, **metadata, lag=lag, width=width)


def lag_errors(context: np.ndarray, forecast: np.ndarray) -> np.ndarray:
    """Return the error of the forecast as a copy of the context at each lag, (lag,).

    It is the mean absolute difference from the context's last ``lag`` values, repeated.
    """
    lags = np.arange(1, len(context))[:, None]
    # (lag, step): a row goes through the last ``lag`` values again and again
    copies = context[len(context) - lags + np.arange(len(forecast)) % lags]
    return over_windows(np.abs(forecast - copies))


def repeated(context: np.ndarray, lag: int, steps: int) -> np.ndarray:
    """Repeat the last ``lag`` values of a context, (step,)."""
    return context[len(context) - lag + np.arange(steps) % lag]


def naive_parrot(
    context: np.ndarray, horizon: int, motif: int
) -> tuple[np.ndarray, int] | None:
    """Repeat what followed the best earlier match of the last ``motif`` steps.

    Windows match by their shape, without their mean.

    Returns:
        The repetition (step,), and how many steps back it begins; None for a context
        without such a match.
    """
    latest = len(context) - motif
    if latest < motif:
        return None
    # a match ends before the last stretch begins, so the two share no value
    windows = np.lib.stride_tricks.sliding_window_view(context, motif)[
        : latest - motif + 1
    ]
    centred = windows - windows.mean(axis=1, keepdims=True)
    target = context[latest:] - context[latest:].mean()
    distance = np.square(centred - target).mean(axis=1)
    if not np.isfinite(distance).any():
        return None
    # the latest of equally good matches
    best = len(distance) - 1 - int(np.nanargmin(distance[::-1]))
    # what followed the match begins at best + motif, which is ``back`` steps before the
    # end
    back = latest - best
    return repeated(context, back, horizon), back


def naive_parrots(
    batch: SeriesBatch, horizon: int, motif: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the :func:`naive_parrot` of each series, NaN without a match.

    Returns:
        The repetitions (series, step), and how many steps back they begin (series,).
    """
    if motif < 2:
        raise InputError(f"motif is {motif}, expected 2 or more steps")
    parrots = np.full((len(batch), horizon), np.nan)
    matches = np.full(len(batch), np.nan)
    for row, values in enumerate(batch.values):
        if parrot := naive_parrot(values, horizon, motif):
            parrots[row], matches[row] = parrot
    return parrots, matches


def best_lags(run: Run) -> np.ndarray:
    """Find the :func:`best_lag` of the library's own median forecast, (series,)."""
    return np.array(list(map(best_lag, run.batch.values, run.forecast.median)))


def best_lag(context: np.ndarray, forecast: np.ndarray) -> int:
    """Return the shortest lag at which a forecast copies its context best; 0 for none.

    Lags whose copies are as good as the best one, but for chance, count as equal. A
    copy repeats the values themselves, or their distances from a straight line through
    the context, which goes on in the copy; the one that is nearer to the forecast
    counts. A copy that is not exact must be nearer to the forecast than copies, at any
    lag, of 99 random orders of the context's values; otherwise there is no lag.
    """
    if np.isnan(compute_spread(context)):
        return 0
    pairs = [(context, forecast), _subtract_line(context, forecast)]
    errors = [lag_errors(*pair) for pair in pairs]
    # with gaps in the context, no copy may have a value, and nanmin would have none to
    # return
    if not all(np.isfinite(by_lag).any() for by_lag in errors):
        return 0
    smallest = [float(np.nanmin(by_lag)) for by_lag in errors]
    best = int(np.argmin(smallest))
    context, forecast = pairs[best]
    if not _beats_random_order(context, forecast, smallest[best]):
        return 0
    return _shortest_lag(context, forecast, errors[best])


def _subtract_line(
    context: np.ndarray, forecast: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Subtract the straight line through a context from it and from its forecast."""
    times = np.flatnonzero(np.isfinite(context))
    line = np.polyval(
        np.polyfit(times, context[times], min(1, len(times) - 1)),
        np.arange(len(context) + len(forecast)),
    )
    return context - line[: len(context)], forecast - line[len(context) :]


def _beats_random_order(
    context: np.ndarray, forecast: np.ndarray, error: float
) -> bool:
    """Return whether a copy is exact, or nearer than any of a shuffled context.

    ``error`` is that of the copy. Each of 99 shuffled contexts is copied at every lag.
    """
    # a fixed seed, so that equal series have equal lags
    rng = np.random.default_rng(0)
    observed = np.flatnonzero(np.isfinite(context))
    # exact copies come first: where a context has few different values, some other
    # order of them may be copied exactly, too
    if error <= _rounding_distance(context):
        return True
    for _ in range(_ORDERS):
        shuffled = context.copy()
        shuffled[observed] = context[rng.permutation(observed)]
        if np.nanmin(lag_errors(shuffled, forecast)) <= error:
            return False
    return True


def _rounding_distance(context: np.ndarray) -> float:
    """Return how far equal copies of a context may differ by rounding."""
    return float(64 * np.finfo(float).eps * np.nanmax(np.abs(context)))


def _shortest_lag(context: np.ndarray, forecast: np.ndarray, errors: np.ndarray) -> int:
    """Return the shortest lag that copies as well as the best one, but for chance.

    Lags whose ``errors`` (lag,) are equal within chance are compared once more, by
    :func:`_folded_gaps`.
    """
    lags = np.arange(1, len(context))
    # a copy at a lag has so many different values; relative to a copy's error, chance
    # moves the difference of two errors by the deviation below
    n_values = np.minimum(lags, len(forecast))
    # a difference of two errors has twice the variance of one
    relative_deviation = _DEVIATION * np.sqrt(2 / n_values)
    # Bonferroni's correction for the number of lags
    lag_level = _LEVEL / len(context)
    # divided by that number once more, since the best error is the smallest of as many
    tolerance = -ndtri(lag_level / len(context)) * relative_deviation
    rounding = _rounding_distance(context)
    candidates = lags[errors <= np.nanmin(errors) * (1 + tolerance) + rounding]
    # with a longer lag some values of the second half have no earlier copy
    candidates = candidates[candidates <= len(context) // 2]
    if not len(candidates):
        return int(np.nanargmin(errors)) + 1
    gaps = _folded_gaps(context, forecast, candidates)
    best = int(np.nanmean(gaps, axis=1).argmin())
    excess = gaps - gaps[best]
    counts = np.isfinite(excess).sum(axis=1)
    standard_error = np.nanstd(excess, axis=1) / np.sqrt(counts)
    tolerated = -ndtri(lag_level) * standard_error + rounding
    equal = candidates[np.nanmean(excess, axis=1) <= tolerated]
    # the best lag may be a multiple of the true one, which need not be a whole number
    nearest = candidates[best]
    fractions = np.round(nearest / np.arange(1, nearest + 1))
    # never empty: the best lag is its own first fraction, and differs from itself by 0
    return int(equal[np.isin(equal, fractions)][0])


def _folded_gaps(
    context: np.ndarray, forecast: np.ndarray, lags: np.ndarray
) -> np.ndarray:
    """Return gaps of values to the context folded at each lag, (lag, time).

    The values are those of the context's second half and of the forecast. The result is
    their absolute difference from the mean of the context values 1, 2, … lags before.
    """
    length = len(context)
    half = len(context) // 2
    full = np.concatenate([context, forecast])
    gaps = np.full((len(lags), len(full) - half), np.nan)
    for row, lag in enumerate(lags):
        # a forecast longer than the lag repeats the copy
        times = np.concatenate(
            [np.arange(half, length), length + np.arange(len(forecast)) % lag]
        )
        multiples = np.arange(int(lag), length + int(lag), int(lag))
        source = times - multiples[:, None]
        in_context = (source >= 0) & (source < length)
        # np.where evaluates both branches, so the indices outside are clipped as well
        copies = np.where(in_context, context[source.clip(0, length - 1)], np.nan)
        gaps[row] = np.abs(full[half:] - over_windows(copies.T))
    return gaps


def compute_spread(context: np.ndarray) -> float:
    """Return the standard deviation of a context.

    It is NaN if the context is constant or has no value.
    """
    spread = 0.0
    # np.nanstd would warn of a context without a value
    if np.isfinite(context).any():
        spread = float(np.nanstd(context))
    if spread > 0:
        return spread
    return np.nan


def context_spreads(run: Run) -> np.ndarray:
    """Return the standard deviation of each context, (series,).

    It is NaN where the model sees no variation.
    """
    spreads = np.array([compute_spread(values) for values in run.batch.values])
    return np.where(cached_flat_contexts(run), np.nan, spreads)


@probe(
    title="Copying heads",
    theme="Behaviour",
    summary="which heads attend to the copied lag, and which of them the copy needs",
    description=(
        "Each head's attention to the lag that the forecast copies, and how far "
        "ablating the head moves the forecast away from the copy."
    ),
    source="tsfm-lens paper, sections 4 and 5",
    needs="heads",
)
def head_parroting(
    run: Run,
    *,
    lag: int | None = None,
    motif: int = 16,
    width: int = 1,
    kind: str | None = None,
    how: str = "zero",
    reference: Any = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Measure each head's part in parroting by its attention and by ablation.

    Args:
        run: the forecast to explain.
        lag: steps, for every series; if None each series' own best one, at which its
            context is copied best.
        motif: length of the last stretch, of which the naive parrot finds the best
            earlier match.
        width: steps on either side of the lag that still count.
        kind: kind of attention; the last one over time of the output stack if None.
        how: "zero", "mean", "resample" or "noise", which replaces the head.
        reference: activations, or series to record them on, from which "mean" and
            "resample" take their values.
        progress: called with (done, of) after each head.

    Returns:
        Dataset of kind "head_parroting". NaN stands where a context is constant, too
        short, incomplete, or copied at no lag.

        - ``mass`` (layer, head, series): share of attention at the lag and its
          multiples.
        - ``copy_error_change`` (layer, head, series): how much ablating the head adds
          to the mean absolute difference of the forecast from the copy, in standard
          deviations of the context. Above 0 the head supports the copy.
        - ``parrot_error_change`` (layer, head, series): the same, from the naive
          parrot.
        - ``truth_error_change`` (layer, head, series): the same, from the truth where
          there is one. Above 0 the forecast is better with the head.
        - ``lag`` (series): in steps.
        - ``chance`` (series): mass of uniform attention.
        - ``vacuous`` (series): whether every token is at the lag, so that the mass says
          nothing.
        - ``copy_error``, ``parrot_error``, ``truth_error`` (series): without ablation.
        - ``forecast``, ``copy``, ``parrot`` (series, step): in data units.

        The first four come with what :func:`.estimates.add_estimates` adds. The
        attribute ``statistic`` names the statistic of the forecast.

    Raises:
        InputError: several variates, a motif below 2, a lag that is not shorter than
            every context, or a horizon beyond one pass where nothing is re-read.
        UnknownNameError: no such kind of attention.

    Source:
        tsfm-lens paper, sections 4 and 5 and figure 5, which ablate groups of heads.

    Example:
        >>> probes.head_parroting(run)["mass"].dims
        ('layer', 'head', 'series')
    """
    batch = run.batch
    steps = run.horizon
    check_variates(run)
    shortest = min(batch.lengths)
    parrot = naive_parrots(batch, steps, motif)[0]
    if lag is not None and not 1 <= lag < shortest:
        raise InputError(
            f"lag is {lag}, expected 1 to {shortest - 1}: the shortest context has"
            f" {shortest} steps"
        )
    stack, attention, layers = pick_attention(run.lens, None, kind)
    heads = [
        Component(stack.name, layer, attention, head)
        for layer in layers
        for head in range(stack.n_heads)
    ]
    plain = run.point
    ablations = make_ablations(run, heads, how, reference)
    ablated = forecast_ablations(run, ablations, how, progress).reshape(
        len(layers), stack.n_heads, *plain.shape
    )
    if lag is None:
        lags = best_lags(run)
    else:
        lags = np.full(len(batch), lag)
    maps = [
        lag_attention(
            run.select(row), max(int(series_lag), 1), width=width, kind=attention
        )
        for row, series_lag in enumerate(lags)
    ]
    # a lag of 0 means that there is none; lag_attention was then asked for lag 1
    has_lag = lags > 0
    mass_by_series = [lag_map["mass"].values.astype(float) for lag_map in maps]
    mass = np.where(has_lag, np.stack(mass_by_series, axis=-1), np.nan)
    chances = [float(lag_map["chance"]) for lag_map in maps]
    chance = np.where(has_lag, chances, np.nan)
    vacuous = [bool(lag_map["vacuous"]) for lag_map in maps]
    data = marked_dataset(run, layer=list(layers), head=range(stack.n_heads))
    data = data.assign(
        mass=(("layer", "head", "series"), mass),
        chance=("series", chance),
        vacuous=("series", vacuous),
    )
    data["lag"] = ("series", np.where(has_lag, lags, np.nan), {"units": "steps"})
    copy = np.full((len(batch), steps), np.nan)
    for series in np.flatnonzero(lags):
        copy[series] = repeated(batch.values[series], lags[series], steps)
    references = {"copy_error": copy, "parrot_error": parrot}
    if run.truth is not None:
        references["truth_error"] = data["truth"].values
    scales = context_spreads(run)
    for name, target in references.items():
        error = mae(plain, target) / scales
        data[name] = (("series",), error)
        data[f"{name}_change"] = (
            ("layer", "head", "series"),
            mae(ablated, target) / scales - error,
        )
    data["forecast"], data["copy"], data["parrot"] = (
        (("series", "step"), values) for values in (plain, copy, parrot)
    )
    data.attrs = {
        "attention": attention,
        "motif": motif,
        "width": width,
        "how": how,
        "rollout": int(run.rollout),
        "statistic": run.statistic,
    }
    # attention without preference has the mass ``chance`` but for rounding
    data = add_estimates(data, "mass", floor=chance * (1 + relative_rounding(run.lens)))
    for name, target in references.items():
        # bound as a default, since a closure would read the last target of the loop
        def change(
            other: np.ndarray, plain: np.ndarray, target: np.ndarray = target
        ) -> np.ndarray:
            result: np.ndarray = (
                np.abs(mae(other, target) - mae(plain, target)) / scales
            )
            return result

        data = add_estimates(
            data, f"{name}_change", floor=noise_floor(run, change), signed=True
        )
    return data


# trial frequencies for each further cycle over the horizon, the width of a peak
_FINENESS = 4


@probe(
    title="Seasons",
    theme="Behaviour",
    summary="power at the season, mean regression, pull towards the patch length",
    description=(
        "How strong each period is in the forecast, compared with the end of the "
        "context and the truth. It shows seasons that the model keeps, flattens or "
        "adds."
    ),
    source="tsfm-lens paper, section 5 and figure 20",
)
def seasonality_bias(run: Run) -> xr.Dataset:
    """Measure the amplitude of the forecast at the context's period.

    For models that read patches, the amplitude at the patch length is measured too.

    Args:
        run: the forecast to explain; the median of the library's own forecast is used.

    Returns:
        Dataset of kind "seasonality_bias". NaN stands where a part is shorter than the
        period.

        - ``period`` (series): the strongest of the context, in steps.
        - ``context_amplitude``, ``forecast_amplitude`` and, with a truth,
          ``truth_amplitude`` (series): of the sine at that period, in data units.
        - ``amplitude_ratio`` (series): forecast over context.
        - ``amplitude_change`` (series): the ratio less 1.
        - ``spread_ratio`` (series): standard deviation of the forecast over the
          context's.
        - ``amplitude`` (part, series, trial_period): of the last horizon of the
          context, the forecast and the truth, at periods from 3 steps to the horizon,
          in standard deviations of the context.

        Of models that read patches also:

        - ``patch_amplitude`` (series): the forecast's amplitude at the patch length, in
          data units.
        - ``patch_pull`` (series): this less the context's one, in standard deviations
          of the context.

        Change and pull come with what :func:`.estimates.add_estimates` adds.

    Source:
        tsfm-lens paper, section 5 and figure 20 (S3-F20), for mean regression and
        periods tied to the patch.

    Example:
        >>> probes.seasonality_bias(run)["period"].round().values.tolist()
        [12.0]
    """
    batch = run.batch
    steps = run.horizon
    forecast = run.forecast.median
    period = np.array([dominant_period(values) for values in batch.values])
    data = marked_dataset(run.as_rollout())
    context = amplitudes(batch.values, period)
    ahead = amplitudes(forecast, period)
    spread = context_spreads(run)
    relative = ratio(ahead, context)
    measures = {
        "period": period.astype(float),
        "context_amplitude": context,
        "forecast_amplitude": ahead,
        "amplitude_ratio": relative,
        "amplitude_change": relative - 1,
        "spread_ratio": forecast.std(axis=1) / spread,
    }
    if "truth" in data:
        measures["truth_amplitude"] = amplitudes(data["truth"].values, period)
    # encoded here, as run.encoded refuses a horizon beyond one pass, and the length of
    # a token does not depend on the horizon
    spans = run.lens.encode(batch).spans.values()
    steps_per_token = [
        stop - start
        for axis in spans
        for start, stop in zip(axis.start, axis.stop, strict=True)
    ]
    # special tokens cover no steps
    patch = next((width for width in steps_per_token if width > 0), 0)
    if patch > 1:
        patches = np.full(len(batch), patch)
        measures["patch_amplitude"] = amplitudes(forecast, patches)
        excess = measures["patch_amplitude"] - amplitudes(batch.values, patches)
        measures["patch_pull"] = excess / spread
    for name, values in measures.items():
        data[name] = (("series",), values)
    data["forecast"] = (("series", "step"), forecast)
    # from one cycle over the horizon to periods of 3 steps; np.arange leaves its end
    # out, so the end is moved by less than any step
    cycles = np.arange(1, max(steps / 3, 1) + 1e-9, 1 / _FINENESS)
    trial_periods = (steps / cycles)[::-1]
    parts: dict[str, Any] = {
        "context": [values[-steps:] for values in batch.values],
        "forecast": forecast,
    }
    if "truth" in data:
        parts["truth"] = data["truth"].values
    grid = [
        [[fit_amplitude(values, trial) for trial in trial_periods] for values in part]
        for part in parts.values()
    ]
    data = data.assign_coords(
        part=list(parts),
        trial_period=("trial_period", trial_periods, {"units": "steps"}),
    )
    data["amplitude"] = (
        ("part", "series", "trial_period"),
        np.array(grid) / spread[:, None],
    )
    data.attrs = {"patch": patch, "statistic": "median"}
    references = {"amplitude_change": (period, context)}
    if patch > 1:
        references["patch_pull"] = (patches, spread)
    for name, (periods, scale) in references.items():

        def change(
            other: np.ndarray,
            plain: np.ndarray,
            periods: Any = periods,
            scale: Any = scale,
        ) -> np.ndarray:
            gap = np.abs(amplitudes(other, periods) - amplitudes(plain, periods))
            return ratio(gap, scale)

        data = add_estimates(
            data, name, floor=noise_floor(run.as_rollout(), change), signed=True
        )
    return data


def amplitudes(stretches: Iterable[np.ndarray], periods: Iterable[float]) -> np.ndarray:
    """Compute :func:`fit_amplitude` of each stretch at its period."""
    return np.array(list(map(fit_amplitude, stretches, periods)))


def fit_amplitude(values: np.ndarray, period: float) -> float:
    """Return the amplitude of a sine of one period fitted to values (time,).

    A constant and a straight line are fitted together with it.
    """
    finite = np.isfinite(values)
    # four columns fit any four values, whatever the period
    if len(values) < period or finite.sum() < 5:
        return float("nan")
    time = np.arange(len(values))[finite]
    angle = 2 * np.pi * time / period
    # centred and scaled, so that least squares has columns of like size
    trend = (time - time.mean()) / len(values)
    columns = np.stack(
        [np.cos(angle), np.sin(angle), np.ones_like(trend), trend], axis=1
    )
    # lstsq also solves for a period of 2 steps, whose sine is 0 at every step
    cosine, sine, *_ = np.linalg.lstsq(columns, values[finite], rcond=None)[0]
    return float(np.hypot(cosine, sine))


def dominant_period(values: np.ndarray) -> float:
    """Return the period with the largest amplitude, in steps.

    It is at least 2 steps and at most a third of the series.
    """
    finite = np.isfinite(values)
    # a spectrum of 6 values is the shortest that reaches 3 cycles, the lowest that
    # counts
    if finite.sum() < 6:
        return 2.0
    time = np.arange(len(values))
    # the transform needs a value at every step; the fits below leave gaps out
    filled = np.interp(time, time[finite], values[finite])
    trend = np.polyval(np.polyfit(time, filled, 1), time)
    spectrum = np.abs(np.fft.rfft(filled - trend))
    # frequencies are in cycles per series, of which a season makes three or more
    lowest = 3
    peak = lowest + int(spectrum[lowest:].argmax())
    # a period need not divide the length, so frequencies between the bins are tried
    near = np.linspace(max(peak - 1, lowest), min(peak + 1, len(spectrum) - 1), 41)
    heights = amplitudes([values] * len(near), len(values) / near)
    return float(len(values) / near[int(np.nanargmax(heights))])
