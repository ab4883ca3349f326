"""Tested effects of a result, as figures mark them and sentences report them.

:func:`find_estimate` reads an effect with its range, noise floor and significance into
a :class:`EffectEstimate`, whose methods write sentences on its members, such as heads.
The tests are made in :mod:`tsfm_lens.core.estimates`; nothing is tested here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xarray as xr

from tsfm_lens.core.errors import InputError
from tsfm_lens.core.estimates import OTHER_TIMES
from tsfm_lens.core.stats import SMALLEST, mean_interval
from tsfm_lens.viz.select import array, flat_series, names
from tsfm_lens.viz.theme import number, percent
from tsfm_lens.viz.words import listed, num, verb

NOT_SIGNIFICANT = "not significant"
WORTH_A_WORD = SMALLEST
"""Smallest size that sentences mention, unless a test had another smallest size."""
_MAX_NAMES = 3  # members in a sentence
ONCE = re.compile(
    r"Not compared with untrained twins|One series says nothing|\d+ \w+ are too few for"
    r"|\d+ \w+ (is|are) left out|(Nothing is|No shapes are) compared"
)
"""Start of a sentence that many results have, and that a page shows once."""


@dataclass(frozen=True)
class EffectEstimate:
    """Tested effect over its members: unit-free sizes, ranges and significance.

    Arrays have the shape of the members, such as (layer, head).

    Attributes:
        size, low, high: median, smallest and largest over series; all three are equal
            where there is one series.
        acts: number of series (and windows) on which the effect is above its floor.
        significant: whether the effect of a member is significant.
        floor: largest noise floor of any series.
        lowest: smallest noise floor of any series.
        unit: unit of the noise floors.
        leads: whether a member is significantly larger than every other.
        lead_share: share of bootstrap samples in which a member is largest.
        learned: whether a member exceeds those of untrained twins of the model; None
            where there are no twins.
        facts: attributes of ``NAME_p``, see :func:`.estimates.add_estimates`; also
            "twins", their number, or "twins_refused", the reason why there are none.
        pales: whether figures mark members that are not significant; None where any
            significant member decides it. Parts of an effect have that of the whole.
    """

    size: np.ndarray
    low: np.ndarray
    high: np.ndarray
    acts: np.ndarray
    significant: np.ndarray
    floor: float = 0.0
    lowest: float = 0.0
    unit: str = ""
    leads: np.ndarray | None = None
    lead_share: np.ndarray | None = None
    learned: np.ndarray | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    pales: bool | None = None

    def at(self, which: Any) -> EffectEstimate:
        """Return the members at some positions, in the order given."""
        # who leads and what is learned was judged among all members, not these alone
        parts: dict[str, Any] = {
            name: getattr(self, name)[which]
            for name in ("size", "low", "high", "acts", "significant")
        }
        parts["pales"] = self._pales
        return replace(self, leads=None, lead_share=None, learned=None, **parts)

    @property
    def pale(self) -> np.ndarray:
        """Members that a figure marks as not significant.

        Where no member of the whole effect is significant, none is marked, so that a
        map still shows its sizes.
        """
        if not self._pales:
            return np.zeros_like(self.significant)
        return ~self.significant

    @property
    def _pales(self) -> bool:
        if self.pales is None:
            return bool(self.significant.any())
        return self.pales

    @property
    def spread(self) -> bool:
        """True where any member has a range over series."""
        return bool((self.high > self.low).any())

    @property
    def without_range(self) -> EffectEstimate:
        """Estimate without ranges, for marks that are not drawn at the size."""
        return replace(self, low=self.size, high=self.size)

    def with_another(self, value: float) -> EffectEstimate:
        """Add a member at the end, which has no range and is marked as significant."""
        parts: dict[str, Any] = {
            name: np.append(getattr(self, name), value)
            for name in ("size", "low", "high")
        }
        parts |= {
            name: np.append(getattr(self, name), True)
            for name in ("acts", "significant")
        }
        parts["pales"] = self._pales
        return replace(self, leads=None, lead_share=None, learned=None, **parts)

    @property
    def over(self) -> str:
        """Number of series and windows, in words."""
        units = self._number("units")
        entries = self._number("entries")
        # windows of one series are averaged, so the series are the units of the test
        if self._noun == "series" and entries > units:
            return f"{units} series × {entries / units:.3g} windows"
        return f"{units} {self._noun}"

    def _number(self, name: str) -> int:
        """Return one of the counts in ``facts``, 1 where it is missing."""
        return int(self.facts.get(name, 1))

    @property
    def _target(self) -> str:
        return str(self.facts.get("target", "others"))

    @property
    def _noun(self) -> str:
        if self._target == OTHER_TIMES:
            return "windows"
        if self._target == "others":
            return "series"
        # estimates._units writes "other NOUN drawn like these"
        return self._target.split()[1]

    def hover(self, i: int | tuple[int, ...]) -> str:
        """Describe one member for a hover box."""
        text = "significant" if self.significant[i] else NOT_SIGNIFICANT
        if not self.high[i] > self.low[i]:
            return text
        return (
            f"median {number(self.size[i])}, {number(self.low[i])} to"
            f" {number(self.high[i])} over {self.over}<br>{text}"
        )

    def named(self, count: int, among: np.ndarray | None = None) -> list[int]:
        """Return indices, into the flattened members, of those that a sentence names.

        These are the ``count`` largest of the members that are ``large``, and in the
        mask ``among`` if given, the largest first.
        """
        # a member without a value comes last
        size = np.where(np.isfinite(self.size), np.abs(self.size), -1.0).ravel()
        if among is None:
            mask = self.large
        else:
            mask = self.large & among
        # stable, so that equal sizes stay in the order of the model
        order = np.argsort(-size, kind="stable")
        return [int(flat) for flat in order if mask.flat[flat]][:count]

    @property
    def large(self) -> np.ndarray:
        """Members above their floor, of size ``least`` or more."""
        result: np.ndarray = (self.acts > 0) & (np.abs(self.size) >= self.least)
        return result

    @property
    def least(self) -> float:
        """Smallest size that sentences mention."""
        return float(self.facts.get("smallest", WORTH_A_WORD))

    def told(
        self, flat: int, write: Callable[[float], str] = num, *, over: bool = False
    ) -> str:
        """Return the size of a member, with its range where there is one.

        With ``over`` the number of series that the range spans is added.
        """
        # as texts: a range within rounding of its ends is none
        value, low, high = (
            write(float(values.flat[flat]))
            for values in (self.size, self.low, self.high)
        )
        if low == high:
            return value
        span = f"{value}, {low} to {high}"
        if over:
            return f"{span} over {self.over}"
        return span

    @property
    def basis(self) -> str:
        """Words in parentheses that explain sizes and ranges; "" without ranges."""
        if self.spread:
            return f" (median and range over {self.over})"
        return ""

    def for_others(self, flat: int = 0) -> str:
        """Return whether a member is significant, and for which other series.

        Where there are too few series for a test, the text says how many are needed.
        """
        if self.significant.flat[flat]:
            return f"significant for {self._target}"
        units = self._number("units")
        needed = self._number("needed")
        be = verb(int(units), "are", "is")
        if units < needed:
            return (
                f"{units} {self._noun} {be} too few to test this for others; {needed}"
                " are needed"
            )
        return f"not significant for {self._target}"

    def standing(
        self, labels: Sequence[str], noun: str, among: np.ndarray | None = None
    ) -> list[str]:
        """Return sentences on how many series members act, and which are significant.

        Args:
            labels: names of the flattened members.
            noun: plural of what they are, such as "heads".
            among: members that are counted; all if None.
        """
        mask = np.isfinite(self.size)
        if among is not None:
            mask = mask & among
        if not mask.any():
            return self.describe_flat
        members = f"{mask.sum()} {noun}"
        return [
            *self.describe_flat,
            self._acting(mask, members),
            self._holding(mask, labels),
            self._learning(mask, members, labels),
        ]

    @property
    def describe_flat(self) -> list[str]:
        """Sentence on the flat series that were left out of the test, if any."""
        flat = int(self.facts.get("flat", 0))
        entries = self._number("entries")
        if not flat:
            return []
        if entries > self._number("units"):
            noun = "windows"
        else:
            noun = self._noun
        what, nothing = "context", "Nothing is compared"
        # a distance of shapes is not defined for a flat forecast, other effects are
        if self.facts.get("flat_forecasts", 0):
            what, nothing = "context or forecast", "No shapes are compared"
        # all series are flat, and "left out" would be of nothing
        if not entries:
            return [
                f"{nothing}: {flat} {noun} {verb(flat, 'have', 'has')} a flat {what},"
                " and there is no other."
            ]
        subject = f"{flat} {noun} {verb(flat, 'are', 'is')}"
        return [f"{subject} left out, with a flat {what}."]

    def lead(self, flat: int) -> str:
        """Return in how many bootstrap samples of series a member is largest.

        The text also says whether it is significantly larger than the rest. It is ""
        for one series.
        """
        if self.lead_share is None or self._number("units") < 2:
            return ""
        sure = "not significantly"
        if self.leads is not None and self.leads.flat[flat]:
            sure = "significantly"
        share = f"{100 * self.lead_share.flat[flat]:.0f} %"
        return (
            f"largest in {share} of bootstrap samples of {self._noun}, {sure} larger"
            " than the rest"
        )

    def _acting(self, mask: np.ndarray, members: str) -> str:
        """Say how many members act on all series, and how many have a large size."""
        entries = self._number("entries")
        # acts counts windows too, and so does entries
        always = int(((self.acts == entries) & mask).sum())
        text = f"{always or 'None'} of {members} {verb(always, 'act')} above rounding"
        if entries > 1:
            text = f"{text} on all {self.over}"
        # with another smallest size, sizes are no shares and have no percentage
        if self.least == SMALLEST:
            large = int((self.large & mask).sum()) or "none"
            text = f"{text}; {large} of {mask.sum()} by {percent(SMALLEST)} or more"
        return f"{text}."

    def _holding(self, mask: np.ndarray, labels: Sequence[str]) -> str:
        """Say which members are significant, or why none can be."""
        units = self._number("units")
        needed = self._number("needed")
        family = self._number("family")
        target = self._target
        # a sign test of one unit has a p-value of 1/2 at best
        if units < 2:
            return (
                "One series says nothing about others; use more series, or windows=… of"
                " this one."
            )
        test = f"sign tests over {self.over}, {family} tests together"
        count = int((self.significant & mask).sum())
        # so few units have too large a p-value even if all have effects of one sign
        if not count and units < needed:
            return (
                f"{units} {self._noun} are too few for {family} tests on {target};"
                f" {needed} are needed."
            )
        if not count:
            return f"None is significant for {target} ({test})."
        largest = [labels[i] for i in self.named(_MAX_NAMES, mask & self.significant)]
        start = f"Significant for {target}: {count} of {mask.sum()}"
        if largest:
            separator = ", most" if count > len(largest) else ":"
            start = f"{start}{separator} {listed(largest)}"
        return f"{start} ({test})."

    def _learning(self, mask: np.ndarray, members: str, labels: Sequence[str]) -> str:
        """Say which members are learned, or why there are no twins to compare with."""
        if self.learned is None:
            refusal = self.facts.get("twins_refused", "")
            reason = f", since {refusal}" if refusal else ""
            return (
                f"Not compared with untrained twins{reason}; --twins 24 (in Python"
                " twins=24) compares."
            )
        learned = self.learned & mask
        test = (
            "a size beyond the largest score of any group in "
            f"{int(self.facts.get('twins', 0))} untrained twins"
        )
        if not learned.any():
            return f"None of {members} passes the test of learning: {test}."
        largest = [labels[i] for i in self.named(_MAX_NAMES, learned)]
        # learned members may all be too small to be named
        text = listed(largest) if largest else learned.sum()
        return f"Learned, by {test}: {text}."


def describe_flat(ds: xr.Dataset, series: int, members: str) -> list[str]:
    """Say why members of a flat series are not compared; [] for any other series."""
    if not flat_series(ds)[series]:
        return []
    return [
        f"The context of {names(ds, 'series')[series]} is flat, so its {members} are"
        " not compared."
    ]


def mean_of_seeds(values: np.ndarray) -> EffectEstimate:
    """Average (seed,) values, with a 95 % t interval from three values on."""
    # a finding of one member, (1,), that is not tested and so not marked as pale
    mean, low, high = (item[None] for item in mean_interval(values))
    return EffectEstimate(mean, low, high, np.array([1]), np.array([True]))


def find_estimate(
    ds: xr.Dataset, name: str, *dims: str, unit: str = "", **at: int
) -> EffectEstimate | None:
    """Return a tested effect over ``dims``; None where the result has no test of it.

    ``at`` selects a position along each other dimension.
    """
    variables = [
        f"{name}_{part}" for part in ("size", "low", "high", "acts", "significant")
    ]
    # a test over other dimensions, such as all positions together, is another test
    if any(
        variable not in ds or set(ds[variable].dims) - set(at) != set(dims)
        for variable in variables
    ):
        return None
    size, low, high, above_floor, significant = (
        array(ds, variable, *dims, **at) for variable in variables
    )
    optional: dict[str, Any] = {
        part: array(ds, f"{name}_{part}", *dims, **at)
        for part in ("leads", "lead_share", "learned")
        if f"{name}_{part}" in ds
    }
    # array() returns floats, also of marks
    for mark in optional.keys() & {"leads", "learned"}:
        optional[mark] = optional[mark] > 0
    floors = np.zeros(0)
    if f"{name}_floor" in ds:
        # a floor may be of series alone, whatever dimensions the effect has
        selected = ds[f"{name}_floor"].isel(at, missing_dims="ignore")
        floors = np.asarray(selected.values, dtype=float).ravel()
        floors = floors[np.isfinite(floors)]
    if f"{name}_p" in ds:
        metadata = dict(ds[f"{name}_p"].attrs)
    else:
        metadata = {}
    if "twins_refused" in ds.attrs:
        metadata["twins_refused"] = ds.attrs["twins_refused"]
    if f"{name}_learned" in ds:
        metadata["twins"] = ds[f"{name}_learned"].attrs.get("twins", 0)
    return EffectEstimate(
        size,
        low,
        high,
        above_floor,
        significant > 0,
        floor=float(floors.max()) if len(floors) else 0.0,
        lowest=float(floors.min()) if len(floors) else 0.0,
        unit=unit,
        facts=metadata,
        **optional,
    )


def read_estimate(ds: xr.Dataset, name: str, *dims: str, **at: Any) -> EffectEstimate:
    """Read a tested effect; refuse a result that lacks it."""
    effect = find_estimate(ds, name, *dims, **at)
    if effect is None:
        raise InputError(
            f"the {ds.attrs.get('kind')!r} result has no test of {name} over series;"
            " compute it again, or add one with tsfm_lens.core.estimates.add_estimates"
        )
    return effect
