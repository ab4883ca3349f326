"""Metrics of one's own: what a user's function reads off each forecast.

:func:`as_metric` checks what a caller gives; a :class:`Metric` then measures forecasts,
and the two functions below turn its numbers into effects that have no unit, with their
noise floors by the same function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.stats import ratio
from tsfm_lens.data import SeriesBatch
from tsfm_lens.models.noise import noise_floor
from tsfm_lens.models.run import Run
from tsfm_lens.probes.given import called

__all__ = []

MetricFunction = Callable[[np.ndarray, np.ndarray | None, SeriesBatch], float]
"""Forecast (step,), truth (step,) or None, and the series -> one finite number.

Forecast and truth are in data units. The series is a batch of this one alone, with its
id in ``series.ids[0]`` and its context in ``series.values[0]``.
"""
GivenMetric = MetricFunction | Mapping[str, MetricFunction]
"""A function, called by its ``__name__``, or a name with its function."""


@dataclass(frozen=True)
class Metric:
    """Function that reads a number off a forecast, and its name in figures."""

    name: str
    function: MetricFunction

    def measure(self, run: Run, forecasts: np.ndarray) -> np.ndarray:
        """Return the metric (…, series) of forecasts (…, series, step).

        It is NaN for covariates, which have no forecast, and where a forecast is NaN.

        Raises:
            InputError: the function returns no finite number.
        """
        values = np.full(forecasts.shape[:-1], np.nan)
        for row in np.flatnonzero(run.batch.is_target):
            series = run.batch.select(int(row))
            truth = None
            if run.truth is not None and np.isfinite(run.truth[row]).any():
                truth = run.truth[row].copy()
            for place in np.ndindex(forecasts.shape[:-2]):
                forecast = forecasts[(*place, row)]
                if np.isfinite(forecast).all():
                    # a copy, which a function may sort or change
                    number = self._call(forecast.copy(), truth, series)
                    values[(*place, row)] = self._checked(number, series.ids[0])
        return values

    def _call(
        self, forecast: np.ndarray, truth: np.ndarray | None, series: SeriesBatch
    ) -> Any:
        """Call the function; name a truth that is missing as the cause of an error."""
        try:
            return self.function(forecast, truth, series)
        except Exception as error:
            if truth is not None:
                raise
            raise InputError(
                f"metric {self.name!r} fails on series {series.ids[0]!r}, whose truth"
                f" is None: {error}. Make the run with holdout=True or truth=…, or let"
                " the function do without a truth"
            ) from error

    def _checked(self, value: Any, series: str) -> float:
        """Refuse what is not one finite number."""
        array = np.asarray(value)
        if array.ndim:
            found = f"an array of shape {array.shape}"
            advice = "; take a mean, a maximum or one step of it"
        elif array.dtype.kind not in "biuf":
            found = called(value)
            advice = ""
        elif not np.isfinite(array):
            found = str(float(array))
            advice = "; leave steps out that have no value, as np.nanmean does"
        else:
            return float(array)
        raise InputError(
            f"metric {self.name!r} returns {found} for series {series!r}, expected one"
            f" finite number{advice}"
        )


def as_metric(given: Any) -> Metric:
    """Return the metric that a function, or a mapping of one name to it, gives.

    Raises:
        InputError: it is neither, or the function has no name to be called by.
    """
    example = "metric={'peak': function}"
    if isinstance(given, Mapping):
        if len(given) != 1:
            raise InputError(
                f"metric has {len(given)} entries, expected one name with its function:"
                f" {example}"
            )
        ((name, function),) = given.items()
    else:
        function = given
        name = getattr(given, "__name__", "")
    if not callable(function):
        raise InputError(
            f"metric is {called(function)}, expected a function of (forecast, truth,"
            f" series), or a name with one: {example}"
        )
    try:
        # a builtin may have no signature, and raises ValueError
        inspect.signature(function).bind(None, None, None)
    except TypeError as error:
        raise InputError(
            "metric cannot be called with (forecast, truth, series), as a metric is:"
            f" {error}"
        ) from error
    except ValueError:
        pass
    # that of a lambda is "<lambda>"
    if not isinstance(name, str) or not name.strip() or name.startswith("<"):
        raise InputError(
            f"metric has the name {name!r}, and figures say what is measured; give it"
            f" one: {example}"
        )
    return Metric(name, function)


def metric_changes(
    metric: Metric, run: Run, forecasts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Measure forecasts of a run's changed models, relative to the run's own.

    Args:
        metric: of a forecast.
        run: the unchanged model's.
        forecasts: (variant, series, step).

    Returns:
        The metric (variant, series); that of the unchanged forecast (series,); the
        change as a share of the size of the latter, NaN where this is no more than its
        noise; and the noise floor of the change (series,).

    Raises:
        InputError: the metric of the unchanged forecast is below its noise on every
            series, so that nothing can be a share of it.
    """
    values = metric.measure(run, forecasts)
    baseline = metric.measure(run, run.point)
    noise = noise_floor(
        run,
        lambda other, plain: np.abs(
            metric.measure(run, other) - metric.measure(run, plain)
        ),
    )
    # a quotient by what rounding could have made means nothing
    size = np.where(np.abs(baseline) > noise, np.abs(baseline), np.nan)
    _check_defined(
        run,
        size,
        f"metric {metric.name!r} of the unchanged forecast is"
        f" {_first(baseline)}, which is no more than its noise, so that no change is a"
        " share of it; return something that the unchanged forecast has",
    )
    return values, baseline, ratio(values - baseline, size), ratio(noise, size)


def metric_shares(
    metric: Metric, clean: Run, base: Run, source: Run, forecasts: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Measure the share of the way from a base's metric to a source's.

    Args:
        metric: of a forecast; it is given the series and the truth of the clean run.
        clean: the run to explain, which is one of the next two.
        base: the run that is patched.
        source: the run that it is patched from.
        forecasts: (…, series, step).

    Returns:
        The metric of the forecasts (…, series); the share, NaN where the metric of both
        runs is the same up to noise; and the noise floor of the share (series,).

    Raises:
        InputError: it is the same on every series.
    """

    def distance(other: np.ndarray, plain: np.ndarray) -> np.ndarray:
        change = metric.measure(clean, other) - metric.measure(clean, plain)
        return np.asarray(np.abs(change))

    values = metric.measure(clean, forecasts)
    start = metric.measure(clean, base.point)
    way = metric.measure(clean, source.point) - start
    noise = np.fmax(noise_floor(base, distance), noise_floor(source, distance))
    length = np.where(np.abs(way) > noise, np.abs(way), np.nan)
    _check_defined(
        clean,
        length,
        f"metric {metric.name!r} of the clean and of the corrupted forecast is the"
        f" same, {_first(start)}, so that there is nothing to recover; corrupt what the"
        " metric reads",
    )
    share = ratio((values - start) * np.sign(way), length)
    return values, share, ratio(noise, length)


def _first(values: np.ndarray) -> str:
    """Write the first finite value; an untrained twin may have none."""
    return "".join(f"{value:.3g}" for value in values[np.isfinite(values)][:1])


def _check_defined(run: Run, values: np.ndarray, message: str) -> None:
    # a twin without the mechanism may well have nothing to measure, and then exceeds
    # nothing
    if run.original is None and not np.isfinite(values).any():
        raise InputError(message)
