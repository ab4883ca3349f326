"""Heads one at a time: what each reads, and what it does to the forecast.

:func:`describe_attention` returns the :class:`Reading` of one head; :func:`heads_table`
and :func:`read_explore` are over all heads of a result. The page that links them is in
:mod:`tsfm_lens.viz.linked`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from tsfm_lens.core.axes import layer_name
from tsfm_lens.core.registry import FigurePanel, panels
from tsfm_lens.viz.attention import attention_kind
from tsfm_lens.viz.findings import describe_flat
from tsfm_lens.viz.generic import generic_figure
from tsfm_lens.viz.select import (
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


@dataclass(frozen=True)
class Reading:
    """Where a head looks most, as the mean over the forecast's steps shows it.

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
    """

    form: str
    back: int
    start: int
    stop: int
    share: float
    rest: float
    others: str

    @property
    def words(self) -> str:
        """Say where, in a few words."""
        if self.form == "even":
            return "evenly"
        if self.form in ("rest", "nothing"):
            return self.others
        steps = f"{self.back} step{'' if self.back == 1 else 's'}"
        if self.form == "lag":
            return f"{steps} back"
        return f"{steps} before the forecast"

    @property
    def most(self) -> float:
        """Share of the attention that the words speak of."""
        if self.form in ("rest", "nothing"):
            return self.rest
        return self.share

    def as_plain(self) -> dict[str, Any]:
        """Return it for a page."""
        return asdict(self)


def describe_attention(ds: xr.Dataset, series: int, layer: int, head: int) -> Reading:
    """Read the attention of one head; all arguments are positions.

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
    return Reading(form, back, start, stop, share, rest, other_tokens)


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
    """Name the heads of the largest ablation effect.

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
    """Name a component's layer, and its head.

    The kind of attention is named where the stack has several.
    """
    kinds = ds["component_kind"].values.astype(str)
    heads = ds["component_head"].values
    layer = layer_name(str(ds["component_layer"].values[index]))
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
