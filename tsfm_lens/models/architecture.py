"""Architectures: their entries in the registry, and the native input of their models.

Read :class:`Architecture` first, which :func:`register` makes known to ``load``, and
then :class:`Encoded`, a batch of series as a model reads it. The wiring table is a
class of :mod:`tsfm_lens.hooks.wiring`, and the functions that a table cannot hold
belong to the :class:`tsfm_lens.models.Adapter`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from tsfm_lens.core.errors import InputError, WiringError, unknown_name
from tsfm_lens.core.extensions import WIRINGS, load_all
from tsfm_lens.core.needs import Needs
from tsfm_lens.data import SeriesBatch
from tsfm_lens.data.frequencies import read_offset
from tsfm_lens.hooks.activations import TokenSpans
from tsfm_lens.hooks.tl_names import refuse_shape
from tsfm_lens.models.cards import (
    KnownArchitecture,
    Readout,
    no_config,
    reading_traits,
)
from tsfm_lens.models.checkpoint import unwrap_module
from tsfm_lens.models.extras import Extra

Levels = tuple[float, ...]
"""Quantile levels, ascending."""


@dataclass(frozen=True)
class Encoded:
    """Native input of one forward for a batch of series.

    Attributes:
        inputs: keyword arguments of the native model.
        spans: by stack, the time steps that each token covers.
        loc, scale: (batch,), so that data = normalised * scale + loc; 0 and 1 for a
            model that does not normalise each series by one location and scale.
        batch: the series.
        horizon: forecast steps that the forward yields; None if the model's own.
        items: length of the native input's first axis, where an entry of it is an item
            with all its variates; None where an entry is one series.
        packed: whether the variates of an item share one token sequence, so that hooks
            see a row per item.
        ids: names of inputs that say which rows belong together; copies of the batch
            get ids of their own.
        stats: further tensors that the head needs to return to data units.
        place: of a part of a batch, the index of its first row in the whole batch, and
            the number of rows of the whole batch; (0, None) of a whole batch.
    """

    inputs: dict[str, Any]
    spans: dict[str, TokenSpans]
    loc: Tensor
    scale: Tensor
    batch: SeriesBatch
    horizon: int | None = None
    items: int | None = None
    packed: bool = False
    ids: tuple[str, ...] = ()
    stats: dict[str, Tensor] = field(default_factory=dict)
    place: tuple[int, int | None] = (0, None)
    if not TYPE_CHECKING:
        # code for TransformerLens asks for a shape: the error says how to patch here
        __getattr__ = refuse_shape

    def __repr__(self) -> str:
        spans = ", ".join(
            f"{stack or 'blocks'}: {spans!r}" for stack, spans in self.spans.items()
        )
        return (
            f"Encoded({len(self.batch)} series; {spans}; inputs"
            f" {', '.join(self.inputs)})"
        )

    @property
    def rows(self) -> tuple[str, ...]:
        """Names of the rows that hooks see.

        These are the series, or the items where variates share one sequence.
        """
        return name_rows(self.batch, self.packed)

    @property
    def n_items(self) -> int:
        """Items of the batch; all variates of one run together."""
        return len(set(self.batch.groups))

    def shown(self, stack: str) -> Tensor:
        """Mark the tokens that are not padding, (row, pos).

        Padding brings short series to the length of the longest.

        Args:
            stack: name of the stack.

        Returns:
            True for tokens of a series and for special tokens, (row, pos).
        """
        spans = self.spans[stack]
        names = self.batch.groups if self.packed else self.batch.ids
        # the series of a group share one time axis, so that its name has one length
        lengths = dict(zip(names, self.batch.lengths, strict=True))
        # steps count from the forecast start: a series of n steps begins at -n
        first_steps = -torch.tensor([lengths[row] for row in self.rows])
        is_special = torch.tensor([bool(label) for label in spans.special])
        covers_series = torch.tensor(spans.stop) > first_steps[:, None]
        return is_special | covers_series

    def part(self, start: int, stop: int) -> Encoded:
        """Return some series of the batch, which must be whole items.

        The padding and the spans stay those of the whole batch.

        Args:
            start: position of the first series.
            stop: position after the last series.

        Returns:
            The part of the batch.

        Raises:
            InputError: an input of the model has not a row for each item.
        """
        if self.items is None:
            n_entries = len(self.rows)
        else:
            n_entries = self.items
        # entries of several series have equally many, since they are stacked in one
        # tensor
        series_per_entry = len(self.batch) // n_entries
        series = slice(start, stop)
        entries = slice(start // series_per_entry, stop // series_per_entry)
        # the length of an input tells whether it has a row for each series or for each
        # entry of several
        slices = {n_entries: entries, len(self.batch): series}

        def take_rows(name: str, value: Any) -> Any:
            if not isinstance(value, Tensor) or value.ndim == 0:
                return value
            if len(value) not in slices:
                raise InputError(
                    f"input {name} has shape {tuple(value.shape)}, not a row for each"
                    f" of {n_entries} items"
                )
            return value[slices[len(value)]]

        first_row, n_rows = self.place
        rows_before = 0
        if start:
            rows_before = len(name_rows(self.batch.select(range(start)), self.packed))
        if n_rows is None:
            n_rows = len(self.rows)
        return replace(
            self,
            inputs={k: take_rows(k, value) for k, value in self.inputs.items()},
            stats={k: take_rows(k, value) for k, value in self.stats.items()},
            loc=self.loc[series],
            scale=self.scale[series],
            batch=self.batch.select(range(start, stop)),
            items=None if self.items is None else (stop - start) // series_per_entry,
            place=(first_row + rows_before, n_rows),
        )

    def in_data_units(self, normalized: Tensor) -> Tensor:
        """Return normalised quantiles (…, batch, quantile, step) in data units.

        Args:
            normalized: quantiles (…, batch, quantile, step), as the head emits them.

        Returns:
            The quantiles in data units, of the same shape.
        """
        return in_data_units(normalized, self.loc, self.scale)

    def token_table(self, series: int = 0, stack: str | None = None) -> pd.DataFrame:
        """Tabulate the tokens of a stack, and the steps that each covers.

        Args:
            series: position of the series whose times are shown.
            stack: name of the stack; the first one if None.

        Returns:
            A row for each token, with the steps that it covers, counted from the start
            of the forecast, and the times of the series where they are known.
        """
        spans = self.spans[next(iter(self.spans)) if stack is None else stack]
        parts = {name: getattr(spans, name) for name in ("start", "stop", "special")}
        table = pd.DataFrame(
            {"token": np.arange(len(spans)), **parts, "variate": spans.variate or 0}
        )
        stamps = self.batch.dates(series)
        if stamps is not None:
            step = read_offset(self.batch.freqs[series])
            # the last timestamp is that of step -1
            for column in ("start", "stop"):
                table[f"{column}_time"] = [
                    stamps[-1] + (count + 1) * step for count in table[column]
                ]
        return table

    def repeated(self, copies: int) -> dict[str, Any]:
        """Repeat all series of the inputs, copy-major.

        The first copy of all series comes first, then the second copy of all.

        Args:
            copies: how often the series are repeated.

        Returns:
            Inputs of the model for all copies, as ``inputs`` has them for one.
        """
        repeated = dict(self.inputs)
        for key, value in self.inputs.items():
            if isinstance(value, Tensor) and copies > 1:
                ones = [1] * (value.ndim - 1)
                repeated[key] = value.repeat(copies, *ones)
                if key in self.ids:
                    # rows of one id see each other, and copies must not
                    numbers = torch.arange(copies, device=value.device)
                    shift = numbers.repeat_interleave(len(value)) * (value.max() + 1)
                    # in place on the copy that ``repeat`` has made, not on the input
                    repeated[key] += shift.reshape(-1, *ones).to(value.dtype)
        return repeated


def in_data_units(normalized: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """Return normalised quantiles (…, batch, quantile, step) in data units.

    ``loc`` and ``scale`` are those of the series, (batch,).
    """
    scales = scale.to(normalized)[:, None, None]
    means = loc.to(normalized)[:, None, None]
    return normalized * scales + means


def name_rows(batch: SeriesBatch, packed: bool) -> tuple[str, ...]:
    """Return the names of the rows that hooks see; see :class:`Encoded`."""
    if packed:
        return tuple(dict.fromkeys(batch.groups))
    return batch.ids


class Prediction(NamedTuple):
    """Native forecast of a batch.

    Attributes:
        quantiles: (series, step, quantile), data units.
        samples: (series, sample, step), or None.
        mean: (series, step); the median where a library gives no mean.
    """

    quantiles: Tensor
    samples: Tensor | None
    mean: Tensor


Predict = TypeVar("Predict", bound=Callable[..., Prediction])


def declare_row_independent(predict: Predict) -> Predict:
    """Declare that ``predict`` may run variants of a model as rows of a batch.

    Its author thereby states two things: for copies of a batch, one after another,
    ``predict`` repeats the forecasts of the batch, in the same order; and up to
    ``longest_pass`` steps the model's input does not depend on its forecast. A function
    that overrides or wraps it has to be declared itself; variants of a model without a
    declaration run one by one.

    Returns:
        The function itself, marked.
    """
    # the function itself is the mark: functools.wraps copies attributes, and a wrapper
    # with a copy is not declared
    predict.row_independent = predict  # type: ignore[attr-defined]
    return predict


def is_row_independent(adapter: Any) -> bool:
    """Return whether an adapter's present ``predict`` is declared row-independent.

    The declaration is :func:`declare_row_independent`.
    """
    # a bound method is a new object at each access, the function in it is not. A
    # predict that was set on the instance is a plain function.
    function = getattr(adapter.predict, "__func__", adapter.predict)
    return getattr(function, "row_independent", None) is function


def adapter_traits(adapter: Any) -> frozenset[str]:
    """Return the traits that an adapter, or its class, gives a model.

    They say what series, tokens and covariates it takes.
    """
    return reading_traits(
        adapter.readout,
        adapter.covariates,
        adapter.integers,
        takes_tokens=hasattr(adapter, "encode_tokens"),
    )


# a default with a name, since :func:`register` tells by identity whether an entry has
# a function of its own
def _no_tensors(names: frozenset[str]) -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class Architecture(KnownArchitecture):
    """One entry of ``tsfm-lens models``, which :func:`register` makes known.

    Attributes:
        title: as its authors call it.
        adapter: class of its adapters.
        classes: names of the classes of its native models and pipelines.
        published: size -> hub id.
        claims: whether a checkpoint's config.json belongs to this architecture.
        open: local folder, dtype and device -> native object, through the library's own
            loader; None where there are no checkpoints.
        blank: config.json -> the torch module without weights, whose parameters a
            checkpoint's tensors must fit; called on the meta device.
        keys: keys of config.json that the wiring understands; None where none is read.
        values: keys of config.json -> the only value that the wiring supports; a key
            may be absent.
        check: raises for any config.json, named by the second argument, that the wiring
            does not support although ``keys`` and ``values`` allow it.
        wrap: native model -> the library's own object around it.
        notes: remarks for a user before loading it, in a few words.
        save: writes a native object as its own loader reads it; ``save_pretrained`` if
            None.
        library: optional library that it needs.
        table_traits: those of ``TABLE_TRAITS`` that the wiring tables of its models
            have. They decide, before a model is open, what can be measured on it; by
            default all, so that nothing is refused too early.
        renamed: parts of tensor names in checkpoints -> their names in the library.
        computed: parts of the names of tensors that the library computes and does not
            read from a checkpoint.
        among: whether an object of one of ``classes`` belongs to this architecture,
            where several architectures share a class.
        inside: name of a checkpoint -> the folder of its library that holds the
            weights, None if the library does not ship them.
        claims_tensors: whether names of tensors belong to it, for checkpoints whose
            config.json does not tell.
    """

    adapter: Any
    classes: tuple[str, ...]
    open: Any = None
    blank: Any = None
    keys: dict[str, Any] | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[[Mapping[str, Any], str], None] = lambda config, where: None
    wrap: Callable[[Any], Any] = lambda native: native
    save: Callable[[Any, Path], None] | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    computed: tuple[str, ...] = ()
    among: Callable[[Any], bool] = lambda native: True
    claims_tensors: Callable[[frozenset[str]], bool] = _no_tensors

    @property
    def name(self) -> str:
        """Name of the architecture, its key in the registry."""
        result: str = self.adapter.architecture
        return result

    @property
    def module(self) -> str:
        """Name of the module that holds its wiring, without packages."""
        result: str = self.adapter.__module__.rpartition(".")[2]
        return result

    @property
    def readout(self) -> Readout:
        """Kind of the head's output."""
        result: Readout = self.adapter.readout
        return result

    @property
    def covariates(self) -> tuple[str, ...]:
        """Kinds of covariates that its library takes."""
        result: tuple[str, ...] = self.adapter.covariates
        return result

    @property
    def reading_traits(self) -> frozenset[str]:
        """Traits that say what series, tokens and covariates its models take."""
        return adapter_traits(self.adapter)

    def matches_object(self, native: object) -> bool:
        """Return whether an object is one of its native models or pipelines.

        Args:
            native: model or pipeline of a library.

        Returns:
            True if the class is one of ``classes`` or derived from one, and fits the
            wiring.
        """
        # by name, so that no library is imported to know its objects
        return any(
            base.__name__ in self.classes for base in type(native).__mro__
        ) and self.among(native)

    def adapt(self, native: Any) -> Any:
        """Make the adapter of a native object.

        Args:
            native: one of its native models or pipelines.

        Returns:
            An adapter, which a :class:`Lens` takes.
        """
        return self.adapter(self.wrap(native))

    def write(self, native: Any, folder: Path) -> None:
        """Write a native object as its own loader reads it.

        Args:
            native: one of its native models or pipelines.
            folder: where the files go.

        Raises:
            WiringError: the architecture does not say how to write one.
        """
        if self.save is not None:
            self.save(native, folder)
            return
        candidates: tuple[Any, ...] = (native, unwrap_module(native))
        for candidate in candidates:
            if hasattr(candidate, "save_pretrained"):
                candidate.save_pretrained(folder)
                return
        raise WiringError(
            f"{type(native).__name__} has no save_pretrained; the Architecture of"
            f" {self.name!r} has to say how a model is written: save=function of the"
            " model and a folder"
        )


