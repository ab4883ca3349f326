"""Results of one run by kind, each computed once and shared.

:class:`Results` computes what a measurement takes before it computes the measurement,
so that results that are made of others share them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from inspect import signature
from typing import TYPE_CHECKING, Any

import xarray as xr

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.registry import Measurement, find

if TYPE_CHECKING:
    from tsfm_lens.core.estimates import Result

Options = Mapping[str, Any]


class Results:
    """Results of a run by kind of measurement, each computed once.

    Attributes:
        run: what all results are of.
        computed: results by kind, or by the name of a section.
        options: of the probes, by kind, for results that others are made of.
        item: the one that measurements of one item are of, by position or name; None
            where none may be left out.
        refused: what the model or the series forbid, by kind.
        progress: of the result that is being computed, called with (done, of).

    Example:
        >>> cache = results.Results(run)
        >>> cache["layer_gain"] is cache["layer_gain"]
        True
    """

    def __init__(
        self,
        run: Any,
        options: Mapping[str, Options] | None = None,
        item: int | str | None = 0,
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

    # positional-only: some probes have an option `kind`, of attention
    def compute(self, kind: str, /, **options: Any) -> Result:
        """Compute the result of a measurement anew."""
        entry = find(kind)
        if entry.function is None or not entry.of_run:
            raise InputError(f"a result of kind {kind!r} is {entry.origin}")
        entry.check(self.run.lens)
        # only some probes show progress; `wraps` keeps their signature
        parameters = signature(entry.function).parameters
        if self.progress is not None and "progress" in parameters:
            options["progress"] = self.progress
        arguments = self._arguments(entry)
        result = entry.function(*arguments, **{**entry.options(self), **options})
        if entry.takes != "pair":
            return result
        # what stands between the two runs of the pair is a fact of the result
        return result.assign_attrs(self.first.shift_attrs())

    def _arguments(self, entry: Measurement) -> tuple[Any, ...]:
        takes = entry.takes
        if callable(takes):
            return takes(self)
        if isinstance(takes, tuple):
            return tuple(self[kind] for kind in takes)
        match takes:
            case "pair":
                return self.shifted
            case "lens":
                return (self.run.lens,)
            case "first":
                return (self.first,)
        return (self.run,)

    @cached_property
    def first(self) -> Any:
        """Run of the one item; InputError where none is chosen of several."""
        return self.run.item(self.item)

    @property
    def season(self) -> int:
        """Steps of the season of the one item's first series."""
        result: int = self.first.season()
        return result

    @cached_property
    def shifted(self) -> tuple[Any, Any]:
        """The one item, without gaps, beside the same with its season shifted.

        The season is half a period later.
        """
        result: tuple[Any, Any] = self.first.shifted_pair()
        return result
