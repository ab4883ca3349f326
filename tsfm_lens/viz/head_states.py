"""Heads one at a time: what each reads, and what it does to the forecast.

:func:`describe_attention` returns the :class:`Reading` of one head; :func:`heads_table`
and :func:`read_explore` are over all heads of a result. The page that links them is in
:mod:`tsfm_lens.viz.linked`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.core.axes import layer_name
from tsfm_lens.core.registry import FigurePanel, panels
from tsfm_lens.viz.attention import attention_kind
from tsfm_lens.viz.findings import describe_flat
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.panels import Timeline, timeline
from tsfm_lens.viz.select import (
    array,
    find_unit,
    kind_word,
    names,
)
from tsfm_lens.viz.summary import summarize

_SCORES = (
    *(
        "mean_shift",
        "spearman_distance",
        "write_size",
        "write_share",
        "entropy",
        "normalised_entropy",
    ),
    *("lag", "lag_share", "place_share", "attention_forecast", "attention_other"),
)
UNREAD = 1e-4
"""Share of attention below which nothing is read."""
MOSTLY = 0.5
"""Share of attention from which it is most of it."""
EVEN = 2.0
"""Largest share of even attention, in shares of the same weight on every token."""

_HOUR = np.timedelta64(1, "h")
_DAY = np.timedelta64(1, "D")


@dataclass(frozen=True)
class Cycle:
    """A day, week or year in steps of a series.

    Attributes:
        phase: what a step is of it, such as "hour".
        period: "day", "week" or "year".
        length: its steps.
    """

    phase: str
    period: str
    length: int

    def words(self, lag: int, width: int = 1) -> str:
        """Say where so many steps back is.

        Args:
            lag: steps back.
            width: of a token, in steps.

        Returns:
            Words of the calendar, "" for another phase.
        """
        count, remainder = divmod(lag, self.length)
        if remainder or count < 1 or width >= self.length:
            return ""
        period = self.period
        if period == "day" and count % 7 == 0:
            period = "week"
            count //= 7
        same = self.same(width)
        if count == 1:
            return f"{same} of the {period} before"
        return f"{same} {count} {period}s before"

    def same(self, width: int) -> str:
        """Name what a token of so many steps is of the cycle."""
        if width == 1:
            return f"the same {self.phase}"
        return f"the same {width} {self.phase}s"

    def earlier(self, width: int) -> str:
        """Name all tokens of the past at the phase of the step that is forecast."""
        return f"{self.same(width)} of earlier {self.period}s"

    def every(self, times: np.ndarray) -> str:
        """Name the steps at the phases of a stretch, by its first and last date."""
        dates = pd.DatetimeIndex(times)
        if self.phase == "quarter":
            words = [f"quarter {quarter}" for quarter in dates.quarter]
        else:
            formats = {"month": "%B", "weekday": "%A"}
            words = list(dates.strftime(formats.get(self.phase, "%H:%M")))
        return f"{' to '.join(dict.fromkeys(words))} of every {self.period}"


def find_cycle(time: Timeline) -> Cycle | None:
    """Find the cycle of the calendar that steps of a series divide, by their dates."""
    if time.stamps is None:
        return None
    spaces = np.diff(time.stamps)
    shortest = spaces.min()
    longest = spaces.max()
    if shortest >= 28 * _DAY and longest <= 31 * _DAY:
        return Cycle("month", "year", 12)
    if shortest >= 90 * _DAY and longest <= 92 * _DAY:
        return Cycle("quarter", "year", 4)
    if shortest != longest:
        return None
    if shortest == _DAY:
        return Cycle("weekday", "week", 7)
    if shortest < _DAY and _DAY % shortest == np.timedelta64(0):
        phase = "hour" if shortest >= _HOUR else "time"
        return Cycle(phase, "day", int(_DAY // shortest))
    return None


def write_times(times: np.ndarray) -> list[str]:
    """Write dates to the minute, or as days if all are midnights; steps as they are."""
    texts = [str(time)[:16].replace("T", " ") for time in times]
    if all(text.endswith(" 00:00") for text in texts):
        return [text.removesuffix(" 00:00") for text in texts]
    return texts


def write_stretch(times: list[str]) -> str:
    """Write the dates of a stretch, of which one day is named once."""
    first, last = times[0], times[-1]
    if first == last:
        return first
    day, _, minute = last.partition(" ")
    if minute and first.startswith(day):
        last = minute
    return f"{first} to {last}"


@dataclass(frozen=True)
class Reading:
    """Where a head attends most, as the mean over the forecast's steps shows it.

    Attributes:
        form: "lag" where it moves with the step, "place" where it is one token for all
            steps, "even" where no token stands out, "rest" where most is on other
            tokens than those of the past, "nothing" where all is.
        back: steps from the step that is forecast back to the token, or of a place from
            the forecast's start.
        start, stop: steps of a place, counted from the forecast's start.
        share: of the attention that is there.
        rest: share on other tokens than those of the past.
        others: what those tokens are.
        place: where it is, in dates or in words of the calendar; "" if there are none.
        earlier: what lies whole cycles, such as days, from there.
        cycle_share: of the attention, at all such steps.
        even_share: what would be there if every token had the same.
    """

    form: str
    back: int
    start: int
    stop: int
    share: float
    rest: float
    others: str
    place: str = ""
    earlier: str = ""
    cycle_share: float = 0.0
    even_share: float = 0.0

    @property
    def words(self) -> str:
        """Say where, in a few words."""
        if self.form == "even":
            return "evenly"
        if self.form in ("rest", "nothing"):
            return self.others
        if self.recurs:
            return self.earlier
        if self.place:
            return self.place
        steps = f"{self.back} step{'' if self.back == 1 else 's'}"
        if self.form == "lag":
            return f"{steps} back"
        return f"{steps} before the forecast"

    @property
    def most(self) -> float:
        """Share of the attention that the words speak of."""
        if self.form in ("rest", "nothing"):
            return self.rest
        if self.recurs:
            return self.cycle_share
        return self.share

    @property
    def reads(self) -> bool:
        """True where it names a part of the series."""
        return self.form in ("lag", "place")

    @property
    def recurs(self) -> bool:
        """True where one token has less than half of what all its like have.

        These have clearly more than they would have of even attention.
        """
        is_above = self.cycle_share >= EVEN * self.even_share
        return is_above and 2 * self.share < self.cycle_share

    def as_plain(self) -> dict[str, Any]:
        """Return it for a page."""
        return asdict(self) | {"recurs": self.recurs}


def describe_attention(ds: xr.Dataset, series: int, layer: int, head: int) -> Reading:
    """Return a reading of one head's attention; all arguments are positions.

    The reading is along the lag or at the place, whichever has more of the attention.
    """
    one = ds.isel(series=series, layer=layer, head=head)
    ahead = float(one["attention_forecast"])
    other = float(one["attention_other"])
    rest = ahead + other
    by_lag = float(one["lag_share"])
    at_place = float(one["place_share"])
    share = max(by_lag, at_place)
    if share > 0:
        key = one.sel(key=int(one["place"]))
    else:
        # without a token of the past, place is no label
        key = one.isel(key=slice(0)).assign(key_start=0, key_stop=0)
    start = int(key["key_start"])
    stop = int(key["key_stop"])
    # All queries of a place look at it from different distances. One query alone has
    # one distance, and both shares are equal, so the place is named.
    form = "lag"
    if at_place >= by_lag:
        form = "place"
    if form == "place":
        back = -start
    else:
        back = int(one["lag"])
    # padding of shorter series has tokens without a step, of which none is counted
    tokens = int((one["key_stop"] > one["key_start"]).sum())
    if share * tokens < EVEN:
        form = "even"
    # later forms take precedence: what is elsewhere, and then that nothing is read
    if rest > MOSTLY:
        form = "rest"
    if share < UNREAD:
        form = "nothing"
    special = str(ds.attrs.get("special", ""))
    other_tokens = "other tokens"
    if special and ahead < UNREAD:
        other_tokens = special
    elif ahead > 0 and other < UNREAD:
        other_tokens = "tokens of the forecast"
    time = timeline(ds, series)
    found = Reading(form, back, start, stop, share, rest, other_tokens)
    if time.stamps is None or not found.reads:
        return found
    cycle = find_cycle(time)
    earlier = ""
    if form == "place":
        # a first token may begin before the series does
        first = max(start, int(time.steps[0]))
        dates = time.at(np.array([first, stop - 1]))
        place = write_stretch(write_times(dates))
        origins = np.full(ds.sizes["query"], start)
        if cycle and stop - start < cycle.length:
            earlier = cycle.every(dates)
    else:
        # the last token of a series may be cut short
        width = int((one["key_stop"] - one["key_start"]).max())
        place = cycle.words(back, width) if cycle else ""
        origins = ds["query_start"].values
        if cycle and place:
            earlier = cycle.earlier(width)
    found = replace(found, place=place)
    if not cycle or not earlier:
        return found
    cycle_share, even_share = _share_of_cycle(
        ds.isel(series=series, layer=layer, head=head), origins, cycle.length
    )
    return replace(
        found, earlier=earlier, cycle_share=cycle_share, even_share=even_share
    )


def _share_of_cycle(
    one: xr.Dataset, origins: np.ndarray, length: int
) -> tuple[float, float]:
    """Return attention at whole cycles from origins (query,), mean over steps.

    The second number is the sum if the same attention were on every token.
    """
    weights = array(one, "attention", "query", "key")
    starts = array(one, "key_start", "key")
    is_covered = array(one, "key_stop", "key") > starts
    distances = origins[:, None] - starts[is_covered]
    in_phase = distances % length == 0
    rows = one["step_query"].values
    at_phase = (weights[:, is_covered] * in_phase).sum(axis=-1)
    return float(at_phase[rows].mean()), float(in_phase.mean(axis=-1)[rows].mean())


def effects_of_heads(ds: xr.Dataset, name: str) -> xr.DataArray:
    """Return an effect of components for the heads whose attention is shown.

    Its dimensions are (layer, head, …).
    """
    # Heads are selected by name. Without names ds["component"] would be numbers, while
    # coords raises.
    labels = ds.coords["component"]
    effects = ds[name].assign_coords(component=labels)
    return effects.sel(component=ds["name"]).drop_vars("component", errors="ignore")


def heads_table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulate the scores, a row per series and head."""
    shared = {
        key: effects_of_heads(ds, key)
        for key in ("mean_shift", "spearman_distance")
        if key in ds
    }
    columns = ["name", *(key for key in _SCORES if key in ds)]
    ranks = {
        f"stable_rank_{item}": ds["stable_rank"].sel(product=item, drop=True)
        for item in names(ds, "product")
    }
    scores = ds[["lag", *(key for key in columns[1:] if key not in shared)]].assign(
        shared | ranks
    )
    coordinates = ["series", "layer", "head", "name"]
    scores = scores.drop_vars(
        [name for name in scores.coords if name not in coordinates]
    )
    table = scores.to_dataframe(dim_order=["series", "layer", "head"]).reset_index()
    return table[["series", "layer", "head", *columns, *ranks]].rename(
        columns={"name": "component"}
    )


