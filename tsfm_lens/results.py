"""Results of one run by kind, each computed once and shared by those that are made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from inspect import signature
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.data import shift_phase
from tsfm_lens.errors import InputError
from tsfm_lens.explain.segments import Item, item_of
from tsfm_lens.findings import Result
from tsfm_lens.models.run import Run
from tsfm_lens.registry import Takes, find, probe

Options = Mapping[str, Any]


@probe("forecast", words="the forecast of all series")
def forecast_of(run: Run) -> xr.Dataset:
    """Return the run's forecast with the truth, where there is one, and the steps of each series' season."""
    return run.forecast.to_dataset(run.truth)


class Results:
    """Results of a run by kind of measurement, each computed once.

    Attributes:
        run: what all results are of.
        computed: results by kind, or by the name of a section.
        options: of the probes, by kind, for results that others are made of.
        item: the one that measurements of one item are of, by position or name; None where none may be left out.
        refused: what the model or the series forbid, by kind.
        progress: of the result that is being computed, called with (done, of).

    Example:
        >>> cache = results.Results(run)
        >>> cache["layer_gain"] is cache["layer_gain"]
        True
    """

    def __init__(
        self, run: Run, options: Mapping[str, Options] | None = None, item: Item = 0
    ) -> None:
        self.run = run
        self.item = item
        self.options = options or {}
        self.computed: dict[str, xr.Dataset] = {}
        self.refused: dict[str, InputError] = {}
        self.progress: Callable[[int, int], None] | None = None

    def __getitem__(self, kind: str) -> xr.Dataset:
        """Return the result of a measurement, computed where it is not there yet."""
        if kind in self.refused:
            # what was asked for is not replaced by something else
            raise self.refused[kind]
        if kind not in self.computed:
            self.computed[kind] = self.compute(kind, **self.options.get(kind, {}))
        return self.computed[kind]

    def compute(self, kind: str, /, **options: Any) -> Result:
        """Compute the result of a measurement anew."""
        entry = find(kind)
        if entry.probe is None or not entry.of_run:
            raise InputError(f"a result of kind {kind!r} is {entry.origin}")
        entry.check(self.run.lens)
        function, takes = entry.probe.function, entry.probe.takes
        if self.progress is not None and "progress" in signature(function).parameters:
            options["progress"] = self.progress
        result: Result = function(
            *self._arguments(takes), **{**entry.probe.options(self), **options}
        )
        if takes != "pair":
            return result
        missing = sum(int(np.isnan(values).sum()) for values in self.first.batch.values)
        attrs = {
            "shifted_by": self.season // 2,
            "season": self.season,
            "missing_steps_filled": missing,
        }
        return result.assign_attrs(attrs)

    def _arguments(self, takes: Takes) -> tuple[Any, ...]:
        if callable(takes):
            return takes(self)
        if isinstance(takes, tuple):
            return tuple(self[kind] for kind in takes)
        match takes:
            case "pair":
                return self.shifted
            case "lens":
                return (self.run.lens,)
        return (self.first if takes == "first" else self.run,)

    @cached_property
    def first(self) -> Run:
        """Run of the one item; InputError where none is chosen of several."""
        return item_of(self.run, self.item)

    @property
    def season(self) -> int:
        """Steps of the season of the one item's first series."""
        season = self.first.batch.seasonalities[0]
        if season < 2:
            raise InputError(
                f"series {self.first.batch.ids[0]!r} has no season, at which attention could be counted or which "
                "could be shifted"
            )
        return season

    @cached_property
    def shifted(self) -> tuple[Run, Run]:
        """The one item, without gaps, and the same with its season half a period later."""
        one = self.first
        whole = tuple(
            pd.Series(each).interpolate(limit_direction="both").to_numpy()
            for each in one.batch.values
        )
        clean = replace(one.batch, values=whole)
        how: dict[str, Any] = {"num_samples": one.num_samples, "seed": one.seed}
        late = shift_phase(clean, self.season // 2)
        return one.lens.run(clean, one.horizon, **how), one.lens.run(
            late, one.horizon, **how
        )
