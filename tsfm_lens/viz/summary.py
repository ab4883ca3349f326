"""Sentences of a result: templates whose fields name a variable and what is told of it.

``{share:largest percent}`` lists the members with the largest effects, ``{rank:lowest}`` the member that is lowest.
:func:`summary` declares such templates beside a figure, :func:`summarize` fills them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.viz.findings import Finding, finding, judged
from tsfm_lens.viz.select import kind_word, layer_name, names, shown, unit_of, varying
from tsfm_lens.viz.theme import percent
from tsfm_lens.viz.words import (
    after_number,
    listed,
    measured,
    nats_of,
    num,
    signed,
)

_MAX_NAMES = 3  # members in a list
_MOST_COUNTED = 6  # members that are counted and named
_REPEATS = {"series", "step"}  # a member has the median over these
_WRITERS: dict[str, Callable[[float], str]] = {
    "": num,
    "percent": percent,
    "signed": signed,
    "nats": nats_of,
    "whole": lambda value: f"{int(value):,}",
}

Labels = Callable[[xr.Dataset], list[str]]
Write = Callable[[float], str]


def summary(*sentences: str, **facts: Any) -> Callable[[xr.Dataset], list[str]]:
    """Declare the sentences of a figure; arguments as in :func:`summarize`."""
    return lambda result: summarize(result, *sentences, **facts)


def summarize(
    result: xr.Dataset,
    *sentences: str,
    effect: str = "",
    noun: str = "members",
    labels: Labels | None = None,
    side: int = 0,
    **fields: Any,
) -> list[str]:
    """Fill sentences, then say of a judged effect on how many series it acts, where it is significant and learned.

    A sentence with a field that the result lacks, or that has no finite value, is left out.

    Args:
        result: labelled result.
        sentences: templates. A field is one of ``fields``, a variable or an attribute. Behind its colon
            stand a statement of :class:`Members` and a unit; of a number, the unit alone. A unit is "percent",
            "signed", "nats", "whole", "unit" for that of the data (with "signed unit" for its sign), or any other.
        effect: judged variable, see :func:`tsfm_lens.findings.judge`.
        noun: for several members, such as "heads".
        labels: function that names the members; by their coordinates if None.
        side: sign of the members that are named and counted; 0 for both.
        fields: numbers, texts, arrays, or functions of the result that return these.

    Raises:
        InputError: the result has no test of ``effect``.
    """
    values = _Fields(result, fields, noun, labels, side)
    out = []
    for template in sentences:
        try:
            text = template.format_map(values)
        except _NothingToTell:
            continue
        out.append(text)
    if effect:
        dims = result.get(f"{effect}_size", xr.DataArray()).dims
        members = values.of_finding(judged(result, effect, *dims), effect)
        out += members.effect.standing(members.labels, noun, members.mask)
    return out


class _NothingToTell(Exception):
    """The result lacks a field, or it has no finite value."""


@dataclass(frozen=True)
class Members:
    """Members of a variable, such as heads, as a template tells them: ``{NAME:STATEMENT UNIT}``.

    A statement is one of: largest (the three with the largest effects, with ranges), each, highest, lowest (all that
    cannot be told apart), ends (the first and the last), count (of those above 0), which (the same, with names),
    significant (their count), basis (what ranges are over), or median, mean, max, min and sum of all.
    """

    effect: Finding
    labels: list[str]
    noun: str
    side: int
    write: Callable[[str], Write]

    @property
    def mask(self) -> np.ndarray:
        """Members with a value on the side that is spoken of."""
        finite = np.isfinite(self.effect.size)
        return finite & (self.effect.size * self.side >= 0)

    def __format__(self, spec: str) -> str:
        statement, _, unit = spec.partition(" ")
        if not self.mask.any():
            raise _NothingToTell
        if not self.effect.size.ndim:
            return self.effect.told(0, self.write(spec), over=True)
        if statement in ("median", "mean", "max", "min", "sum"):
            combine = getattr(np, f"nan{statement}")
            return self.write(unit)(float(combine(self.effect.size)))
        text: str = getattr(self, f"_{statement}")(self.write(unit))
        return text

    def _largest(self, write: Write) -> str:
        different = self.mask & (self.effect.size != 0)
        places = self.effect.named(_MAX_NAMES, different)
        if not places and not self.effect.least:
            return "none"
        if not places:
            return f"none of {write(self.effect.least).lstrip('+')} or more"
        return listed(
            [f"{self.labels[i]} ({self.effect.told(i, write)})" for i in places]
        )

    def _each(self, write: Write) -> str:
        places = np.flatnonzero(self.mask)
        return listed(
            [f"{self.labels[i]} ({self.effect.told(i, write)})" for i in places]
        )

    def _highest(self, write: Write) -> str:
        return self._alike(write, float(np.nanmax(self.effect.size)))

    def _lowest(self, write: Write) -> str:
        return self._alike(write, float(np.nanmin(self.effect.size)))

    def _alike(self, write: Write, value: float) -> str:
        """Name all members that are written as a value is."""
        alike = [
            label
            for label, own in zip(self.labels, self.effect.size.flat, strict=True)
            if write(float(own)) == write(value)
        ]
        if len(alike) > _MAX_NAMES:
            alike = [f"{len(alike)} equal {self.noun}"]
        return f"{listed(alike)} ({write(value)})"

    def _ends(self, write: Write) -> str:
        places = dict.fromkeys((0, self.effect.size.size - 1))
        sizes = self.effect.size.flat
        return " to ".join(f"{write(sizes[i])} at {self.labels[i]}" for i in places)

    def _count(self, write: Write) -> str:
        count, whole = int((self.effect.size > 0).sum()), int(self.mask.sum())
        return f"{count or 'none'} of {whole}"

    def _which(self, write: Write) -> str:
        places = np.flatnonzero(self.effect.size > 0)
        if not 0 < len(places) <= _MOST_COUNTED:
            return self._count(write)
        return f"{self._count(write)} ({listed([self.labels[i] for i in places])})"

    def _significant(self, write: Write) -> str:
        count, whole = (
            int(each.sum()) for each in (self.effect.significant & self.mask, self.mask)
        )
        return f"{count or 'none'} of {whole}"

    def _basis(self, write: Write) -> str:
        return self.effect.basis


class _Fields(dict[str, Any]):
    """Fields of templates: what is given, variables and attributes of a result."""

    def __init__(
        self,
        ds: xr.Dataset,
        given: Mapping[str, Any],
        noun: str,
        labels: Labels | None,
        side: int,
    ) -> None:
        super().__init__()
        self.ds, self.given = ds, given
        self.noun, self.labels, self.side = noun, labels, side

    def __missing__(self, name: str) -> Any:
        value = self.given.get(name, self.ds.get(name, self.ds.attrs.get(name)))
        if callable(value):
            value = value(self.ds)
        if value is None:
            raise _NothingToTell
        if isinstance(value, str):
            return value
        value = value if isinstance(value, xr.DataArray) else xr.DataArray(value)
        if value.dtype.kind in "OUT":
            return shown([str(each) for each in np.atleast_1d(value.values)])
        dims = self.ds.get(f"{name}_size", xr.DataArray()).dims
        effect = None if name in self.given else finding(self.ds, name, *dims)
        if effect is not None:
            return self.of_finding(effect, name)
        values = _by_member(value, self.ds)
        sizes = np.asarray(values.values, dtype=float)
        acts = np.isfinite(sizes).astype(int)
        told = Finding(sizes, sizes, sizes, acts, acts < 0, facts={"smallest": 0.0})
        return self._members(told, values)

    def of_finding(self, effect: Finding, name: str) -> Members:
        """Return the members of a judged effect."""
        return self._members(effect, self.ds[f"{name}_size"])

    def _members(self, effect: Finding, values: xr.DataArray) -> Members:
        if self.labels is not None:
            labels = self.labels(self.ds)
        else:
            words = [_words(values, str(dim)) for dim in values.dims]
            between = ", " if "head" in values.dims else " → "
            labels = [between.join(each) for each in product(*words)]
        return Members(effect, labels, self.noun, self.side, self._writer)

    def _writer(self, unit: str) -> Write:
        if unit in _WRITERS:
            return _WRITERS[unit]
        word = unit.removeprefix("signed").strip()
        if word == "unit":
            word = unit_of(self.ds, 0)
        if not unit.startswith("signed"):
            return measured(word)
        return lambda value: f"{signed(value)} {after_number(word)}".rstrip()


def labelled(ds: xr.Dataset, values: Any, *dims: str) -> xr.DataArray:
    """Return values with the labels that a result has along their dimensions."""
    return xr.DataArray(values, {dim: ds[dim].values for dim in dims}, dims)


def _by_member(value: xr.DataArray, ds: xr.Dataset) -> xr.DataArray:
    """Take the median over series and steps, without flat series; of an array of nothing else, over steps."""
    kept = [dim for dim in value.dims if dim not in _REPEATS] or list(value.dims[:1])
    if "series" in value.dims and "series" not in kept and "series" in ds.dims:
        value = value.isel(series=varying(ds))
    repeated = [dim for dim in value.dims if dim not in kept]
    return value.astype(float).median(repeated) if repeated else value


def _words(values: xr.DataArray, dim: str) -> list[str]:
    """Name the members along a dimension."""
    if dim == "kind":
        return [kind_word(name) for name in names(values, dim)]
    if dim == "step":
        return [f"step {name}" for name in names(values, dim)]
    if dim == "head":
        return [f"head {name}" for name in names(values, dim)]
    if dim not in ("layer", "stream"):
        return names(values, dim)
    words = [layer_name(label) for label in names(values, dim)]
    return ["the embedding" if word == "embedding" else word for word in words]
