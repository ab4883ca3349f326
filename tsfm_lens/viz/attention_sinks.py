"""Attention sinks of all heads, and what each is for."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from tsfm_lens.core.registry import figure
from tsfm_lens.viz.maps import colour_scale
from tsfm_lens.viz.select import array, kind_word, name_model, names
from tsfm_lens.viz.sheet import sheet
from tsfm_lens.viz.theme import VERMILION, number, percent, plain

__all__ = ["sink_map"]

_MEANING = {
    "nop": "its value does not matter, but without it the head reads other tokens",
    "bias": "its value matters, but is the same for all series: a constant",
    "broadcast": "its value matters, and so does how that differs between series",
    "idle": "nothing of it matters to the forecast",
    "bias or broadcast": "its value matters; one series cannot tell how",
}
_CHANGES = {
    "value_zero": "value set to zero",
    "value_mean": "value set to its mean over series",
    "masked": "token masked",
    "head_zero": "whole head set to zero",
}


def read_sinks(ds: xr.Dataset) -> list[str]:
    """Describe each sink, or state that there is none."""
    kinds = ds["sink"].values.astype(str)
    found = np.flatnonzero(kinds != "none")
    least = number(ds.attrs["least"])
    rule = f"{least} times the odds of an even share"
    odds = array(ds, "odds_size", "component")
    mass = _median_mass(ds)
    if not len(found):
        largest = "no head has enough queries that see enough keys"
        if np.isfinite(mass).any():
            largest = "the contexts of all series are flat"
        if np.isfinite(odds).any():
            at = int(np.nanargmax(odds))
            largest = (
                f"the largest are {number(odds[at])}, of {names(ds, 'component')[at]}"
            )
        return [f"No sink: no token has {rule} of a head's attention; {largest}."]
    have = "has" if len(found) == 1 else "have"
    sentences = [
        f"Sinks, tokens with {rule} or more of a head's attention: {len(found)} of"
        f" {len(kinds)} heads {have} one."
    ]
    for at in found.tolist():
        changes = [
            f"{words}: {percent(float(ds[f'{name}_size'].values[at]))}"
            for name, words in _CHANGES.items()
            if np.isfinite(ds[f"{name}_size"].values[at])
        ]
        sentences.append(
            f"{names(ds, 'component')[at]}, on {_name_token(ds, at)} with"
            f" {percent(float(mass[at]))} of the attention, is {kinds[at]}:"
            f" {_MEANING[str(kinds[at])]}. The forecast moves by, as a share of the"
            f" series' range: {', '.join(changes)}."
        )
    if "odds_learned" in ds:
        learned = ds["odds_learned"].values[found]
        twins = int(ds["odds_learned"].attrs["twins"])
        sentences.append(
            f"{int(learned.sum())} of {len(found)} sinks have higher odds than any head"
            f" of {twins} untrained twins."
        )
    smallest = percent(ds.attrs["smallest"])
    return [
        *sentences,
        f"What moves the forecast by no more than {smallest} of the range does not"
        " matter here.",
    ]


def sink_table(ds: xr.Dataset) -> pd.DataFrame:
    """Tabulate the heads, those with a sink first, and the changes of each sink."""
    table = pd.DataFrame(
        {
            "component": names(ds, "component"),
            "sink": ds["sink"].values,
            "token": [_name_token(ds, at) for at in range(ds.sizes["component"])],
            "mass": _median_mass(ds),
            "odds": ds["odds_size"].values,
        }
    )
    for name in _CHANGES:
        table[name] = ds[f"{name}_size"].values
    has_none = table["sink"] == "none"
    return table.sort_values("sink", key=lambda _: has_none, kind="stable")


@figure(
    "attention_sinks",
    "Attention sink of every head, and what it is for.",
    table=sink_table,
    sentences=read_sinks,
)
def sink_map(ds: xr.Dataset) -> go.Figure:
    """Draw how much attention each head's strongest token has, and name the sinks.

    Args:
        ds: result of kind "attention_sinks".

    Returns:
        One map, attention × head, of shares of attention. Sinks are outlined and bear
        their name; a cell is empty where too few queries see enough keys.

    Example:
        >>> fig = viz.sink_map(probes.attention_sinks(run))
        >>> fig.data[0].z.shape  # 9 attentions × 4 heads
        (9, 4)
    """
    mass = _median_mass(ds)
    kinds = ds["sink"].values.astype(str)
    branches = pd.Series(
        [
            f"{stack} {layer} {kind_word(str(kind))}".strip()
            for stack, layer, kind in zip(
                ds["stack"].values, ds["layer"].values, ds["kind"].values, strict=True
            )
        ]
    )
    rows, labels = pd.factorize(branches)
    heads = ds["head"].values
    shape = (len(labels), int(heads.max()) + 1)
    values = np.full(shape, np.nan)
    texts = np.full(shape, "", dtype=object)
    notes = np.full(shape, "", dtype=object)
    values[rows, heads] = mass
    texts[rows, heads] = np.where(kinds == "none", "", kinds)
    notes[rows, heads] = [
        plain(f"{_name_token(ds, at)}, {number(odds)} times the odds of an even share")
        for at, odds in enumerate(ds["odds_size"].values)
    ]
    canvas = sheet(
        [max(24 * shape[0], 130)], [1], min_width=max(420, 170 + 60 * shape[1])
    )
    (panel,) = canvas
    panel.cells(
        values,
        np.arange(shape[1]),
        labels.tolist(),
        "%{y}, head %{x}<br>%{z:.3f} of the attention<br>%{customdata}",
        customdata=notes.tolist(),
        text=texts.tolist(),
        texttemplate="%{text}",
        name="attention",
    )
    panel.frames(texts != "", VERMILION)
    canvas.colours(colour_scale("share of attention", low=0.0, high=1.0))
    canvas.x("head", type="category", ticks="")
    canvas.y(type="category", autorange="reversed", ticks="")
    count = int((kinds != "none").sum())
    found = f"outlined: {count} of {len(kinds)} heads have a sink"
    if count == 1:
        found = f"outlined: 1 of {len(kinds)} heads has a sink"
    if not count:
        found = "no head has a sink"
    return canvas.finalize(
        f"Attention on the strongest token of each head of {name_model(ds)}", found
    )


def _median_mass(ds: xr.Dataset) -> np.ndarray:
    """Return each head's attention on its token, median over series that have one."""
    result: np.ndarray = ds["mass"].median("series").values
    return result


def _name_token(ds: xr.Dataset, at: int) -> str:
    """Name the strongest token of a component by what it is, or by its steps."""
    label = str(ds["key_special"].values[at])
    if label:
        return label
    start = int(ds["key_start"].values[at])
    last = int(ds["key_stop"].values[at]) - 1
    if start >= last:
        return f"step {last}".replace("-", "−")
    return f"steps {start} to {last}".replace("-", "−")
