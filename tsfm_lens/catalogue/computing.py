"""Computation of a measurement's result from a run, and what several measurements of one run share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.errors import InputError

if TYPE_CHECKING:
    from tsfm_lens.data import SeriesBatch
    from tsfm_lens.models import Lens
    from tsfm_lens.models.run import Run

Progress = Callable[[int, int], None]
Options = Mapping[str, Any]
Probe = str | Callable[..., xr.Dataset]
"""Function of :mod:`tsfm_lens.probes` by name, of another package as "package.name", or one of your own."""

SHIFTED = "the first series against itself with its season half a period later"


def first_item(run: Run) -> Run:
    """Select the first series of a run; the variates of an item stay together.

    Example:
        >>> catalogue.first_item(run).batch.ids
        ('co2',)
    """
    groups = run.batch.groups
    return run.select([index for index, group in enumerate(groups) if group == groups[0]])


class Work:
    """Run with the results that were computed of it, each once; see :func:`tsfm_lens.catalogue.work_on`.

    Attributes:
        run: what all results are of.
        results: by name.
        options: of the probes, by kind, for results that others are made of.
        refused: what the model or the series forbid, by kind.
        progress: of the result that is being computed, called with (done, of).
    """

    def __init__(self, run: Run, compute: Callable[[str, Work], xr.Dataset]) -> None:
        self.run = run
        self._compute = compute
        self.results: dict[str, xr.Dataset] = {}
        self.options: Mapping[str, Options] = {}
        self.refused: dict[str, InputError] = {}
        self.progress: Progress | None = None

    @cached_property
    def first(self) -> Run:
        """Run of the first series alone."""
        return first_item(self.run)

    @property
    def season(self) -> int:
        """Steps of the first series' season.

        Raises:
            InputError: it has none.
        """
        season = self.first.batch.seasonalities[0]
        if season < 2:
            raise InputError(
                f"series {self.first.batch.ids[0]!r} has no season, at which attention could be counted or which "
                "could be shifted"
            )
        return season

    @cached_property
    def shifted(self) -> tuple[Run, Run]:
        """First series, without gaps, and the same with its season half a period later.

        Raises:
            InputError: it has no season.
        """
        from tsfm_lens.data import shift_phase

        one = self.first
        clean = _fill_gaps(one.batch)
        how: dict[str, Any] = {"num_samples": one.num_samples, "seed": one.seed}
        late = shift_phase(clean, self.season // 2)
        return one.lens.run(clean, one.horizon, **how), one.lens.run(late, one.horizon, **how)

    def result(self, kind: str) -> xr.Dataset:
        """Return the result of a measurement, computed where it is not there yet.

        Raises:
            InputError: the measurement's definition forbids the model or the series.
            UnknownNameError: there is no such measurement of a run.
        """
        if kind in self.refused:
            # what was asked for is not replaced by something else
            raise self.refused[kind]
        if kind not in self.results:
            self.results[kind] = self._compute(kind, self)
        return self.results[kind]

    def call(self, probe: Probe, *args: Any, **options: Any) -> xr.Dataset:
        """Call a probe, and tell it where to report how far it is."""
        function = found_probe(probe) if isinstance(probe, str) else probe
        if self.progress is not None and "progress" in signature(function).parameters:
            options["progress"] = self.progress
        result: xr.Dataset = function(*args, **options)
        return result


@dataclass(frozen=True)
class Compute:
    """Computation of a measurement.

    Attributes:
        probe: gives the result; "" where the run itself does.
        words: what is computed on what, for captions and lists.
        call: gives the result.
        each: the results that a report shows, options by name; one, of the measurement's own kind, if None.
    """

    probe: Probe
    words: str
    call: Callable[[Work, Options], xr.Dataset]
    each: Callable[[Lens], Mapping[str, Options]] | None = None

    @property
    def name(self) -> str:
        """Name of the probe."""
        return _name(self.probe)


def _name(probe: Probe) -> str:
    return probe if isinstance(probe, str) else probe.__name__


def found_probe(name: str) -> Callable[..., xr.Dataset]:
    """Look up a function of :mod:`tsfm_lens.probes` by name, or of another package as "package.name".

    Example:
        >>> catalogue.computing.found_probe("explain.covariate_use").__name__
        'covariate_use'
    """
    package, _, function = name.rpartition(".")
    probe: Callable[..., xr.Dataset] = getattr(import_module(f"tsfm_lens.{package or 'probes'}"), function)
    return probe


def on_all(probe: Probe, **options: Any) -> Compute:
    """Declare a probe of the run.

    Example:
        >>> catalogue.on_all("head_entropy").words
        'head_entropy on all series'
    """
    return Compute(
        probe, f"{_name(probe)} on all series", lambda work, more: work.call(probe, work.run, **{**options, **more})
    )


def on_first(probe: Probe, each: Callable[[Lens], Mapping[str, Options]] | None = None, **options: Any) -> Compute:
    """Declare a probe of the run of its first series.

    Example:
        >>> catalogue.on_first("rollout_maps").words
        'rollout_maps on the first series'
    """
    return Compute(
        probe,
        f"{_name(probe)} on the first series",
        lambda work, more: work.call(probe, work.first, **{**options, **more}),
        each,
    )


def of_weights(probe: Probe) -> Compute:
    """Declare a probe of the lens.

    Example:
        >>> catalogue.of_weights("head_spectra").words
        'head_spectra, from the weights alone'
    """
    return Compute(
        probe, f"{_name(probe)}, from the weights alone", lambda work, more: work.call(probe, work.run.lens, **more)
    )


def of_sequences(probe: Probe) -> Compute:
    """Declare a probe of the lens on series of its own, the same for every run.

    Its intervals say what other series would change.

    Example:
        >>> catalogue.of_sequences("repeated_motif").words
        'repeated_motif, on series of its own'
    """
    return Compute(
        probe,
        f"{_name(probe)}, on series of its own",
        lambda work, more: work.call(probe, work.run.lens, **more),
    )


def of_results(probe: Probe, *kinds: str, options: Callable[[Work], Options] = lambda work: {}) -> Compute:
    """Declare a probe of other results.

    Example:
        >>> catalogue.of_results("layer_gain", "logit_lens").words
        'layer_gain of logit_lens'
    """
    return Compute(
        probe,
        f"{_name(probe)} of {' and '.join(kinds)}",
        lambda work, more: work.call(probe, *(work.result(kind) for kind in kinds), **{**options(work), **more}),
    )


def between(probe: Probe, options: Callable[[Work], Options] = lambda work: {}) -> Compute:
    """Declare a probe of two runs: the first series, and the same with its season half a period later.

    Example:
        >>> catalogue.between("activation_patching").name
        'activation_patching'
    """

    def call(work: Work, more: Options) -> xr.Dataset:
        result = work.call(probe, *work.shifted, **{**options(work), **more})
        missing = sum(int(np.isnan(values).sum()) for values in work.first.batch.values)
        attrs = {"shifted_by": work.season // 2, "season": work.season, "missing_steps_filled": missing}
        return result.assign_attrs(attrs)

    return Compute(probe, f"{_name(probe)}, {SHIFTED}", call)


def _fill_gaps(batch: SeriesBatch) -> SeriesBatch:
    """Fill gaps by straight lines, since a season is taken apart only of complete series."""
    whole = tuple(pd.Series(values).interpolate(limit_direction="both").to_numpy() for values in batch.values)
    return replace(batch, values=whole)