def read_explore(ds: xr.Dataset, series: int = 0) -> list[str]:
    """Return a sentence on the heads of the largest ablation effect.

    Further sentences say what the first of them reads, and which heads write most.
    """
    if flat := describe_flat(ds, series, "heads"):
        return flat
    one = ds.isel(series=series)
    shift = effects_of_heads(one, "mean_shift").transpose("layer", "head")
    acting = shift.where(shift > one["mean_shift_floor"])
    reading = None
    if acting.notnull().any():
        layer, head = np.unravel_index(np.nanargmax(acting.values), acting.shape)
        reading = describe_attention(ds, series, int(layer), int(head))
    return summarize(
        ds.isel(series=[series]),
        "Heads of {kind} whose ablation moves the forecast most, on average: "
        "{acting:largest unit}; median head {shift:median unit}.",
        "Where the first of them looks: {reading} ({share:percent} of its attention,"
        " mean over steps).",
        "Heads that write most, on average: {write_size:largest unit}.",
        noun="heads",
        labels=lambda ds: ds["name"].transpose("layer", "head").values.ravel().tolist(),
        kind=attention_kind(ds),
        acting=acting.fillna(0.0),
        shift=shift,
        reading=reading and reading.words,
        share=reading and reading.most,
    )


def head_name(ds: xr.Dataset, layer: int, head: int) -> str:
    """Name a head's layer and number; both are positions."""
    return component_name(
        ds, names(ds, "component").index(str(ds["name"].values[layer, head]))
    )