_ARCHITECTURES: dict[str, Architecture] = {}


def register(entry: Architecture) -> Architecture:
    """Make an architecture known to ``load``, the commands and the conformance suite.

    A package of one's own calls it in a module that an entry point of the group
    ``tsfm_lens.wirings`` names.

    Args:
        entry: the architecture, with its adapter and classes.

    Returns:
        The entry itself.

    Raises:
        WiringError: a field is missing, which the message names, or another module has
            taken the name.

    Example:
        >>> models.register(models.architectures()["t5"]).title
        'T5 (language model)'
    """
    missing = sorted(getattr(entry.adapter, "__abstractmethods__", ()))
    if not hasattr(entry.adapter, "architecture"):
        missing.insert(0, "architecture")
    if missing:
        raise WiringError(
            f"{entry.title} cannot be registered without {missing[0]} of its adapter"
        )
    if entry.claims is not no_config or entry.claims_tensors is not _no_tensors:
        for name in ("open", "blank"):
            if getattr(entry, name) is None:
                raise WiringError(
                    f"{entry.title} claims checkpoints and cannot be registered without"
                    f" {name}"
                )
    # a module that is run again, as in a notebook, replaces its own entry
    known = _ARCHITECTURES.get(entry.name)
    if known is not None and known.adapter.__module__ != entry.adapter.__module__:
        raise WiringError(
            f"architecture {entry.name!r} is taken by {known.adapter.__module__};"
            " choose another name"
        )
    _ARCHITECTURES[entry.name] = entry
    return entry


