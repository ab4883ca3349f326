"""Sentences of a result, as templates whose fields are filled from its variables.

A variable has a value for each of its members, such as heads. The field
``{share:largest percent}`` lists the members with the largest ``share``, in percent;
``{rank:lowest}`` names the one with the lowest ``rank``. :func:`summary` declares such
templates beside a figure, :func:`summarize` fills them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from string import Formatter
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.core.axes import EMBEDDING, layer_name
from tsfm_lens.viz.findings import EffectEstimate, find_estimate, read_estimate
from tsfm_lens.viz.select import find_unit, kind_word, shown, varying
from tsfm_lens.viz.theme import nats, percent
from tsfm_lens.viz.words import after_number, listed, measured, num, signed

_MAX_NAMES = 3  # members in a list
_MAX_COUNTED = 6  # members that are named after their count; more are only counted
_WRITERS: dict[str, Callable[[float], str]] = {
    "": num,
    "percent": percent,
    "signed": signed,
    "nats": lambda value: nats(value, 3),
    "whole": lambda value: f"{int(value):,}",
}
# statements that are one number of all members
_COMBINED = ("median", "mean", "max", "min", "sum")

Labels = Callable[[xr.Dataset], list[str]]
Write = Callable[[float], str]


def summary(*sentences: str, **options: Any) -> Callable[[xr.Dataset], list[str]]:
    """Declare the sentences of a figure; arguments as in :func:`summarize`."""
    return lambda result: summarize(result, *sentences, **options)


def summarize(
    result: xr.Dataset,
    *sentences: str,
    effect: str = "",
    noun: str = "members",
    labels: Labels | None = None,
    side: int = 0,
    **fields: Any,
) -> list[str]:
    """Return filled sentences, then a report of a tested effect.

    The report says on how many series the members act, and which are significant and
    learned, that is, larger than in untrained models.

    A sentence with a field that the result lacks, or that has no finite value, is left
    out.

    Args:
        result: labelled result.
        sentences: templates. A field is one of ``fields``, a variable or an attribute.
            It is written {NAME:STATEMENT UNIT}, with a statement of :class:`Members`,
            or {NAME:UNIT} if it is a single number. A unit is "percent", "signed",
            "nats", "whole", "unit" for that of the data ("signed unit" with a sign), or
            any other.
        effect: tested variable, see :func:`.estimates.add_estimates`.
        noun: plural noun of the members, such as "heads".
        labels: function that names the members; by their coordinates if None.
        side: 1 or -1 to leave out members of the opposite sign; 0 for all members.
        fields: numbers, texts, arrays, or functions of the result that return these.

    Raises:
        InputError: the result has no test of ``effect``.
    """
    reader = _Reader(result, fields, noun, labels, side)
    out = []
    for sentence in sentences:
        used = {name for _, name, _, _ in Formatter().parse(sentence) if name}
        values = {name: reader.field(name) for name in used}
        if all(value is not None for value in values.values()):
            out.append(sentence.format_map(values))
    if effect:
        members = reader.read_estimate(effect)
        report = members.effect.standing(members.labels, noun, members.mask)
        out += report
    return out


@dataclass(frozen=True)
class Members:
    """Members of a variable, such as heads, as a template reports them.

    A field of the template is ``{NAME:STATEMENT UNIT}``.

    A statement is the name of a public method, or median, mean, max, min or sum.
    """

    effect: EffectEstimate
    labels: list[str]
    noun: str
    side: int
    unit: str

    @property
    def mask(self) -> np.ndarray:
        """Members that have a value, without those of the sign opposite to ``side``."""
        sizes = self.effect.size
        result: np.ndarray = np.isfinite(sizes) & (sizes * self.side >= 0)
        return result

    def __format__(self, spec: str) -> str:
        sizes = self.effect.size
        # a single number is written with its range, and with the number of series
        if not sizes.ndim:
            return self.effect.told(0, self._writer(spec), over=True)
        statement, _, unit = spec.partition(" ")
        write = self._writer(unit)
        if statement in _COMBINED:
            return write(float(getattr(np, f"nan{statement}")(sizes)))
        text: str = getattr(self, statement)(write)
        return text

    def largest(self, write: Write) -> str:
        """List the members with the largest effects, with ranges over series."""
        different = self.mask & (self.effect.size != 0)
        positions = self.effect.named(_MAX_NAMES, different)
        if positions:
            return self._listed(positions, write)
        threshold = self.effect.least
        if threshold:
            # a writer of signed values puts a plus, which a threshold has not
            return f"none of {write(threshold).lstrip('+')} or more"
        return "none"

    def each(self, write: Write) -> str:
        """List all members."""
        return self._listed(np.flatnonzero(self.mask), write)

    def highest(self, write: Write) -> str:
        """Name the highest member, and all that are written as the same number."""
        return self._alike(np.nanmax(self.effect.size), write)

    def lowest(self, write: Write) -> str:
        """Name the lowest member, and all that are written as the same number."""
        return self._alike(np.nanmin(self.effect.size), write)

    def ends(self, write: Write) -> str:
        """Write the first and the last member."""
        sizes = self.effect.size.ravel()
        positions = dict.fromkeys((0, len(sizes) - 1))
        return " to ".join(f"{write(sizes[i])} at {self.labels[i]}" for i in positions)

    def count(self, write: Write) -> str:
        """Count the members above 0."""
        return f"{int((self.effect.size > 0).sum()) or 'none'} of {self.mask.sum()}"

    def which(self, write: Write) -> str:
        """Count the members above 0, and name a few."""
        named = [self.labels[i] for i in np.flatnonzero(self.effect.size > 0)]
        count = self.count(write)
        if 0 < len(named) <= _MAX_COUNTED:
            return f"{count} ({listed(named)})"
        return count

    def significant(self, write: Write) -> str:
        """Count the members that are significant."""
        count = int((self.effect.significant & self.mask).sum())
        return f"{count or 'none'} of {self.mask.sum()}"

    def basis(self, write: Write) -> str:
        """Explain sizes and ranges in parentheses; "" where there are no ranges."""
        return self.effect.basis

    def _listed(self, positions: Sequence[int] | np.ndarray, write: Write) -> str:
        write_size = self.effect.told
        return listed([f"{self.labels[i]} ({write_size(i, write)})" for i in positions])

    def _alike(self, value: float, write: Write) -> str:
        written = [write(float(size)) for size in self.effect.size.flat]
        equal = [i for i, text in enumerate(written) if text == write(float(value))]
        texts = [self.labels[i] for i in equal]
        if len(texts) > _MAX_NAMES:
            texts = [f"{len(texts)} equal {self.noun}"]
        return f"{listed(texts)} ({write(float(value))})"

    def _writer(self, unit: str) -> Write:
        if unit in _WRITERS:
            return _WRITERS[unit]
        word = unit.removeprefix("signed").strip().replace("unit", self.unit)
        if not unit.startswith("signed"):
            return measured(word)
        return lambda value: f"{signed(value)} {after_number(word)}".rstrip()


@dataclass(frozen=True)
class _Reader:
    """Reader of the fields of templates.

    A field is what is given, else a variable, else an attribute of the result.
    """

    ds: xr.Dataset
    given: Mapping[str, Any]
    noun: str
    labels: Labels | None
    side: int

    def field(self, name: str) -> Any:
        """Return a text, or members with a finite value; None if there are neither."""
        value = self.given.get(name, self.ds.get(name, self.ds.attrs.get(name)))
        if callable(value):
            value = value(self.ds)
        if value is None or isinstance(value, str):
            return value
        if not isinstance(value, xr.DataArray):
            value = xr.DataArray(value)
        if value.dtype.kind in "OUT":
            return shown([str(item) for item in np.atleast_1d(value.values)])
        # what the caller gives is not the tested variable of the same name
        if name not in self.given:
            dims = map(str, self._size(name).dims)
            if find_estimate(self.ds, name, *dims) is not None:
                return self._finite(self.read_estimate(name))
        value = _over_series(value, self.ds)
        sizes = np.asarray(value.values, dtype=float)
        # without a test there is no range, nothing is significant, and every size is
        # worth a mention
        untested = EffectEstimate(
            size=sizes,
            low=sizes,
            high=sizes,
            acts=np.isfinite(sizes),
            significant=np.zeros_like(sizes, dtype=bool),
            facts={"smallest": 0.0},
        )
        return self._finite(self._members(untested, value))

    def read_estimate(self, name: str) -> Members:
        """Return the members of a tested effect."""
        size = self._size(name)
        return self._members(read_estimate(self.ds, name, *map(str, size.dims)), size)

    def _size(self, name: str) -> xr.DataArray:
        """Return the sizes of a tested effect, or one NaN if it has no test."""
        return self.ds.get(f"{name}_size", xr.DataArray())

    @staticmethod
    def _finite(members: Members) -> Members | None:
        if members.mask.any():
            return members
        return None

    def _members(self, effect: EffectEstimate, value: xr.DataArray) -> Members:
        if self.labels:
            labels = self.labels(self.ds)
        else:
            labels = _labels(value)
        # series may have units of their own, of which only a single one can be written
        is_single = self.ds.sizes.get("series", 1) == 1
        unit = find_unit(self.ds, 0 if is_single else None)
        return Members(effect, labels, self.noun, self.side, unit)


def labelled(ds: xr.Dataset, values: Any, *dims: str) -> xr.DataArray:
    """Return values with the labels that a result has along their dimensions."""
    return xr.DataArray(values, {dim: ds[dim].values for dim in dims}, dims)


def _over_series(value: xr.DataArray, ds: xr.Dataset) -> xr.DataArray:
    """Return the median over series and over steps, without flat series.

    A value without other dimensions keeps the first of these two.
    """
    repeated = [dim for dim in value.dims if dim in ("series", "step")]
    if len(repeated) == value.ndim:
        repeated = repeated[1:]
    if "series" in repeated and "series" in ds.dims:
        value = value.isel(series=varying(ds))
    if repeated:
        return value.astype(float).median(repeated)
    return value


def _labels(value: xr.DataArray) -> list[str]:
    """Name the members of an array, by its coordinates."""
    between = " → "
    if "head" in value.dims:
        between = ", "
    texts = [
        [_word(str(label), str(dim)) for label in value[dim].values]
        for dim in value.dims
    ]
    return [between.join(item) for item in product(*texts)]


def _word(name: str, dim: str) -> str:
    if dim in ("layer", "stream"):
        if name == str(EMBEDDING):
            return "the embedding"
        return layer_name(name)
    if dim == "kind":
        return kind_word(name)
    if dim in ("head", "step"):
        return f"{dim} {name}"
    return name