def component_name(ds: xr.Dataset, index: int) -> str:
    """Return the name of a component's layer, and its head.

    The kind of attention is named where the stack has several.
    """
    # the view has heads along an axis of this name, an ablation has not
    prefix = "component_" if "component_kind" in ds.coords else ""
    kinds = ds[f"{prefix}kind"].values.astype(str)
    heads = ds[f"{prefix}head"].values
    layer = layer_name(str(ds[f"{prefix}layer"].values[index]))
    kind = kind_word(kinds[index])
    if heads[index] < 0:
        return f"{layer}, {kind}"
    several = len(set(kinds[heads >= 0])) > 1
    if several:
        return f"{layer}, {kind} head {heads[index]}"
    return f"{layer}, head {heads[index]}"


def _of_heads(ds: xr.Dataset) -> xr.Dataset:
    """Select the effects of the heads that are shown, (layer, head, series)."""
    # one axis has one unit, and series may differ in theirs
    units = {find_unit(ds, position) for position in range(ds.sizes["series"])}
    attrs = {"long_name": "mean change", "units": "data units"}
    if len(units) == 1:
        attrs["units"] = units.pop() or "data units"
    shift = effects_of_heads(ds, "mean_shift").assign_attrs(attrs)
    return shift.to_dataset().assign_attrs(ds.attrs)


draw_shifts = generic_figure(
    "head_states",
    "mean_shift",
    "Mean change of the forecast without each head.",
    prepare=_of_heads,
    options={"series": 0},
)


@panels("head_states")
def _explore(ds: xr.Dataset) -> Iterator[FigurePanel]:
    for position, label in enumerate(names(ds, "series")):
        table = heads_table(ds.isel(series=[position]))
        drawn = draw_shifts(ds, series=position)
        yield FigurePanel(drawn, table, read_explore(ds, position), series=label)