def architectures() -> dict[str, Architecture]:
    """Return every architecture by name.

    These are the files of ``tsfm_lens.models.wirings``, and what other packages
    register.

    Example:
        >>> models.architectures()["chronos-bolt"].published["base"]
        'amazon/chronos-bolt-base'
    """
    # first, so that no other package can take the name of a wiring of this one
    _import_wirings()
    load_all(WIRINGS)
    return dict(sorted(_ARCHITECTURES.items()))


@cache
def _import_wirings() -> None:
    # imported here, because wirings import this module
    from tsfm_lens.models import wirings as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")


def architecture_by_name(name: str) -> Architecture:
    """Look up an architecture; UnknownNameError with the nearest if there is none."""
    entries = architectures()
    if name not in entries:
        raise unknown_name("architecture", name, entries)
    return entries[name]


def extras() -> dict[str, Extra]:
    """Return the optional library of each extra, by its name."""
    # several architectures may share a library
    libraries = [entry.library for entry in architectures().values()]
    return {library.name: library for library in libraries if library is not None}


def models_meeting(needs: Needs) -> str:
    """Name the models that meet a requirement.

    Where fewer models fail it, those are named instead.

    Returns:
        Titles of the models, or "every model", or "all but" the few that fail it.
    """
    if needs.models:
        return needs.models
    entries = architectures().values()
    meeting = [entry.title for entry in entries if needs.met(entry)]
    lacking = [entry.title for entry in entries if not needs.met(entry)]
    if not lacking:
        return "every model"
    if len(lacking) < len(meeting):
        return f"all but {', '.join(lacking)}"
    return ", ".join(meeting)
